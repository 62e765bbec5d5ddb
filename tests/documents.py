"""The documents: README.md, CONTRIBUTING.md and the others beside it, and the pages of docs/.

Some of their parts are printed from the code or from recorded measurements, between two markers:
`python -m tests.documents` writes these parts, test_documents.py compares them. The rest of the module gives tests the code
blocks, headings, links and tables of the pages. Needs no Spark.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spark_kafka_sink.option_tables import HEADINGS, markdown_table
from spark_kafka_sink.producer.producer_metrics import markdown_tables
from spark_kafka_sink.sink.prometheus import metrics as prometheus_metrics
from spark_kafka_sink.tools.report import findings
from tests.benchmarks import comparison

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md")]
    + sorted((ROOT / "docs").rglob("*.md"))
)


# PRINTED PARTS


def options() -> str:
    return "\n\n".join(f"## {heading}\n\n{markdown_table(section)}" for section, heading in HEADINGS.items())


def failures() -> str:
    return _table_of_crashes("failure  ")


def crash_points() -> str:
    return _table_of_crashes("crash point  ")


def _table_of_crashes(first_words: str) -> str:
    """A table in the docstring of commit_report.py. Read from the file, because importing it needs Spark."""
    source = (ROOT / "spark_kafka_sink" / "sink" / "commit_report.py").read_text(encoding="utf-8")
    paragraphs = source.split('"""')[1].split("\n\n")
    table = next(paragraph for paragraph in paragraphs if paragraph.lstrip().startswith(first_words))
    return f"```text\n{textwrap.dedent(table).rstrip()}\n```"


def speed() -> str:
    return comparison.markdown_table(comparison.recorded_runs())


PARTS = {
    "options": options,
    "failures": failures,
    "crash-points": crash_points,
    "metrics": markdown_tables,
    "speed": speed,
    "findings": findings.markdown_table,
    "prometheus": prometheus_metrics.markdown_table,
}


def _marked(name: str) -> re.Pattern[str]:
    return re.compile(f"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)


def filled_in(text: str) -> str:
    """A page's text with each part between its two markers printed again."""
    for name, part in PARTS.items():
        begin = _marked(name).search(text)
        if begin is not None:
            text = text[: begin.end(1)] + f"\n{part()}\n\n" + text[begin.start(2) :]
    return text


# Beginning of a block -> the test that runs it.
SHOWN_ELSEWHERE = {
    "import pandas as pd": "tests/producer/tables/test_tables_of_pandas.py",
    "jobs/quickstart": "tests/jobs/test_quickstart.py",
    "# environment.tar.gz": "tests/integration/test_clusters.py",
    "# SASL over TLS": "tests/integration/test_sasl.py",
    "# over Spark Connect": "tests/integration/test_clusters.py",
    "# transformations/orders.py": "tests/integration/test_clusters.py",
    "# spark-pipeline.yml": "tests/integration/test_clusters.py",
    "spark-submit --py-files pykafka_sink.zip,my_plugins.py": "tests/integration/test_sink_deployment.py",
    "pykafka-sink transactions list": "tests/tools/test_wheel.py",
    "spark-submit --conf spark.python.daemon.module": "tests/integration/test_debug_log.py",
}

# Beginning of a block -> why no test runs it.
NOT_RUN = {
    '.option("kafka.sasl.mechanism", "GSSAPI")': "a fragment; test_kerberos.py has a Kerberos server of its own",
    'pip install ".[spark]"': "it would change the tests' environment; test_sink_deployment.py installs the wheel elsewhere",
    "tests/run\n": "it is what runs this test",
    "tests/run  ": "the same",
    "python -m tests.documents": "it writes into the checkout; test_documents.py compares the parts that it prints",
    "# the benchmarks": "benchmarks take minutes, and measure nothing on a busy machine",
    'df.write.format("pykafka-sink").option("kafka.security': "a fragment; TLS is tested with brokers of its own",
    "# docker build": "it needs Docker and an image of Spark; its page says that it is untested",
}


# WHAT A PAGE CONTAINS


class Block(NamedTuple):
    page: Path
    language: str
    text: str


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def code_blocks() -> list[Block]:
    """Each fenced block of each page, in order."""
    blocks = []
    for page in PAGES:
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", read(page), re.DOTALL | re.MULTILINE):
            blocks.append(Block(page, language, text))
    return blocks


def code_block(begins_with: str) -> str:
    """The one block of all pages whose text begins so."""
    (block,) = [each.text for each in code_blocks() if each.text.startswith(begins_with)]
    return block


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", read(page), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As code hosts make them of headings."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Targets of links and pictures, in markdown and in HTML."""
    text = without_code(page)
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)


def table_rows(page: Path) -> Iterator[list[str]]:
    for line in without_code(page).splitlines():
        if line.startswith("|") and not re.match(r"\|[-| ]+\|$", line):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def main() -> None:
    for page in PAGES:
        text = read(page)
        if text != filled_in(text):
            page.write_text(filled_in(text), encoding="utf-8")
            print(name_of(page))


if __name__ == "__main__":
    main()
