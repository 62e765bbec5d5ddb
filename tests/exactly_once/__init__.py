"""Exactly-once writes, driven by hand: each task and driver is an object that a test moves step by step.

stepwise_writes.py has these objects. They use the real producer and the real client, against the fake broker here and against
real brokers in tests/integration. protocol_model.py moves a model of tasks and drivers instead, in every order of steps.
trace_replay.py moves the built code in the orders of the model.
"""
