"""The command lines of Kafka's own tools, which come with the broker's jars.

`local_kafka read` and the quick start show records with them.
"""

from __future__ import annotations

import re
from pathlib import Path

from jobs.java import find_java

TOOLS_LOGGING = Path(__file__).resolve().parent.parent / "conf" / "kafka-tools-log4j2.properties"


def tool_command(jars: Path, main_class: str, bootstrap_servers: str, config: Path | None = None) -> list[str]:
    """The command line of one of Kafka's tools. `config`: a .properties file for the client. Raises ToolError without Java."""
    command = [str(find_java()), f"-Dlog4j2.configurationFile={TOOLS_LOGGING}", "-cp", f"{jars}/*", main_class]
    command += ["--bootstrap-server", bootstrap_servers]
    return [*command, "--command-config", str(config)] if config else command


def console_consumer_command(
    jars: Path, bootstrap_servers: str, topic: str, records: int, config: Path | None = None, *, timeout_ms: int = 20_000
) -> list[str]:
    """The command line that prints partition, key and value of the first committed records of a topic.

    The program ends after this many `records`, or when none has come for `timeout_ms`.
    """
    command = tool_command(jars, "org.apache.kafka.tools.consumer.ConsoleConsumer", bootstrap_servers, config)
    command += ["--topic", topic, "--from-beginning", "--max-messages", str(records), "--timeout-ms", str(timeout_ms)]
    command += ["--isolation-level", "read_committed", "--command-property", "allow.auto.create.topics=false"]
    return [*command, "--formatter-property", "print.key=true", "--formatter-property", "print.partition=true"]


def without_time_out(stderr: str) -> str:
    """What the console consumer says, without the time-out that ends it, which it logs as an error, and without advertising."""
    time_out = (
        r"ERROR Error processing message, terminating consumer process: *\norg\.apache\.kafka\.common\.errors\.TimeoutException\n"
    )
    return re.sub(rf"^(?:{time_out}|The consumer rebalance protocol .*\n)", "", stderr, flags=re.MULTILINE)
