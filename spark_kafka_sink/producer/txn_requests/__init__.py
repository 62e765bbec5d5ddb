"""The producer's requests to coordinators. Each file stands on those below it:

txn_request_queue       queues them, and sends one at a time
txn_request_handlers    each of them, what its answer means, and what brokers know of the open transaction
transaction_errors      what each error means, and the errors that callers get
transactional_call      what a caller waits for, and the queue in which the Sender finds it
group_offsets           the arguments of send_offsets_to_transaction
"""
