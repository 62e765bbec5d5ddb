"""Errors whose text is for the user of a tool. exit_codes.py has the exit code of each class."""

from __future__ import annotations


class UsageError(Exception):
    """The command line, or a file that it names, is wrong. The exit code is 2."""


class ToolError(Exception):
    """A problem of the environment or the request. The text says what to do about it; the exit code is 1."""
