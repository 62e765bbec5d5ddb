"""`abort`, `commit` and `repair`: look twice, judge, ask, look a third time, and then end the transactions. With --yes, they do
not ask.

Laws: nothing is ended without a "y" or --yes. All leave a query alone that has shown a sign of life, even during the question.
`abort` also leaves a decided version alone. Flags of `abort` override the last two laws. Nothing that hangs is decided otherwise
than before.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import EndToRepeat
from spark_kafka_sink.errors import KafkaError, printable
from spark_kafka_sink.exactly_once.decisions import carry_out_decision, decisions_of
from spark_kafka_sink.exactly_once.fencing import fence_all
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames, shown_owner
from spark_kafka_sink.exactly_once.settling import WrittenPlaces, settle_left
from spark_kafka_sink.exactly_once.writes import CommitFailedError
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.tools import exit_codes
from spark_kafka_sink.tools.transactions import output
from spark_kafka_sink.tools.transactions.console import Console
from spark_kafka_sink.tools.transactions.signs_of_life import Look, look
from spark_kafka_sink.tools.transactions.survey import Survey, SurveyedTransaction, other_prefixes, survey
from spark_kafka_sink.tools.transactions.verdicts import (
    Obstacle,
    Verdict,
    judge,
    judge_decided,
    judge_hanging,
    overridden_by_flags,
)
from spark_kafka_sink.tools.words import counted

MS_PER_S = 1000
# How much higher than that of its rows the epoch of a committed id is. With transaction.version 2, the commit raises the epoch,
# and repetitions leave it; if the rows were aborted, or another transaction has come after them, it is higher still. Below 2,
# only who takes the id raises it.
_DISTANCE_AFTER_COMMIT, _DISTANCE_AFTER_COMMIT_V1 = 1, 0


class _Change(ABC):
    """One run of `abort`, `commit` or `repair`."""

    VERB: ClassVar[str]
    PARTICIPLE: ClassVar[str]
    WHAT: ClassVar[str] = "open transaction"

    def __init__(self, client: TransactionClient, names: PrefixNames, arguments: argparse.Namespace, console: Console) -> None:
        self._client = client
        self._names = names
        self._arguments = arguments
        self._console = console

    def run(self) -> int:
        """Return the exit code. Blocks for --watch-seconds, the answer to the question, and requests. Raises KafkaError."""
        before = self._look()
        for warning in output.warnings(before.survey):
            self._console.note(f"warning: {warning}")
        transactions = self._transactions_to_end(before.survey)
        if not transactions:
            self._console.say(f"Nothing to {self.VERB}{self._why_nothing(before.survey)}")
            return exit_codes.DONE
        self._console.say(*output.short_table(transactions), "")
        after = self._look_again(before) if self._arguments.watch_seconds else before
        verdicts = self._judge(before, after)
        self._console.say(*output.verdict_lines(verdicts, self.PARTICIPLE))
        if not verdicts:
            self._console.say(f"Nothing to {self.VERB} any more: all of them have ended by themselves.")
        if _to_be_ended(verdicts):
            return self._ask_and_end(verdicts, after)
        return exit_codes.FAILED if verdicts else exit_codes.DONE

    def _why_nothing(self, prefix_survey: Survey) -> str:
        prefixes = None if prefix_survey.states else other_prefixes(self._client, self._names)
        if prefixes is not None:
            return f". {output.no_such_prefix(self._names.prefix, prefixes)}"
        return f": prefix {printable(self._names.prefix)} has no {self.WHAT}."

    def _look(self, before: Look | None = None) -> Look:
        with self._console.note_if_slow("for transactions"):
            return look(self._client, self._names, self._console.wall_ms, before, self._arguments.topic)

    def _look_again(self, before: Look) -> Look:
        seconds = self._arguments.watch_seconds
        self._console.note(
            f"looking again in {seconds} s, for signs of life: new ids, states or rows, and the heartbeat of tasks at work"
        )
        self._console.let_pass(seconds * MS_PER_S)
        return self._look(before)

    def _ask_and_end(self, verdicts: Sequence[Verdict], last_look: Look) -> int:
        if not self._arguments.yes:
            if not self._console.confirms(f"{self.VERB.capitalize()} {output.plan(_to_be_ended(verdicts))}?"):
                self._console.say(f"Nothing was {self.PARTICIPLE}.")
                return exit_codes.FAILED
            verdicts = self._judge_again(verdicts, last_look)
        verdicts_to_end = _to_be_ended(verdicts)
        with self._console.note_if_slow(f"to {self.VERB} transactions"):
            has_ended_all = self._end(verdicts_to_end)
        return exit_codes.DONE if has_ended_all and len(verdicts_to_end) == len(verdicts) else exit_codes.FAILED

    def _judge_again(self, verdicts: Sequence[Verdict], last_look: Look) -> list[Verdict]:
        """Look and judge again after the question, which may have waited for hours."""
        attempt_ids = {each.transaction.attempt_id for each in _to_be_ended(verdicts)}
        all_verdicts = self._judge(last_look, self._look(last_look))
        new_verdicts = [each for each in all_verdicts if each.transaction.attempt_id in attempt_ids]
        self._console.say(*output.verdict_lines(new_verdicts, self.PARTICIPLE))
        return [each for each in verdicts if each.is_left_alone] + new_verdicts

    def _places(self, transactions: Iterable[SurveyedTransaction]) -> WrittenPlaces:
        """Where rows of these transactions are: in the topics of --topic, and where brokers and decisions tell of."""
        transactions = list(transactions)
        topics = {partition.topic for each in transactions for partition in each.written_partitions}
        return WrittenPlaces(topics=frozenset({*self._arguments.topic, *topics}))

    def _settle_aborted(self, transactions: Sequence[SurveyedTransaction], last_survey: Survey) -> bool:
        """Settle ids whose transactions were aborted. Returns whether all are settled."""
        unsettled_ids: list[AttemptId] = []
        by_partition: dict[TopicPartition, list[SurveyedTransaction]] = {}
        for each in transactions:
            by_partition.setdefault(_marker_partition(each, last_survey), []).append(each)
        for marker_partition, group in by_partition.items():
            left = {each.attempt_id: None if each.may_hang else each.description for each in group}
            unsettled_ids += settle_left(self._client, self._names, marker_partition, left, self._places(group))
        if unsettled_ids:
            text = "their rows may hang, as a partition has no leader. `repair` them when all have leaders"
            self._console.note(f"error: {counted(len(unsettled_ids), 'transactional id')} not settled: {text}")
        return not unsettled_ids

    @abstractmethod
    def _transactions_to_end(self, prefix_survey: Survey) -> list[SurveyedTransaction]: ...

    @abstractmethod
    def _judge(self, before: Look, after: Look) -> list[Verdict]: ...

    @abstractmethod
    def _end(self, verdicts: Sequence[Verdict]) -> bool:
        """End the transactions, print which have ended and what failed, and return whether all have ended."""


def _marker_partition(transaction: SurveyedTransaction, last_survey: Survey) -> TopicPartition:
    """Under which partition the marker is, probably: of the owner's decision, or of the topic of the rows."""
    places = last_survey.marker_partitions.get(transaction.attempt_id.owner, ())
    if places:
        return places[-1]
    topic = next((each.topic for each in transaction.written_partitions), "")
    return TopicPartition(topic, 0)


def _to_be_ended(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [each for each in verdicts if not each.is_left_alone]


class AbortOpen(_Change):
    """Aborts open transactions."""

    VERB, PARTICIPLE = "abort", "aborted"

    def _transactions_to_end(self, prefix_survey: Survey) -> list[SurveyedTransaction]:
        return prefix_survey.unfinished_transactions

    def _judge(self, before: Look, after: Look) -> list[Verdict]:
        flags = self._arguments
        return judge(before, after, overridden_by_flags(force=flags.force, even_decided=flags.even_decided))

    def _end(self, verdicts: Sequence[Verdict]) -> bool:
        by_id = {each.transaction.attempt_id: each for each in verdicts}
        new_survey, error = self._fence([each.transaction for each in verdicts])
        unfinished_transactions = [each for each in new_survey.unfinished_transactions if each.attempt_id in by_id]
        remaining = [each for each in unfinished_transactions if _is_left(each, by_id[each.attempt_id].transaction)]
        for each in remaining:
            del by_id[each.attempt_id]
        aborted = list(by_id.values())
        if aborted:
            self._console.say(f"Aborted: {output.plan(aborted)}.")
        if remaining:
            self._console.say(*output.short_table(remaining))
            why = "they have begun anew: is the query alive?" if error is None else str(error)
            self._console.note(f"error: {counted(len(remaining), 'transactional id')} not ended: {why}")
        are_settled = self._settle_aborted([each.transaction for each in aborted], new_survey)
        return are_settled and not remaining

    def _fence(self, transactions: Sequence[SurveyedTransaction]) -> tuple[Survey, KafkaError | None]:
        """Fence the ids, as they were described before the decisions about them were read. Returns what there is then, and an
        error if an id could not be fenced."""
        fence_error: KafkaError | None = None
        descriptions = {each.transactional_id: each.description for each in transactions}
        try:
            fence_all(self._client, self._names, [each.attempt_id for each in transactions], descriptions)
        except KafkaError as error:
            fence_error = error
        try:
            return survey(self._client, self._names, self._console.wall_ms, topics=self._arguments.topic), fence_error
        except KafkaError as error:
            raise fence_error or error from error


def _is_left(later: SurveyedTransaction, earlier: SurveyedTransaction) -> bool:
    """Whether a transaction is still open, or its task can still begin one. A fenced id can be Empty, with another identity."""
    return later.is_ongoing or (later.is_empty and later.identity == earlier.identity)


class _CarryOut(_Change):
    """Carries out decisions, as the next run of their query would."""

    def _overridden(self) -> Collection[Obstacle]:
        """--force does not override ALIVE: a live query may decide its next version, and this command would overwrite that."""
        return {Obstacle.UNWATCHED} if self._arguments.force else ()

    def _carry_out(self, transactions: Sequence[SurveyedTransaction]) -> bool:
        """Carry out the decisions of the owners of these transactions. Returns whether all are carried out."""
        owners = dict.fromkeys(each.attempt_id.owner for each in transactions)
        places = self._places(transactions)
        decisions = decisions_of(self._client, self._names, owners).values()
        successes = [self._carry_out_decision(each[-1].ledger, places) for each in decisions if each]
        return all(successes)

    def _carry_out_decision(self, ledger: Ledger, places: WrittenPlaces) -> bool:
        name = printable(shown_owner(ledger.owner))
        all_places = WrittenPlaces(topics=places.topics or frozenset({ledger.marker_partition.topic}))
        try:
            decision = carry_out_decision(ledger, all_places)
        except CommitFailedError as error:
            self._console.note(f"error: owner {name}: {error}")
            return False
        if decision is not None:
            self._console.say(f"Committed: version {decision.version} of owner {name}, {decision.content.rows:,} rows.")
        return True


class CommitDecided(_CarryOut):
    """Commits decided versions, with all of their transactions: some may have been committed before."""

    VERB, PARTICIPLE = "commit", "committed"
    WHAT = "open transaction of a version that is decided"

    def _transactions_to_end(self, prefix_survey: Survey) -> list[SurveyedTransaction]:
        return [each for each in prefix_survey.unfinished_transactions if each.is_decided]

    def _judge(self, before: Look, after: Look) -> list[Verdict]:
        return judge_decided(before, after, self._overridden())

    def _end(self, verdicts: Sequence[Verdict]) -> bool:
        return self._carry_out([each.transaction for each in verdicts])


class RepairHanging(_CarryOut):
    """Repeats the decision about transactions that are complete, and whose rows or markers hang."""

    VERB, PARTICIPLE = "repair", "repaired"
    WHAT = "transaction that hangs, and no version that is decided and not carried out"

    def _transactions_to_end(self, prefix_survey: Survey) -> list[SurveyedTransaction]:
        return prefix_survey.transactions_to_repair

    def _judge(self, before: Look, after: Look) -> list[Verdict]:
        distance = _DISTANCE_AFTER_COMMIT if self._client.bumps_epochs else _DISTANCE_AFTER_COMMIT_V1
        return judge_hanging(before, after, self._overridden(), distance)

    def _end(self, verdicts: Sequence[Verdict]) -> bool:
        transactions = [each.transaction for each in verdicts]
        decided = [each for each in transactions if each.known_version is not None]
        aborted = [each for each in transactions if each.known_version is None and each.is_aborted]
        committed = [each for each in transactions if each.known_version is None and not each.is_aborted]
        self._commit_again(committed)
        of_decisions = [*decided, *(each for each in committed if each.decided_entry is not None)]
        is_carried_out = self._carry_out(of_decisions) if of_decisions else True
        is_settled = self._settle_aborted(aborted, self._last_survey())
        ids = {each.attempt_id for each in transactions}
        remaining = [each for each in self._last_survey().transactions if each.hangs and each.attempt_id in ids]
        repaired_count = len(transactions) - len(remaining)
        self._console.say(f"Repaired: {counted(repaired_count, 'transactional id')}.")
        if remaining:
            self._console.say(*output.short_table(remaining))
            self._console.note(f"error: {counted(len(remaining), 'transactional id')} still hang: have all partitions leaders?")
        return is_carried_out and is_settled and not remaining

    def _commit_again(self, transactions: Sequence[SurveyedTransaction]) -> None:
        """Repeat commits at the epochs that were described. What is not as it was is left alone, and shows in the last look."""
        repetitions = [
            EndToRepeat(
                PreparedTransaction(each.transactional_id, *each.identity, 0),
                frozenset(each.open_rows),
                self._names.marker_group(each.attempt_id.owner, each.attempt_id.partition) if each.is_marker_pending else None,
            )
            for each in transactions
        ]
        for transactional_id, outcome in self._client.end_again(repetitions, commit=True).items():
            if outcome.error is not None:
                self._console.note(f"error: transactional id {printable(transactional_id)} not repaired: {outcome.error}")

    def _last_survey(self) -> Survey:
        return survey(self._client, self._names, self._console.wall_ms, topics=self._arguments.topic)
