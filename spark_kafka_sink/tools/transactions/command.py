"""List the open transactions of exactly-once writes, and abort or commit what a query that has died left open.

    python -m jobs.transactions list --prefix orders --bootstrap-servers localhost:9092
    python -m jobs.transactions abort --prefix orders --bootstrap-servers localhost:9092
    python -m jobs.transactions commit --prefix orders --bootstrap-servers localhost:9092

Open transactions hold back readers with isolation.level=read_committed. Brokers abort them after their time-out; `abort` does so
at once: it takes their transactional ids over (InitProducerId), so that whoever wrote under them can write no more, and ends
them. A version that is decided must not be aborted: `commit` commits it, as the next run of its query would.
Laws: a query that shows a sign of life, and for `abort` a version that is decided, are left alone unless a flag of its own says
otherwise; nothing is aborted or committed without a "y" or --yes; values of options are never printed.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

from spark_kafka_sink import stderr_log
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.clock import Clock, sleep
from spark_kafka_sink.errors import ConfigError, KafkaError, KafkaTimeoutError, printable
from spark_kafka_sink.exactly_once.fencing import fence_all
from spark_kafka_sink.exactly_once.names import Names
from spark_kafka_sink.exactly_once.version_commit import roll_forward
from spark_kafka_sink.exactly_once.writes import CommitFailedError
from spark_kafka_sink.tools.arguments import not_negative, pair, positive, with_bootstrap_servers
from spark_kafka_sink.tools.errors import UsageError
from spark_kafka_sink.tools.properties import option_name, read_properties
from spark_kafka_sink.tools.transactions import output as report
from spark_kafka_sink.tools.transactions.signs_of_life import Look, look
from spark_kafka_sink.tools.transactions.survey import Survey, Transaction, ledgers_of, other_prefixes, survey
from spark_kafka_sink.tools.transactions.verdicts import EVEN_DECIDED, FORCE, Fate, Verdict, judge, judge_decided
from spark_kafka_sink.tools.words import count

MS_PER_S, MS_PER_MINUTE = 1000, 60_000
EXIT_CODES = "exit codes: 0 done, or nothing to do; 1 something was left alone, or failed; 2 wrong usage or options; 130 Ctrl-C"
EXAMPLES = """
    python -m jobs.transactions list --prefix orders --bootstrap-servers localhost:9092
    python -m jobs.transactions list --prefix orders --command-config conf/sink.properties --json
    python -m jobs.transactions abort --prefix orders --command-config conf/sink.properties --yes
    python -m jobs.transactions commit --prefix orders --command-config conf/sink.properties
"""
KAFKA_PREFIX = "kafka."


# --- ARGUMENTS --------------------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="transactions",
        description="List the open transactions of exactly-once writes, and abort or commit what a query that has died left.",
        epilog=f"examples:\n{textwrap.indent(textwrap.dedent(EXAMPLES).strip(), '  ')}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="list|abort|commit")
    what = "show open transactions; needs DESCRIBE on the prefix's transactional ids and groups"
    command = commands.add_parser("list", help=what, description=f"Transactions of a prefix: {what}.")
    _add_common(command)
    json_help = "one JSON object per line instead of a table, and a last one with their number; times are milliseconds"
    command.add_argument("--json", action="store_true", help=json_help)
    recent = "also show ended transactions that began within this time; it takes a look at every id (default: %(default)s, none)"
    command.add_argument("--recent-minutes", type=not_negative, default=0, metavar="N", help=recent)
    what = "abort the open transactions of queries that have died; asks before"
    needs = "Needs, beyond `list`: WRITE on the transactional ids, READ on the topics, to see whether rows still arrive."
    command = commands.add_parser("abort", help=what, description=f"Transactions of a prefix: {what}. {needs}")
    _add_common(command)
    _add_changing(command, "abort")
    force = "also abort a query that is alive; it fails. Nothing is lost or doubled when it is run again"
    command.add_argument("--force", action="store_true", help=force)
    lost = f"also abort a version that is decided: {report.WHAT_IS_LOST}"
    command.add_argument("--even-decided", action="store_true", help=lost)
    what = "commit the versions that are decided, of queries that have died; asks before"
    command = commands.add_parser("commit", help=what, description=f"Transactions of a prefix: {what}. {needs}")
    _add_common(command)
    _add_changing(command, "commit")
    force = "also where it cannot be seen whether the query is alive; never where it shows a sign of life"
    command.add_argument("--force", action="store_true", help=force)
    return parser


def _add_changing(command: argparse.ArgumentParser, verb: str) -> None:
    command.add_argument(
        "--yes", action="store_true", help=f"{verb} without a question; needed where there is no terminal to ask at"
    )
    watch = "how long a query may be silent before it is taken for dead (default: %(default)s): its tasks show every 4 s that"
    watch += " they are at work; 0 only with --force"
    command.add_argument("--watch-seconds", type=not_negative, default=10, metavar="N", help=watch)


def _add_common(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--prefix", required=True, type=_prefix, help="the option transactionalIdPrefix of the query or job")
    add("--bootstrap-servers", metavar="HOST:PORT,...", help="brokers; overrides the next two")
    prop = "a client option of Kafka; overrides the files'; repeatable"
    add("--command-property", type=pair, action="append", default=[], metavar="NAME=VALUE", help=prop)
    config = ".properties file with client options of Kafka; put passwords here. A --config file of the other jobs will do: the"
    config += " sink's own options are passed over; repeatable, later files override earlier ones"
    add("--command-config", type=Path, action="append", default=[], metavar="FILE", help=config)
    timeout = "time limit of each step: list, read decisions, look at partitions, abort (default: %(default)s)"
    add("--timeout-ms", type=positive, default=10_000, metavar="MS", help=timeout)


def _prefix(text: str) -> str:
    if not text.strip():
        what = "is empty: name the transactionalIdPrefix of one query or job. Kafka's own kafka-transactions.sh lists all ids"
        raise argparse.ArgumentTypeError(what)
    return text


def client_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Kafka's options by Kafka's keys, with --timeout-ms as the limit of each wait. Raises UsageError."""
    options = {"client.id": "pykafka-sink-transactions"}
    for file in arguments.command_config:
        names = {option_name(key): value for key, value in read_properties(file, "--command-config").items()}
        options |= {name.removeprefix(KAFKA_PREFIX): value for name, value in names.items() if name.startswith(KAFKA_PREFIX)}
    options |= {name.removeprefix(KAFKA_PREFIX): value for name, value in arguments.command_property}
    options = with_bootstrap_servers(options, arguments.bootstrap_servers)
    return options | {"max.block.ms": str(arguments.timeout_ms)}


# --- PEOPLE -----------------------------------------------------------------------------------------------------------


class Console:
    """Who runs the job, and the time. Tests have one of their own."""

    def __init__(self) -> None:
        self._clock = Clock()

    @property
    def is_terminal(self) -> bool:
        return sys.stdin is not None and sys.stdin.isatty()

    def say(self, *lines: str) -> None:
        for line in lines:
            print(line, flush=True)

    def note(self, line: str) -> None:
        """To stderr: what is not part of the result."""
        print(f"transactions: {line}", file=sys.stderr, flush=True)

    def confirms(self, question: str) -> bool:
        """Blocks until a line was entered."""
        try:
            return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:
            return False

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def let_pass(self, ms: int) -> None:
        sleep(self._clock, ms)


# --- COMMANDS ---------------------------------------------------------------------------------------------------------


def list_transactions(client: TransactionClient, names: Names, arguments: argparse.Namespace, console: Console) -> int:
    """Print them. Returns the exit code."""
    found = survey(client, names, console.wall_ms, arguments.recent_minutes * MS_PER_MINUTE)
    for warning in report.warnings(found):
        console.note(f"warning: {warning}")
    prefixes = None if found.transactions else other_prefixes(client, names)
    summary = report.summary(found, names.prefix, count(arguments.recent_minutes, "minute"))
    if prefixes is not None:
        summary = report.no_such_prefix(names.prefix, prefixes)
    if arguments.json:
        console.say(*map(report.json_line, found.transactions), report.summary_json(found, names.prefix, prefixes))
        console.note(summary)
        return 0
    if found.transactions:
        console.say(*report.table(found.transactions), "")
    console.say(summary)
    return 0


class _Change(ABC):
    """One run of `abort` or `commit`: two looks, a verdict for each transaction, a question, a third look, the deed."""

    VERB: ClassVar[str]
    DONE: ClassVar[str]
    FATE: ClassVar[Fate]  # of what is chosen
    OF_WHAT: ClassVar[str] = ""  # after "open transaction"

    def __init__(self, client: TransactionClient, names: Names, arguments: argparse.Namespace, console: Console) -> None:
        self._client = client
        self._names = names
        self._arguments = arguments
        self._console = console

    def run(self) -> int:
        """Returns the exit code. Blocks for --watch-seconds, and for the answer to the question."""
        console = self._console
        before = after = look(self._client, self._names, console.wall_ms)
        for warning in report.warnings(before.survey):
            console.note(f"warning: {warning}")
        concerned = self._concerned(before.survey)
        if not concerned:
            prefixes = None if before.survey.states else other_prefixes(self._client, self._names)
            none = f": prefix {printable(self._names.prefix)} has no open transaction{self.OF_WHAT}."
            why = none if prefixes is None else f". {report.no_such_prefix(self._names.prefix, prefixes)}"
            console.say(f"Nothing to {self.VERB}{why}")
            return 0
        console.say(*report.shown(concerned), "")
        if self._arguments.watch_seconds:
            seconds = self._arguments.watch_seconds
            console.note(
                f"looking again in {seconds} s, for signs of life: new ids, states or rows, and the pulse of tasks at work"
            )
            console.let_pass(seconds * MS_PER_S)
            after = look(self._client, self._names, console.wall_ms, before)
        verdicts = self._judge(before, after)
        console.say(*report.findings(verdicts))
        chosen = self._chosen(verdicts)
        if not chosen:
            if not verdicts:
                console.say(f"Nothing to {self.VERB} any more: all of them have ended by themselves.")
            return int(bool(verdicts))
        if not self._arguments.yes:
            if not console.confirms(f"{self.VERB.capitalize()} {report.plan(chosen)}?"):
                console.say(f"Nothing was {self.DONE}.")
                return 1
            verdicts = self._judge_again(verdicts, after)
            chosen = self._chosen(verdicts)
        has_done_all = self._carry_out(chosen)
        return int(not has_done_all or len(chosen) < len(verdicts))

    @abstractmethod
    def _concerned(self, found: Survey) -> list[Transaction]: ...

    @abstractmethod
    def _judge(self, before: Look, after: Look) -> list[Verdict]: ...

    @abstractmethod
    def _carry_out(self, chosen: Sequence[Verdict]) -> bool:
        """Whether all of it is done. What failed is told."""

    def _chosen(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        return [each for each in verdicts if each.fate is self.FATE]

    def _judge_again(self, verdicts: Sequence[Verdict], seen: Look) -> list[Verdict]:
        """The question may have waited for hours. What has shown a sign of life since, or was decided, is left alone."""
        now = look(self._client, self._names, self._console.wall_ms, seen)
        asked = {each.transaction.task for each in self._chosen(verdicts)}
        again = [each for each in self._judge(seen, now) if each.transaction.task in asked]
        self._console.say(*report.findings(again))
        return [each for each in verdicts if each.fate is not self.FATE] + again


class AbortOpen(_Change):
    VERB, DONE, FATE = "abort", "aborted", Fate.ABORT

    def _concerned(self, found: Survey) -> list[Transaction]:
        return found.unfinished

    def _judge(self, before: Look, after: Look) -> list[Verdict]:
        allowed = (FORCE if self._arguments.force else frozenset()) | (
            EVEN_DECIDED if self._arguments.even_decided else frozenset()
        )
        return judge(before, after, allowed)

    def _carry_out(self, chosen: Sequence[Verdict]) -> bool:
        console = self._console
        verdicts = {each.transaction.task: each for each in chosen}
        trouble: KafkaError | None = None
        try:
            fence_all(self._client, self._names, verdicts)
        except KafkaError as error:
            trouble = error  # of one of them; the others are fenced, and may be Empty
        try:
            now = survey(self._client, self._names, console.wall_ms)
        except KafkaError as error:
            raise trouble or error from error
        failed = [each for each in now.unfinished if each.task in verdicts and _is_left(each, verdicts[each.task].transaction)]
        for each in failed:
            del verdicts[each.task]
        if verdicts:
            console.say(f"Aborted: {report.plan(list(verdicts.values()))}.")
        if failed:
            why = "they have begun anew: is the query alive?" if trouble is None else str(trouble)
            console.say(*report.shown(failed))
            console.note(f"error: {count(len(failed), 'transactional id')} not at rest: {why}")
        return not failed


def _is_left(now: Transaction, before: Transaction) -> bool:
    """Whether a transaction is open that was to be aborted, or its task can still begin. An id that was fenced can stay Empty."""
    same = (before.known.producer_id, before.known.producer_epoch) == (now.known.producer_id, now.known.producer_epoch)
    return now.is_ongoing or (now.is_empty and same)


class CommitDecided(_Change):
    """Of decided versions, with all of their transactions: some may have been committed before."""

    VERB, DONE, FATE = "commit", "committed", Fate.COMMIT
    OF_WHAT = " of a version that is decided"

    def _concerned(self, found: Survey) -> list[Transaction]:
        return [each for each in found.unfinished if each.is_decided]

    def _judge(self, before: Look, after: Look) -> list[Verdict]:
        """A live query goes on to its next version, whose decision would be overwritten: --force does not go over that."""
        return judge_decided(before, after, {Fate.UNWATCHED} if self._arguments.force else ())

    def _carry_out(self, chosen: Sequence[Verdict]) -> bool:
        has_done_all = True
        owners = list(dict.fromkeys(each.transaction.task.owner for each in chosen))
        for owner, ledger in ledgers_of(self._client, self._names, owners).items():
            try:
                decision = None if ledger is None else roll_forward(self._client, self._names, ledger, owner)
            except CommitFailedError as error:
                self._console.note(f"error: owner {printable(unquote(owner))}: {error}")
                has_done_all = False
                continue
            if decision is not None:
                what = f"version {decision.version} of owner {printable(unquote(owner))}, {decision.content.rows:,} rows"
                self._console.say(f"Committed: {what}.")
        return has_done_all


# --- RUNNING ----------------------------------------------------------------------------------------------------------


def check(arguments: argparse.Namespace, console: Console) -> None:
    """Raises UsageError for what can be said before any broker is asked."""
    verb = arguments.command
    if verb == "list":
        return
    if not arguments.yes and not console.is_terminal:
        raise UsageError(f"there is no terminal to ask at: pass --yes to {verb} without a question, or use `list` to look first.")
    if not arguments.watch_seconds and not arguments.force:
        raise UsageError("--watch-seconds 0 takes --force: without looking twice, nothing tells a live query from a dead one.")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Returns the exit code. Raises UsageError, ConfigError and KafkaError."""
    check(arguments, console)
    names = Names(arguments.prefix)
    with TransactionClient(client_options(arguments)) as client:
        if arguments.command == "list":
            return list_transactions(client, names, arguments, console)
        change = AbortOpen if arguments.command == "abort" else CommitDecided
        return change(client, names, arguments, console).run()


def main(argv: list[str] | None = None, console: Console | None = None) -> int:
    """Exit code: 0 done or nothing to do, 1 something was left alone or failed, 2 usage, 130 Ctrl-C."""
    arguments = build_parser().parse_args(argv)
    console = console or Console()
    stderr_log.add_handler()
    try:
        return run(arguments, console)
    except (UsageError, ConfigError) as error:
        console.note(f"error: {error}")
        return 2
    except KafkaError as error:
        longer = "; --timeout-ms allows for more time" if isinstance(error, KafkaTimeoutError) else ""
        console.note(f"error: {error}{longer}")
        return 1
    except KeyboardInterrupt:
        console.note("interrupted; what brokers had been asked for may still be carried out")
        return 130
