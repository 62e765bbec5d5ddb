"""The parts of the house style that ruff does not know: headings, names and imports of tests, one thing for each public name."""

from __future__ import annotations

import ast
import keyword
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "spark_kafka_sink"
LONGEST_TEST_NAME = 79


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def sources() -> Iterator[Path]:
    for folder in (PACKAGE, ROOT / "jobs", ROOT / "tests"):
        yield from sorted(folder.rglob("*.py"))


def matches(pattern: str, files: Iterator[Path]) -> list[tuple[str, str]]:
    """Each match's first group, and its file."""
    return [(text, str(file.relative_to(ROOT))) for file in files for text in re.findall(pattern, file.read_text(), re.MULTILINE)]


def test_headings_have_no_rulers() -> None:
    assert matches(r"^\s*# ?([-=#*]{3,}.*)$", sources()) == []


def test_headings_begin_in_capitals() -> None:
    """A heading is a comment between blank lines, or the first comment of a group of fields."""
    headings = matches(r"\n\n *# ([^\n]{3,90})\n(?:\n|    \w+: .* = option\()", sources())
    assert len(headings) > 500
    other = [each for each in headings if not each[0].split()[0].isupper() and not each[0].startswith(("ruff: ", "fmt: "))]
    assert other == []


def test_arguments_are_listed_in_one_form() -> None:
    """On lines of their own, below a line that says Args:"""
    other = matches(r"^(.*\S.*\bArgs:.*|.*\bArgs:.*\S.*)$", iter(sorted(PACKAGE.rglob("*.py"))))
    assert other == []


def test_docstrings_begin_with_a_sentence() -> None:
    """Those of 45 classes began with their arguments, and did not say what the object is or does."""
    begins = r'^ *(?:class|def) [^"]*?:\n\s*"""\s*(Args|Raises|Returns|Yields):$'
    assert matches(begins, iter(sorted(PACKAGE.rglob("*.py")))) == []


def documented(file: Path) -> Iterator[tuple[ast.Module | ast.ClassDef | ast.FunctionDef, str]]:
    """Each module, class and function of a file that has a docstring."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield node, text


def test_arguments_that_docstrings_list_are_there() -> None:
    """Three had the name that the argument had before."""
    missing = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node, text in documented(file):
            has_fields = isinstance(node, ast.FunctionDef) and node.args.kwarg is not None  # their names stand in overloads
            if "Args:\n" not in text or has_fields:
                continue
            names = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
            names |= {
                each.target.id for each in ast.walk(node) if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
            section = text.partition("Args:\n")[2].partition("\n\n")[0]
            listed_names = (
                name for line in re.findall(r"^    (\w+(?:, \w+)*):", section, re.MULTILINE) for name in line.split(", ")
            )
            missing += [f"{file.name}: {name}" for name in listed_names if name not in names]
    assert missing == []


def test_names_that_docstrings_quote_are_there() -> None:
    """In the same file, or as a function, class or module of another one."""
    others = {"_", "inf", "job", "nodes", "position", "pyspark_", "reverse", *keyword.kwlist}
    texts = []
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = tree_of(file)
        others |= {file.stem, file.parent.name}
        others |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        prose, code = [ast.get_docstring(node, clean=False) or "" for node, _ in documented(file)], file.read_text()
        for text in prose:
            code = code.replace(text, "")
        texts.append((file.name, "\n".join(prose), set(re.findall(r"\w+", re.sub(r"#.*", "", code)))))
    quoted = [(file, name, code) for file, prose, code in texts for name in re.findall(r"`([a-z_]+)`", prose)]
    assert len(quoted) > 300
    assert [f"{file}: {name}" for file, name, code in quoted if name not in code | others] == []


def test_values_are_not_named_by_bare_participles() -> None:
    """`found` or `kept` leaves open what it is that was found or kept. `given` is hypothesis's own name in tests."""
    participles = re.compile(
        "_*(asked|chosen|found|given|joined|kept|known|listed|lost|named|seen|sent|taken|told|took|wanted|lo|hi)_*"
    )
    values = []
    for file in sources():
        for node in ast.walk(tree_of(file)):
            name = getattr(node, "arg", None) or getattr(node, "attr", None) or getattr(node, "id", "")
            if isinstance(node, ast.arg | ast.Name | ast.Attribute) and participles.fullmatch(name):
                values.append(f"{file.name}:{node.lineno} {name}")
    values = [each for each in values if not (each.startswith("test_") and each.endswith(" given"))]
    assert values == []


def test_names_of_tests_are_short() -> None:
    names = matches(r"^ *def (test_\w+)", sources())
    assert len(names) > 3_000
    assert [name for name in names if len(name[0]) > LONGEST_TEST_NAME] == []


def test_files_of_tests_take_nothing_but_tests_from_each_other() -> None:
    """Fixtures are in conftest.py, and what else tests share in modules that are no tests."""
    wrong_imports = []
    for file in (ROOT / "tests").rglob("*.py"):
        imports = [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.ImportFrom)]
        for module, name in ((node.module or "", each.name) for node in imports for each in node.names):
            is_file_of_tests = module.startswith("tests.") and module.rpartition(".")[2].startswith("test_")
            if is_file_of_tests != name.startswith("test_"):
                wrong_imports.append(f"{file.relative_to(ROOT)}: {module}.{name}")
    assert wrong_imports == []


def test_tests_that_a_package_lists_are_there() -> None:
    """Four of Spark's scenarios were listed with tests that had been renamed or taken out."""
    names = [name for name, _ in matches(r"^ *def (test_\w+)", sources())] + [file.stem for file in sources()]
    there = "\n".join(["", *names, ""])
    listed_tests = matches(r"\b(test_\w+…?)", iter([file for file in sources() if file.name == "__init__.py"]))
    assert len(listed_tests) > 300
    assert [name for name in listed_tests if f"\n{name[0]}\n".replace("…\n", "") not in there] == []


# Names that mean the same in each module.
SAME_MEANING = {
    *("PROG", "EXAMPLES", "main", "build_parser", "run", "script", "json_line", "summary", "summary_json"),  # of each tool
    *("markdown_table", "AnswerT", "logger"),
}


def public_names(file: Path) -> Iterator[str]:
    """Classes, functions, values and types at the top level of a file."""
    for node in tree_of(file).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


def test_no_two_files_of_the_package_share_a_public_name() -> None:
    """NO_TIMESTAMP was a number in one file, and the text of an error in another."""
    times = Counter(name for file in PACKAGE.rglob("*.py") for name in set(public_names(file)))
    shared = {name for name, count in times.items() if count > 1 and len(name) > 1 and not name.startswith("_")}
    assert shared - SAME_MEANING == set()
