"""Judges what exactly-once needs: coordinators, permissions, the time-out of transactions; and what earlier writes have left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.admin.transaction_operations import ListedTransaction, TransactionState
from spark_kafka_sink.errors import AuthorizationError, KafkaError, UnsupportedVersionError, printable
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.protocol.permissions import AclOperation
from spark_kafka_sink.tools.check.results import FIND_OUT, CheckResult, explained, green, number_in_setting, red, yellow
from spark_kafka_sink.tools.words import count

BROKER_MAX_TIMEOUT = "transaction.max.timeout.ms"
OUR_TIMEOUT = "kafka.transaction.timeout.ms"


@dataclass(frozen=True, slots=True)
class CheckedPrefix:
    """What coordinators have answered about the names of a prefix, or why they did not.

    Args:
        names: makes the ids and groups of the prefix.
        is_described: true if the coordinator has described an id of the prefix; otherwise the error.
        may_write: whether the user may WRITE to that id.
        group_permissions: what the user may do with a group of the prefix; None: brokers do not tell.
        is_written: whether `--write` has written in a transaction.
        ms: how long the answers took: ids, groups.
    """

    names: PrefixNames
    is_described: bool | KafkaError
    may_write: bool | KafkaError
    group_permissions: frozenset[AclOperation] | KafkaError | None
    is_written: bool = False
    ms: tuple[int, int] = (0, 0)

    @property
    def subject(self) -> str:
        return f"{printable(self.names.prefix)}-…"


def judge_ids(prefix: CheckedPrefix) -> CheckResult:
    """Tasks need WRITE on the transactional ids, which includes DESCRIBE."""
    check, ms = "transactional ids", prefix.ms[0]
    for answer, what in ((prefix.is_described, "neither DESCRIBE nor WRITE"), (prefix.may_write, "no WRITE")):
        if isinstance(answer, AuthorizationError):
            return red(check, prefix.subject, f"[{answer.condition}] {what}", _grant_ids(prefix.names, "WRITE"), ms)
    if isinstance(prefix.is_described, KafkaError) and not isinstance(prefix.is_described, UnsupportedVersionError):
        found = f"the coordinator of {printable(prefix.names.check_id)} does not answer: {prefix.is_described}"
        remedy = "look at the brokers, and at the replicas of the topic __transaction_state"
        return red(check, prefix.subject, found, remedy, ms)
    if isinstance(prefix.may_write, KafkaError) and not prefix.is_written:
        return yellow(check, prefix.subject, f"WRITE: {FIND_OUT} ({prefix.may_write})", ms=ms)
    return green(check, prefix.subject, "a coordinator answers; WRITE is granted", ms)


def judge_groups(prefix: CheckedPrefix) -> CheckResult:
    """A write needs READ on the groups of the prefix, for markers and decisions."""
    check, permissions, ms = "groups", prefix.group_permissions, prefix.ms[1]
    grant = f"grant the user READ on the groups that begin with '{printable(prefix.names.id_prefix)}'"
    if isinstance(permissions, AuthorizationError):
        return red(check, prefix.subject, f"[{permissions.condition}] neither DESCRIBE nor READ", grant, ms)
    if isinstance(permissions, KafkaError) and not isinstance(permissions, UnsupportedVersionError):
        told = f"the coordinator of group {printable(prefix.names.aborted_group)} does not answer: {permissions}"
        return red(check, prefix.subject, told, "look at the brokers, and at the replicas of the topic __consumer_offsets", ms)
    if permissions is None or isinstance(permissions, KafkaError):
        told = "a coordinator answers; READ: not known, brokers do not tell it"
        return yellow(check, prefix.subject, told, f"look whether the user is granted READ: if not, {grant}", ms)
    if AclOperation.READ not in permissions:
        return red(check, prefix.subject, "no READ, for markers and decisions", grant, ms)
    return green(check, prefix.subject, "a coordinator answers; READ is granted", ms)


def judge_timeout(
    given_ms: int | None, answer: str | KafkaError | None, default_ms: int, ms: int, *, is_written: bool
) -> CheckResult:
    """Judge whether brokers accept the time-out of a write.

    Args:
        given_ms: kafka.transaction.timeout.ms, if it is set; otherwise a write takes what brokers allow at most.
        answer: the brokers' transaction.max.timeout.ms.
        default_ms: Kafka's default of that setting.
        is_written: `--write` has succeeded, so brokers accept our time-out.
    """
    check = "transaction time"
    told = number_in_setting(answer)
    if told is None:
        ours = f"{OUR_TIMEOUT}={given_ms}" if given_ms is not None else f"{default_ms} ms, Kafka's default, are assumed"
        if is_written:
            return green(check, "", f"{ours}: brokers accept it", ms)
        is_denied = isinstance(answer, AuthorizationError)
        why = f" ({answer})" if isinstance(answer, KafkaError) and not is_denied else ""
        remedy = "grant the user DESCRIBE_CONFIGS on the cluster" if is_denied else ""
        return yellow(check, "", f"{BROKER_MAX_TIMEOUT}: {FIND_OUT}{why}; {ours}", remedy, ms)
    if given_ms is not None and given_ms > told:
        remedy = f"lower {OUR_TIMEOUT}, or leave it out: a write then takes what brokers allow"
        return red(check, "", f"{OUR_TIMEOUT}={given_ms} is above the brokers' {BROKER_MAX_TIMEOUT}={told}", remedy, ms)
    ours = f"our {given_ms} ms" if given_ms is not None else "so long may a task, and the commit after it, take"
    return green(check, "", f"{BROKER_MAX_TIMEOUT}={told}: {ours}", ms)


def judge_leftovers(
    names: PrefixNames, listed: Sequence[ListedTransaction] | KafkaError, ms: int, *, may_describe: bool
) -> CheckResult:
    """Judge what earlier writes have left unfinished.

    Args:
        listed: the unfinished transactional ids that begin with the prefix and a dash; other prefixes may begin so, too.
        may_describe: whether the user may describe ids of the prefix. Brokers list no others.
    """
    check, subject = "leftovers", f"{printable(names.prefix)}-…"
    if isinstance(listed, UnsupportedVersionError):
        return yellow(check, subject, "not known: brokers before Kafka 3.0 cannot list transactions", ms=ms)
    if isinstance(listed, AuthorizationError):
        return red(check, subject, str(listed), _grant_ids(names, "DESCRIBE"), ms)
    if isinstance(listed, KafkaError):
        return yellow(check, subject, f"not known: {listed}", explained(listed), ms)
    if not may_describe and not listed:
        return yellow(check, subject, "not known: brokers list only ids that the user may describe", ms=ms)
    tasks = [each for each in listed if names.parse(each.transactional_id) is not None]
    still_open = [each for each in tasks if each.state != TransactionState.EMPTY]
    if still_open:
        found = f"{count(len(still_open), 'open transaction')}, of a query at work or left by one: readers wait there"
        return yellow(check, subject, found, f"look with `pykafka-sink transactions list --prefix {printable(names.prefix)}`", ms)
    more = f"; {count(len(tasks), 'transactional id')} of tasks without one, which holds back nobody" if tasks else ""
    return green(check, subject, f"no open transaction{more}", ms)


def _grant_ids(names: PrefixNames, permission: str) -> str:
    return f"grant the user {permission} on the transactional ids that begin with '{printable(names.id_prefix)}'"
