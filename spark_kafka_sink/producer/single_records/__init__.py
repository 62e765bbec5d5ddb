"""`send`: single records wait in bundles, one per topic. A bundle becomes columns, which ColumnSender queues.

record_gatherer.py   the bundles of a producer, and when each is encoded
record_bundle.py     one bundle, its futures and callbacks
"""
