"""The API of the old Scala producer (Kafka 0.8 to 1.1), for porting code that was written for it.

    producer.py         Producer: send and close, in sync and async mode
    event_handler.py    one dispatch of messages and its retries
    messages.py         KeyedMessage
    partitioner.py      the old partitioner
    errors.py           what only this producer raises
    config.py           the old options, and the serializers and the partitioner that they name

Built on KafkaProducer. The rest of spark_kafka_sink imports from here only the options (option_tables.py) and the errors.
"""
