"""Values that must never show: passwords, private keys, tokens, and the messages that carry them."""

from __future__ import annotations

import re

HIDDEN = "[hidden]"

# A key or certificate, a login of JAAS, a password by its name, and text of several lines that is no list with commas.
_SECRETS = re.compile(r"-----BEGIN|LoginModule\s+\w|(?:password|passphrase|secret)\s*=|[^,\s][^\S\n]*\n\s*[^,\s]", re.IGNORECASE)


def looks_like_a_secret(text: str) -> bool:
    return _SECRETS.search(text) is not None


class Secret:
    """A value that only `reveal()` shows. Its repr, its str and a traceback with locals show [hidden]."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


class SecretBytes(bytes):
    """Secret bytes, such as a message of a SASL exchange. Their repr is [hidden], but a slice is plain bytes, which are shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__
