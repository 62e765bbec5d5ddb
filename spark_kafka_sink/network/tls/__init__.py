"""TLS: connector.py opens the connections of one client and encrypts them; ssl_context.py reads the
ssl.* options; peer.py says what a broker has shown."""
