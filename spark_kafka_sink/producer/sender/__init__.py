"""The Sender thread: the loop, the fates of batches, who the producer is to the brokers, and its sequence numbers."""
