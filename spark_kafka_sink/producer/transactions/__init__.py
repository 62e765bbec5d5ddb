"""The producer's identity and its transactions. Each file stands on those below it:

transactional_methods   callers: the public methods
caller_side             callers: admits rows, posts each call and waits for its outcome
transaction_manager     the Sender: the state of a transactional producer; carries calls out
sequencer               the Sender: producer id, epochs and sequence numbers; also for producers that use none
txn_request_queue       the queue of requests to coordinators
txn_request_handlers    each of these requests, what its answer means, and what brokers know of the open transaction
transaction_errors      what each error means, and the errors that callers get
transactional_call      what a caller waits for, and the queue in which the Sender finds it
group_offsets           the arguments of send_offsets_to_transaction
"""
