"""Users' own classes: the partitioner and the interceptors of a producer. docs/plug-ins.md tells users how to write them.

plugin.py               loads, creates and configures what an option names
partitioner.py          `partitioner.class`
interceptors.py         `interceptor.classes`
columns_as_records.py   columns to records and back, for interceptors that take one record at a time
"""
