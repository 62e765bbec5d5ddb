"""What a tool raises for its user: the text is one sentence, with the remedy. exit_codes.py has the code of each class."""

from __future__ import annotations


class UsageError(Exception):
    """The command line, or a file that it names, is wrong. The text is one sentence; the exit code is 2."""


class ToolError(Exception):
    """A problem of the environment or the request. The text is one sentence for the user, with the remedy."""
