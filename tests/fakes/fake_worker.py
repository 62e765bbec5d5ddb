"""A BackgroundWorker without threads: the next poll does the work, unless the test holds it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from spark_kafka_sink.network.background import Outcome, outcome_of


class _Waiting(NamedTuple):
    work: Callable[[], Any]
    deadline_ms: int
    key: object


class FakeWorker:
    def __init__(self) -> None:
        self.holds_logins = False
        self.silent_names: set[str] = set()  # hosts for which DNS does not answer
        self.waiting: dict[int, _Waiting] = {}

    def start(self, node_id: int, work: Callable[[], Any], deadline_ms: int, *, key: object = None) -> None:
        assert node_id not in self.waiting
        self.waiting[node_id] = _Waiting(work, deadline_ms, key)

    def take_finished(self) -> list[tuple[int, Outcome]]:
        done = {node_id: waiting for node_id, waiting in self.waiting.items() if not self._is_held(waiting.key)}
        self.waiting = {node_id: waiting for node_id, waiting in self.waiting.items() if node_id not in done}
        return [(node_id, outcome_of(waiting.work)) for node_id, waiting in done.items()]

    def _is_held(self, key: object) -> bool:
        return key[0] in self.silent_names if isinstance(key, tuple) else self.holds_logins

    def overdue_nodes(self, now_ms: int) -> list[int]:
        return [node_id for node_id, waiting in self.waiting.items() if now_ms >= waiting.deadline_ms]

    def forget(self, node_id: int) -> None:
        self.waiting.pop(node_id, None)
