"""Avro's types, each with how a column of it becomes bytes. avro_encoder.py encodes with them, resolution.py chooses them.

nested.py      records, arrays, maps, unions
values.py      numbers, strings, bytes, enums
decimals.py    decimals
encoding.py    what they have in common: pieces of rows, joined in blocks, and rows that are refused
defaults.py    the bytes of a field's default
"""
