"""The configuration of a local cluster's nodes: one server.properties for each, KRaft, on 127.0.0.1."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs.ports import HOST


@dataclass
class LocalNode:
    """One process of the cluster. `pid` is None before it is started and after it was stopped."""

    node_id: int
    port: int
    controller_port: int | None  # None: the node is no controller
    extra_ports: dict[str, int]  # listener name -> port
    pid: int | None = None
    started: str = ""  # what processes.process_start returned for the pid


def server_properties(
    node: LocalNode, nodes: Collection[LocalNode], data_dir: Path, extra_listeners: Mapping[str, str]
) -> dict[str, str]:
    """The properties of one of the nodes. `extra_listeners`: listener name -> security protocol."""
    replicas = min(3, len(nodes))
    listeners = {"PLAINTEXT": node.port, **node.extra_ports}
    protocols = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT", **extra_listeners}
    addresses = ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items())
    controller = "" if node.controller_port is None else f",CONTROLLER://{HOST}:{node.controller_port}"
    voters = [f"{each.node_id}@{HOST}:{each.controller_port}" for each in nodes if each.controller_port is not None]
    return {
        "process.roles": "broker" if node.controller_port is None else "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": "CONTROLLER",
        "listeners": addresses + controller,
        "advertised.listeners": addresses,
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "log.dirs": str(data_dir),
        "offsets.topic.replication.factor": str(replicas),
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(min(2, replicas)),
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(min(2, replicas)),
        "group.initial.rebalance.delay.ms": "0",
        "metadata.max.idle.interval.ms": "0",  # otherwise an empty record twice a second
        "log.cleaner.dedupe.buffer.size": "16777216",  # Kafka's default of 128 MB would be most of the heap
    }


def new_cluster_id() -> str:
    """22 characters of base64, as Kafka makes ids. Never begins with a dash: Kafka's tools would take it for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def write_properties(file: Path, properties: Mapping[str, str]) -> None:
    """Write a .properties file that only its owner can read."""
    file.touch(mode=0o600)  # listener properties may contain passwords
    lines = [f"{_key(key)}={_value(value)}\n" for key, value in properties.items()]
    file.write_text("".join(lines), encoding="ascii")


def _value(value: object) -> str:
    """A value for .properties files. Java skips blanks before it."""
    return re.sub("^ ", r"\\ ", _escape(value))


def _key(text: object) -> str:
    """A key ends at the first blank or separator, and `#` or `!` at its beginning makes the line a comment."""
    return re.sub("[ =:#!]", r"\\\g<0>", _escape(text))


def _escape(text: object) -> str:
    """Java reads .properties files as Latin-1, and knows all of JSON's escapes but the one for a backspace."""
    return json.dumps(str(text))[1:-1]
