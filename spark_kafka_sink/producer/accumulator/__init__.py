"""The rows that wait to be sent: their batches, the queues of these batches, and their memory. Start at record_accumulator.py."""
