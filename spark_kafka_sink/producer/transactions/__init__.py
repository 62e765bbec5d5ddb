"""The producer's transactions. Each file stands on those below it, all on idempotence/ and txn_requests/:

transactional_methods   callers: the public methods
caller_side             callers: admits rows, posts each call and waits for its outcome
transaction_manager     the Sender: carries calls out, and moves the state
transaction_states      the states, and what each allows
"""
