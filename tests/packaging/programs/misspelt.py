"""Each line that ends in `# error` has a name that does not exist, or a value of a wrong type. Type checkers find all six."""

import spark_kafka_sink
from spark_kafka_sink import KafkaProducer, TransactionClient

print(spark_kafka_sink.exactly_once_option("orders", 1))  # error

with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    producer.flush(timout_ms=1_000)  # error
    print(producer.send("orders", b"value").result().ofset)  # error

with TransactionClient({"bootstrap.servers": "localhost:9092"}) as client:
    client.fence(["orders-1"], timeout_ms="soon")  # error

KafkaProducer(bootstrap_servers="localhost:9092")  # error

from spark_kafka_sink import KafkaProduser as KafkaProduser  # noqa: E402  # error
