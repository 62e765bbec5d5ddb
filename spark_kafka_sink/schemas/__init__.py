"""Schemas of keys and values: encodes columns as Avro, and puts the id of a registered schema before each payload.

    wanted_schema.py     which schema keys or values have: plans it, finds it in the registry or registers it
    part_encoder.py      what tasks get: the encoder and the frame of the keys or the values
    known_schemas.py     a registry whose answers are kept in this process
    registry.py          the registry: reads and registers schemas, checks compatibility
    registry_client.py   requests to the registry's addresses, with retries and time limits
    registry_pools.py    connections to the registry: TLS, a proxy, and a way to end an attempt
    registry_login.py    the login to the registry by password, token or OAuth
    registry_errors.py   what the registry's rejections mean
    differences.py       how a derived schema differs from a registered one, in words
    subjects.py          which subject the schema of a key or a value has
    frame.py             the bytes before a payload whose schema is registered
    derivation.py        from an Arrow type to the text of an Avro schema
    avro_schema.py       Avro's schema language: from that text to types
    resolution.py        which column is written as which part of a schema, and where the two do not fit
    avro_encoder.py      columns → Avro's binary form, and the rows that are refused
    avro/                each of Avro's types: how a column of it becomes bytes

Imported only when a format or an Avro serializer needs it. Knows no Spark, no producer and no sink.
"""
