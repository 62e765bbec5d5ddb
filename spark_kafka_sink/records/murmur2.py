"""The partition of a key: murmur2 over a key column, as every Java client hashes it.

Used by BuiltInPartitioner, which ignores the hash of a null key and chooses another partition for its row.
Law: hash and partition equal those of org.apache.kafka.common.utils.Utils; otherwise one key would be written to two partitions.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import nulls_of
from spark_kafka_sink.records.interleave import binary_offsets

_SEED = np.uint32(0x9747B28C)
_MULTIPLIER = 0x5BD1E995
_UINT32_MULTIPLIER = np.uint32(_MULTIPLIER)
_SHIFT = np.uint32(24)
_MIN_KEYS_PER_CALL = 48  # keys: fewer are hashed faster one by one (0.085 µs per word) than by a numpy call (4 µs)

Hashes = NDArray[np.uint32]


def partition_for_keys(keys: pa.Array, partition_count: int) -> NDArray[np.int32]:
    """int32[n]: the partition of each key among all partitions of the topic, with and without leader."""
    positive = murmur2(keys) & np.uint32(0x7FFFFFFF)
    return (positive % np.uint32(partition_count)).astype(np.int32)


def murmur2(keys: pa.Array) -> Hashes:
    """uint32[n] over a binary or string array, large or not, slice or not; a null hashes like an empty key.

    The time is proportional to the sum of the key lengths, for any mix of lengths. Words are hashed in columns, with the longest
    keys first, so that step i covers exactly the keys that have a word i. When few keys are left, each is finished on its own.
    Keys of one length, as ids often have, take a quarter of the time.
    """
    if len(keys) == 0:
        return np.empty(0, np.uint32)
    offsets = binary_offsets(keys)
    lengths = np.diff(offsets)
    if keys.null_count:
        lengths[nulls_of(keys)] = 0
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == longest and len(keys) >= _MIN_KEYS_PER_CALL and not keys.null_count:
        return _hash_of_one_length(data, int(offsets[0]), longest, len(keys))
    order = np.argsort(-(lengths >> 2), kind="stable") if shortest >> 2 != longest >> 2 else slice(None)
    hashes = np.empty(len(keys), np.uint32)
    hashes[order] = _hash(data, offsets[:-1][order].astype(np.int64), lengths[order].astype(np.int64))
    return hashes


def _hash_of_one_length(data: NDArray[np.uint8], start: int, size: int, key_count: int) -> Hashes:
    """`key_count` keys of `size` bytes, one after the other from `start`: word i of all of them is a view of the data."""

    def column_at(offset: int, kind: str) -> NDArray[np.uint32]:
        return np.ndarray((key_count,), kind, data, start + offset, (size,))

    hashes = np.full(key_count, _SEED ^ np.uint32(size), np.uint32)
    tail_offset = size & ~3
    for offset in range(0, tail_offset, 4):
        hashes *= _UINT32_MULTIPLIER
        hashes ^= _mix(column_at(offset, "<u4"))
    for offset in range(tail_offset, size):
        hashes ^= column_at(offset, "u1").astype(np.uint32) << np.uint32(8 * (offset - tail_offset))
    if size > tail_offset:
        hashes *= _UINT32_MULTIPLIER
    return _finish(hashes)


def _hash(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Hashes:
    """Keys in descending order of word counts, each data[start:start + length]."""
    hashes = _SEED ^ lengths.astype(np.uint32)
    word_counts = lengths >> 2
    _hash_words(hashes, data, starts, word_counts)
    _hash_tails(hashes, data, starts + (word_counts << 2), lengths & 3)
    return _finish(hashes)


def _finish(hashes: Hashes) -> Hashes:
    hashes ^= hashes >> np.uint32(13)
    hashes *= _UINT32_MULTIPLIER
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _hash_words(hashes: Hashes, data: NDArray[np.uint8], starts: NDArray[np.int64], word_counts: NDArray[np.int64]) -> None:
    word_at: NDArray[np.uint32] = np.ndarray((max(0, len(data) - 3),), "<u4", data, strides=(1,))  # unaligned
    key_counts = len(hashes) - np.cumsum(np.bincount(word_counts))  # number of keys that have a word i
    for word_index, key_count in enumerate(key_counts.tolist()):
        if key_count < _MIN_KEYS_PER_CALL:
            for key in range(key_count):
                remaining_words = word_at[starts[key] + 4 * word_index : starts[key] + 4 * word_counts[key] : 4]
                hashes[key] = _hash_one(int(hashes[key]), _mix(remaining_words).tolist())
            return
        hashes[:key_count] *= _UINT32_MULTIPLIER
        hashes[:key_count] ^= _mix(word_at[starts[:key_count] + 4 * word_index])


def _hash_one(hash_value: int, mixed_words: list[int]) -> int:
    for word in mixed_words:
        hash_value = hash_value * _MULTIPLIER & 0xFFFFFFFF ^ word
    return hash_value


def _mix(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    words = words * _UINT32_MULTIPLIER
    words ^= words >> _SHIFT
    words *= _UINT32_MULTIPLIER
    return words


def _hash_tails(hashes: Hashes, data: NDArray[np.uint8], tails: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    """The last one to three bytes of keys whose length is not a multiple of four."""
    for byte in range(int(sizes.max())):
        rows = np.flatnonzero(sizes > byte)
        hashes[rows] ^= data[tails[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    rows = np.flatnonzero(sizes)
    hashes[rows] *= _UINT32_MULTIPLIER
