"""Exactly-once writes, driven by hand: each task and driver is an object that a test moves step by step.

driving.py has them; they use the real producer and the real client, against the fake broker here and against real brokers in
tests/integration. protocol_model.py has a model of them instead, and moves it in every order of steps. replaying.py moves the
built code in the orders of the model.
"""
