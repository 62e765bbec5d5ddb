"""The producer's id and epoch, and the sequence numbers of its batches. Each file stands on those below it:

idempotent_sequencer    a producer without transactions: receives its id, and bumps its epoch
numbering               assigns sequence numbers, and keeps them per partition; also for producers with transactions
sequencer               what the Sender asks of each producer; as it is, for one without idempotence
"""
