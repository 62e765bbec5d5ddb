"""The rows that wait to be sent: their batches, the queues of these batches, and their memory. Start at record_accumulator.py.

How rows fail, in this code's words
    fail_unbatched  rows that got into no batch get their error
    poison          a batch that must not be sent is marked: take_expired takes it when no caller writes into it any more
    take            batches leave their queues (take_expired, take_undrained …), and the code that takes them fails them
    fail            the rows of a batch get their error (BatchOutcomes.fail, or `abort` for a reason other than a broker's answer)
"""
