"""Which names a topic may have. In Java: org.apache.kafka.common.internals.Topic."""

from __future__ import annotations

import re

TOPIC_NAME_RULE = "a topic's name is 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-', and not . or .."
_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    return _TOPIC_NAME.fullmatch(name) is not None
