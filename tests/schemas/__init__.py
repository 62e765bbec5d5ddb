"""Tests of schemas/: its language, columns → bytes, registries."""
