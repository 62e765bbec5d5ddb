"""FindCoordinator: the broker that has the state of a group or of a transactional id (FindCoordinatorRequest.json, KIP-699).

Up to version 3 a request asks for one key, in `key`, and the answer is the response itself. From version 4 on it asks for
`coordinator_keys`, and `coordinators` has an answer for each. `for_keys` fills both, so that the message can be made before the
version is known; `answer_for` reads both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.primitives import Buffer
from spark_kafka_sink.protocol.schema import IGNORABLE, Int8, Int16, Int32, Message, Request, between, since, until

FIRST_VERSION_WITH_KEYS = 4


class KeyType(IntEnum):
    """The kind of key."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator(Message):
    key: str
    node_id: Int32 = -1
    host: str = ""
    port: Int32 = -1
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse(Message):
    API_KEY: ClassVar = ApiKey.FIND_COORDINATOR

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, until(3)] = 0
    error_message: Annotated[str | None, between(1, 3), IGNORABLE] = None
    node_id: Annotated[Int32, until(3)] = -1
    host: Annotated[str, until(3)] = ""
    port: Annotated[Int32, until(3)] = -1
    coordinators: Annotated[tuple[Coordinator, ...], since(4)] = ()

    def answer_for(self, key: str, version: int) -> Coordinator | None:
        """The answer for one of the requested keys; None if the broker did not return it."""
        if version >= FIRST_VERSION_WITH_KEYS:
            return next((coordinator for coordinator in self.coordinators if coordinator.key == key), None)
        return Coordinator(
            key=key,
            node_id=self.node_id,
            host=self.host,
            port=self.port,
            error_code=self.error_code,
            error_message=self.error_message,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest(Request[FindCoordinatorResponse]):
    """Asks for coordinators. Has the key in both forms; the version decides which one is sent. Several keys need version 4."""

    key: Annotated[str, until(3), IGNORABLE] = ""
    key_type: Int8 = KeyType.GROUP
    coordinator_keys: Annotated[tuple[str, ...], since(4), IGNORABLE] = ()

    @classmethod
    def for_keys(cls, key_type: KeyType, keys: Sequence[str]) -> FindCoordinatorRequest:
        """A request for these keys, at least one."""
        return cls(key=keys[0] if len(keys) == 1 else "", key_type=key_type, coordinator_keys=tuple(keys))

    def encode(self, version: int) -> list[Buffer]:
        """As Message.encode. Raises UnsupportedVersionError for keys that the version cannot carry, and never omits them."""
        if version >= FIRST_VERSION_WITH_KEYS:
            is_lossy = bool(self.key) and self.key not in self.coordinator_keys
        else:
            is_lossy = bool(self.coordinator_keys) and self.coordinator_keys != (self.key,)
        if is_lossy:
            raise UnsupportedVersionError(
                f"FindCoordinatorRequest v{version} cannot carry key={self.key!r} with coordinator_keys={self.coordinator_keys!r}"
            )
        return super(FindCoordinatorRequest, self).encode(version)
