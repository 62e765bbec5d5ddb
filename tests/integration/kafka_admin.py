"""Moves leaders, and waits for replicas."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PREFERRED = 0  # election type: the first replica


class Admin:
    """Moves leaders, and waits for replicas, by another client."""

    def __init__(self, bootstrap_servers: str) -> None:
        from kafka.admin import KafkaAdminClient

        self._client = KafkaAdminClient(bootstrap_servers=bootstrap_servers.split(","))

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def replicas(self) -> dict[int, list[int]]:
        """Of each partition, the preferred leader first."""
        return {each["partition_index"]: list(each["replica_nodes"]) for each in self._partitions()}

    def leaders(self) -> dict[int, int]:
        return {each["partition_index"]: each["leader_id"] for each in self._partitions()}

    def _partitions(self) -> list[dict[str, Any]]:
        partitions: list[dict[str, Any]] = self._client.describe_topics(["t"])[0]["partitions"]
        return partitions

    def reassign(self, replicas: dict[int, list[int]]) -> None:
        """Give partitions other replicas, and their leadership to the first of them.

        Asks again until it is so: of a refusal in an answer kafka-python says nothing.
        """
        from kafka import TopicPartition

        reassignments = {TopicPartition("t", number): nodes for number, nodes in replicas.items()}

        def have_moved() -> bool:
            if self._client.list_partition_reassignments():
                return False
            if self.replicas() == replicas:
                return True
            self._client.alter_partition_reassignments(reassignments)
            return False

        def are_led() -> bool:
            if self.leaders() == {number: nodes[0] for number, nodes in replicas.items()}:
                return True
            self._client.elect_leaders(PREFERRED, {"t": list(replicas)}, raise_errors=False)  # one that leads already is an error
            return False

        self._await(have_moved)
        self._await(are_led)

    def await_in_sync(self, replicas: int) -> None:
        self._await(lambda: all(len(each["isr_nodes"]) == replicas for each in self._partitions()))

    def _await(self, condition: Callable[[], bool], limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {limit_s} s: {self._partitions()}"
            time.sleep(0.1)
