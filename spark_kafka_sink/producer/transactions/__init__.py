"""The producer's identity and its transactions: what callers ask, what the Sender does about it, what coordinators answer."""
