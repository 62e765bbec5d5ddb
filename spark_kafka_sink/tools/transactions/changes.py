"""`abort` and `commit`: look twice, judge, ask, look a third time, and then end the transactions. With --yes, they do not ask.

Laws: nothing is ended without a "y" or --yes. Both leave a query alone that has shown a sign of life, even
during the question. `abort` also leaves a decided version alone. Flags of `abort` override the last two.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar
from urllib.parse import unquote

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.errors import KafkaError, printable
from spark_kafka_sink.exactly_once.decisions import decisions_of, roll_forward
from spark_kafka_sink.exactly_once.fencing import fence_all
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames
from spark_kafka_sink.exactly_once.writes import CommitFailedError
from spark_kafka_sink.tools import exit_codes
from spark_kafka_sink.tools.transactions import output
from spark_kafka_sink.tools.transactions.console import Console
from spark_kafka_sink.tools.transactions.signs_of_life import Look, look
from spark_kafka_sink.tools.transactions.survey import Survey, SurveyedTransaction, other_prefixes, survey
from spark_kafka_sink.tools.transactions.verdicts import EVEN_DECIDED, FORCE, Obstacle, Verdict, judge, judge_decided
from spark_kafka_sink.tools.words import count

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
        """Returns the exit code. Blocks for --watch-seconds, the answer to the question, and requests. Raises KafkaError."""
        before = self._look()
        for warning in output.warnings(before.survey):
            self._console.note(f"warning: {warning}")
        concerned = self._concerned(before.survey)
        if not concerned:
            self._console.say(f"Nothing to {self.VERB}{self._why_nothing(before.survey)}")
            return exit_codes.DONE
        self._console.say(*output.shown(concerned), "")
        after = self._look_again(before) if self._arguments.watch_seconds else before
        verdicts = self._judge(before, after)
        self._console.say(*output.verdict_lines(verdicts, self.PARTICIPLE))
        if not verdicts:
            self._console.say(f"Nothing to {self.VERB} any more: all of them have ended by themselves.")
        if _chosen(verdicts):
            return self._ask_and_end(verdicts, after)
        return exit_codes.FAILED if verdicts else exit_codes.DONE

    def _why_nothing(self, found: Survey) -> str:
        prefixes = None if found.states else other_prefixes(self._client, self._names)
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

    def _ask_and_end(self, verdicts: Sequence[Verdict], seen: Look) -> int:
        if not self._arguments.yes:
            if not self._console.confirms(f"{self.VERB.capitalize()} {output.plan(_chosen(verdicts))}?"):
                self._console.say(f"Nothing was {self.PARTICIPLE}.")
                return exit_codes.FAILED
            verdicts = self._judge_again(verdicts, seen)
        chosen = _chosen(verdicts)
        with self._console.note_if_slow(f"to {self.VERB} transactions"):
            has_ended_all = self._end(chosen)
        return exit_codes.DONE if has_ended_all and len(chosen) == len(verdicts) else exit_codes.FAILED

    def _judge_again(self, verdicts: Sequence[Verdict], seen: Look) -> list[Verdict]:
        """Look and judge again after the question, which may have waited for hours."""
        asked = {each.transaction.task for each in _chosen(verdicts)}
        again = [each for each in self._judge(seen, self._look(seen)) if each.transaction.task in asked]
        self._console.say(*output.verdict_lines(again, self.PARTICIPLE))
        return [each for each in verdicts if each.is_left_alone] + again

    @abstractmethod
    def _concerned(self, found: Survey) -> list[SurveyedTransaction]: ...

    @abstractmethod
    def _judge(self, before: Look, after: Look) -> list[Verdict]: ...

    @abstractmethod
    def _end(self, chosen: Sequence[Verdict]) -> bool:
        """End them, and print which have ended and what failed. Returns whether all have ended."""


def _chosen(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [each for each in verdicts if not each.is_left_alone]


class AbortOpen(_Change):
    """Aborts open transactions."""

    VERB, PARTICIPLE = "abort", "aborted"

    def _concerned(self, found: Survey) -> list[SurveyedTransaction]:
        return found.unfinished

    def _judge(self, before: Look, after: Look) -> list[Verdict]:
        allowed = (FORCE if self._arguments.force else set()) | (EVEN_DECIDED if self._arguments.even_decided else set())
        return judge(before, after, allowed)

    def _end(self, chosen: Sequence[Verdict]) -> bool:
        verdicts = {each.transaction.task: each for each in chosen}
        now, trouble = self._fence(verdicts)
        failed = [each for each in now.unfinished if each.task in verdicts and _is_left(each, verdicts[each.task].transaction)]
        for each in failed:
            del verdicts[each.task]
        if verdicts:
            self._console.say(f"Aborted: {output.plan(list(verdicts.values()))}.")
        if failed:
            self._console.say(*output.shown(failed))
            why = "they have begun anew: is the query alive?" if trouble is None else str(trouble)
            self._console.note(f"error: {count(len(failed), 'transactional id')} not ended: {why}")
        return not failed

    def _fence(self, tasks: Collection[AttemptId]) -> tuple[Survey, KafkaError | None]:
        """Fence the ids. Returns what there is then, and an error if an id could not be fenced. Fenced ids may be Empty."""
        trouble: KafkaError | None = None
        try:
            fence_all(self._client, self._names, tasks)
        except KafkaError as error:
            trouble = error
        try:
            return survey(self._client, self._names, self._console.wall_ms), trouble
        except KafkaError as error:
            raise trouble or error from error


def _is_left(now: SurveyedTransaction, before: SurveyedTransaction) -> bool:
    """Whether a transaction is still open, or its task can still begin one. A fenced id can be Empty, with another identity."""
    return now.is_ongoing or (now.is_empty and now.identity == before.identity)


class CommitDecided(_Change):
    """Commits decided versions, with all of their transactions: some may have been committed before."""

    VERB, PARTICIPLE = "commit", "committed"
    OF_WHAT = " of a version that is decided"

    def _concerned(self, found: Survey) -> list[SurveyedTransaction]:
        return [each for each in found.unfinished if each.is_decided]

    def _judge(self, before: Look, after: Look) -> list[Verdict]:
        """--force does not override ALIVE: a live query may decide its next version, and this command would overwrite that."""
        return judge_decided(before, after, {Obstacle.UNWATCHED} if self._arguments.force else ())

    def _end(self, chosen: Sequence[Verdict]) -> bool:
        owners = dict.fromkeys(each.transaction.task.owner for each in chosen)
        found = decisions_of(self._client, self._names, owners).values()
        ended = [self._roll_forward(each[-1].ledger) for each in found if each]
        return all(ended)

    def _roll_forward(self, ledger: Ledger) -> bool:
        name = printable(unquote(ledger.owner))
        try:
            decision = roll_forward(ledger)
        except CommitFailedError as error:
            self._console.note(f"error: owner {name}: {error}")
            return False
        if decision is not None:
            self._console.say(f"Committed: version {decision.version} of owner {name}, {decision.content.rows:,} rows.")
        return True
