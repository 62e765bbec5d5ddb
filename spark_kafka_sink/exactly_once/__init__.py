"""Exactly-once writes that are spread over many processes: one transaction per task, ended by the driver.

Words
    prefix          option transactionalIdPrefix; one query or job at a time uses it
    owner           whose writes follow each other: a streaming query's id, txnAppId, or all df.write without a name
    version         the number of a write within its owner: a stream's batch id, txnVersion, or when the write was planned
    run             one life of the driver. No task knows which one it belongs to, and no name contains it
    attempt         one try of a task; two tries that run at the same time never share a transactional id
    marker          a task's record, inside its transaction, that the rows of its partition are in Kafka; not Kafka's transaction
                    markers, which brokers write: those are control records in this code
    decision        the driver's record that a version is to be committed

A task writes its rows and its marker into a transaction and leaves it open (task_attempt.py). The driver writes the decision,
then commits the transactions of all tasks (version_commit.py). A later repetition of the write finds the decision and
the markers, and does what is left to do. Markers and decisions are offsets of consumer groups (ledger.py). They need no topic of
their own, and a marker is committed together with the rows or not at all.

Files
    names.py            transactional ids and groups, by prefix, owner, partition and attempt
    writes.py           which write it is, its content, and what a task reports
    fingerprint.py      the content of a partition in 64 bits, whatever the order of its rows
    ledger.py           markers, decisions and records of aborted writes: how they are read and written
    ledger_records.py   what these records say, and their encoding
    fencing.py          which transactional ids are not at rest, and how they are fenced
    settling.py         whether the control records of transactions have come to all places, and what is done where not
    task_attempt.py     what a task does before and after its rows
    version_commit.py   what the driver does: check, decide, commit, fence
    version_checks.py   what tasks report, compared with what coordinators say
    decisions.py        finds decisions, carries them out, and aborts what is not decided; not only for the driver
    heartbeat.py        the sign that a task is at work

Uses `producer` and `admin`; does not import pyspark.
"""
