"""What is plugged into a producer: users' own classes. docs/plug-ins.md tells users how to write them.

producer_plugins.py     what one producer has of all this; and its Avro serializers, which are in avro_serializers.py
partitioner.py          `partitioner.class`
interceptors.py         `interceptor.classes`
columns_as_records.py   columns to records and back, for interceptors that take one record at a time
plugin.py               loads, creates, configures and closes the objects that options name
"""
