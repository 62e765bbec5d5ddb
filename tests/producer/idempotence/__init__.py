"""Tests of sequence numbers: given out once, kept through retries, renumbered in a new epoch only."""
