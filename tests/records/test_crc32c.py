"""Both checksums are CRC-32C: the package's, and the one that numpy computes when the package is missing."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records import crc32c as module
from spark_kafka_sink.records.crc32c import crc32c, numpy_crc32c

both = pytest.mark.parametrize("function", [crc32c, numpy_crc32c])


@both
@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)],
)
def test_checksums_are_those_of_the_standard(function: Callable[..., int], data: bytes, expected: int) -> None:
    # the last three: RFC 3720, B.4
    assert function(data) == expected


@pytest.mark.parametrize("size", [*range(70), 127, 1000, 4096, 16_384, 65_537, 1_000_003])
def test_numpy_agrees_with_the_package_at_every_size(size: int) -> None:
    data = bytes(index * 89 % 256 for index in range(size))
    assert numpy_crc32c(data) == package.crc32c(data)
    assert numpy_crc32c(data, 0xDEADBEEF) == package.crc32c(data, 0xDEADBEEF)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_a_checksum_continues_over_buffers(data: bytes, cut: int) -> None:
    view = memoryview(data)
    for function in (crc32c, numpy_crc32c):
        assert function(view[cut:], function(bytearray(view[:cut]))) == package.crc32c(data)


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "crc32c", None)
        yield
    importlib.reload(module)


@pytest.mark.usefixtures("without_package")
def test_a_missing_package_is_replaced_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        importlib.reload(module)
    assert module.crc32c is module.numpy_crc32c
    assert module.crc32c(b"123456789") == 0xE3069283
    assert [record.levelname for record in caplog.records] == ["WARNING"]
