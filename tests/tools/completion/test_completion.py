"""`pykafka-sink completion`: what each shell completes with its script, and that the scripts know all that parsers know."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kafka_sink.tools.arguments import parse_pair
from spark_kafka_sink.tools.catalog import TOOLS
from spark_kafka_sink.tools.completion.command import SCRIPTS, all_commands, main
from spark_kafka_sink.tools.completion.words import Value, commands_of, producer_option_names, sink_option_names
from tests.tools.completion.shells import SHELLS

Complete = Callable[[str], list[str]]


@pytest.fixture(params=SHELLS)
def complete(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Complete:
    """The words with which a real shell completes a line, in a directory with a file `commits 1.jsonl`."""
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main([shell]) == 0
    script, directory = tmp_path / "script", tmp_path / "here"
    script.write_text(capsys.readouterr().out)
    directory.mkdir()
    (directory / "commits 1.jsonl").touch()
    return lambda line: sorted(SHELLS[shell](script, line, directory))


# IN A SHELL


def test_tools_and_their_commands_are_completed(complete: Complete) -> None:
    assert complete("pykafka-sink ") == sorted(TOOLS)
    assert complete("pykafka-sink tra") == ["transactions"]
    assert complete("pykafka-sink transactions ") == ["abort", "commit", "list", "repair"]


def test_flags_are_those_of_the_command(complete: Complete) -> None:
    assert complete("pykafka-sink transactions list --command-") == ["--command-config", "--command-property"]
    assert without_joint(complete("pykafka-sink transactions abort --bootstrap-servers a:1,b:2 --even")) == ["--even-decided"]
    assert complete("pykafka-sink transactions list --even") in ([], ["--even"])  # it is a flag of `abort`


def without_joint(words: list[str]) -> list[str]:
    """zsh ends a flag with = if it takes a value."""
    return [word.removesuffix("=") for word in words]


def test_an_option_is_completed_to_its_name_and_then_to_its_values(complete: Complete) -> None:
    begin = "pykafka-sink transactions list --command-property"
    assert complete(f"{begin} linger") == ["linger.ms="]
    assert complete(f"{begin} security.protocol=SASL_S") == ["security.protocol=SASL_SSL"]
    assert complete(f"{begin}=security.protocol=SASL_S") == ["--command-property=security.protocol=SASL_SSL"]
    assert complete("pykafka-sink options kafka.ling") == ["kafka.linger.ms"]


def test_a_password_is_not_completed_into_a_command_line(complete: Complete) -> None:
    words = complete("pykafka-sink transactions list --command-property sasl.jaas")
    assert not any(word.startswith("sasl.jaas.config") for word in words)  # fish also finds names with letters in between


def test_choices_and_files_are_completed(complete: Complete) -> None:
    assert complete("pykafka-sink completion b") == ["bash"]
    assert [word.replace("\\", "") for word in complete("pykafka-sink report com")] == ["commits 1.jsonl"]
    (word,) = complete("pykafka-sink report --output=com")
    assert word.replace("\\", "") == "--output=commits 1.jsonl"


def test_after_a_flag_with_a_value_there_is_nothing_to_choose(complete: Complete) -> None:
    assert complete("pykafka-sink transactions list --prefix ") == []


# WITHOUT A SHELL


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_has_every_word_of_every_parser(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([shell]) == 0
    text = capsys.readouterr().out
    for command in all_commands():
        for word in (*command.path, *(name for flag in command.flags for name in flag.names)):
            assert word.lstrip("-") in text, word
    for option in (*sink_option_names(), *producer_option_names()):
        assert option.name in text
    assert "@" not in text.replace('"$@"', "").replace("[@]", "")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_is_valid_for_its_shell(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    main([shell])
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_parsers_have_what_the_scripts_rely_on() -> None:
    """The command is what stands before the first word that is neither a command nor a flag."""
    commands = list(all_commands())
    assert {each.path[0] for each in commands if each.path} == set(TOOLS)
    for each in commands:
        assert not each.commands or all(flag.value is Value.NOTHING for flag in each.flags)
        assert sum(not argument.names for argument in each.arguments) <= 1
        for flag in each.flags:
            assert flag.help


@pytest.mark.parametrize("shell", SHELLS)
def test_options_of_the_sink_are_completed_with_their_prefix(shell: str, tmp_path: Path) -> None:
    """As arguments of the jobs name them: --option kafka.acks=all, and files after --config."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    parser = argparse.ArgumentParser()
    parser.add_argument("--option", type=parse_pair, action="append", help="an option")
    parser.add_argument("--config", type=Path, help="a file")
    (tmp_path / "script").write_text(SCRIPTS[shell](list(commands_of(parser))))
    (tmp_path / "sink.properties").touch()
    lines = {
        "--option kafka.ling": "kafka.linger.ms=",
        "--option kafka.acks=al": "kafka.acks=all",
        "--option=kafka.acks=al": "--option=kafka.acks=all",
        "--option kafka.acks=all --option deliveryG": "deliveryGuarantee=",
        "--option deliveryGuarantee=exact": "deliveryGuarantee=exactly-once",
        "--config sink": "sink.properties",
    }
    for typed, completed in lines.items():
        assert SHELLS[shell](tmp_path / "script", f"pykafka-sink {typed}", tmp_path) == [completed]


def test_in_bash_the_settings_of_a_user_do_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unset variables as errors, another IFS, patterns without a match as errors, and words that end only at blanks."""
    main(["bash"])
    settings = [
        "set -u",
        "IFS=:",
        "shopt -s failglob nocasematch",
        "COMP_WORDBREAKS=' '",
        "COMP_WORDBREAKS=${COMP_WORDBREAKS//:}",
    ]
    script = tmp_path / "script"
    script.write_text("\n".join([capsys.readouterr().out, *settings[:3]]))
    line = "pykafka-sink transactions list --bootstrap-servers a:1 --command-property=acks=al"
    assert SHELLS["bash"](script, line, tmp_path) == ["--command-property=acks=all"]
    assert SHELLS["bash"](script, "pykafka-sink ", tmp_path) == sorted(TOOLS)
    for words_end in settings[3:]:
        script.write_text("\n".join([script.read_text(), words_end]))
        assert SHELLS["bash"](script, line, tmp_path) == ["--command-property=acks=all"]


def test_texts_with_quotes_and_colons_do_not_break_a_script(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--odd", metavar="A:B", help='it\'s [odd]: a \\ and `code` $(exit 3) "quoted" %% done')
    commands = list(commands_of(parser))
    assert commands[0].flags[1].help == 'it\'s [odd]: a \\ and `code` $(exit 3) "quoted" % done'
    for shell, script in SCRIPTS.items():
        if shutil.which(shell) is not None:
            file = tmp_path / shell
            file.write_text(script(commands))
            completed = SHELLS[shell](file, "pykafka-sink --od", tmp_path)
            assert without_joint(completed) == ["--odd"]


@pytest.mark.parametrize("words", [[], ["tcsh"]])
def test_a_shell_without_a_script_is_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(words)
    assert raised.value.code == 2
    assert "shell" in capsys.readouterr().err
