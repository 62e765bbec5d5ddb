"""Every option, declared once: the producer's, the logins' (JAAS), the sink's, and the dotted names that options hold."""
