"""`send_table`: tables of any library and streams, batch by batch.

table_sender.py    has ColumnSender queue one batch after the other, into one Delivery
table_batches.py   reads the batches of a table (Arrow's C stream and C array)
table_columns.py   their columns: the Arrow types are checked, and layouts converted
"""
