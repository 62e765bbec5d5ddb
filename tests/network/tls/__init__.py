"""network/tls: connections, and the stores with keys and certificates."""
