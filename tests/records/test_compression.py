"""Every codec reads back at every level, in the form that Java's readers demand; the estimator takes Java's steps."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.records import compression
from spark_kafka_sink.records.compression import CODECS, compress, compress_blocks, framed_blocks
from spark_kafka_sink.records.crc32c import ByteBuffer
from tests.records.reference import decompress

_random = random.Random(7)
TEXT = b"".join(b"user-%d clicked %s; " % (_random.randrange(1000), _random.choice([b"here", b"there"])) for _ in range(9000))
NOISE = _random.randbytes(200_000)
SAMPLES = {"empty": b"", "one byte": b"x", "text": TEXT, "noise": NOISE, "one block": TEXT[: 64 * 1024], "zeros": bytes(300_000)}
LEVELS = [
    ("none", None),
    ("snappy", None),
    *(("gzip", level) for level in (None, -1, 1, 9)),
    *(("lz4", level) for level in (None, 1, 2, 3, 9, 12, 13, 17)),
    *(("zstd", level) for level in (None, -131072, -1, 1, 3, 22)),
]


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize(("codec", "level"), LEVELS)
def test_what_is_compressed_reads_back(codec: str, level: int | None, sample: str) -> None:
    assert decompress(CODECS[codec].id, compress(codec, SAMPLES[sample], level)) == SAMPLES[sample]


@pytest.mark.parametrize("codec", CODECS)
def test_pieces_give_the_bytes_of_the_whole(codec: str) -> None:
    pieces: list[ByteBuffer] = [bytearray(TEXT[:5]), memoryview(TEXT)[5:70_000], TEXT[70_000:]]
    assert compress(codec, pieces) == compress(codec, TEXT) == compress(codec, [memoryview(TEXT)])


@settings(max_examples=40)
@given(st.sampled_from(sorted(CODECS)), st.lists(st.binary(max_size=50), max_size=5))
def test_any_pieces_read_back(codec: str, pieces: list[bytes]) -> None:
    assert decompress(CODECS[codec].id, compress(codec, pieces)) == b"".join(pieces)


def test_ids_are_those_of_the_attributes() -> None:
    assert {name: codec.id for name, codec in CODECS.items()} == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", 1, 9), ("zstd", 1, 22), ("lz4", 9, 17)])
def test_a_higher_level_compresses_better(codec: str, low: int, high: int) -> None:
    assert len(compress(codec, TEXT, high)) < len(compress(codec, TEXT, low))


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_no_level_is_the_default_level(codec: str) -> None:
    assert compress(codec, TEXT) == compress(codec, TEXT, CODECS[codec].default_level)


def test_lz4_level_9_is_the_fast_compressor_and_every_other_level_packs_tighter() -> None:
    fast = len(compress("lz4", TEXT, 9))
    assert all(len(compress("lz4", TEXT, level)) < fast for level in (1, 2, 3, 8, 10, 17))


@pytest.mark.parametrize("sample", [name for name, data in SAMPLES.items() if data])
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_must_be_split_is_unpacked_again(codec: str, sample: str) -> None:
    raw = SAMPLES[sample]
    assert compression.decompress(codec, compress(codec, raw), len(raw)) == raw


@pytest.mark.parametrize("codec", [codec for codec in CODECS if CODECS[codec].frame is not None])
@pytest.mark.parametrize("level", [None, 12])
@given(parts=st.lists(st.sampled_from([b"", b"x", b"abc" * 50_000, random.Random(1).randbytes(70_000)]), min_size=1, max_size=5))
@settings(max_examples=20)
def test_parts_compressed_one_by_one_read_back_as_one_batch(codec: str, level: int | None, parts: list[bytes]) -> None:
    packed = b"".join(framed_blocks(codec, [compress_blocks(codec, part, level) for part in parts]))
    whole = b"".join(parts)
    assert decompress(CODECS[codec].id, packed) == whole
    assert compression.decompress(codec, packed, len(whole)) == whole


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(KeyError):
        compress("brotli", TEXT)


# THE FORMS


def test_lz4_blocks_are_independent_and_without_content_size() -> None:
    # Java's reader refuses linked blocks; larger blocks and a content size it would accept
    assert compress("lz4", TEXT)[:7].hex() == "04224d18604082"


def test_snappy_has_the_framing_of_the_java_client() -> None:
    assert compress("snappy", TEXT)[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def test_gzip_is_the_same_at_any_time() -> None:
    assert compress("gzip", TEXT)[:10].hex() == "1f8b0800000000000003"


# WITHOUT THE LZ4 PACKAGE


@pytest.fixture
def without_lz4(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    compression._lz4_frame.cache_clear()
    yield
    compression._lz4_frame.cache_clear()


@pytest.mark.usefixtures("without_lz4")
def test_lz4_is_written_from_arrows_blocks_and_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        compressed = {
            (sample, level): compress("lz4", data, level) for sample, data in SAMPLES.items() for level in (None, 1, 9, 17)
        }
    for (sample, _), data in compressed.items():
        assert decompress(CODECS["lz4"].id, data) == SAMPLES[sample]
    assert len(compressed["text", 17]) < len(compressed["text", 9]) < len(TEXT) / 2
    assert [record.levelname for record in caplog.records if "lz4 package" in record.message] == ["WARNING"]
