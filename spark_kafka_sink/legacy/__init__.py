"""The old Scala producer (Kafka 0.8 to 1.1), whole: options, partitioner, dispatch. Nothing else imports it."""
