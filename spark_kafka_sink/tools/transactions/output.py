"""What `transactions` prints: tables for people, JSON for programs, and sentences.

Names from brokers are escaped: they may contain any characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from spark_kafka_sink.errors import KafkaError, printable
from spark_kafka_sink.exactly_once.ledger_records import Decision
from spark_kafka_sink.exactly_once.names import shown_owner
from spark_kafka_sink.protocol.topic_partition import TopicPartition, partitions_by_topic
from spark_kafka_sink.tools.transactions.survey import Survey, SurveyedTransaction
from spark_kafka_sink.tools.transactions.verdicts import Obstacle, Verdict
from spark_kafka_sink.tools.words import counted

MAX_TABLE_ROWS = 100  # that `abort` and `commit` show; `list` shows all
MAX_PARTITIONS_WIDTH = 40  # characters
MAX_PREFIXES = 10  # that are named
NOT_KNOWN = "?"
NONE = "-"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


WHAT_IS_LOST = (
    "the driver has recorded that this version is to be committed, and other partitions of it may be visible already. The rows"
    " aborted here are missing until the same query or txnAppId runs again and writes them. A batch write without txnAppId is"
    " repeated as a whole: its rows that are visible already are then there twice"
)
REMEDIES = {
    Obstacle.ALIVE: "Stop the query first; or `abort --force` aborts them all the same, and the query fails.",
    Obstacle.UNWATCHED: "If the query has ended, --force overrides this.",
    Obstacle.DECIDED: f"--even-decided aborts them, but {WHAT_IS_LOST}.",
    Obstacle.UNREADABLE: f"--even-decided aborts them all the same. If a version is decided, {WHAT_IS_LOST}.",
    Obstacle.ENDING: "Look for partitions without a leader, and at the brokers' logs: control records cannot be written.",
}
THE_QUERY_FAILS = "The query fails if it is alive. Nothing of the version is visible, and it can be run again."
CONSEQUENCES = {
    "aborted": {
        Obstacle.ALIVE: THE_QUERY_FAILS,
        Obstacle.UNWATCHED: THE_QUERY_FAILS,
        Obstacle.DECIDED: _sentence(WHAT_IS_LOST),
        Obstacle.UNREADABLE: f"If a version is decided, {WHAT_IS_LOST}.",
    },
    "committed": {Obstacle.UNWATCHED: "If the query is alive, a later version that it decides may be committed in part."},
}


# TABLES


def table(transactions: Iterable[SurveyedTransaction]) -> list[str]:
    """A line for each transaction, below a heading; those of one owner below the form of its transactional ids."""
    rows_by_form: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for transaction in transactions:
        rows_by_form.setdefault(_id_form(transaction), []).append(tuple(map(printable, _cells(transaction))))
    all_rows = [row for rows in rows_by_form.values() for row in rows]
    widths = [max(map(len, column)) for column in zip(TABLE_HEADINGS, *all_rows, strict=True)]

    def line(row: Iterable[str]) -> str:
        return "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()

    lines = [line(TABLE_HEADINGS)]
    for form, rows in rows_by_form.items():
        lines += [*map(printable, form), *map(line, rows)]
    has_unknown_version = any(row[TABLE_HEADINGS.index("VERSION")] == NOT_KNOWN for row in all_rows)
    return [*lines, NO_VERSION] if has_unknown_version else lines


NO_VERSION = f"VERSION {NOT_KNOWN}: no decision names the transaction; its task is at work, or its write ended before one"


def _id_form(transaction: SurveyedTransaction) -> tuple[str, ...]:
    """The form of the transactional id; on a line of its own also whose it is, where the id does not show that."""
    suffix = f"-{transaction.attempt_id.partition}-{transaction.attempt_id.attempt}"
    form = f"{transaction.transactional_id.removesuffix(suffix)}-TASK-ATTEMPT"
    owner = shown_owner(transaction.attempt_id.owner)
    return (form,) if owner == transaction.attempt_id.owner else (form, f"(of {owner})")


TABLE_HEADINGS = ("TASK", "ATTEMPT", "STATE", "AGE", "TIME-OUT IN", "VERSION", "LAST DECISION", "PARTITIONS")


def _cells(transaction: SurveyedTransaction) -> tuple[str, ...]:
    left_ms = transaction.time_left_ms
    return (
        str(transaction.attempt_id.partition),
        str(transaction.attempt_id.attempt),
        transaction.state,
        NONE if transaction.age_ms is None else duration(transaction.age_ms),
        NONE if left_ms is None else duration(left_ms) if left_ms > 0 else "due",
        NONE if transaction.is_complete else str(transaction.decided_version) if transaction.is_decided else NOT_KNOWN,
        _decision(transaction),
        partitions_text(transaction.written_partitions or transaction.description.partitions),
    )


def _decision(transaction: SurveyedTransaction) -> str:
    if isinstance(transaction.decision, Decision):
        return f"{transaction.decision.version} {transaction.decision.state.value}"
    return NOT_KNOWN if isinstance(transaction.decision, KafkaError) else NONE


def duration(ms: int) -> str:
    """Write a duration in its two largest units: 12s, 3m 05s, 2h 10m, 6d 01h."""
    seconds = ms // 1000
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if days:
        return f"{days}d {hours % 24:02}h"
    if hours:
        return f"{hours}h {minutes % 60:02}m"
    return f"{minutes}m {seconds % 60:02}s" if minutes else f"{seconds}s"


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Write partitions in ranges, by topic: orders: 0-5, 7; events: 0."""
    by_topic = partitions_by_topic(partitions)
    text = "; ".join(f"{topic}: {_ranges([each.partition for each in parts])}" for topic, parts in by_topic.items())
    return printable(text, MAX_PARTITIONS_WIDTH) or NONE


def _ranges(numbers: Sequence[int]) -> str:
    ranges: list[list[int]] = []  # first and last of each range
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


# JSON


def json_line(transaction: SurveyedTransaction) -> str:
    """One transaction as an object. Times are milliseconds; `version` is null unless a decision names this transaction."""
    description, decision, start_ms = transaction.description, transaction.decision, transaction.description.start_time_ms
    start_time = None if start_ms is None else datetime.fromtimestamp(start_ms / 1000, UTC).isoformat("T", "milliseconds")
    last_decision = {"version": decision.version, "state": decision.state.value} if isinstance(decision, Decision) else None
    return json.dumps(
        {
            "transactional_id": transaction.transactional_id,
            "state": transaction.state,
            "age_ms": transaction.age_ms,
            "time_left_ms": transaction.time_left_ms,
            "timeout_ms": description.timeout_ms,
            "started": start_time,
            "partitions": [{"topic": topic, "partition": partition} for topic, partition in sorted(description.partitions)],
            "owner": transaction.owner,
            "version": transaction.decided_version if transaction.is_decided else None,
            "task": transaction.attempt_id.partition,
            "attempt": transaction.attempt_id.attempt,
            "producer_id": description.producer_id,
            "producer_epoch": description.producer_epoch,
            "last_decision": last_decision,
            "last_decision_error": str(decision) if isinstance(decision, KafkaError) else None,
        }
    )


# SENTENCES


def summary(survey: Survey, prefix: str, recent: str) -> str:
    """How many transactional ids there are in which state."""
    ended_count = sum(each.is_complete for each in survey.transactions)
    empty_count = sum(each.is_empty for each in survey.transactions)
    open_count = len(survey.transactions) - ended_count - empty_count
    parts = [f"{open_count:,} open"]
    parts += [f"{empty_count:,} of {_tasks(empty_count)} without a row"] if empty_count else []
    parts += [f"{ended_count:,} ended that began within {recent}"] if ended_count else []
    return f"Transactional ids of prefix {printable(prefix)}: {', '.join(parts)}; all others are complete."


def _tasks(number: int) -> str:
    return "a task" if number == 1 else "tasks"


def no_such_prefix(prefix: str, known_prefixes: Sequence[str]) -> str:
    """The sentence for a prefix without a transactional id. `known_prefixes`: those of other writes."""
    prefix_list = ", ".join(map(printable, known_prefixes[:MAX_PREFIXES]))
    more_count = len(known_prefixes) - MAX_PREFIXES
    more = f" and {more_count:,} more" if more_count > 0 else ""
    others = f"known are {prefix_list}{more}" if prefix_list else "the brokers know no other either"
    return f"There is no transactional id of prefix {printable(prefix)}; {others}."


def summary_json(survey: Survey, prefix: str, known_prefixes: Sequence[str] | None) -> str:
    """The last line of `list --json`. `known_prefixes` is null unless there is no id of this prefix."""
    return json.dumps({"prefix": prefix, "transactions": len(survey.transactions), "known_prefixes": known_prefixes})


def warnings(survey: Survey) -> list[str]:
    """What the survey could not find out, each thing once."""
    errors = {str(each.decision) for each in survey.unfinished_transactions if isinstance(each.decision, KafkaError)}
    hidden = [survey.warning] if survey.warning else []
    return hidden + [f"the decision of an owner is not known: {error}" for error in sorted(errors)]


def short_table(transactions: Sequence[SurveyedTransaction]) -> list[str]:
    """The table, cut off after MAX_TABLE_ROWS."""
    more = len(transactions) - MAX_TABLE_ROWS
    return table(transactions[:MAX_TABLE_ROWS]) + ([f"and {more:,} more, which `list` shows"] if more > 0 else [])


def verdict_lines(verdicts: Sequence[Verdict], participle: str) -> list[str]:
    """What is left alone and why, and which obstacles are overridden: two lines for each owner and obstacle."""
    groups: dict[tuple[str, bool, Obstacle, str], list[SurveyedTransaction]] = {}
    for verdict in verdicts:
        for obstacle, more in verdict.obstacles.items():
            owner = shown_owner(verdict.transaction.attempt_id.owner)
            groups.setdefault((owner, verdict.is_left_alone, obstacle, more), []).append(verdict.transaction)
    lines = []
    for (owner, is_left_alone, obstacle, more), group in groups.items():
        what = "Left alone" if is_left_alone else f"To be {participle} all the same"
        who = f"owner {printable(owner)}: {counted(len(group), 'transactional id')}"
        why = f"{obstacle.value}: {more}" if more else obstacle.value
        advice = REMEDIES if is_left_alone else CONSEQUENCES[participle]
        lines += [f"{what}: {who}. {_sentence(why)}", f"    {advice[obstacle]}"]
    return lines


def plan(verdicts: Sequence[Verdict]) -> str:
    """What will be aborted or committed, as a noun phrase."""
    ongoing_count = sum(each.transaction.is_ongoing for each in verdicts)
    empty_count = len(verdicts) - ongoing_count
    parts = [counted(ongoing_count, "open transaction")] if ongoing_count else []
    parts += [f"{counted(empty_count, 'transactional id')} of {_tasks(empty_count)} without a row"] if empty_count else []
    return " and ".join(parts)
