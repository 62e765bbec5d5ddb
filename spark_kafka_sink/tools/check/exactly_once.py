"""Judges what exactly-once needs: coordinators, permissions, the time-out of transactions; and what earlier writes have left, and
which brokers may skip control records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.admin.transaction_operations import ListedTransaction, TransactionState
from spark_kafka_sink.errors import AuthorizationError, KafkaError, UnsupportedVersionError, printable, printable_list
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.protocol.permissions import AclOperation
from spark_kafka_sink.tools.check.results import WRITE_FINDS_OUT, CheckResult, green, number_in_setting, red, remedy_for, yellow
from spark_kafka_sink.tools.words import counted

BROKER_MAX_TIMEOUT = "transaction.max.timeout.ms"
OUR_TIMEOUT = "kafka.transaction.timeout.ms"


@dataclass(frozen=True, slots=True)
class CheckedPrefix:
    """What coordinators have answered about the names of a prefix, or why they did not.

    Args:
        names: makes the ids and groups of the prefix.
        describe_error: why the coordinator has not described an id of the prefix; None: the coordinator has.
        write_error: why the user may not WRITE to that id, or why that is not known; None: the user may.
        group_permissions: what the user may do with a group of the prefix; None: brokers do not tell.
        has_written: whether `--write` has written in a transaction.
        ids_ms, groups_ms: how long the answers took.
    """

    names: PrefixNames
    describe_error: KafkaError | None
    write_error: KafkaError | None
    group_permissions: frozenset[AclOperation] | KafkaError | None
    has_written: bool = False
    ids_ms: int = 0
    groups_ms: int = 0

    @property
    def subject(self) -> str:
        return f"{printable(self.names.prefix)}-…"


def judge_ids(prefix: CheckedPrefix) -> CheckResult:
    """Tasks need WRITE on the transactional ids, which includes DESCRIBE."""
    check, ms = "transactional ids", prefix.ids_ms
    for error, lack in ((prefix.describe_error, "neither DESCRIBE nor WRITE"), (prefix.write_error, "no WRITE")):
        if isinstance(error, AuthorizationError):
            return red(check, prefix.subject, f"[{error.condition}] {lack}", _remedy_for_ids(prefix.names, "WRITE"), ms)
    if prefix.describe_error is not None and not isinstance(prefix.describe_error, UnsupportedVersionError):
        finding = f"the coordinator of {printable(prefix.names.check_id)} does not answer: {prefix.describe_error}"
        remedy = "look at the brokers, and at the replicas of the topic __transaction_state"
        return red(check, prefix.subject, finding, remedy, ms)
    if prefix.write_error is not None and not prefix.has_written:
        return yellow(check, prefix.subject, f"WRITE: {WRITE_FINDS_OUT} ({prefix.write_error})", ms=ms)
    return green(check, prefix.subject, "a coordinator answers; WRITE is granted", ms)


def judge_groups(prefix: CheckedPrefix) -> CheckResult:
    """A write needs READ on the groups of the prefix, for markers and decisions."""
    check, permissions, ms = "groups", prefix.group_permissions, prefix.groups_ms
    grant = f"grant the user READ on the groups that begin with '{printable(prefix.names.id_prefix)}'"
    if isinstance(permissions, AuthorizationError):
        return red(check, prefix.subject, f"[{permissions.condition}] neither DESCRIBE nor READ", grant, ms)
    if isinstance(permissions, KafkaError) and not isinstance(permissions, UnsupportedVersionError):
        finding = f"the coordinator of group {printable(prefix.names.aborted_group)} does not answer: {permissions}"
        return red(check, prefix.subject, finding, "look at the brokers, and at the replicas of the topic __consumer_offsets", ms)
    if permissions is None or isinstance(permissions, KafkaError):
        finding = "a coordinator answers; READ: not known, brokers do not tell it"
        return yellow(check, prefix.subject, finding, f"look whether the user is granted READ: if not, {grant}", ms)
    if AclOperation.READ not in permissions:
        return red(check, prefix.subject, "no READ, for markers and decisions", grant, ms)
    return green(check, prefix.subject, "a coordinator answers; READ is granted", ms)


def judge_timeout(
    configured_ms: int | None, answer: str | KafkaError | None, default_ms: int, ms: int, *, has_written: bool
) -> CheckResult:
    """Judge whether brokers accept the time-out of a write.

    Args:
        configured_ms: kafka.transaction.timeout.ms, if it is set; otherwise a write takes what brokers allow at most.
        answer: the brokers' transaction.max.timeout.ms.
        default_ms: Kafka's default of that setting.
        has_written: `--write` has succeeded, so brokers accept our time-out.
    """
    check = "transaction time"
    limit_ms = number_in_setting(answer)
    if limit_ms is None:
        text = f"{OUR_TIMEOUT}={configured_ms}" if configured_ms is not None else f"{default_ms} ms, Kafka's default, are assumed"
        if has_written:
            return green(check, "", f"{text}: brokers accept it", ms)
        is_denied = isinstance(answer, AuthorizationError)
        why = f" ({answer})" if isinstance(answer, KafkaError) and not is_denied else ""
        remedy = "grant the user DESCRIBE_CONFIGS on the cluster" if is_denied else ""
        return yellow(check, "", f"{BROKER_MAX_TIMEOUT}: {WRITE_FINDS_OUT}{why}; {text}", remedy, ms)
    if configured_ms is not None and configured_ms > limit_ms:
        remedy = f"lower {OUR_TIMEOUT}, or leave it out: a write then takes what brokers allow"
        return red(check, "", f"{OUR_TIMEOUT}={configured_ms} is above the brokers' {BROKER_MAX_TIMEOUT}={limit_ms}", remedy, ms)
    text = f"our {configured_ms} ms" if configured_ms is not None else "so long may a task, and the commit after it, take"
    return green(check, "", f"{BROKER_MAX_TIMEOUT}={limit_ms}: {text}", ms)


def judge_leftovers(
    names: PrefixNames, transactions: Sequence[ListedTransaction] | KafkaError, ms: int, *, may_describe: bool
) -> CheckResult:
    """Judge what earlier writes have left unfinished.

    Args:
        transactions: the unfinished ones whose ids begin with the prefix and a dash; other prefixes may begin so, too.
        may_describe: whether the user may describe ids of the prefix. Brokers list no others.
    """
    check, subject = "leftovers", f"{printable(names.prefix)}-…"
    if isinstance(transactions, UnsupportedVersionError):
        return yellow(check, subject, "not known: brokers before Kafka 3.0 cannot list transactions", ms=ms)
    if isinstance(transactions, AuthorizationError):
        return red(check, subject, str(transactions), _remedy_for_ids(names, "DESCRIBE"), ms)
    if isinstance(transactions, KafkaError):
        return yellow(check, subject, f"not known: {transactions}", remedy_for(transactions), ms)
    if not may_describe and not transactions:
        return yellow(check, subject, "not known: brokers list only ids that the user may describe", ms=ms)
    tasks = [each for each in transactions if names.parse(each.transactional_id) is not None]
    open_transactions = [each for each in tasks if each.state not in (TransactionState.EMPTY, TransactionState.COMPLETE_ABORT)]
    if open_transactions:
        finding = f"{counted(len(open_transactions), 'open transaction')}, of a query at work or left by one: readers wait there"
        remedy = f"look with `pykafka-sink transactions list --prefix {printable(names.prefix)}`"
        return yellow(check, subject, finding, remedy, ms)
    empty_count = sum(each.state == TransactionState.EMPTY for each in tasks)
    aborted_count = len(tasks) - empty_count
    more = f"; {counted(empty_count, 'transactional id')} of tasks without one, which holds back nobody" if empty_count else ""
    more += f"; {counted(aborted_count, 'aborted one')} that the next write settles" if aborted_count else ""
    return green(check, subject, f"no open transaction{more}", ms)


def judge_control_records(
    node_ids: Sequence[int], topic: str | None, permissions: frozenset[AclOperation] | None, ms: int
) -> CheckResult:
    """Name the brokers that may skip control records. Writes find that out, for sure only with READ on the topic.

    Args:
        node_ids: of these brokers.
        topic: of the rows; None if each row names its own.
        permissions: of the user on the topic; None: not known.
    """
    check = "control records"
    if not node_ids:
        return green(check, "", "no broker skips them when it ends a transaction", ms)
    brokers = f"broker{'' if len(node_ids) == 1 else 's'} {printable_list(node_ids, 10)}"
    finding = f"{brokers} may skip them where a partition has no leader (KAFKA-20734): writes see that, and repeat the decision"
    if topic is None:
        return green(check, "", f"{finding}; with READ on the topics they see for sure what it is about", ms)
    if permissions is not None and AclOperation.READ in permissions:
        return green(check, "", finding, ms)
    grant = f"grant the user READ on the topic {printable(topic)}"
    if permissions is None:
        return yellow(check, "", f"{finding}; READ on the topic, to be sure of that: not known", f"if it is missing, {grant}", ms)
    return yellow(check, "", f"{finding}, on suspicion only without READ on the topic", grant, ms)


def _remedy_for_ids(names: PrefixNames, permission: str) -> str:
    return f"grant the user {permission} on the transactional ids that begin with '{printable(names.id_prefix)}'"
