"""TLS: connector.py opens the connections of one client and encrypts them; ssl_context.py applies the ssl.* options, stores.py
reads the files that they name; peer.py says what a broker has shown."""
