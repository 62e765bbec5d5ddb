"""Values that must never show: passwords, private keys, tokens, and the messages that carry them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from urllib.parse import quote, quote_plus

HIDDEN = "[hidden]"

# A key or certificate, a login of JAAS, a password by its name, and text of several lines that is no list with commas.
_SECRETS = re.compile(r"-----BEGIN|LoginModule\s+\w|(?:password|passphrase|secret)\s*=|[^,\s][^\S\n]*\n\s*[^,\s]", re.IGNORECASE)


_MIN_SECRET_CHARACTERS = 4  # a shorter one is not searched for, as ordinary words may contain it


def looks_like_a_secret(text: str) -> bool:
    return _SECRETS.search(text) is not None


def concealer(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function for the texts of a server: writes [hidden] where they repeat one of the secrets, as it is or URL-encoded."""
    long_secrets = [secret for secret in secrets if len(secret) >= _MIN_SECRET_CHARACTERS]
    forms = {form for secret in long_secrets for form in (secret, quote(secret, safe=""), quote_plus(secret))}
    pattern = re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True))))

    def conceal(text: str) -> str:
        return pattern.sub(HIDDEN, text) if forms else text

    return conceal


def forms_of_basic_login(credentials: str) -> tuple[set[str], str]:
    """What a server may repeat of the base64 text of a basic login: with and without padding, and as user:password; and the
    password alone."""
    pair = base64.b64decode(credentials).decode()
    return {credentials, credentials.rstrip("="), pair}, pair.partition(":")[2]


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
