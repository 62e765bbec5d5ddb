"""Columns as Avro, and framed with the ids of a schema registry.

    wanted_schema.py   which schema keys or values have; plans it, asks for it, registers it
    part_encoder.py   what tasks get: the encoder, and the frame
    known_schemas.py   a registry whose answers are kept in this process
    registry.py        the registry: schemas by subject, version, id; registers; checks compatibility
    registry_client.py    requests to its addresses, with repetitions and limits
    registry_pools.py     connections, with TLS, a proxy and a way to end an attempt
    registry_login.py     by password, token or OAuth
    registry_errors.py    what its refusals mean
    differences.py     how a derived schema differs from a registered one, in words
    subjects.py        which subject the schema of a key or a value has
    frame.py           the bytes before a payload whose schema is registered
    derivation.py      from an Arrow type to the text of an Avro schema
    avro_schema.py     Avro's schema language: from that text to types
    resolution.py      which column is written as which part of a schema; all that keeps them apart
    avro_encoder.py    columns → Avro's binary form, and the rows that are refused
    avro/              each of Avro's types: how a column of it becomes bytes

Imported only when a format asks for it. Knows no Spark, no producer and no sink.
"""
