"""List the open transactions of exactly-once writes, abort or commit what a query that has died left open, and repair what hangs.

Open transactions hold back readers with isolation.level=read_committed. Brokers abort them after their time-out. `abort` does so
at once: it fences their transactional ids (InitProducerId), so that their producers can no longer write, and ends them. A version
that is decided should not be aborted: `commit` commits it, as the next run of its query would. `repair` repeats decisions whose
control records brokers have skipped.
Laws: a query that shows a sign of life is left alone; only `abort --force` overrides this. `abort` leaves a version alone that is
decided, or may be; only --even-decided overrides this. Nothing is aborted or committed without a "y" or --yes. Secrets are never
printed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TypeAlias

from spark_kafka_sink import stderr_log
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.errors import ConfigError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.tools.arguments import (
    help_epilog,
    new_parser,
    parse_non_negative_int,
    parse_pair,
    parse_positive_int,
    tool_name,
    with_bootstrap_servers,
)
from spark_kafka_sink.tools.errors import UsageError
from spark_kafka_sink.tools.exit_codes import DONE, FAILED, INTERRUPTED, USAGE
from spark_kafka_sink.tools.properties import option_name, read_properties
from spark_kafka_sink.tools.transactions import output
from spark_kafka_sink.tools.transactions.changes import AbortOpen, CommitDecided, RepairHanging
from spark_kafka_sink.tools.transactions.console import Console
from spark_kafka_sink.tools.transactions.survey import other_prefixes, survey
from spark_kafka_sink.tools.words import counted

MS_PER_MINUTE = 60_000
EXAMPLES = """
    PROG list --prefix orders --bootstrap-servers localhost:9092
    PROG list --prefix orders --recent-minutes 15 --bootstrap-servers localhost:9092
    PROG list --prefix orders --command-config sink.properties --json
    PROG abort --prefix orders --bootstrap-servers localhost:9092
    PROG abort --prefix orders --command-config sink.properties --yes
    PROG commit --prefix orders --command-config sink.properties
    PROG repair --prefix orders --topic orders --command-config sink.properties
"""
KAFKA_PREFIX = "kafka."
DONE_MEANS, FAILED_MEANS = "done, or nothing to do", "something was left alone, or failed"  # exit codes
PROG = "pykafka-sink transactions"
CHANGES: dict[str, type[AbortOpen | CommitDecided | RepairHanging]] = {
    "abort": AbortOpen,
    "commit": CommitDecided,
    "repair": RepairHanging,
}
VERBS = ("list", *CHANGES)
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


# ARGUMENTS


def build_parser(prog: str = PROG) -> argparse.ArgumentParser:
    description = "List the open transactions of exactly-once writes, abort or commit what a query that has died left, and repair"
    description += " what brokers have ended and left hanging."
    parser = new_parser(prog, description, EXAMPLES, success=DONE_MEANS, failure=FAILED_MEANS)
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(VERBS))
    summary = (
        "show open transactions, and what hangs of complete ones; needs DESCRIBE on the prefix's transactional ids and groups"
    )
    command = _add_command(commands, prog, "list", summary)
    json_help = "one JSON object per line instead of a table, and a last one with their number; times are milliseconds"
    command.add_argument("--json", action="store_true", help=json_help)
    recent_help = "also show ended transactions that began within this time; it takes a look at every id"
    recent_help += " (default: %(default)s, none)"
    command.add_argument("--recent-minutes", type=parse_non_negative_int, default=0, metavar="N", help=recent_help)
    summary = "abort the open transactions of queries that have died; asks before"
    command = _add_changing_command(commands, prog, "abort", summary)
    force_help = "also abort a query that is alive; it fails. Nothing is lost or doubled when it is run again"
    command.add_argument("--force", action="store_true", help=force_help)
    lost_help = f"also abort a version that is decided: {output.WHAT_IS_LOST}"
    command.add_argument("--even-decided", action="store_true", help=lost_help)
    summary = "commit the versions that are decided, of queries that have died; asks before"
    command = _add_changing_command(commands, prog, "commit", summary)
    force_help = "also where it cannot be seen whether the query is alive; never where it shows a sign of life"
    command.add_argument("--force", action="store_true", help=force_help)
    summary = "repeat the decision about transactions that are complete, and whose rows hang; asks before"
    command = _add_changing_command(commands, prog, "repair", summary)
    command.add_argument("--force", action="store_true", help=force_help)
    return parser


def _add_changing_command(commands: Commands, prog: str, verb: str, summary: str) -> argparse.ArgumentParser:
    needs = (
        " Needs, beyond `list`: WRITE on the transactional ids, READ on the topics, to see whether rows still arrive, and on the"
    )
    needs += " groups. `repair` also needs WRITE on the topics."
    command = _add_command(commands, prog, verb, summary, needs)
    yes_help = f"{verb} without a question; needed where there is no terminal to ask at"
    command.add_argument("--yes", action="store_true", help=yes_help)
    watch_help = (
        "how long a query may be silent before it is taken for dead (default: %(default)s): its tasks show every 4 to 8 s that"
    )
    watch_help += " they are at work; 0 only with --force"
    command.add_argument("--watch-seconds", type=parse_non_negative_int, default=10, metavar="N", help=watch_help)
    return command


def _add_command(commands: Commands, prog: str, name: str, summary: str, needs: str = "") -> argparse.ArgumentParser:
    examples = "\n".join(line.strip() for line in EXAMPLES.splitlines() if f"PROG {name} " in line)
    command = commands.add_parser(
        name,
        help=summary,
        description=f"Transactions of a prefix: {summary}.{needs}",
        epilog=help_epilog(prog, examples, success=DONE_MEANS, failure=FAILED_MEANS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("--prefix", required=True, type=_parse_prefix, help="the option transactionalIdPrefix of the query or job")
    add("--bootstrap-servers", metavar="HOST:PORT,...", help="brokers; overrides the next two")
    property_help = "a client option of Kafka; overrides the files'; repeatable"
    add("--command-property", type=parse_pair, action="append", default=[], metavar="NAME=VALUE", help=property_help)
    config_help = ".properties file with client options of Kafka; put passwords here. A --config file of the other jobs will do: "
    config_help += "the sink's own options are passed over; repeatable, later files override earlier ones"
    add("--command-config", type=Path, action="append", default=[], metavar="FILE", help=config_help)
    topic_help = "a topic where rows of complete transactions may hang; that of the markers is known by itself; repeatable"
    add("--topic", action="append", default=[], metavar="TOPIC", help=topic_help)
    timeout_help = "time limit of each step: list, read decisions, look at partitions, abort (default: %(default)s)"
    add("--timeout-ms", type=parse_positive_int, default=10_000, metavar="MS", help=timeout_help)
    return command


def _parse_prefix(text: str) -> str:
    if not text.strip():
        problem = "is empty: name the transactionalIdPrefix of one query or job. Kafka's own kafka-transactions.sh lists all ids"
        raise argparse.ArgumentTypeError(problem)
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


# COMMANDS


def list_transactions(client: TransactionClient, names: PrefixNames, arguments: argparse.Namespace, console: Console) -> int:
    """Print the open transactions, and recent ones. Returns the exit code."""
    with console.note_if_slow("for transactions"):
        recent_ms = arguments.recent_minutes * MS_PER_MINUTE
        new_survey = survey(client, names, console.wall_ms, recent_ms, topics=arguments.topic)
        prefixes = None if new_survey.transactions else other_prefixes(client, names)
    for warning in output.warnings(new_survey):
        console.note(f"warning: {warning}")
    summary = output.summary(new_survey, names.prefix, counted(arguments.recent_minutes, "minute"))
    if prefixes is not None:
        summary = output.no_such_prefix(names.prefix, prefixes)
    if arguments.json:
        console.say(*map(output.json_line, new_survey.transactions), output.summary_json(new_survey, names.prefix, prefixes))
        console.note(summary)
        return DONE
    if new_survey.transactions:
        console.say(*output.table(new_survey.transactions), "")
    console.say(summary)
    return DONE


# RUNNING


def check_flags(arguments: argparse.Namespace, console: Console) -> None:
    """Raises UsageError for flags that need a terminal or other flags. Asks no broker."""
    verb = arguments.command
    if verb == "list":
        return
    if not arguments.yes and not console.is_terminal:
        raise UsageError(f"there is no terminal to ask at: pass --yes to {verb} without a question, or use `list` to look first.")
    if not arguments.watch_seconds and not arguments.force:
        raise UsageError("--watch-seconds 0 takes --force: without looking twice, nothing tells a live query from a dead one.")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command, and return the exit code. Raises UsageError, ConfigError and KafkaError."""
    check_flags(arguments, console)
    names = PrefixNames(arguments.prefix)
    with TransactionClient(client_options(arguments)) as client:
        if arguments.command == "list":
            return list_transactions(client, names, arguments, console)
        return CHANGES[arguments.command](client, names, arguments, console).run()


def main(argv: list[str] | None = None, console: Console | None = None, prog: str = PROG) -> int:
    """Exit code: 0 done or nothing to do, 1 something was left alone or failed, 2 usage, 130 Ctrl-C."""
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(prog)
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help"):
        verb = next((word for word in words if word in VERBS), "list")
        parser.error(f"the command comes before its options: {prog} {verb} --prefix …")
    arguments = parser.parse_args(words)
    console = console or Console(tool_name(prog))
    stderr_log.add_handler()
    try:
        return run(arguments, console)
    except (UsageError, ConfigError) as error:
        console.note(f"error: {error}")
        return USAGE
    except KafkaError as error:
        longer = "; --timeout-ms allows for more time" if isinstance(error, KafkaTimeoutError) else ""
        console.note(f"error: {error}{longer}")
        return FAILED
    except KeyboardInterrupt:
        console.note("interrupted; what brokers had been asked for may still be carried out")
        return INTERRUPTED
