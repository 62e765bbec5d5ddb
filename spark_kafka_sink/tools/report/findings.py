"""What stands out in a query's numbers, and which option to turn: a table of rules.

A rule looks at a query and returns a Finding or None. A weight of 1 or more is trouble, above 0.5 a hint; others only inform.
A number that a report does not have is NaN. Every comparison with NaN is false, so a rule asks `if not share >= MIN_WAIT_SHARE`.
The page first says that all rows arrived, if they did. Then it shows the heaviest findings, one for each option of a query.
docs/report.md lists the rules, and docs/tuning.md explains the options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isnan

from spark_kafka_sink.tools.report.heat import MIN_SKEW_FACTOR
from spark_kafka_sink.tools.report.statistics import TASK_PARTS, TIME_PARTS, Query
from spark_kafka_sink.tools.words import counted, percent, rounded, seconds, several, size

MAX_FINDINGS = 3  # at the top of the page
MIN_COMMITS = 12  # to speak of a trend
MIN_ROWS = 1_000  # fewer tell nothing of speed, because a write begins slowly
QUARTERS = 4  # a trend compares the first and the last quarter of the time
MIN_BUSY_SHARE, MIN_RESTLESS_SHARE = 0.85, 0.95  # of the time at work, in a stream that falls behind; in one without rest
MIN_TIME_FACTOR, MIN_ROWS_FACTOR = 1.4, 1.2  # times the first quarter's time, and its rows: the stream falls behind
MIN_WAIT_SHARE = 0.1  # of the tasks' time
MIN_THROTTLE_SHARE, MIN_THROTTLE_S = 0.02, 1  # of the tasks' time; seconds of the longest throttle
MIN_METADATA_S = 0.5
MIN_RETRIED_SHARE = 0.005  # of the records
MIN_LATENCY_S = 0.5
MIN_SLOW_FACTOR, MIN_SLOW_S, MIN_TASKS = 2.5, 0.5, 3  # of the slowest task: times the median one, and seconds
MIN_PART_SHARE = 0.5  # of the time, or of the tasks' time: from there on, a part stands out
MIN_COMMIT_SHARE = 0.2  # of the time
MIN_RESTLESS_S, MAX_SHORT_S = 1, 5  # a micro-batch takes
MAX_SMALL_BATCH_BYTES, MIN_SENT_BYTES = 16_384, 1_000_000
MAX_COMPRESSED_SHARE = 0.99  # of the records' bytes: if fewer are sent, they are compressed


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
        takes_few_rows: whether it also judges a query with fewer than MIN_ROWS rows.
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
    has_few_rows = query.totals.rows < MIN_ROWS
    rules = [each for each in FINDING_RULES if each.takes_few_rows or not has_few_rows]
    pairs = [(finding, rule.option) for rule in rules if (finding := rule.judge(query)) is not None]
    by_option: dict[str, Finding] = {}
    for finding, option in sorted(pairs, key=lambda each: -each[0].weight):
        by_option.setdefault(option, finding)
    return list(by_option.values())


def top_findings(queries: Sequence[Query]) -> list[Finding]:
    """The sentences for the top of the page, with the names of the queries where there are several."""
    all_findings = [
        _with_query_name(finding, query) if len(queries) > 1 else finding for query in queries for finding in findings(query)
    ]
    return [*_arrival_findings(queries), *sorted(all_findings, key=lambda finding: -finding.weight)[:MAX_FINDINGS]]


def _with_query_name(finding: Finding, query: Query) -> Finding:
    text = finding.observation
    return replace(finding, observation=f"In {query.name}, {text[0].lower()}{text[1:]}")


def _arrival_findings(queries: Sequence[Query]) -> list[Finding]:
    """The finding that all rows arrived, or that none was written. Empty if some did not arrive."""
    if not queries or any(query.skipped.total() or query.dead_lettered.total() or query.other_rows for query in queries):
        return []
    rows = sum(query.totals.rows for query in queries)
    commits = " and ".join(query.commits_in_words() for query in queries) if len(queries) <= 2 else queries_in_words(queries)
    if not rows:
        text = f"No row was written in {commits}"
        return [Finding(0.3, text, "if some were expected, look at the input and the filter")]
    written_size = size(sum(query.totals.bytes for query in queries))
    return [Finding(0, f"All rows arrived: {counted(rows, 'row')} ({written_size}) in {commits}")]


def queries_in_words(queries: Sequence[Query], adjective: str = "") -> str:
    """How many streaming queries, and whether there are batch writes too, which are one Query."""
    query_count = sum(query.is_stream for query in queries)
    words = [counted(query_count, f"{adjective}query", f"{adjective}queries")] if query_count else []
    words += [query.commits_in_words() for query in queries if not query.is_stream]
    return " and ".join(words)


# IS IT KEEPING UP?


def _quarters(query: Query, name: str) -> tuple[float, float]:
    """The medians of a column in the first and in the last quarter of the buckets."""
    bucket_count = len(query.series.buckets)
    quarter = max(1, bucket_count // QUARTERS)
    return query.series.median(name, slice(0, quarter)), query.series.median(name, slice(bucket_count - quarter, bucket_count))


def _busy_share(query: Query) -> float:
    """The share of the time at work, as the median of the last quarter: a single outage does not change it."""
    return _quarters(query, "busy_share")[1]


@finding_rule(
    "falls behind",
    "maxOffsetsPerTrigger",
    f"At least {MIN_COMMITS} micro-batches; {percent(MIN_BUSY_SHARE)} of the time is spent at work. In the last quarter of the"
    f" time one takes {MIN_TIME_FACTOR} times as long as in the first, and has {MIN_ROWS_FACTOR} times the rows.",
)
def falls_behind(query: Query) -> Finding | None:
    if not query.is_stream or query.unit_count < MIN_COMMITS or not _busy_share(query) >= MIN_BUSY_SHARE:
        return None
    (early_s, late_s), (early_rows, late_rows) = _quarters(query, "wall_s"), _quarters(query, "rows")
    if not late_s or not late_s >= MIN_TIME_FACTOR * early_s or late_rows < MIN_ROWS_FACTOR * early_rows:
        return None
    times = f"{seconds(early_s)} at first and {seconds(late_s)} lately, with {rounded(early_rows)} and {rounded(late_rows)} rows"
    text = f"The stream falls behind: a micro-batch took {times}, and the next one begins at once"
    return Finding(5 - early_s / late_s, text, f"{_remedy_by_part(query)}, and cap a micro-batch with maxOffsetsPerTrigger")


def _remedy_by_part(query: Query) -> str:
    """What to do about the largest part of the time."""
    largest = _largest({name: query.share_of_time(name) for name in TIME_PARTS})
    if largest == "running_s":
        largest = _largest({name: query.share_of_task_time(name) for name in TASK_PARTS})
    return {
        None: "give it more cores",
        "outside_s": "most of its time passes while no task runs, so write with fewer Spark partitions (df.coalesce)",
        "spark_s": "most of its time goes into computing rows, so give Spark more cores or a cheaper query",
        "held_back_s": "its own rate holds it back, so raise maxRecordsPerSecond or maxBytesPerSecond",
        "sink_s": "most of its time goes into encoding, so give it more cores and tasks",
        "brokers_s": "most of its time is waiting for brokers, so add partitions and brokers",
        "commit_s": "most of its time goes into commits, so write with fewer Spark partitions (df.coalesce)",
    }[largest]


def _largest(parts: dict[str, float]) -> str | None:
    known_parts = {name: part for name, part in parts.items() if part > 0}  # NaN is not known
    return max(known_parts, key=lambda name: known_parts[name], default=None)


@finding_rule(
    "without a pause",
    "trigger",
    f"At least {MIN_COMMITS} micro-batches of {seconds(MIN_RESTLESS_S)} or more, and {percent(MIN_RESTLESS_SHARE)} of the time is"
    " spent at work.",
)
def no_pause(query: Query) -> Finding | None:
    if not query.is_stream or query.unit_count < MIN_COMMITS or falls_behind(query) is not None:
        return None
    busy_share = _busy_share(query)
    wall_s = query.series.median("wall_s")
    if not busy_share >= MIN_RESTLESS_SHARE or wall_s < MIN_RESTLESS_S:
        return None
    text = f"The stream rests for {percent(1 - busy_share)} of the time only: it may be as fast as it gets"
    return Finding(0.9, text, f"look whether its input waits; {_remedy_by_part(query)}, or leave a longer trigger")


@finding_rule(
    "commits are repeated",
    "deliveryGuarantee",
    "Without exactly-once, a micro-batch was written to a topic more often than the stream's others.",
)
def repeated_commits(query: Query) -> Finding | None:
    if not query.repeated_count:
        return None
    text = f"{counted(query.repeated_count, 'micro-batch', 'micro-batches')} ran again"
    advice = "at least once means that those rows are in Kafka twice; deliveryGuarantee=exactly-once prevents it"
    return Finding(2.2, text, advice)


@finding_rule("versions are repeated", "deliveryGuarantee", "With exactly-once, a version was in Kafka already.")
def repeated_versions(query: Query) -> Finding | None:
    found_count = query.versions["found"] + query.versions["superseded"]
    if not found_count:
        return None
    text = f"{counted(found_count, 'version')} ran again, and {'was' if found_count == 1 else 'were'} in Kafka already"
    advice = "with deliveryGuarantee=exactly-once, readers with isolation.level=read_committed saw each row once"
    return Finding(0.4, text, advice)


# ROWS THAT WERE NOT WRITTEN


@finding_rule("rows are missing", "onInvalidRecord", "A row was skipped or dead-lettered.")
def lacks_rows(query: Query) -> Finding | None:
    skipped, dead_lettered = query.skipped.total(), query.dead_lettered.total()
    if not skipped + dead_lettered:
        return None
    reasons = query.skipped + query.dead_lettered
    reason = reasons.most_common(1)[0][0]
    which = f", {'most of them' if len(reasons) > 1 else 'all'} with {reason}" if reason else ""
    phrases = [f"{counted(skipped, 'row')} {'was' if skipped == 1 else 'were'} skipped"] if skipped else []
    phrases += [f"{counted(dead_lettered, 'row')} went to the dead letter topic"] if dead_lettered else []
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
    f"Brokers throttled for {percent(MIN_THROTTLE_SHARE)} of the tasks' time, or once for {seconds(MIN_THROTTLE_S)}.",
)
def throttling(query: Query) -> Finding | None:
    share, longest_s = query.share_of_task_time("throttle_s"), query.totals.longest_throttle_s
    if not longest_s or (share < MIN_THROTTLE_SHARE and longest_s < MIN_THROTTLE_S):  # share is NaN if no task's time is known
        return None
    in_all = "" if isnan(share) or not share else f", in all {percent(share)} of the tasks' time"
    text = f"Brokers throttled the sink, once for {seconds(longest_s)}{in_all}"
    weight = 1.5 + (0 if isnan(share) else 2 * share)
    return Finding(weight, text, "a quota is used up, so run fewer tasks at a time, raise the quota, or set maxBytesPerSecond")


@finding_rule("waits for memory", "kafka.buffer.memory", f"Tasks waited {percent(MIN_WAIT_SHARE)} of their time for memory.")
def waits_for_memory(query: Query) -> Finding | None:
    share = query.share_of_task_time("memory_wait_s")
    if not share >= MIN_WAIT_SHARE:
        return None
    text = f"Tasks waited {percent(share)} of their time for memory, because brokers took rows more slowly than Spark gave them"
    advice = "send fewer bytes with kafka.compression.type=zstd; kafka.buffer.memory helps with peaks only"
    return Finding(1 + 2 * share, text, advice)


@finding_rule(
    "waits for metadata",
    "kafka.max.block.ms",
    f"Tasks waited {percent(MIN_WAIT_SHARE)} of their time for metadata, and {seconds(MIN_METADATA_S)} in the median commit.",
)
def waits_for_metadata(query: Query) -> Finding | None:
    share = query.share_of_task_time("metadata_wait_s")
    if not share >= MIN_WAIT_SHARE or query.series.median("metadata_wait_s") < MIN_METADATA_S:
        return None
    text = f"Tasks waited {percent(share)} of their time for brokers to describe topics"
    advice = "look for topics that do not exist and for brokers that do not answer; kafka.max.block.ms limits each wait"
    return Finding(1 + share, text, advice)


@finding_rule("held back", "maxRecordsPerSecond", f"The sink's own limits cost {percent(MIN_WAIT_SHARE)} of the tasks' time.")
def own_limits(query: Query) -> Finding | None:
    share = query.share_of_task_time("held_back_s")
    if not share >= MIN_WAIT_SHARE:
        return None
    text = f"The sink's own limits held rows back for {percent(share)} of the tasks' time"
    return Finding(1 + share, text, "raise maxRecordsPerSecond or maxBytesPerSecond if the cluster can take more")


@finding_rule(
    "records are sent again", "kafka.delivery.timeout.ms", f"{percent(MIN_RETRIED_SHARE)} of the records had to be sent again."
)
def retries(query: Query) -> Finding | None:
    retried_records, sent_records = query.series.sum("retried"), query.totals.sent_records
    share = retried_records / sent_records if sent_records else 0.0
    if share < MIN_RETRIED_SHARE:
        return None
    text = f"{several(retried_records, 'record')} ({percent(share)}) had to be sent again"
    advice = "look for brokers that restart or are slow; kafka.delivery.timeout.ms is how long the sink goes on trying"
    return Finding(1 + min(1.0, 4 * share), text, f"{advice}, and nothing is written twice by it")


@finding_rule("batches are split", "kafka.batch.size", "Brokers found a batch too large.")
def splits(query: Query) -> Finding | None:
    split_count = query.series.sum("splits")
    if not split_count:
        return None
    text = f"Brokers found {counted(int(split_count), 'batch', 'batches')} too large, which were split and sent again"
    share = split_count / max(1.0, query.totals.batches)
    return Finding(0.9 + min(1.0, share), text, "set kafka.batch.size to at most the topic's max.message.bytes")


@finding_rule(
    "brokers are slow",
    "kafka.linger.ms",
    f"In the median commit, a request took {seconds(MIN_LATENCY_S)} or more on average.",
    takes_few_rows=False,
)
def slow_brokers(query: Query) -> Finding | None:
    latency_s = query.series.median("latency_s")
    if not latency_s >= MIN_LATENCY_S:
        return None
    text = f"Brokers took {seconds(latency_s)} to answer a request"
    fuller = "fewer and fuller requests with a larger kafka.linger.ms and kafka.batch.size help them"
    return Finding(1 + min(1.0, latency_s / 5), text, f"look at their disks, network and replicas; {fuller}")


# WHERE THE TIME GOES


@finding_rule(
    "a task is slow",
    "df.repartition",
    f"At least {MIN_TASKS} tasks. The slowest takes {MIN_SLOW_FACTOR} times as long as the median task, and"
    f" {seconds(MIN_SLOW_S)}.",
    takes_few_rows=False,
)
def slow_tasks(query: Query) -> Finding | None:
    slowest_s, median_s = query.series.median("slowest_task_s"), query.series.median("median_task_s")
    factor = slowest_s / median_s if median_s > 0 else 0.0
    if query.totals.most_tasks < MIN_TASKS or factor < MIN_SLOW_FACTOR or slowest_s < MIN_SLOW_S:
        return None
    text = f"The slowest task takes {factor:.1f} times as long as the median task ({seconds(slowest_s)})"
    advice = "spread the rows evenly with df.repartition"
    return Finding(1 + min(1.0, factor / 10), text, advice)


@finding_rule(
    "partitions are skewed",
    "kafka.partitioner.ignore.keys",
    f"A partition has {MIN_SKEW_FACTOR} times its share of {MIN_ROWS:,} rows or more.",
)
def skewed_partitions(query: Query) -> Finding | None:
    candidates = []
    for topic, heat in query.heat_maps.items():
        skew = heat.skew()
        if skew is None or skew.factor < MIN_SKEW_FACTOR or heat.rows < MIN_ROWS or skew.partition_count < 2:
            continue
        even = f"{skew.factor:.1f} times an even share of {percent(skew.even_share)}"
        text = f"Partition {skew.partition} of {topic} gets {percent(skew.share)} of its rows, {even}"
        spread = "spread rows whose order does not matter with kafka.partitioner.ignore.keys=true"
        advice = f"choose a key with more values, or {spread}"
        candidates.append(Finding(1.1 + min(1.0, skew.factor / 20), text, advice))
    return max(candidates, key=lambda each: each.weight, default=None)


def _largest_part_is(part: str) -> str:
    return f"{percent(MIN_PART_SHARE)} of the tasks' time or more is {part}."


@finding_rule("Spark computes", "spark.sql.files.maxPartitionBytes", _largest_part_is("Spark's"), takes_few_rows=False)
def waits_for_spark(query: Query) -> Finding | None:
    share = query.share_of_task_time("spark_s")
    if not share >= MIN_PART_SHARE or passes_outside(query):
        return None
    text = f"{percent(share)} of the tasks' time goes into reading and computing rows, not into writing them"
    how = "of files with a smaller spark.sql.files.maxPartitionBytes, else with df.repartition before the costly steps"
    return Finding(0.7, text, f"a faster sink would gain little; give Spark more cores, and as many tasks: {how}")


@finding_rule("encoding", "df.repartition", _largest_part_is("encoding and sending"), takes_few_rows=False)
def encodes(query: Query) -> Finding | None:
    share = query.share_of_task_time("sink_s")
    if not share >= MIN_PART_SHARE or passes_outside(query):
        return None
    text = f"{percent(share)} of the tasks' time goes into encoding and sending rows"
    return Finding(0.4, text, "more cores, and as many tasks (df.repartition), make it faster")


@finding_rule("waiting for brokers", "kafka.compression.type", _largest_part_is("waiting for brokers"), takes_few_rows=False)
def waits_for_brokers(query: Query) -> Finding | None:
    share = query.share_of_task_time("brokers_s")
    if not share >= MIN_PART_SHARE or passes_outside(query) or waits_for_memory(query) or falls_behind(query):
        return None
    text = f"{percent(share)} of the tasks' time is waiting for brokers"
    return Finding(0.4, text, "add partitions and brokers, or send fewer bytes with kafka.compression.type=zstd")


@finding_rule(
    "time outside of tasks",
    "df.coalesce",
    f"{percent(MIN_PART_SHARE)} of the time or more passes while no task runs.",
    takes_few_rows=False,
)
def passes_outside(query: Query) -> Finding | None:
    share, wall_s = query.share_of_time("outside_s"), query.series.median("wall_s")
    if not share >= MIN_PART_SHARE:
        return None
    text = f"{percent(share)} of the time of a {query.unit} ({seconds(wall_s)}) passes while no task runs"
    advice = "Spark starts tasks and Python workers then, so write more rows at a time, or with fewer tasks (df.coalesce)"
    return Finding(0.65, text, advice)


@finding_rule(
    "commits take long",
    "df.coalesce",
    f"With exactly-once, commits take {percent(MIN_COMMIT_SHARE)} of the time.",
    takes_few_rows=False,
)
def commits_take_long(query: Query) -> Finding | None:
    share = query.share_of_time("commit_s")
    if not share >= MIN_COMMIT_SHARE or not query.is_exactly_once:
        return None
    text = f"Committing transactions takes {percent(share)} of the time, one for each task ({rounded(query.totals.most_tasks)})"
    return Finding(1 + share, text, "write with fewer Spark partitions (df.coalesce)")


@finding_rule(
    "versions were completed by another run",
    "kafka.transaction.timeout.ms",
    "With exactly-once, a version was rolled forward.",
)
def completed_by_another_run(query: Query) -> Finding | None:
    rolled_forward_count = query.versions["rolled-forward"]
    if not rolled_forward_count:
        return None
    text = (
        f"{counted(rolled_forward_count, 'version')} had been decided by an earlier run, which ended before it had committed all"
    )
    advice = "a later run did that and nothing is missing; kafka.transaction.timeout.ms is the time to start it"
    return Finding(0.8, text, advice)


@finding_rule("repetitions brought other rows", "txnVersion", "With onNonDeterministicReplay=keepFirst, rows were not written.")
def brought_other_rows(query: Query) -> Finding | None:
    if not query.other_rows:
        return None
    text = f"{counted(query.other_rows, 'row')} of repeated versions differ from those in Kafka, and were not written"
    return Finding(5, text, "if they are no repetition, give them a txnVersion or a checkpoint of their own")


@finding_rule(
    "many small micro-batches",
    "trigger",
    f"At least {MIN_COMMITS} micro-batches, of fewer than {MIN_ROWS:,} rows and {seconds(MAX_SHORT_S)}.",
)
def small_micro_batches(query: Query) -> Finding | None:
    rows, wall_s = query.series.median("rows"), query.series.median("wall_s")
    if not query.is_stream or query.unit_count < MIN_COMMITS or rows >= MIN_ROWS or not 0 < wall_s < MAX_SHORT_S:
        return None
    text = f"A micro-batch writes {several(rows, 'row')} in {seconds(wall_s)}, most of which is the cost of a micro-batch itself"
    return Finding(0.75, text, "if readers can wait, have fewer of them with a longer trigger(processingTime=…)")


# BATCHES AND BYTES


@finding_rule(
    "batches are small",
    "df.repartition",
    f"Batches have less than {MAX_SMALL_BATCH_BYTES >> 10} KiB, and a commit sends {size(MIN_SENT_BYTES)}.",
)
def small_batches(query: Query) -> Finding | None:
    batch_bytes, bytes_per_commit = query.series.median("batch_bytes"), query.totals.sent_bytes / max(1, query.totals.commits)
    if not batch_bytes < MAX_SMALL_BATCH_BYTES or bytes_per_commit < MIN_SENT_BYTES:
        return None
    text = f"Batches have {size(batch_bytes)} only, as each task has few rows for each partition"
    return Finding(1.0, text, 'write more rows to fewer partitions in a task, with df.repartition("key") or fewer tasks')


@finding_rule(
    "nothing is compressed",
    "kafka.compression.type",
    f"What is sent has {percent(MAX_COMPRESSED_SHARE)} of the records' bytes or more, and {size(MIN_SENT_BYTES)} or more.",
)
def no_compression(query: Query) -> Finding | None:
    if not query.compression >= MAX_COMPRESSED_SHARE or query.totals.sent_bytes < MIN_SENT_BYTES:
        return None
    text = f"{size(query.totals.sent_bytes)} went out uncompressed"
    return Finding(0.65, text, "kafka.compression.type=lz4 saves network and disks for little CPU, zstd saves more")


# WHAT IS WELL


@finding_rule(
    "keeps up",
    "trigger",
    f"At least {MIN_COMMITS} micro-batches, less than {percent(MIN_RESTLESS_SHARE)} of the time at work, and not falling behind.",
)
def keeps_up(query: Query) -> Finding | None:
    busy_share = _busy_share(query)
    if not query.is_stream or query.unit_count < MIN_COMMITS or falls_behind(query) or not busy_share < MIN_RESTLESS_SHARE:
        return None
    wall_in_words = seconds(query.series.median("wall_s"))
    text = f"The stream keeps up: lately it was at work for {percent(busy_share)} of the time, {wall_in_words} a micro-batch"
    return Finding(0.5, text, "a shorter trigger would lower the delay")


@finding_rule("speed", "", "Always.", takes_few_rows=False)
def speed(query: Query) -> Finding | None:
    return None if isnan(query.rows_per_s) else Finding(0.45, speed_in_words(query))


def speed_in_words(query: Query) -> str:
    """The finding about speed, which the quick start prints, too."""
    running_s, task_count = query.series.sum("running_s"), query.totals.most_tasks
    in_tasks = f"{counted(task_count, 'task')} ran" if query.totals.commits == 1 else "tasks ran"
    return f"{rounded(query.rows_per_s)} rows/s were written while {in_tasks} ({seconds(running_s)})"


@finding_rule(
    "compresses",
    "kafka.compression.type",
    f"What is sent has less than {percent(MAX_COMPRESSED_SHARE)} of the records' bytes.",
    takes_few_rows=False,
)
def compresses(query: Query) -> Finding | None:
    if not query.compression < MAX_COMPRESSED_SHARE:
        return None
    batch = size(query.series.median("batch_bytes"))
    text = f"Compression leaves {percent(query.compression)} of the records' bytes, in batches of {batch}"
    return Finding(0.2, text, "kafka.compression.type=zstd makes them smaller for more CPU, lz4 is the fastest")
