"""Measures how fast a topic can be written, like kafka-producer-perf-test: `pykafka-sink perf` is the command.

payloads.py             the values of the records
sending.py              sends the records, as columns or one by one
measurements.py         records per second and latencies, and the lines that show them
transaction_pace.py     when transactions begin and end
command.py              arguments, exit codes
"""
