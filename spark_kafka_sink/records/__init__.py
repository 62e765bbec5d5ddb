"""Arrow columns → RecordBatch v2 bytes, whole columns at a time.

    row_mapping.py     which column of a table is which part of a record
    columns.py         the columns of one slice, checked and prepared
    record_batch.py    the size of each row in bytes; the bytes of all rows; the 61 bytes of the batch header
    interleave.py      columns joined row by row, without a loop over rows
    layouts.py         columns in any of Arrow's layouts: pieces joined, rows picked, dictionaries decoded
    split_records.py    encoded records divided into new batches, for batches that have to be split
    arrays.py          Arrow's arrays from numpy's and Python's values, and back, without pandas
    varint.py          the numbers inside a record
    compression.py     the codecs
    crc32c.py          the checksum of a batch
    murmur2.py         the partition of a key

Pure functions of their arguments: no threads, no clock, no sockets. This package knows nothing of brokers, requests, or the
memory of batches.
"""
