"""`pykafka-sink options`: which options it shows, and how."""

from __future__ import annotations

import json

import pytest

from spark_kafka_sink.config.sink_options import BULK_DEFAULTS
from spark_kafka_sink.option_tables import HEADINGS, option_table
from spark_kafka_sink.tools.options.command import main


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def objects(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in shown(capsys, *words, "--json").splitlines()]


def test_an_option_has_type_default_and_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "kafka.linger.ms") == (
        "# More options of the producer\n\n"
        f"kafka.linger.ms  (long, at least 0; default: {BULK_DEFAULTS['linger_ms']} (Kafka: 5))\n"
        "    How long a batch that is not full waits for more records.\n\n"
    )


def test_without_a_word_every_option_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    assert [line[2:] for line in text.splitlines() if line.startswith("# ")] == list(HEADINGS.values())
    names = [line.split("  ")[0] for line in text.splitlines() if line and not line.startswith(("#", " "))]
    assert sorted(names) == sorted(row.key for row in option_table())


def test_each_word_is_looked_for_in_names_and_sentences_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    names = {each["name"] for each in objects(capsys, "ACKS")}
    assert {"kafka.acks", "kafka.enable.idempotence", "request.required.acks"} <= names  # the second's sentence names it
    both = {each["name"] for each in objects(capsys, "acks", "retries")}
    assert both == {"kafka.enable.idempotence"}


def test_json_has_an_object_for_each_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert objects(capsys, "kafka.linger.ms") == [
        {
            "name": "kafka.linger.ms",
            "section": "More options of the producer",
            "type": "long",
            "allowed": "at least 0",
            "choices": [],
            "default": str(BULK_DEFAULTS["linger_ms"]),
            "kafka_default": "5",
            "doc": "How long a batch that is not full waits for more records.",
        }
    ]
    (compression,) = [each for each in objects(capsys, "kafka.compression.type") if each["name"] == "kafka.compression.type"]
    assert "zstd" in str(compression["choices"])
    (brokers,) = [each for each in objects(capsys, "bootstrap.servers") if each["name"] == "kafka.bootstrap.servers"]
    assert (brokers["default"], brokers["allowed"]) == (None, None)


def test_the_error_of_a_word_that_no_option_has_names_one_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lnger.ms"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        "options: no option has 'lnger.ms' in its name or description; the name that is most alike is kafka.linger.ms.\n"
    )
    assert main(["quite", "unheard-of"]) == 1
    assert capsys.readouterr().err == "options: no option has 'quite' and 'unheard-of' in its name or description.\n"


@pytest.mark.parametrize(("columns", "widest"), [("60", 60), ("300", 110)])
def test_sentences_are_as_wide_as_the_terminal_and_not_wider_than_a_page(
    columns: str, widest: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    sentences = [line for line in shown(capsys).splitlines() if line.startswith("    ")]
    assert widest - 15 < max(map(len, sentences)) <= widest
