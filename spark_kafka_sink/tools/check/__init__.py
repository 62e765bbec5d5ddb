"""Whether a write would succeed, seen from this host: `pykafka-sink check` is the command.

command.py           arguments and exit codes
inspection.py        all checks in order, each phase within its time
contact.py           makes a connection to each server, step by step, and keeps what each step has found out
asks.py              asks the brokers about topics, groups and transactional ids, side by side
writing.py           --write: sends one record
connections.py       judges names, servers, TLS, logins, versions, the cluster
releases.py          finds the release of Kafka from a broker's answer to ApiVersions
registry_answers.py  asks the schema registry, if keys or values are encoded or framed, and judges the answers
topics.py            judges a topic: leaders, replicas, sizes, compression, permissions
exactly_once.py      judges what exactly-once needs, and what earlier writes have left
results.py           what a check says: green, yellow or red, what was found, what to do
output.py            lines for people, with colors on a terminal, and JSON

Judges are pure: they take what was found out, and return results.
"""
