"""Rows on their way from Spark to the producer, and what happens to those that cannot be written.

On the driver    spark_columns.py finds the columns of the DataFrame and checks their types
In a task        gathering.py joins Spark's batches, chunk.py holds rows, row_sender.py sends them, throttle.py keeps the rates
Rejected rows    refused_rows.py finds them; refused_before_sending.py has it do so when the producer rejects a chunk, and
                 refused_by_brokers.py reads what a broker says; row_outcomes.py skips them, or dead_letters.py sends them
"""
