"""Tests of the Sender: one thread, a manual clock, and brokers that the test plays."""
