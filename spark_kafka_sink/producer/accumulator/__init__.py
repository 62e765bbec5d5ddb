"""The rows that wait to be sent: their batches, the queues of these batches, and their memory. Enter at record_accumulator.py."""
