"""network/sasl: mechanisms, and where tokens come from."""
