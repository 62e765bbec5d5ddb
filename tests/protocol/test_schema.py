"""protocol/schema.py: what versions, nullability, tags and defaults mean."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest

from spark_kafka_sink.errors import ProtocolError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.primitives import Writer
from spark_kafka_sink.protocol.schema import IGNORABLE, Int8, Int16, Message, between, since, tagged, until


@dataclass(frozen=True, slots=True, kw_only=True)
class Example(Message):
    """Versions 0 to 5 of this one; flexible from 2."""

    API_KEY: ClassVar = ApiKey.INIT_PRODUCER_ID

    always: Int8
    late: Annotated[Int8, since(1)] = 5
    early: Annotated[Int8, until(1), IGNORABLE] = 6
    middle: Annotated[Int8, between(2, 3)] = 7
    names: tuple[str, ...] | None = ()
    data: bytes | None = None
    flag: Annotated[bool, tagged(3, since=2)] = False
    number: Annotated[Int16, tagged(1, since=3), IGNORABLE] = -1


def encoded(message: Message, version: int) -> str:
    return b"".join(message.encode(version)).hex()


def test_fields_appear_in_their_versions_only() -> None:
    empty_and_null = "00000000" + "ffffffff"
    assert encoded(Example(always=1), 0) == "01" + "06" + empty_and_null
    assert encoded(Example(always=1), 1) == "01" + "05" + "06" + empty_and_null
    compact_empty_and_null = "01" + "00"
    no_tags = "00"
    assert encoded(Example(always=1), 2) == "01" + "05" + "07" + compact_empty_and_null + no_tags
    assert encoded(Example(always=1), 4) == "01" + "05" + compact_empty_and_null + no_tags


def test_null_and_empty_differ() -> None:
    assert encoded(Example(always=1, names=None), 4) == "0105" + "00" + "00" + "00"
    assert Example.decode(4, bytes.fromhex("0105" + "00" + "01" + "00")) == Example(always=1, names=None, data=b"")


def test_tagged_fields_are_written_by_number_when_they_differ_from_their_default() -> None:
    message = Example(always=1, flag=True, number=9)
    assert encoded(message, 4) == "0105" + "01" + "00" + "02" + "01020009" + "030101"
    assert Example.decode(4, b"".join(message.encode(4))) == message


def test_unknown_tags_are_skipped() -> None:
    assert Example.decode(4, bytes.fromhex("0105" + "01" + "00" + "02" + "030101" + "0903aabbcc")) == Example(always=1, flag=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Element(Message):
    number: Int16
    name: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Several(Message):
    API_KEY: ClassVar = ApiKey.INIT_PRODUCER_ID

    elements: tuple[Element, ...]


@pytest.mark.parametrize(
    ("version", "start", "min_bytes"),
    [(1, "00000064", 2 + 2 + 4), (4, "65", 2 + 1 + 1 + 1)],  # the last one: no tags
    ids=["plain", "flexible"],
)
def test_an_array_of_structures_is_refused_by_the_least_that_each_takes(version: int, start: str, min_bytes: int) -> None:
    """A count was compared with the bytes left as if an element took one byte: much was built before the bytes ran out."""
    room = 100 * min_bytes
    with pytest.raises(ProtocolError, match=f"an array of 100 elements .* exceeds the {room - 1} bytes left"):
        Several.decode(version, bytes.fromhex(start) + bytes(room - 1))


def test_unknown_tags_take_no_memory() -> None:
    """A response of 1.2 MB, full of unknown tags, took 76 MB: each was kept until all were read. This is a sixth of it."""
    count = 40_000
    writer = Writer()
    writer.tagged_fields((tag, []) for tag in range(10, 10 + count))
    data = bytes.fromhex("0105" + "01" + "00") + b"".join(map(bytes, writer.buffers()))
    tracemalloc.start()
    try:
        assert Example.decode(4, data) == Example(always=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_tag_with_bytes_left_over_is_refused() -> None:
    with pytest.raises(ProtocolError, match="left"):
        Example.decode(4, bytes.fromhex("0105" + "01" + "00" + "01" + "03020101"))


def test_fields_absent_from_a_version_read_as_their_default() -> None:
    assert Example.decode(0, bytes.fromhex("01" + "08" + "00000000" + "ffffffff")) == Example(always=1, early=8)


def test_a_value_that_a_version_cannot_carry_is_an_error() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"Example v0 cannot carry late=9"):
        Example(always=1, late=9).encode(0)


def test_an_ignorable_value_is_left_out() -> None:
    assert encoded(Example(always=1, early=9), 4) == encoded(Example(always=1), 4)


def test_a_version_that_we_do_not_speak_is_an_error() -> None:
    with pytest.raises(UnsupportedVersionError, match="0 to 5 of INIT_PRODUCER_ID"):
        Example(always=1).encode(6)
    with pytest.raises(UnsupportedVersionError):
        Example.decode(-1, b"")


def test_a_number_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="Example v4: a number does not fit"):
        Example(always=128).encode(4)


def test_errors_name_the_message_and_version() -> None:
    with pytest.raises(ProtocolError, match="Example v3 cannot be read"):
        Example.decode(3, b"")
    with pytest.raises(ProtocolError, match="1 bytes are left after the last field"):
        Example.decode(0, bytes.fromhex("01" + "08" + "00000000" + "ffffffff" + "00"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Message):
    number: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(Message):
    API_KEY: ClassVar = ApiKey.INIT_PRODUCER_ID

    inner: Inner | None = None
    hint: Annotated[Inner | None, tagged(0, since=2), IGNORABLE] = None


@pytest.mark.parametrize(("version", "end_of_inner", "end_of_outer"), [(1, "", ""), (2, "00", "00")])
def test_a_structure_may_be_null(version: int, end_of_inner: str, end_of_outer: str) -> None:
    """Encoding null looked for the structure's fields in None, and ended in an AttributeError."""
    assert encoded(Outer(), version) == "ff" + end_of_outer
    assert encoded(Outer(inner=Inner(number=7)), version) == "01" + "0007" + end_of_inner + end_of_outer
    for message in (Outer(), Outer(inner=Inner(number=7))):
        assert Outer.decode(version, b"".join(message.encode(version))) == message


def test_a_tagged_structure_that_is_null_is_not_written() -> None:
    message = Outer(hint=Inner(number=7))
    assert encoded(message, 2) == "ff" + "01" + "00" + "04" + "01" + "0007" + "00"
    assert Outer.decode(2, b"".join(message.encode(2))) == message
