"""The rows that wait to be sent: their batches, the queues of these batches, and their memory. Start at record_accumulator.py.

How rows fail, in this code's words
    fail_unbatched  rows that got into no batch get their error
    poison          a batch that a caller still writes into is not sent: it fails when that caller has finished
    take            batches leave their queues (take_expired, take_undrained …); whoever takes them has them fail
    fail            the rows of a batch get their error (BatchOutcomes.fail; `abort` where no answer of a broker says so)
"""
