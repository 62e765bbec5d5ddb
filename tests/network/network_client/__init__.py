"""network_client.py over a fake Selector (harness.py), and over real sockets with the fake broker."""
