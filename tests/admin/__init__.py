"""Tests of spark_kafka_sink/admin: over a scripted network, over sockets against the fake cluster, and a real broker."""
