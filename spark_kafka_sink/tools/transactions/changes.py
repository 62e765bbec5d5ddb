"""`abort` and `commit`: look twice, judge, ask, look a third time, and then end the transactions. With --yes, they do not ask.

Laws: nothing is ended without a "y" or --yes. Both leave a query alone that has shown a sign of life, even
during the question. `abort` also leaves a decided version alone. Flags of `abort` override the last two laws.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.errors import KafkaError, printable
from spark_kafka_sink.exactly_once.decisions import carry_out_decision, decisions_of
from spark_kafka_sink.exactly_once.fencing import fence_all
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames, shown_owner
from spark_kafka_sink.exactly_once.writes import CommitFailedError
from spark_kafka_sink.tools import exit_codes
from spark_kafka_sink.tools.transactions import output
from spark_kafka_sink.tools.transactions.console import Console
from spark_kafka_sink.tools.transactions.signs_of_life import Look, look
from spark_kafka_sink.tools.transactions.survey import Survey, SurveyedTransaction, other_prefixes, survey
from spark_kafka_sink.tools.transactions.verdicts import Obstacle, Verdict, judge, judge_decided, overridden_by_flags
from spark_kafka_sink.tools.words import counted

MS_PER_S = 1000


class _Change(ABC):
    """One run of `abort` or `commit`."""

    VERB: ClassVar[str]
    PARTICIPLE: ClassVar[str]
    OF_WHAT: ClassVar[str] = ""  # after "open transaction"

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
        return f": prefix {printable(self._names.prefix)} has no open transaction{self.OF_WHAT}."

    def _look(self, before: Look | None = None) -> Look:
        with self._console.note_if_slow("for transactions"):
            return look(self._client, self._names, self._console.wall_ms, before)

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

    @abstractmethod
    def _transactions_to_end(self, prefix_survey: Survey) -> list[SurveyedTransaction]: ...

    @abstractmethod
    def _judge(self, before: Look, after: Look) -> list[Verdict]: ...

    @abstractmethod
    def _end(self, verdicts: Sequence[Verdict]) -> bool:
        """End the transactions, print which have ended and what failed, and return whether all have ended."""


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
        new_survey, error = self._fence(by_id)
        unfinished_transactions = [each for each in new_survey.unfinished_transactions if each.attempt_id in by_id]
        remaining = [each for each in unfinished_transactions if _is_left(each, by_id[each.attempt_id].transaction)]
        for each in remaining:
            del by_id[each.attempt_id]
        if by_id:
            self._console.say(f"Aborted: {output.plan(list(by_id.values()))}.")
        if remaining:
            self._console.say(*output.short_table(remaining))
            why = "they have begun anew: is the query alive?" if error is None else str(error)
            self._console.note(f"error: {counted(len(remaining), 'transactional id')} not ended: {why}")
        return not remaining

    def _fence(self, attempt_ids: Collection[AttemptId]) -> tuple[Survey, KafkaError | None]:
        """Fence the ids. Returns what there is then, and an error if an id could not be fenced. Fenced ids may be Empty."""
        fence_error: KafkaError | None = None
        try:
            fence_all(self._client, self._names, attempt_ids)
        except KafkaError as error:
            fence_error = error
        try:
            return survey(self._client, self._names, self._console.wall_ms), fence_error
        except KafkaError as error:
            raise fence_error or error from error


def _is_left(later: SurveyedTransaction, earlier: SurveyedTransaction) -> bool:
    """Whether a transaction is still open, or its task can still begin one. A fenced id can be Empty, with another identity."""
    return later.is_ongoing or (later.is_empty and later.identity == earlier.identity)


class CommitDecided(_Change):
    """Commits decided versions, with all of their transactions: some may have been committed before."""

    VERB, PARTICIPLE = "commit", "committed"
    OF_WHAT = " of a version that is decided"

    def _transactions_to_end(self, prefix_survey: Survey) -> list[SurveyedTransaction]:
        return [each for each in prefix_survey.unfinished_transactions if each.is_decided]

    def _judge(self, before: Look, after: Look) -> list[Verdict]:
        """--force does not override ALIVE: a live query may decide its next version, and this command would overwrite that."""
        return judge_decided(before, after, {Obstacle.UNWATCHED} if self._arguments.force else ())

    def _end(self, verdicts: Sequence[Verdict]) -> bool:
        owners = dict.fromkeys(each.transaction.attempt_id.owner for each in verdicts)
        decisions = decisions_of(self._client, self._names, owners).values()
        successes = [self._carry_out_decision(each[-1].ledger) for each in decisions if each]
        return all(successes)

    def _carry_out_decision(self, ledger: Ledger) -> bool:
        name = printable(shown_owner(ledger.owner))
        try:
            decision = carry_out_decision(ledger)
        except CommitFailedError as error:
            self._console.note(f"error: owner {name}: {error}")
            return False
        if decision is not None:
            self._console.say(f"Committed: version {decision.version} of owner {name}, {decision.content.rows:,} rows.")
        return True
