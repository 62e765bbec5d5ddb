"""The options of the sink and of the producer: `pykafka-sink options` is the command.

command.py      which options are shown, as text and as JSON
"""
