"""What stands out in a query's numbers, and which option to turn: a table of rules.

A rule looks at a query and returns a Finding or None. A weight of 1 or more is trouble, above 0.5 a hint; others only inform.
A number that a report does not have is NaN. Every comparison with NaN is false, so a rule asks `if not share >= WAITING`.
The page first says that all rows arrived, if they did. Then it shows the SHOWN heaviest findings, one for each option of a query.
docs/report.md lists the rules, and docs/tuning.md explains the options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isnan

from spark_kafka_sink.tools.report.heat import SKEWED
from spark_kafka_sink.tools.report.statistics import TASK_SHARES, TIME_SHARES, Query
from spark_kafka_sink.tools.words import count, percent, rounded, seconds, several, size

SHOWN = 3
ENOUGH = 12  # micro-batches to speak of a trend
FEW_ROWS = 1_000  # fewer rows tell nothing of speed, because a write begins slowly
QUARTERS = 4  # a trend compares the first and the last quarter of the time
BUSY, WITHOUT_PAUSE = 0.85, 0.95  # the share of the time spent at work
LONGER, FULLER = 1.4, 1.2  # how many times the time and the rows of the first quarter, when a stream falls behind
WAITING = 0.1  # of the tasks' time
THROTTLED, LONG_THROTTLE_S = 0.02, 1  # a share of the tasks' time; the longest time
SLOW_METADATA_S = 0.5
SENT_AGAIN = 0.005  # of the records
SLOW_ANSWER_S = 0.5
SLOW_TASK, SLOW_TASK_S, ENOUGH_TASKS = 2.5, 0.5, 3  # SLOW_TASK: times as long as the median
MAX_SHARE = 0.5  # of the time, or of the tasks' time
LONG_COMMITS = 0.2  # of the time
LONG_ENOUGH_S, SHORT_S = 1, 5  # of a micro-batch
SMALL_BATCH, MANY_BYTES = 16_384, 1_000_000
COMPRESSED = 0.99  # what is sent is compressed if it has less than this share of the records' bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence of a report, and how much it matters.

    Args:
        observation: what the numbers say.
        advice: what to do, with the option to turn; empty: nothing.
    """

    weight: float
    observation: str
    advice: str = ""

    @property
    def is_trouble(self) -> bool:
        return self.weight >= 1

    @property
    def sentence(self) -> str:
        return f"{self.observation}: {self.advice}." if self.advice else f"{self.observation}."


Judge = Callable[[Query], Finding | None]


@dataclass(frozen=True, slots=True)
class FindingRule:
    """One row of the table: when to speak, and the function that judges.

    Args:
        option: the option that its advice is about.
        when: in which case it finds something, for docs/report.md.
        takes_few_rows: whether it also judges a query with fewer than FEW_ROWS rows.
    """

    name: str
    option: str
    when: str
    judge: Judge
    takes_few_rows: bool


FINDING_RULES: list[FindingRule] = []


def finding_rule(name: str, option: str, when: str, *, takes_few_rows: bool = True) -> Callable[[Judge], Judge]:
    """Put the function below into FINDING_RULES, as the judge of a rule with these fields."""

    def add(judge: Judge) -> Judge:
        FINDING_RULES.append(FindingRule(name, option, when, judge, takes_few_rows))
        return judge

    return add


def markdown_table() -> str:
    """The rules, for docs/report.md."""
    rows = []
    for each in FINDING_RULES:
        name, option = each.name if each.takes_few_rows else f"{each.name} \\*", f"`{each.option}`" if each.option else ""
        rows.append(f"| {name} | {each.when} | {option} |")
    return "\n".join(["| What stands out | When | Option |", "|---|---|---|", *rows])


def findings(query: Query) -> list[Finding]:
    """Heaviest first, each option once. Of a query that has written few rows, nothing is said about speed."""
    has_few_rows = query.totals.rows < FEW_ROWS
    rules = [each for each in FINDING_RULES if each.takes_few_rows or not has_few_rows]
    pairs = [(finding, rule.option) for rule in rules if (finding := rule.judge(query)) is not None]
    by_option: dict[str, Finding] = {}
    for finding, option in sorted(pairs, key=lambda pair: -pair[0].weight):
        by_option.setdefault(option, finding)
    return list(by_option.values())


def top(queries: Sequence[Query]) -> list[Finding]:
    """The sentences for the top of the page, with the names of the queries where there are several."""
    all_findings = [
        _with_query_name(finding, query) if len(queries) > 1 else finding for query in queries for finding in findings(query)
    ]
    return [*_arrival_findings(queries), *sorted(all_findings, key=lambda finding: -finding.weight)[:SHOWN]]


def _with_query_name(finding: Finding, query: Query) -> Finding:
    text = finding.observation
    return replace(finding, observation=f"In {query.name}, {text[0].lower()}{text[1:]}")


def _arrival_findings(queries: Sequence[Query]) -> list[Finding]:
    """The finding that all rows arrived; none if some did not."""
    if not queries or any(query.skipped.total() or query.dead_lettered.total() or query.other_rows for query in queries):
        return []
    rows = sum(query.totals.rows for query in queries)
    commits = " and ".join(query.commits() for query in queries) if len(queries) <= 2 else f"{len(queries)} queries"
    if not rows:
        text = f"No row was written in {commits}"
        return [Finding(0.3, text, "if some were expected, look at the input and the filter")]
    written_size = size(sum(query.totals.bytes for query in queries))
    return [Finding(0, f"All rows arrived: {count(rows, 'row')} ({written_size}) in {commits}")]


# IS IT KEEPING UP?


def _quarters(query: Query, name: str) -> tuple[float, float]:
    """The medians of a column in the first and in the last quarter of the buckets."""
    buckets = len(query.series.buckets)
    quarter = max(1, buckets // QUARTERS)
    return query.series.median_of(name, slice(0, quarter)), query.series.median_of(name, slice(buckets - quarter, buckets))


def _busy(query: Query) -> float:
    """The share of the time at work, as the median of the last quarter: a single outage does not change it."""
    return _quarters(query, "busy")[1]


@finding_rule(
    "falls behind",
    "maxOffsetsPerTrigger",
    f"At least {ENOUGH} micro-batches; {percent(BUSY)} of the time is spent at work. In the last quarter of the time one takes"
    f" {LONGER} times as long as in the first, and has {FULLER} times the rows.",
)
def falls_behind(query: Query) -> Finding | None:
    if not query.is_stream or query.totals.commits < ENOUGH or not _busy(query) >= BUSY:
        return None
    (early_s, late_s), (early_rows, late_rows) = _quarters(query, "wall"), _quarters(query, "rows")
    if late_s < LONGER * early_s or late_rows < FULLER * early_rows:
        return None
    times = f"{seconds(early_s)} at first and {seconds(late_s)} lately, with {rounded(early_rows)} and {rounded(late_rows)} rows"
    text = f"The stream falls behind: a micro-batch took {times}, and the next one begins at once"
    return Finding(4 + late_s / early_s / 100, text, f"{_remedy_by_part(query)}, and cap a micro-batch with maxOffsetsPerTrigger")


def _remedy_by_part(query: Query) -> str:
    """What to do about the largest part of the time."""
    largest = _largest({name: query.share_of_time(name) for name in TIME_SHARES})
    if largest == "running":
        largest = _largest({name: query.share(name) for name in TASK_SHARES})
    return {
        None: "give it more cores",
        "outside": "most of its time passes while no task runs, so write with fewer Spark partitions (df.coalesce)",
        "spark": "most of its time goes into computing rows, so give Spark more cores or a cheaper query",
        "held_back": "its own rate holds it back, so raise maxRecordsPerSecond or maxBytesPerSecond",
        "sink": "most of its time goes into encoding, so give it more cores and tasks",
        "brokers": "most of its time is waiting for brokers, so add partitions and brokers",
        "commit": "most of its time goes into commits, so write with fewer Spark partitions (df.coalesce)",
    }[largest]


def _largest(parts: dict[str, float]) -> str | None:
    known_parts = {name: part for name, part in parts.items() if part > 0}  # NaN is not known
    return max(known_parts, key=lambda name: known_parts[name], default=None)


@finding_rule(
    "without a pause",
    "trigger",
    f"At least {ENOUGH} micro-batches of {seconds(LONG_ENOUGH_S)} or more, and {percent(WITHOUT_PAUSE)} of the time is spent at"
    " work.",
)
def no_pause(query: Query) -> Finding | None:
    if not query.is_stream or query.totals.commits < ENOUGH or falls_behind(query) is not None:
        return None
    busy = _busy(query)
    wall = query.series.median_of("wall")
    if not busy >= WITHOUT_PAUSE or wall < LONG_ENOUGH_S:
        return None
    text = f"The stream rests for {percent(1 - busy)} of the time only: it may be as fast as it gets"
    return Finding(0.9, text, f"look whether its input waits; {_remedy_by_part(query)}, or leave a longer trigger")


@finding_rule("commits are repeated", "deliveryGuarantee", "A micro-batch was committed more than once.")
def repeated_commits(query: Query) -> Finding | None:
    if not query.repeated_count:
        return None
    text = f"{count(query.repeated_count, 'micro-batch', 'micro-batches')} ran again"
    if query.is_exactly_once:
        advice = "readers with isolation.level=read_committed saw each row once, as deliveryGuarantee=exactly-once promises"
        return Finding(0.4, text, advice)
    advice = "at least once means that those rows are in Kafka twice; deliveryGuarantee=exactly-once prevents it"
    return Finding(2.2, text, advice)


# ROWS THAT WERE NOT WRITTEN


@finding_rule("rows are missing", "onInvalidRecord", "A row was skipped or dead-lettered.")
def lacks_rows(query: Query) -> Finding | None:
    skipped, dead_lettered = query.skipped.total(), query.dead_lettered.total()
    if not skipped + dead_lettered:
        return None
    reasons = query.skipped + query.dead_lettered
    reason = reasons.most_common(1)[0][0]
    which = f", {'most of them' if len(reasons) > 1 else 'all'} with {reason}" if reason else ""
    phrases = [f"{count(skipped, 'row')} {'was' if skipped == 1 else 'were'} skipped"] if skipped else []
    phrases += [f"{count(dead_lettered, 'row')} went to the dead letter topic"] if dead_lettered else []
    share = (skipped + dead_lettered) / max(1, query.totals.rows + skipped + dead_lettered)
    weight = (2 if skipped else 1.2) + min(1.0, 10 * share)
    return Finding(weight, f"{' and '.join(phrases)} ({percent(share)}){which}", _remedy_by_reason(reason, skipped))


def _remedy_by_reason(reason: str, skipped: int) -> str:
    if "TOO_LARGE" in reason:
        advice = "raise kafka.max.request.size and the topic's max.message.bytes to accept them"
        return f"{advice}; onRecordTooLarge decides what happens to them"
    advice = "read that topic, whose headers say what was wrong, and filter such rows before the write"
    if skipped:
        advice = "filter such rows before the write, or keep them with onInvalidRecord=deadLetter"
    return f"{advice}; onInvalidRecord decides what happens to them"


# WHAT HOLDS IT UP


@finding_rule(
    "throttled",
    "maxBytesPerSecond",
    f"Brokers throttled for {percent(THROTTLED)} of the tasks' time, or once for {seconds(LONG_THROTTLE_S)}.",
)
def throttling(query: Query) -> Finding | None:
    share, longest = query.share("throttle"), query.totals.longest_throttle
    if not longest or (share < THROTTLED and longest < LONG_THROTTLE_S):  # share is NaN if no task has told its time
        return None
    in_all = "" if isnan(share) or not share else f", in all {percent(share)} of the tasks' time"
    text = f"Brokers throttled the sink, once for {seconds(longest)}{in_all}"
    weight = 1.5 + (0 if isnan(share) else 2 * share)
    return Finding(weight, text, "a quota is used up, so run fewer tasks at a time, raise the quota, or set maxBytesPerSecond")


@finding_rule("waits for memory", "kafka.buffer.memory", f"Tasks waited {percent(WAITING)} of their time for memory.")
def waits_for_memory(query: Query) -> Finding | None:
    share = query.share("memory_wait")
    if not share >= WAITING:
        return None
    text = f"Tasks waited {percent(share)} of their time for memory, because brokers took rows more slowly than Spark gave them"
    advice = "send fewer bytes with kafka.compression.type=zstd; kafka.buffer.memory helps with peaks only"
    return Finding(1 + 2 * share, text, advice)


@finding_rule(
    "waits for metadata",
    "kafka.max.block.ms",
    f"Tasks waited {percent(WAITING)} of their time for metadata, and {seconds(SLOW_METADATA_S)} in the median commit.",
)
def waits_for_metadata(query: Query) -> Finding | None:
    share = query.share("metadata_wait")
    if not share >= WAITING or query.series.median_of("metadata_wait") < SLOW_METADATA_S:
        return None
    text = f"Tasks waited {percent(share)} of their time for brokers to describe topics"
    advice = "look for topics that do not exist and for brokers that do not answer; kafka.max.block.ms limits each wait"
    return Finding(1 + share, text, advice)


@finding_rule("held back", "maxRecordsPerSecond", f"The sink's own limits cost {percent(WAITING)} of the tasks' time.")
def own_limits(query: Query) -> Finding | None:
    share = query.share("held_back")
    if not share >= WAITING:
        return None
    text = f"The sink's own limits held rows back for {percent(share)} of the tasks' time"
    return Finding(1 + share, text, "raise maxRecordsPerSecond or maxBytesPerSecond if the cluster can take more")


@finding_rule(
    "records are sent again", "kafka.delivery.timeout.ms", f"{percent(SENT_AGAIN)} of the records had to be sent again."
)
def retries(query: Query) -> Finding | None:
    retried_records, sent_records = query.series.sum_of("retried"), query.totals.sent_records
    share = retried_records / sent_records if sent_records else 0.0
    if share < SENT_AGAIN:
        return None
    text = f"{several(retried_records, 'record')} ({percent(share)}) had to be sent again"
    advice = "look for brokers that restart or are slow; kafka.delivery.timeout.ms is how long the sink goes on trying"
    return Finding(1 + min(1.0, 4 * share), text, f"{advice}, and nothing is written twice by it")


@finding_rule("batches are split", "kafka.batch.size", "Brokers found a batch too large.")
def splits(query: Query) -> Finding | None:
    number = query.series.sum_of("splits")
    if not number:
        return None
    text = f"Brokers found {count(int(number), 'batch', 'batches')} too large, which were split and sent again"
    share = number / max(1.0, query.totals.batches)
    return Finding(0.9 + min(1.0, share), text, "set kafka.batch.size to at most the topic's max.message.bytes")


@finding_rule(
    "brokers are slow",
    "kafka.linger.ms",
    f"In the median commit, a request took {seconds(SLOW_ANSWER_S)} or more on average.",
    takes_few_rows=False,
)
def slow_brokers(query: Query) -> Finding | None:
    latency = query.series.median_of("latency")
    if not latency >= SLOW_ANSWER_S:
        return None
    text = f"Brokers took {seconds(latency)} to answer a request"
    fuller = "fewer and fuller requests with a larger kafka.linger.ms and kafka.batch.size help them"
    return Finding(1 + min(1.0, latency / 5), text, f"look at their disks, network and replicas; {fuller}")


# WHERE THE TIME GOES


@finding_rule(
    "a task is slow",
    "df.repartition",
    f"At least {ENOUGH_TASKS} tasks. The slowest takes {SLOW_TASK} times as long as the median task, and {seconds(SLOW_TASK_S)}.",
    takes_few_rows=False,
)
def slow_tasks(query: Query) -> Finding | None:
    slowest, median = query.series.median_of("slowest_task"), query.series.median_of("median_task")
    if query.totals.most_tasks < ENOUGH_TASKS or not median > 0 or slowest / median < SLOW_TASK or slowest < SLOW_TASK_S:
        return None
    text = f"The slowest task takes {slowest / median:.1f} times as long as the median task ({seconds(slowest)})"
    advice = "spread the rows evenly with df.repartition"
    return Finding(1 + min(1.0, slowest / median / 10), text, advice)


@finding_rule(
    "partitions are skewed",
    "kafka.partitioner.ignore.keys",
    f"A partition has {SKEWED} times its share of {FEW_ROWS:,} rows or more.",
)
def skewed_partitions(query: Query) -> Finding | None:
    candidates = []
    for topic, heat in query.heat.items():
        skew = heat.skew()
        if skew is None or skew.factor < SKEWED or heat.rows < FEW_ROWS or skew.partitions < 2:
            continue
        even = f"{skew.factor:.1f} times an even share of {percent(skew.even)}"
        text = f"Partition {skew.partition} of {topic} gets {percent(skew.share)} of its rows, {even}"
        spread = "spread rows whose order does not matter with kafka.partitioner.ignore.keys=true"
        advice = f"choose a key with more values, or {spread}"
        candidates.append(Finding(1.1 + min(1.0, skew.factor / 20), text, advice))
    return max(candidates, key=lambda each: each.weight, default=None)


def _largest_part_is(what: str) -> str:
    return f"{percent(MAX_SHARE)} of the tasks' time or more is {what}."


@finding_rule("Spark computes", "spark.sql.files.maxPartitionBytes", _largest_part_is("Spark's"), takes_few_rows=False)
def waits_for_spark(query: Query) -> Finding | None:
    share = query.share("spark")
    if not share >= MAX_SHARE or passes_outside(query):
        return None
    text = f"{percent(share)} of the tasks' time goes into reading and computing rows, not into writing them"
    how = "of files with a smaller spark.sql.files.maxPartitionBytes, else with df.repartition before the costly steps"
    return Finding(0.7, text, f"a faster sink would gain little; give Spark more cores, and as many tasks: {how}")


@finding_rule("encoding", "df.repartition", _largest_part_is("encoding and sending"), takes_few_rows=False)
def encodes(query: Query) -> Finding | None:
    share = query.share("sink")
    if not share >= MAX_SHARE or passes_outside(query):
        return None
    text = f"{percent(share)} of the tasks' time goes into encoding and sending rows"
    return Finding(0.4, text, "more cores, and as many tasks (df.repartition), make it faster")


@finding_rule("waiting for brokers", "kafka.compression.type", _largest_part_is("waiting for brokers"), takes_few_rows=False)
def waits_for_brokers(query: Query) -> Finding | None:
    share = query.share("brokers")
    if not share >= MAX_SHARE or passes_outside(query) or waits_for_memory(query) or falls_behind(query):
        return None
    text = f"{percent(share)} of the tasks' time is waiting for brokers"
    return Finding(0.4, text, "add partitions and brokers, or send fewer bytes with kafka.compression.type=zstd")


@finding_rule(
    "time outside of tasks",
    "df.coalesce",
    f"{percent(MAX_SHARE)} of the time or more passes while no task runs.",
    takes_few_rows=False,
)
def passes_outside(query: Query) -> Finding | None:
    share, wall = query.share_of_time("outside"), query.series.median_of("wall")
    if not share >= MAX_SHARE:
        return None
    text = f"{percent(share)} of the time of a {query.unit} ({seconds(wall)}) passes while no task runs"
    advice = "Spark starts tasks and Python workers then, so write more rows at a time, or with fewer tasks (df.coalesce)"
    return Finding(0.65, text, advice)


@finding_rule(
    "commits take long",
    "df.coalesce",
    f"With exactly-once, commits take {percent(LONG_COMMITS)} of the time.",
    takes_few_rows=False,
)
def commits_take_long(query: Query) -> Finding | None:
    share = query.share_of_time("commit")
    if not share >= LONG_COMMITS or not query.is_exactly_once:
        return None
    text = f"Committing transactions takes {percent(share)} of the time, one for each task ({rounded(query.totals.most_tasks)})"
    return Finding(1 + share, text, "write with fewer Spark partitions (df.coalesce)")


@finding_rule(
    "versions were completed by another run",
    "kafka.transaction.timeout.ms",
    "With exactly-once, a version was found there already or rolled forward.",
)
def completed_by_another_run(query: Query) -> Finding | None:
    rolled_forward_count, found_count = query.versions["rolled-forward"], query.versions["found"] + query.versions["superseded"]
    if not rolled_forward_count + found_count:
        return None
    how = f"({rolled_forward_count:,} rolled forward, {found_count:,} found there)"
    text = f"{count(rolled_forward_count + found_count, 'version')} had been decided or committed by an earlier run {how}"
    advice = "a driver died amid its work and nothing is missing; kafka.transaction.timeout.ms is the time to start it again"
    return Finding(0.8, text, advice)


@finding_rule("repetitions brought other rows", "txnVersion", "With onNonDeterministicReplay=keepFirst, rows were not written.")
def brought_other_rows(query: Query) -> Finding | None:
    if not query.other_rows:
        return None
    text = f"{count(query.other_rows, 'row')} of repeated versions differ from those in Kafka, and were not written"
    return Finding(5, text, "if they are no repetition, give them a txnVersion or a checkpoint of their own")


@finding_rule(
    "many small micro-batches",
    "trigger",
    f"At least {ENOUGH} micro-batches, of fewer than {FEW_ROWS:,} rows and {seconds(SHORT_S)}.",
)
def small_micro_batches(query: Query) -> Finding | None:
    rows, wall = query.series.median_of("rows"), query.series.median_of("wall")
    if not query.is_stream or query.totals.commits < ENOUGH or rows >= FEW_ROWS or not 0 < wall < SHORT_S:
        return None
    text = f"A micro-batch writes {several(rows, 'row')} in {seconds(wall)}, most of which is the cost of a micro-batch itself"
    return Finding(0.75, text, "if readers can wait, have fewer of them with a longer trigger(processingTime=…)")


# BATCHES AND BYTES


@finding_rule(
    "batches are small",
    "df.repartition",
    f"Batches have less than {SMALL_BATCH >> 10} KiB, and a commit sends {size(MANY_BYTES)}.",
)
def small_batches(query: Query) -> Finding | None:
    batch, bytes_per_commit = query.series.median_of("batch_size"), query.totals.sent_bytes / max(1, query.totals.commits)
    if not batch < SMALL_BATCH or bytes_per_commit < MANY_BYTES:
        return None
    text = f"Batches have {size(batch)} only, as each task has few rows for each partition"
    return Finding(1.0, text, 'write more rows to fewer partitions in a task, with df.repartition("key") or fewer tasks')


@finding_rule(
    "nothing is compressed",
    "kafka.compression.type",
    f"What is sent has {percent(COMPRESSED)} of the bytes or more, and {size(MANY_BYTES)} or more.",
)
def no_compression(query: Query) -> Finding | None:
    if not query.compression >= COMPRESSED or query.totals.sent_bytes < MANY_BYTES:
        return None
    text = f"{size(query.totals.sent_bytes)} went out uncompressed"
    return Finding(0.65, text, "kafka.compression.type=lz4 saves network and disks for little CPU, zstd saves more")


# WHAT IS WELL


@finding_rule(
    "keeps up",
    "trigger",
    f"At least {ENOUGH} micro-batches, less than {percent(WITHOUT_PAUSE)} of the time at work, and not falling behind.",
)
def keeps_up(query: Query) -> Finding | None:
    busy = _busy(query)
    if not query.is_stream or query.totals.commits < ENOUGH or falls_behind(query) or not busy < WITHOUT_PAUSE:
        return None
    wall = seconds(query.series.median_of("wall"))
    text = f"The stream keeps up: lately it was at work for {percent(busy)} of the time, {wall} a micro-batch"
    return Finding(0.5, text, "a shorter trigger would lower the delay")


@finding_rule("speed", "", "Always.", takes_few_rows=False)
def speed(query: Query) -> Finding | None:
    return None if isnan(query.rows_per_s) else Finding(0.45, speed_in_words(query))


def speed_in_words(query: Query) -> str:
    """For the page, for shells and for the quick start."""
    running, tasks = query.series.sum_of("running"), query.totals.most_tasks
    in_tasks = f"{count(tasks, 'task')} ran" if query.totals.commits == 1 else "tasks ran"
    return f"{rounded(query.rows_per_s)} rows/s were written while {in_tasks} ({seconds(running)})"


@finding_rule(
    "compresses",
    "kafka.compression.type",
    f"What is sent has less than {percent(COMPRESSED)} of the bytes.",
    takes_few_rows=False,
)
def compresses(query: Query) -> Finding | None:
    if not query.compression < COMPRESSED:
        return None
    batch = size(query.series.median_of("batch_size"))
    text = f"Compression leaves {percent(query.compression)} of the bytes, in batches of {batch}"
    return Finding(0.2, text, "kafka.compression.type=zstd makes them smaller for more CPU, lz4 is the fastest")
