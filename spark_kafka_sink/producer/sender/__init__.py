"""The Sender thread: its rounds, its requests, the outcomes of batches, producer id and sequence numbers. Start at sender.py."""
