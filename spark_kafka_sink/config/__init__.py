"""Every option of the sink and of KafkaProducer, declared once, with its type, default, allowed values and documentation.

    option.py                what an option is, and how a value is read and checked
    secret.py                values that must never show
    producer_config.py       ProducerConfig: the producer's options under Kafka's own keys
    security_config.py       SecurityConfig: the producer's options of TLS and SASL
    producer_rules.py        what the producer's options require of each other, and defaults that depend on others
    serializer_config.py     SerializerConfig: the options of the producer's Avro serializers
    registry_config.py       RegistryConfig: the options of a schema registry under Confluent's names
    keys_without_effect.py   keys that are accepted with a warning
    other_clients.py         what the options of librdkafka and kafka-python are here
    sasl.py                  what the SASL options mean together, and their rules
    jaas.py                  the syntax of sasl.jaas.config
    dotted_names.py          names of Python classes and functions in options, and how they are loaded
    topic_names.py           which names a topic may have
    format_options.py        formats and schemas of keys and values
    sink_options.py          SinkOptions: what a Spark user writes with `.option(…)`

The options of the old producer are in legacy/config.py. `python -m spark_kafka_sink.option_tables` prints all of them.
"""
