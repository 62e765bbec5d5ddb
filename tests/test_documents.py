"""The documents are true: printed parts are what the code prints, links lead somewhere, and what they name exists.

Each code block runs in tests/integration/test_document_code.py, in the test that SHOWN_ELSEWHERE names, or is listed in NOT_RUN
with the reason. This file needs neither Spark nor a broker.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

import spark_kafka_sink
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.option_tables import option_table
from spark_kafka_sink.protocol.error_codes import ERROR_CODES, Errors, Persisted
from tests.benchmarks import comparison, comparison_chart
from tests.documents import (
    NOT_RUN,
    PAGES,
    PARTS,
    ROOT,
    SHOWN_ELSEWHERE,
    anchors,
    code_blocks,
    filled_in,
    links,
    name_of,
    read,
    table_rows,
    without_code,
)

DOCS = ROOT / "docs"
DESIGN = DOCS / "design.md"
PACKAGE = ROOT / "spark_kafka_sink"

BLOCKS_RUN_BY = "tests/integration/test_document_code.py"
MAX_LINE_CHARACTERS = 130


LANGUAGES = {"python", "bash", "yaml", "text", "properties", "dockerfile"}  # text is output or a drawing


# PRINTED PARTS


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_printed_parts_are_what_the_code_prints(page: Path) -> None:
    assert read(page) == filled_in(read(page)), "run: python -m tests.documents"


def test_each_printed_part_has_one_place() -> None:
    text = "\n".join(map(read, PAGES))
    for name in PARTS:
        assert text.count(f"<!-- {name}: begin -->") == text.count(f"<!-- {name}: end -->") == 1, name


def test_the_pictures_are_drawn_from_the_recorded_runs(tmp_path: Path) -> None:
    drawn = comparison_chart.draw(tmp_path, comparison.recorded_runs())
    assert len(drawn) == 4
    for picture in drawn:
        committed = DOCS / "images" / picture.name
        assert committed.read_text(encoding="utf-8") == picture.read_text(encoding="utf-8"), (
            "run: python -m tests.benchmarks.sink_benchmark --chart docs/images"
        )


def test_a_recorded_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    for run in comparison.recorded_runs():
        run.save(tmp_path / "run.json")
        assert comparison.SinkBenchmarkRun.load(tmp_path / "run.json") == run


# CODE BLOCKS


def test_every_block_is_run_or_listed_with_a_reason() -> None:
    blocks = code_blocks()
    for beginning in (*SHOWN_ELSEWHERE, *NOT_RUN):
        assert sum(each.text.startswith(beginning) for each in blocks) == 1, beginning
    assert not {each.language for each in blocks} - LANGUAGES
    left = [each for each in blocks if not each.text.startswith((*SHOWN_ELSEWHERE, *NOT_RUN))]
    assert sum(each.language == "python" for each in left) >= 8
    # A further block of these languages needs a test, or a line above.
    assert [name_of(each.page) for each in left if each.language == "bash"] == ["docs/jobs.md"]
    assert not [each for each in left if each.language in ("yaml", "dockerfile")]


def test_the_tests_that_run_blocks_are_there() -> None:
    for where in {*SHOWN_ELSEWHERE.values(), BLOCKS_RUN_BY}:
        assert (ROOT / where).is_file(), where


def test_every_python_block_is_python() -> None:
    for each in code_blocks():
        if each.language == "python" and not each.text.startswith(tuple(NOT_RUN)):
            compile(each.text, name_of(each.page), "exec")


def test_settings_that_pages_show_are_those_of_the_samples() -> None:
    samples = {
        " ".join(line.split()) for file in (ROOT / "conf").iterdir() for line in file.read_text(encoding="utf-8").splitlines()
    }
    shown = [line for each in code_blocks() if each.language == "properties" for line in each.text.splitlines()]
    assert shown
    assert [line for line in shown if " ".join(line.split()) not in samples] == []


# LINKS AND NAMES


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in links(page):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), target
        assert not anchor or anchor in anchors(file), target


def test_pages_of_the_site_link_only_to_each_other() -> None:
    """A link out of docs/ would be broken on the site. Pages name other files in code font instead."""
    for page in PAGES:
        if DOCS in page.parents:
            local = [target for target in links(page) if not target.startswith(("http", "#"))]
            assert all((page.parent / target.partition("#")[0]).resolve().is_relative_to(DOCS) for target in local), page


def test_the_index_and_the_site_have_every_page() -> None:
    pages = {page.name for page in DOCS.glob("*.md")}
    assert pages - {"index.md"} == {target for target in links(DOCS / "index.md") if "#" not in target}
    assert pages == set(re.findall(r"[\w-]+\.md$", read(ROOT / "mkdocs.yml"), re.MULTILINE))
    assert {f"docs/{name}" for name in pages} <= {target.partition("#")[0] for target in links(ROOT / "README.md")}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "README.md"], ids=name_of)
def test_a_page_says_first_what_it_answers(page: Path) -> None:
    _, heading, first, *_ = re.split(r"^(# .+)$", read(page), maxsplit=1, flags=re.MULTILINE)
    assert heading
    assert first.lstrip().startswith("This page answers: ")
    assert first.partition("\n\n")[2].partition("\n\n")[0].rstrip().endswith("?")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named_files = set(re.findall(r"`((?:conf|docs|jobs|tests)/[\w/.\-]*\w)`", read(page)))
    inside = {f"spark_kafka_sink/{name}" for name in re.findall(r"`((?:[a-z_]+/)*\w+\.py)`", without_code(page))}
    inside = {name for name in inside if not name.startswith(("spark_kafka_sink/tests/", "spark_kafka_sink/jobs/"))}
    if page.name in ("CONTRIBUTING.md", "design.md"):
        assert len(inside) > 10
        named_files |= inside - {"spark_kafka_sink/pyspark_kafka_sink.py"}
    assert [name for name in sorted(named_files) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_of_prose_are_wrapped(page: Path) -> None:
    prose = [line for line in without_code(page).splitlines() if not line.lstrip().startswith(("|", "<"))]
    assert [line for line in prose if len(line) > MAX_LINE_CHARACTERS] == []


def test_the_readme_is_short() -> None:
    assert len(read(ROOT / "README.md").splitlines()) <= 210


# THE WAY OF A ROW


Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class Step(NamedTuple):
    """A row of design.md's tables: what happens in `function` of `file`."""

    file: str
    function: str
    what_happens: str


def steps() -> list[Step]:
    """Each row that has a file and a function."""
    rows = [row for row in table_rows(DESIGN) if len(row) == 4]
    cells = [(*(re.fullmatch(r"`([\w./]+)`", cell) for cell in row[1:3]), row[3]) for row in rows]
    return [Step(file[1], function[1], text) for file, function, text in cells if file is not None and function is not None]


def definition(file: Path, name: str) -> Definition | None:
    """A function, class or constant of a module, or `Class.method`."""
    node: Definition | None = None
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for part in name.split("."):
        node = next((each for each in body if isinstance(each, Definition) and part in names_of(each)), None)
        body = node.body if isinstance(node, ast.ClassDef) else []
    return node


def names_of(node: Definition) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return [each.id for each in (node.targets if isinstance(node, ast.Assign) else [node.target]) if isinstance(each, ast.Name)]


def used_by(node: ast.AST) -> set[str]:
    """Names and attributes in the code, without the underscore of what is private."""
    words = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    words |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return {word.removeprefix("_") for word in words}


def test_each_step_names_what_there_is() -> None:
    assert len(steps()) > 30
    missing = [f"{each.file}: {each.function}" for each in steps() if definition(PACKAGE / each.file, each.function) is None]
    assert missing == []


def test_each_step_uses_what_its_row_says_that_it_uses() -> None:
    """A row said that `ready` reads `linger_ms`, which another function does.

    What a row names in code font is used in the function, unless it is an option. Who calls whom is not compared: between two
    rows there are threads, Spark, and functions that no table names.
    """
    options = {row.key for row in option_table()}
    wrong = []
    for step in steps():
        node = definition(PACKAGE / step.file, step.function)
        assert node is not None
        quoted_names = set(re.findall(r"`(\w+)`", step.what_happens)) - options
        wrong += [f"{step.function}: {name}" for name in sorted(quoted_names - used_by(node))]
    assert wrong == []


def test_methods_that_the_design_names_are_there() -> None:
    """Also those outside of the columns of files and functions: who wakes a thread, what a rule is about."""
    members: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                members[node.name] = {name for each in node.body if isinstance(each, Definition) for name in names_of(each)}
    quoted_methods = re.findall(r"`([A-Z]\w+)\.(\w+)`", read(DESIGN))
    assert [f"{owner}.{name}" for owner, name in quoted_methods if name not in members.get(owner, ())] == []


def test_functions_and_constants_that_the_design_finds_in_a_file_are_there() -> None:
    """As in "`fence_all` in `exactly_once/fencing.py`", and "`A` and `B` in …"."""
    places = re.findall(r"((?:`[\w.]+`(?:, | and )?)+)(?: in| of) `([\w/]+\.py)`", read(DESIGN))
    quoted_names = [(name.split(".")[-1], file) for names, file in places for name in re.findall(r"`([\w.]+)`", names)]
    assert len(quoted_names) > 20
    missing = [f"{name} in {file}" for name, file in quoted_names if not re.search(rf"\b{name}\b", read(PACKAGE / file))]
    assert missing == []


def test_the_layers_name_every_package_and_every_module_at_the_top() -> None:
    """The package of the requests to coordinators stood in no layer, and a table of this page is where contributors look."""
    layers = read(DESIGN).partition("## Layers")[2].partition("## ")[0]
    packages = {file.parent.name for pattern in ("*/", "producer/*/") for file in PACKAGE.glob(pattern + "__init__.py")}
    modules = {file.name for file in PACKAGE.glob("*.py")} - {"__init__.py"}
    missing = [name for name in packages if f"{name}/  " not in layers] + [name for name in modules if name not in layers]
    assert missing == []


def test_the_map_of_a_package_names_each_of_its_modules() -> None:
    """Several left out some, so that nobody looked there."""
    left_out = {}
    for package in PACKAGE.rglob("__init__.py"):
        words = set(re.findall(r"\w+", ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""))
        modules = {file.stem for file in package.parent.glob("*.py")} - {"__init__"}
        missing = modules - words
        if len(modules - missing) > 2 and missing:
            left_out[str(package.parent)] = missing
    assert left_out == {}


def thread_names() -> list[str]:
    """The name of each thread that the package makes, without the client id at its end; the class of one that has no name."""
    names = []
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "threading.Timer"):
                name = next((each.value for each in node.keywords if each.arg == "name"), node.func)
                names.append(ast.unparse(name).removeprefix("f").strip("'").partition("{")[0].rstrip(" |-"))
    return sorted(names)


def test_the_table_of_threads_names_each_that_the_package_makes() -> None:
    """The reaper of the workers' cache was missing."""
    table = read(DESIGN).partition("## Threads")[2].partition("\n\nWho waits")[0]
    documented_names = re.findall(r"^\| (?!caller)[^|]*`([\w.-]+)` \|", table, re.MULTILINE)
    assert sorted(documented_names) == thread_names()


# ERROR CODES


def documented_conditions() -> set[str]:
    table = read(DOCS / "troubleshooting.md").partition("<!-- conditions: begin -->")[2].partition("<!-- conditions: end -->")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    conditions = [code for row in rows for code in re.findall(r"`(KAFKA_[A-Z_]+)`", row)]
    assert len(conditions) == len(set(conditions))
    return set(conditions)


def own_conditions() -> set[str]:
    """The codes in the package's sources, in quotes or in brackets."""
    sources = "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))
    return {quoted or bracketed for quoted, bracketed in re.findall(r'"(KAFKA_[A-Z_]+)"|\[(KAFKA_[A-Z_]+)\]', sources)}


def test_every_error_code_of_ours_has_a_meaning_and_a_remedy() -> None:
    assert own_conditions() - documented_conditions() == set()


# Codes that the package handles and never raises.
NOT_RAISED = {
    "NONE",  # no error
    "DUPLICATE_SEQUENCE_NUMBER",  # the batch is complete: an earlier attempt wrote it
    "UNSTABLE_OFFSET_COMMIT",  # they are then asked for again, or the answer says that a transaction holds them
    "REBOOTSTRAP_REQUIRED",  # metadata are then asked for at bootstrap.servers
}


def brokers_conditions() -> set[str]:
    """Of the codes of brokers, those that reach a user: which Produce is known to answer with, or which our sources name."""
    table = ROOT / "spark_kafka_sink" / "protocol" / "error_codes.py"
    files = [file for file in (ROOT / "spark_kafka_sink").rglob("*.py") if file != table]
    named_codes = {name for file in files for name in re.findall(r"\bErrors\.([A-Z_]+)\b", file.read_text(encoding="utf-8"))}
    produce_codes = {row.name for row in ERROR_CODES.values() if row.persisted is not Persisted.MAYBE}
    return {f"KAFKA_{name}" for name in (named_codes | produce_codes) - NOT_RAISED}


def test_every_code_of_brokers_that_can_be_raised_has_a_meaning_and_a_remedy() -> None:
    """KAFKA_ILLEGAL_SASL_STATE, which a listener without SASL causes, could be looked up nowhere: codes of brokers are made of
    their names in the table, so they stand in no source."""
    assert brokers_conditions() - documented_conditions() == set()


def test_no_error_code_is_put_together_but_from_the_table_of_brokers_codes() -> None:
    """What the two tests above collect is all there is."""
    sources = {file: file.read_text(encoding="utf-8") for file in (ROOT / "spark_kafka_sink").rglob("*.py")}
    made = [(file.name, line) for file, text in sources.items() for line in re.findall(r""".*KAFKA_\{.*""", text)]
    assert made == [("error_codes.py", '        return f"KAFKA_{self.name}"')]
    literal_conditions = {each for text in sources.values() for each in re.findall(r"""condition=["']([^"']*)["']""", text)}
    assert literal_conditions <= own_conditions()


def test_every_documented_error_code_exists() -> None:
    brokers = {f"KAFKA_{name}" for name in vars(Errors) if name.isupper()}
    assert documented_conditions() - own_conditions() - brokers == set()


# SIZES AND VERSIONS


def test_the_memory_example_follows_from_its_formula() -> None:
    from tests.benchmarks.memory_formula import BUFFER_MEMORY, MAX_ARROW_BATCH, PYTHON_AND_SCRATCH

    text = " ".join(read(DOCS / "tuning.md").split())
    example = r"(\d+) × (\d+) MB \+ 384 MB, `spark.executor.memoryOverhead=(\d+)m`"
    match = re.search(
        rf"(\d+) cores and the default of (\d+) MB: {example}; with large rows and without `maxBytesPerBatch` {example}", text
    )
    assert match is not None
    cores, default, *examples = map(int, match.groups())
    assert default == BUFFER_MEMORY
    assert ProducerConfig.from_mapping({"bootstrap.servers": "b:1"}).buffer_memory == default * 2**20
    assert f"kafka.buffer.memory + {PYTHON_AND_SCRATCH} MB + 2 × Arrow batch" in text
    for batch_mb, (times, each, overhead) in zip((1, MAX_ARROW_BATCH), (examples[:3], examples[3:]), strict=True):
        assert times == cores
        assert each == default + PYTHON_AND_SCRATCH + 2 * batch_mb
        assert cores * each + 384 <= overhead <= cores * each + 384 + 150


def test_the_version_stands_in_one_place() -> None:
    """In spark_kafka_sink/__init__.py, from which the build reads it."""
    project = tomllib.loads(read(ROOT / "pyproject.toml"))
    assert "version" not in project["project"]
    assert "version" in project["project"]["dynamic"]
    assert ROOT / project["tool"]["hatch"]["version"]["path"] == PACKAGE / "__init__.py"
    built = importlib.metadata.version("pykafka-sink")
    assert re.fullmatch(r"\d+\.\d+\.\d+", spark_kafka_sink.__version__)
    assert built == spark_kafka_sink.__version__, "the environment was made from another version: tests/run makes it again"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="pip install --group docs to build the site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "design.html").is_file()
