"""Plug-ins of a producer: users' own classes. docs/plug-ins.md tells users how to write them.

producer_plugins.py     all plug-ins of one producer, and its Avro serializers (producer/avro/avro_serializers.py)
partitioner.py          `partitioner.class`
interceptors.py         `interceptor.classes`
columns_as_records.py   columns to records and back, for interceptors that take one record at a time
plugin.py               loads, creates, configures and closes the objects that options name
"""
