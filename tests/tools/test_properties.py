"""Java's .properties files."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafka_sink.tools.errors import UsageError
from spark_kafka_sink.tools.properties import option_name, parse_properties, read_properties


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("acks=all", {"acks": "all"}),
        ("acks : all", {"acks": "all"}),
        ("acks all the way", {"acks": "all the way"}),
        ("  acks\t=  all ", {"acks": "all "}),
        ("# no\n! no\n\n   # no\na=1 # yes", {"a": "1 # yes"}),
        ("a=1,\\\n   2,\\\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\n#2", {"a": "1#2"}),
        ("a=ends in a backslash\\\\\nb=2", {"a": "ends in a backslash\\", "b": "2"}),
        ("a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
        ("a=x=y:z", {"a": "x=y:z"}),
        ("a=\\t\\n\\u00e9\\q", {"a": "\t\né" + "q"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\", {"a": "1"}),
        ('c.config=x.Module required a="u" b="p=1";', {"c.config": 'x.Module required a="u" b="p=1";'}),
        ("", {}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text) == pairs


@pytest.mark.parametrize(
    ("escapes", "value"),
    [
        ("p\\uD83D\\uDE00q", "p\U0001f600q"),
        ("\\ud83d", "\ud83d"),
        ("\\ude00\\ud83d", "\ude00\ud83d"),
        ("\\ufeffa", "\ufeffa"),
    ],
)
def test_escapes_of_a_surrogate_pair_are_one_character(escapes: str, value: str) -> None:
    """Java's Properties.store writes an emoji so. A password with one was refused as half of a pair."""
    assert parse_properties(f"{escapes}={escapes}") == {value: value}


def test_a_broken_file_is_named_without_its_values(tmp_path: Path) -> None:
    file = tmp_path / "secret.properties"
    file.write_text("sasl.password=\\u12xyhunter2")
    with pytest.raises(UsageError, match=r"secret.properties.*hexadecimal") as error:
        read_properties(file)
    assert "hunter2" not in str(error.value)
    assert "12xy" not in str(error.value)
    with pytest.raises(UsageError, match=r"none.properties cannot be read"):
        read_properties(tmp_path / "none.properties")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    """An editor of Windows had saved the file: its first option, \\ufeffbootstrap.servers, was unknown and had no effect."""
    file = tmp_path / "from-windows.properties"
    file.write_text("bootstrap.servers=h:1\nacks=all", encoding="utf-8-sig")
    assert read_properties(file) == {"bootstrap.servers": "h:1", "acks": "all"}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_in_utf_16_is_told(encoding: str, tmp_path: Path) -> None:
    """PowerShell's > writes it. The error was "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"."""
    file = tmp_path / "from-powershell.properties"
    file.write_text("\ufeffacks=all" if encoding == "utf-16-be" else "acks=all", encoding=encoding)
    with pytest.raises(UsageError, match=r"from-powershell.properties is text in UTF-16: save it as UTF-8"):
        read_properties(file)


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("acks", "kafka.acks"),
        ("retries", "kafka.retries"),
        ("linger.ms", "kafka.linger.ms"),
        ("kafka.linger.ms", "kafka.linger.ms"),
        ("deliveryGuarantee", "deliveryGuarantee"),
        ("schema.registry.url", "schema.registry.url"),
        ("auto.register.schemas", "auto.register.schemas"),
        ("basic.auth.user.info", "basic.auth.user.info"),
        ("schema.registry.basic.auth.user.info", "schema.registry.basic.auth.user.info"),
        ("topic", "topic"),
        ("Kafka.Linger.ms", "Kafka.Linger.ms"),  # the sink takes it so; kafka.Kafka.Linger.ms had no effect
        ("Bootstrap.Servers", "kafka.bootstrap.servers"),
    ],
)
def test_kafkas_keys_may_be_written_without_their_prefix(key: str, option: str) -> None:
    assert option_name(key) == option
