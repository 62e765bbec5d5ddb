"""Columns as Avro, and framed with the ids of a schema registry.

    registry.py      the registry: schemas by subject, version, id; registers; checks compatibility
    subjects.py      which subject the schema of a key or a value has
    derivation.py    from an Arrow type to the text of an Avro schema
    frame.py         the bytes before a payload whose schema is registered

Imported only when a format asks for it. Knows no Spark, no producer and no sink.
"""
