"""The Sender thread: its rounds, its requests, and the outcomes of batches. Start at sender.py."""
