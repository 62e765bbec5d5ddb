"""The rows that wait to be sent: where each row of a slice goes, the batches, their queues and their memory."""
