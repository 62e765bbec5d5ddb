"""SASL mechanisms. Each computes messages and checks challenges, and knows no connection.

    login.py         the interface of a mechanism; PLAIN
    scram.py         SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677, Kafka's delegation tokens)
    oauthbearer.py   OAUTHBEARER (RFC 7628): sends a token that tokens.py keeps and renews
    token_sources.py tokens that are created here, or come from a Python function, a file or AWS
    token_endpoint.py   tokens from an OAuth server: client credentials (KIP-768), JWT bearer (KIP-1139)
    jwt_assertion.py    the assertion of the JWT bearer flow
    kerberos.py      GSSAPI (RFC 4752), with python-gssapi
    factory.py       the mechanism that a configuration names

Law: a secret lives in Secret, SecretBytes or an object whose repr hides it, never in a local of a function that may raise.
"""
