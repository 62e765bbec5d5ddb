"""`key.serializer=avro` and `value.serializer=avro`. Only producers that have one of them load this.

avro_serializers.py   asks the registry for schemas, and encodes columns and the objects of bundles
avro_rows.py          objects of Python to Arrow columns, by their schema
"""
