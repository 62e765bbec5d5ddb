"""The Sender thread: its rounds, its requests, the fates of batches, producer id and sequence numbers. Start at sender.py."""
