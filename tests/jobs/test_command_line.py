"""Arguments and .properties files of the Spark jobs, without Spark."""

from __future__ import annotations

import argparse
import shlex
import types
from pathlib import Path
from typing import Any

import pytest

from jobs import batch_to_kafka, command_line, stream_to_kafka
from jobs.command_line import input_format, sink_options
from spark_kafka_sink import exactly_once_options
from spark_kafka_sink.tools.errors import UsageError

CONF = Path(__file__).resolve().parent.parent.parent / "conf"


def test_exactly_once_overrides_the_guarantee_of_files(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text("deliveryguarantee=at-least-once\ntopic=t\nbootstrap.servers=b:1\n")
    assert sink_options(_batch("--config", str(file), "--exactly-once", "p")) == {
        "topic": "t",
        "kafka.bootstrap.servers": "b:1",
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": "p",
    }


@pytest.mark.parametrize(
    ("argument", "option"),
    [
        (("--exactly-once", "p"), "TransactionalIdPrefix=q"),
        (("--exactly-once", "p"), "deliveryGuarantee=at-least-once"),
        (("--exactly-once", "p", "--txn-version", "3"), "txnVersion=4"),
        (("--topic", "a"), "Topic=b"),
        (("--bootstrap-servers", "b:1"), "kafka.bootstrap.servers=c:1"),
    ],
)
def test_an_argument_and_an_option_that_contradict_each_other_are_an_error(argument: tuple[str, ...], option: str) -> None:
    """The argument overrode the option without a word: rows went to another topic, or under another prefix, than one asked."""
    with pytest.raises(UsageError, match=f"^{argument[-2]} sets .*--option sets it to another value") as raised:
        sink_options(_batch("--topic", "a", "--bootstrap-servers", "b:1", *argument, "--option", option))
    name, _, value = option.partition("=")
    assert value not in str(raised.value).split()  # it may be a secret
    same = {"TransactionalIdPrefix": "p", "deliveryGuarantee": "exactly-once", "txnVersion": "3", "Topic": "a"}.get(name, "b:1")
    assert sink_options(_batch("--topic", "a", "--bootstrap-servers", "b:1", *argument, "--option", f"{name}={same}"))


def test_a_batch_with_exactly_once_needs_a_number_before_spark_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a number the batch would fail in its tasks: a write without a name is not recognized when it is repeated."""
    arguments = ["--input", "a.csv", "--topic", "t", "--bootstrap-servers", "b:1", "--exactly-once", "p"]
    assert batch_to_kafka.main(arguments) == 2
    stderr = capsys.readouterr().err
    assert "--txn-version N" in stderr
    assert "--option allowUnnamedWrite=true" in stderr
    command_line.check_arguments(_batch(*arguments, "--option", "allowUnnamedWrite=true"))
    command_line.check_arguments(_batch(*arguments, "--option", "txnAppId=a", "--option", "txnVersion=1"))


@pytest.mark.parametrize(
    ("key", "schema"),
    [
        ("id", "id INT, name STRING"),
        ("ID", "name STRING, id BIGINT"),
        ("id", "`id` INT"),
        ("id", "x ARRAY<INT>, id : DOUBLE"),
        ("id", "x MAP<STRING, STRUCT<y: INT, id: STRING>>, id ARRAY<STRING>"),
    ],
)
def test_a_key_that_is_a_number_by_the_schema_ends_the_job_before_spark_starts(
    key: str, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """--key id failed after 46 s."""
    arguments = ["--input", "a.csv", "--topic", "t", "--bootstrap-servers", "b:1", "--schema", schema]
    assert batch_to_kafka.main([*arguments, "--key", key]) == 2
    stderr = capsys.readouterr().err
    assert f"--key {key} is of type " in stderr
    assert f"pass --key 'cast({key} AS string)'" in stderr


@pytest.mark.parametrize("key", ["name", "id.x", "cast(id AS string)", "other"])
def test_a_key_of_which_the_schema_says_nothing_wrong_is_left_to_spark(key: str) -> None:
    schema = "id STRUCT<x: INT>, name STRING"
    command_line.check_arguments(
        _batch("--input", "a.csv", "--topic", "t", "--bootstrap-servers", "b:1", "--schema", schema, "--key", key)
    )


@pytest.mark.parametrize(
    "schema",
    [
        "s STRUCT<x: INT, id: BIGINT>, id STRING",
        "s MAP<STRING, STRUCT<x: INT, id: BIGINT>>, id STRING",
        "s INT COMMENT 'the sum, id INT', id STRING",
        "id VARCHAR(10)",
        "id STRING COLLATE UTF8_LCASE",
    ],
)
def test_a_key_is_a_top_level_column_of_the_schema(schema: str) -> None:
    """A field within a struct that had the name of the key was taken for the key, and its type refused."""
    command_line.check_arguments(
        _batch("--input", "a.csv", "--topic", "t", "--bootstrap-servers", "b:1", "--schema", schema, "--key", "id")
    )


class TypedFrame:
    """A DataFrame whose expressions have these types."""

    def __init__(self, **types: str) -> None:
        self.dtypes = list(types.items())

    def selectExpr(self, *_: str) -> TypedFrame:
        return self


@pytest.mark.parametrize("argument", ["key", "value"])
def test_a_key_or_value_that_is_no_string_is_an_error_before_anything_is_written(argument: str) -> None:
    arguments = _batch("--input", "a.csv", f"--{argument}", "id", "--topic", "t", "--bootstrap-servers", "b:1")
    rows: Any = TypedFrame(**({"key": "string", "value": "binary", "headers": "array<int>"} | {argument: "int"}))
    with pytest.raises(UsageError, match=rf"--{argument} id is of type int, .*pass --{argument} 'cast\(id AS string\)'"):
        command_line.records(rows, arguments)


@pytest.mark.parametrize("type_name", ["string collate UTF8_LCASE", "varchar(10)", "char(5)"])
def test_strings_with_a_collation_or_a_length_are_keys_too(type_name: str) -> None:
    """They were refused, although Spark and the sink write them."""
    arguments = _batch("--input", "a.csv", "--key", "id", "--topic", "t", "--bootstrap-servers", "b:1")
    rows: Any = TypedFrame(key=type_name, value="string")
    assert command_line.records(rows, arguments) is rows


class Selected(TypedFrame):
    """Remembers the expressions."""

    def selectExpr(self, *expressions: str) -> TypedFrame:
        self.expressions = expressions
        return self


@pytest.mark.parametrize("how", [["--value-format", "avro"], ["--option", "VALUEFORMAT=Avro"]])
def test_with_avro_the_value_is_the_row_as_a_struct_and_any_type_will_do(how: list[str]) -> None:
    registry = ["--option", "schema.registry.url=http://localhost:8081"]
    arguments = _batch("--input", "a.csv", "--topic", "t", "--bootstrap-servers", "b:1", *how, *registry)
    rows: Any = Selected(value="struct<id:int>")
    assert command_line.records(rows, arguments).expressions == ("(struct(*)) AS value",)
    command_line.check_arguments(arguments)


def test_without_a_format_the_value_is_the_row_as_json() -> None:
    rows: Any = Selected(value="string")
    command_line.records(rows, _batch("--input", "a.csv", "--topic", "t", "--bootstrap-servers", "b:1"))
    assert rows.expressions == ("(to_json(struct(*))) AS value",)


def test_formats_are_arguments_and_must_not_contradict_options() -> None:
    arguments = ["--topic", "t", "--bootstrap-servers", "b:1", "--key-format", "avro"]
    assert sink_options(_batch(*arguments))["keyFormat"] == "avro"
    with pytest.raises(UsageError, match=r"^--key-format sets keyFormat"):
        sink_options(_batch(*arguments, "--option", "keyFormat=framed"))


def test_options_of_a_registry_have_no_prefix_in_a_file_either(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text(
        "schema.registry.url=http://r:1\nbasic.auth.user.info=me:x\nuse.latest.version=true\nlinger.ms=1\nvalueformat=Avro"
    )
    options = sink_options(_batch("--topic", "t", "--bootstrap-servers", "b:1", "--config", str(file)))
    assert {"schema.registry.url", "basic.auth.user.info", "use.latest.version", "kafka.linger.ms"} < options.keys()


@pytest.mark.parametrize("formats", ["", "valueFormat=\nkeyFormat=Binary\n"])
def test_a_registry_in_a_file_is_a_warning_where_no_format_asks_it(
    formats: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One file has the options of all clients. Its basic.auth.user.info was an error of each write of bytes, although keys of
    consumers in the same file are warnings."""
    file = tmp_path / "all.properties"
    file.write_text(
        f"{formats}bootstrap.servers=b:1\ntopic=t\nschema.registry.url=http://r:1\nbasic.auth.user.info=me:canary-7Qx2"
    )
    arguments = ["--config", str(file)]
    assert not [name for name in sink_options(_batch(*arguments)) if name.startswith(("schema.", "basic."))]
    assert caplog.messages == [
        f"Option '{name}' has no effect: neither valueFormat nor keyFormat asks the schema registry"
        for name in ("basic.auth.user.info", "schema.registry.url")
    ]
    explicit_options = ["--option", "schema.registry.url=http://s:1"]
    assert sink_options(_batch(*arguments, *explicit_options))["schema.registry.url"] == "http://s:1"
    assert "basic.auth.user.info" in sink_options(_batch(*arguments, "--key-format", "avro"))


def test_the_sample_file_for_exactly_once_takes_a_name_and_for_a_batch_a_number() -> None:
    arguments = ["--config", str(CONF / "exactly-once.properties"), "--topic", "t", "--bootstrap-servers", "b:1"]
    arguments += ["--input-format", "rate", "--exactly-once", "p"]
    command_line.check_arguments(stream_to_kafka.build_parser().parse_args([*arguments, "--checkpoint", "c"]))
    command_line.check_arguments(_batch(*arguments, "--txn-version", "7"))


def test_a_number_names_a_batch_with_the_name_that_exactly_once_gives(tmp_path: Path) -> None:
    arguments = _batch("--topic", "t", "--bootstrap-servers", "b:1", "--exactly-once", "p", "--txn-version", "7")
    assert sink_options(arguments) == {
        "topic": "t",
        "kafka.bootstrap.servers": "b:1",
    } | exactly_once_options("p", 7)
    (tmp_path / "a").write_text("txnappid=a\ndeliveryGuarantee=exactly-once\ntransactionalIdPrefix=p")
    arguments = _batch("--topic", "t", "--bootstrap-servers", "b:1", "--config", str(tmp_path / "a"), "--txn-version", "7")
    assert sink_options(arguments)["txnAppId"] == "a"


def test_arguments_override_options_and_these_files_of_which_the_last_one_wins(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("topic=a\nacks=0\nlinger.ms=1\nbatch.size=1")
    (tmp_path / "b").write_text("topic=b\nlinger.ms=2\nbatch.size=2\nbootstrap.servers=b:1")
    files = ["--config", str(tmp_path / "a"), "--config", str(tmp_path / "b")]
    assert sink_options(_batch(*files, "--option", "kafka.batch.size=3", "--topic", "c")) == {
        "topic": "c",
        "kafka.acks": "0",
        "kafka.linger.ms": "2",
        "kafka.batch.size": "3",
        "kafka.bootstrap.servers": "b:1",
    }


def test_the_topic_and_the_brokers_are_found_in_any_case() -> None:
    options = sink_options(_batch("--option", "Topic=a", "--option", "Kafka.Bootstrap.Servers=b:1"))
    assert options == {"topic": "a", "kafka.bootstrap.servers": "b:1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "a.csv", "--topic", "t"], "--bootstrap-servers is missing"),
        (["--input", "a.csv", "--topic", " ", "--bootstrap-servers", "b:1"], "--topic is missing"),
        (["--input", "a.csv", "--bootstrap-servers", "b:1"], "--topic is missing"),
        (["--topic", "t", "--bootstrap-servers", "b:1"], "--input is missing"),
        (["--input", "a.xls", "--topic", "t", "--bootstrap-servers", "b:1"], "of a.xls is not known from its extension"),
        (["--input", "a.csv", "--config", "/none"], "--config /none cannot be read"),
        (["--input", "a.csv", "--topic", "t", "--bootstrap-servers", "b:1", "--value", " "], "--value is empty"),
    ],
)
def test_a_usage_error_is_one_sentence_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch_to_kafka.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("batch_to_kafka: error: ")
    assert message in said
    assert said.count("\n") == 1


def test_the_check_of_the_options_leaves_warnings_to_sparks_planner(caplog: pytest.LogCaptureFixture) -> None:
    """A warning about an option appeared twice, from the job and from Spark's planner."""
    arguments = _batch("--topic", "t", "--bootstrap-servers", "b:1", "--option", "kafka.lingr.ms=1")
    command_line.checked_options(arguments)
    assert caplog.text == ""


def test_a_malformed_option_is_not_repeated_for_it_may_be_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        _batch("--option", "hunter2")
    assert exit_.value.code == 2
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.csv", "csv"),
        ("a.csv.gz", "csv"),
        ("dir/a.jsonl", "json"),
        ("hdfs://host:9000/a.parquet", "parquet"),
        ("s3a://bucket/part.json.zst", "json"),
    ],
)
def test_the_extension_tells_the_format(path: str, name: str) -> None:
    assert input_format(_batch("--input", path)) == name
    assert input_format(_batch("--input", path, "--input-format", "orc")) == "orc"


def test_a_stream_needs_its_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        stream_to_kafka.main(["--input-format", "rate", "--topic", "t", "--bootstrap-servers", "b:1"])
    assert exit_.value.code == 2
    assert "--checkpoint" in capsys.readouterr().err


def test_a_stream_that_gets_the_names_of_a_batch_ends_before_spark_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """Spark started, and the write failed with exit code 1."""
    arguments = ["--input-format", "rate", "--topic", "t", "--bootstrap-servers", "b:1", "--checkpoint", "c"]
    batch_arguments = ["--exactly-once", "p", "--option", "txnAppId=a", "--option", "txnversion=3"]
    assert stream_to_kafka.main([*arguments, *batch_arguments]) == 2
    assert "txnAppId and txnVersion: only for df.write" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["producer.properties", "schema-registry.properties", "sink.properties", "tls.properties"])
def test_the_sample_files_are_accepted_by_the_sink(name: str) -> None:
    from spark_kafka_sink.config.sink_options import SinkOptions

    options = sink_options(_batch("--config", str(CONF / name), "--topic", "t", "--bootstrap-servers", "b:1"))
    problems: list[str] = []
    SinkOptions.read(options, problems)
    assert problems == []


def _batch(*arguments: str) -> argparse.Namespace:
    return batch_to_kafka.build_parser().parse_args(list(arguments))


def test_both_jobs_take_the_same_arguments() -> None:
    names = {action.dest for action in command_line.new_parser("job", "", "")._actions}
    assert len(names) > 10
    for module in (batch_to_kafka, stream_to_kafka):
        assert names <= {action.dest for action in module.build_parser()._actions}


@pytest.mark.parametrize("module", [batch_to_kafka, stream_to_kafka])
def test_help_explains_arguments_and_exit_codes_and_its_examples_parse(module: types.ModuleType) -> None:
    parser = module.build_parser()
    assert all(action.help for action in parser._actions)
    shown = parser.format_help()
    means = "0 all rows are acknowledged, skipped or dead-lettered; 1 failed, with one line that says why;"
    assert shown.rstrip().endswith(f"exit codes: {means} 2 wrong usage or options; 130 Ctrl-C")
    examples = shown.split("examples:\n")[1].split("exit codes:")[0].replace("\\\n", " ").strip().splitlines()
    assert len(examples) >= 2
    for line in examples:
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", f"jobs.{parser.prog}"]
        parser.parse_args(words[3:])
