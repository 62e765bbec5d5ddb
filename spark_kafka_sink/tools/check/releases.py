"""Finds the release of Apache Kafka from a broker's answer to ApiVersions, which does not name it.

Brokers with KRaft since 3.3 report the newest metadata.version that they support, which each release raises. For other brokers,
the newest version of a request that they accept decides. Some releases brought none: the result is a range.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kafka_sink.network.handshake import NodeApiVersions
from spark_kafka_sink.protocol.api_keys import ApiKey

Release = tuple[int, int]
METADATA_VERSION = "metadata.version"
FIRST_TESTED: Release = (2, 8)
FIRST_WITH_LISTS: Release = (3, 0)  # of transactions

# The highest level of metadata.version in each release (Kafka's MetadataVersion).
_MAX_LEVELS: tuple[tuple[int, Release], ...] = (
    (7, (3, 3)), (8, (3, 4)), (11, (3, 5)), (14, (3, 6)), (19, (3, 7)), (20, (3, 8)), (21, (3, 9)),
    (25, (4, 0)), (27, (4, 1)), (29, (4, 2)), (30, (4, 3)),
)  # fmt: skip
# Newest first: a version of a request, the first release that accepts it, and the last one that accepts nothing newer.
_FIRST_VERSIONS: tuple[tuple[ApiKey, int, Release, Release], ...] = (
    (ApiKey.OFFSET_FETCH, 10, (4, 2), (4, 2)),
    (ApiKey.PRODUCE, 13, (4, 1), (4, 1)),
    (ApiKey.METADATA, 13, (4, 0), (4, 0)),
    (ApiKey.API_VERSIONS, 4, (3, 9), (3, 9)),
    (ApiKey.PRODUCE, 11, (3, 8), (3, 8)),
    (ApiKey.PRODUCE, 10, (3, 7), (3, 7)),
    (ApiKey.ADD_PARTITIONS_TO_TXN, 4, (3, 6), (3, 6)),
    (ApiKey.METADATA, 12, (3, 1), (3, 5)),
    (ApiKey.LIST_TRANSACTIONS, 0, (3, 0), (3, 0)),
    (ApiKey.DESCRIBE_CONFIGS, 4, (2, 8), (2, 8)),
    (ApiKey.INIT_PRODUCER_ID, 4, (2, 7), (2, 7)),
    (ApiKey.DESCRIBE_CONFIGS, 3, (2, 6), (2, 6)),
    (ApiKey.INIT_PRODUCER_ID, 3, (2, 5), (2, 5)),
    (ApiKey.METADATA, 9, (2, 4), (2, 4)),
    (ApiKey.METADATA, 8, (2, 3), (2, 3)),
    (ApiKey.PRODUCE, 7, (2, 1), (2, 2)),
    (ApiKey.PRODUCE, 6, (2, 0), (2, 0)),
    (ApiKey.PRODUCE, 5, (1, 0), (1, 1)),
    (ApiKey.PRODUCE, 3, (0, 11), (0, 11)),
)


class Releases(NamedTuple):
    """A range of releases. `last` is None for a broker of a release that this client does not know yet."""

    first: Release
    last: Release | None

    def __str__(self) -> str:
        first = _text(self.first)
        if self.last is None:
            return f"newer than Kafka {first}"
        return f"Kafka {first}" if self.last == self.first else f"Kafka {first} to {_text(self.last)}"


def _text(release: Release) -> str:
    return ".".join(map(str, release))


def releases_of(versions: NodeApiVersions) -> Releases | None:
    """The releases that a broker may be of; None if it does not accept this client's format of batches."""
    level = versions.supported_features.get(METADATA_VERSION)
    if level is not None:
        known_release = next((release for max_level, release in _MAX_LEVELS if level <= max_level), None)
        return Releases(_MAX_LEVELS[-1][1], last=None) if known_release is None else Releases(known_release, known_release)
    for api_key, version, first, last in _FIRST_VERSIONS:
        if versions.max_version(api_key) >= version:
            return Releases(first, last)
    return None
