"""Rows on their way from Spark to the producer, and what happens to those that cannot be written.

On the driver    spark_columns.py finds the columns of the DataFrame and checks their types, arrow_types.py converts the types
In a task        gathering.py joins Spark's batches, chunk.py holds rows, row_sender.py sends them, rate_limit.py keeps the rates;
                 idle_timeout.py compares the rates with Spark's time-out first
                 row_encoder.py encodes keys and values that have a format; json_rows.py shows what cannot be encoded
Rows that cannot be written are refused or rejected: the client refuses a row before it is queued, a broker rejects a batch.
Refused rows     find_refused_rows.py finds them when the producer has refused a chunk, remove_refused_rows.py takes them out
Rejected rows    rejected_by_brokers.py reads which rows of a batch a broker blames
Both             row_outcomes.py fails the task, skips them, or has dead_letters.py send them
"""
