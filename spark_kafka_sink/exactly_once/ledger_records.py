"""What markers and decisions say, as the metadata of offsets: from records to text and back. Pure functions.

The offset is the version, the metadata holds everything else:

    marker      `rows=3 fingerprint=00c0ffee00c0ffee key_schema=7 value_schema=12`
                the ids of registered schemas that rows are encoded with; left out where there are none
    decision    `decided tasks=2 partitions=2 rows=5 fingerprint=… value_schema=12 earlier=… earlier_schemas=… entries=…`
                state: decided, carried-out, incomplete; `earlier`: the contents of the versions before, packed
    width       empty; the offset is a number of Spark partitions, a power of two: an owner's version has had up to so many. Each
                power has its own group, so that no driver overwrites a higher number. Written before a wider decision
    aborted     the host of a driver; the offset is a time: the writes that this host planned before this time are aborted

`entries` are the tasks' transactions, packed and compressed. If they are too long for an offset's metadata, they are written into
overflow groups first, and the decision says `overflow=3 digest=…`: how many groups there are, and the digest of what is in them.
The decision itself is one OffsetCommit, so it is written whole or not at all.
Laws: a marker or decision that cannot be read is an error, and never counts as missing; but a decision whose overflow groups are
gone counts as INCOMPLETE (ledger.py). Any user who may commit offsets can write such records. So each number and size that is
read has a limit, which is checked before anything is built from it.
"""

from __future__ import annotations

import enum
import hashlib
import re
import struct
import zlib
from base64 import b85decode, b85encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.config.format_options import MAX_SCHEMA_ID
from spark_kafka_sink.errors import KafkaError, printable
from spark_kafka_sink.exactly_once.writes import NO_SCHEMAS, Content, SchemaIds, TaskTransaction

MAX_METADATA_BYTES = 4_000  # below offset.metadata.max.bytes, whose default is 4,096
MAX_OVERFLOW_GROUPS = 10_000  # for one decision: 40 MB, enough for MAX_TASKS
MAX_TASKS = 1_000_000  # of a write; each costs the driver some requests
WIDTH_EXPONENTS = range(MAX_TASKS.bit_length() + 1)  # a record `width` holds two to the power of one of these
MAX_EARLIER_VERSIONS = 10  # how many versions' contents a decision has, besides its own
MAX_NUMBER = 2**63 - 1


class LedgerError(KafkaError):
    """What was recorded in a group cannot be read: it is damaged, incomplete or of a later version of this package."""

    condition = "KAFKA_EXACTLY_ONCE_RECORD_UNREADABLE"


class Marker(NamedTuple):
    """What a task records in its transaction: the version that it has written, and the content of its rows."""

    version: int
    content: Content


def is_in_kafka(marker: Marker | None, version: int, entry: TaskTransaction) -> bool:
    """Whether the rows of a version's entry are in Kafka, by this marker: it has the version and the content of the entry,
    whichever transaction wrote them, or a later version."""
    return marker is not None and (marker.version > version or marker == (version, entry.content))


class DecisionState(enum.Enum):
    """How far the transactions of a decision have been committed."""

    DECIDED = "decided"
    CARRIED_OUT = "carried-out"
    INCOMPLETE = "incomplete"  # rows of the version may be missing in Kafka: the next run writes these


class EarlierVersion(NamedTuple):
    """An earlier version that was committed, and its content."""

    version: int
    content: Content


@dataclass(frozen=True, slots=True)
class Decision:
    """Which transactions of a version are to be committed, and whether that was done."""

    version: int
    state: DecisionState
    task_count: int  # one for each Spark partition of the write
    max_partition_count: int  # the most Spark partitions that any version of this owner has had, as far as it is known
    content: Content  # what is in Kafka, or will be: the whole write, all partitions together
    entries: tuple[TaskTransaction, ...] = ()  # the transactions to be committed; only while `state` is DECIDED
    earlier: tuple[EarlierVersion, ...] = ()  # the last versions before this one that are in Kafka as a whole

    def reaches(self, version: int) -> bool:
        """Whether that version is decided or carried out, or this is a later version: then its rows are not written again."""
        return self.version > version or (self.version == version and self.state is not DecisionState.INCOMPLETE)

    def with_state(self, state: DecisionState) -> Decision:
        """The same decision in a later state, which has no entries."""
        return replace(self, state=state, entries=())

    def entry_of(self, partition: int) -> TaskTransaction | None:
        return next((each for each in self.entries if each.partition == partition), None)

    def content_of(self, version: int) -> Content | None:
        """None if it is not known: the version was never committed, or not as a whole, or too many have followed."""
        return self.content if version == self.version else dict(self.earlier).get(version)

    def earlier_for(self, version: int) -> tuple[EarlierVersion, ...]:
        """The `earlier` for a decision on `version` that replaces this one."""
        if self.version == version or self.state is DecisionState.INCOMPLETE:
            return self.earlier
        return (*self.earlier, EarlierVersion(self.version, self.content))[-MAX_EARLIER_VERSIONS:]


# ENCODING

_DECIMAL = re.compile("[0-9]{1,19}")
_FINGERPRINT = re.compile("[0-9a-f]{1,16}")
_DECISION_KEYS = frozenset(
    (
        *("tasks", "partitions", "rows", "fingerprint", "key_schema", "value_schema"),
        *("earlier", "earlier_schemas", "entries", "overflow", "digest"),
    )
)


def fits_one_offset(text: str, packed_entries: str) -> bool:
    """Whether a decision and its entries fit into one offset's metadata."""
    return len(text) + len(packed_entries) <= MAX_METADATA_BYTES - 50  # more than ` entries=` takes


def overflow_texts(packed_entries: str) -> list[str]:
    """Cut the packed entries of a decision into the metadata of its overflow groups."""
    return [packed_entries[start : start + MAX_METADATA_BYTES] for start in range(0, len(packed_entries), MAX_METADATA_BYTES)]


def overflow_group_count(values: Mapping[str, str], group: str) -> int:
    """How many overflow groups hold the entries of a decision. Raises LedgerError."""
    try:
        return _parse_number(values["overflow"], MAX_OVERFLOW_GROUPS)
    except (KeyError, ValueError):
        raise _unreadable_error(f"overflow={values.get('overflow', '')}", group) from None


def marker_text(content: Content) -> str:
    """The metadata of a marker."""
    ids = [f" {part}_schema={number}" for part, number in content.schemas.by_part().items()]
    return f"rows={content.rows} fingerprint={content.fingerprint:016x}{''.join(ids)}"


def decision_text(decision: Decision) -> str:
    """The metadata of a decision, without its entries."""
    numbers = f"tasks={decision.task_count} partitions={decision.max_partition_count} {marker_text(decision.content)}"
    earlier = f" earlier={_pack_earlier(decision.earlier)}" if decision.earlier else ""
    if any(each.content.schemas != NO_SCHEMAS for each in decision.earlier):
        earlier += f" earlier_schemas={_pack_schemas(decision.earlier)}"
    return f"{decision.state.value} {numbers}{earlier}"


def _parse_values(metadata: str) -> dict[str, str]:
    return {name: value for name, _, value in (item.partition("=") for item in metadata.split())}


def _parse_number(text: str, maximum: int = MAX_NUMBER) -> int:
    """Read a number as this package writes it: int() alone takes signs, spaces, underscores and thousands of digits."""
    if not _DECIMAL.fullmatch(text) or int(text) > maximum:
        raise ValueError
    return int(text)


def _parse_content(values: Mapping[str, str]) -> Content:
    if not _FINGERPRINT.fullmatch(values["fingerprint"]):
        raise ValueError
    ids = [values.get(f"{part}_schema") for part in SchemaIds._fields]
    schemas = SchemaIds(*[None if text is None else _parse_number(text, MAX_SCHEMA_ID) for text in ids])
    return Content(_parse_number(values["rows"]), int(values["fingerprint"], 16), schemas)


def read_marker(record: CommittedOffset, group: str) -> Marker:
    """Read a marker. Raises LedgerError, whose text names the group."""
    values = _parse_values(record.metadata)
    try:
        return Marker(_parse_version(record), _parse_content(values))
    except (KeyError, ValueError):
        raise _unreadable_error(record.metadata, group) from None


def _parse_version(record: CommittedOffset) -> int:
    if record.offset < 0:
        raise ValueError
    return record.offset


@lru_cache(maxsize=4)  # a task reads its owner's decision twice
def read_decision(record: CommittedOffset, group: str) -> tuple[Decision, Mapping[str, str]]:
    """Read a decision without its entries; the values tell where these are. Raises LedgerError."""
    state, _, values_text = record.metadata.partition(" ")
    values = _parse_values(values_text)
    try:
        if not values.keys() <= _DECISION_KEYS:  # an unknown key, of a later version of this package, may change the meaning
            raise ValueError
        decision = Decision(
            version=_parse_version(record),
            state=DecisionState(state),
            task_count=_parse_number(values["tasks"], MAX_TASKS),
            max_partition_count=_parse_number(values["partitions"], 2 ** WIDTH_EXPONENTS[-1]),
            content=_parse_content(values),
            earlier=_unpack_earlier(values.get("earlier", ""), values.get("earlier_schemas")),
        )
    except (KeyError, ValueError, struct.error):
        raise _unreadable_error(record.metadata, group) from None
    return decision, values


def _unreadable_error(metadata: str, group: str) -> LedgerError:
    return LedgerError(
        f"the offset of group {printable(group)} has metadata that cannot be read: {printable(metadata)!r}."
        " Another program uses the group, or a later version of pykafka-sink has written it:"
        " choose another transactionalIdPrefix, or use that version"
    )


_EARLIER = struct.Struct("<qQQ")  # version, rows, fingerprint


def _pack_earlier(earlier: Sequence[EarlierVersion]) -> str:
    rows = [(version, content.rows, content.fingerprint) for version, content in earlier]
    return b85encode(b"".join(_EARLIER.pack(*each) for each in rows)).decode()


def _unpack_earlier(text: str, schemas: str | None) -> tuple[EarlierVersion, ...]:
    """`schemas`: None in a decision without registered schemas, or of an early version of this package."""
    data = b85decode(text)
    if len(data) > MAX_EARLIER_VERSIONS * _EARLIER.size:
        raise ValueError
    rows = list(_EARLIER.iter_unpack(data))
    schemas_by_row = [NO_SCHEMAS] * len(rows) if schemas is None else _unpack_schemas(schemas, len(rows))
    return tuple(
        EarlierVersion(version, Content(row_count, fingerprint, schema_ids))
        for (version, row_count, fingerprint), schema_ids in zip(rows, schemas_by_row, strict=True)
    )


_SCHEMA_IDS = struct.Struct("<ii")  # of key and value; -1 for None


def _pack_schemas(earlier: Sequence[EarlierVersion]) -> str:
    ids = [[-1 if number is None else number for number in content.schemas] for _, content in earlier]
    return b85encode(b"".join(_SCHEMA_IDS.pack(*each) for each in ids)).decode()


def _unpack_schemas(text: str, version_count: int) -> list[SchemaIds]:
    data = b85decode(text)
    if len(data) != version_count * _SCHEMA_IDS.size:
        raise ValueError
    ids = list(_SCHEMA_IDS.iter_unpack(data))
    if any(number < -1 for each in ids for number in each):
        raise ValueError
    return [SchemaIds(*[None if number == -1 else number for number in each]) for each in ids]


_COLUMNS = "IIqhBQQ"  # one array for each field of an entry: columns compress better than rows


def _layout(row_count: int) -> struct.Struct:
    return struct.Struct("<" + "".join(f"{row_count}{code}" for code in _COLUMNS))


def pack_entries(entries: Sequence[TaskTransaction]) -> str:
    """The entries, without their schemas, as text that metadata can hold: compressed by columns, in base 85."""
    rows = [(*entry[:-1], entry.content.rows, entry.content.fingerprint) for entry in entries]
    arrays = _layout(len(rows)).pack(*chain.from_iterable(zip(*rows, strict=True)))
    return b85encode(struct.pack("<I", len(rows)) + zlib.compress(arrays, 9)).decode()


def unpack_entries(text: str, decision: Decision, group: str) -> tuple[TaskTransaction, ...]:
    """Read packed entries; all have the decision's schemas. Raises LedgerError, also if there are more entries than tasks."""
    schemas = decision.content.schemas
    try:
        columns = _unpack_columns(text, decision.task_count)
    except (ValueError, struct.error, zlib.error):
        raise _unreadable_error(text, group) from None
    return tuple(
        TaskTransaction(partition, attempt, producer_id, epoch, version, Content(row_count, fingerprint, schemas))
        for partition, attempt, producer_id, epoch, version, row_count, fingerprint in zip(*columns, strict=True)
    )


def _unpack_columns(text: str, max_rows: int) -> list[tuple[int, ...]]:
    if len(text) > MAX_OVERFLOW_GROUPS * MAX_METADATA_BYTES:
        raise ValueError
    data = b85decode(text)
    (row_count,) = struct.unpack_from("<I", data)
    if row_count > max_rows:
        raise ValueError
    layout = _layout(row_count)
    inflater = zlib.decompressobj()
    arrays = inflater.decompress(data[4:], layout.size + 1)  # a few kilobytes can inflate to gigabytes
    if len(arrays) != layout.size or not inflater.eof or inflater.unused_data:
        raise ValueError
    values = layout.unpack(arrays)
    columns = [values[row_count * position : row_count * (position + 1)] for position in range(len(_COLUMNS))]
    if any(min(column, default=0) < 0 for column in columns) or len(set(columns[0])) < row_count:  # each partition once
        raise ValueError
    return columns


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
