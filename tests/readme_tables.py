"""The parts of the README that are printed from the code, and its code blocks for tests to run.

`python -m tests.readme_tables` writes them; test_readme.py compares.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from spark_kafka_sink.option_tables import HEADINGS, markdown_table
from spark_kafka_sink.producer.producer_metrics import markdown_tables
from spark_kafka_sink.sink import commit_protocol

README = Path(__file__).resolve().parent.parent / "README.md"


def options() -> str:
    return "\n\n".join(f"### {heading}\n\n{markdown_table(section)}" for section, heading in HEADINGS.items())


def failures() -> str:
    """The table in the docstring of commit_protocol.py, which stands where its code is."""
    paragraphs = (commit_protocol.__doc__ or "").split("\n\n")
    table = next(paragraph for paragraph in paragraphs if paragraph.lstrip().startswith("failure"))
    return f"```text\n{textwrap.dedent(table)}\n```"


PARTS = {"options": options, "failures": failures, "metrics": markdown_tables}


def filled_in(text: str) -> str:
    """The README's text with each part between its two markers printed anew."""
    for name, part in PARTS.items():
        marked = re.compile(f"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
        begin, count = marked.search(text), len(marked.findall(text))
        if begin is None or count != 1:
            raise LookupError(f"the README has {count} places for {name}")
        text = text[: begin.end(1)] + f"\n{part()}\n\n" + text[begin.start(2) :]
    return text


def code_blocks() -> list[tuple[str, str]]:
    """(language, text) of each fenced block of the README, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def code_block(begins_with: str) -> str:
    """The one block whose text begins so."""
    (block,) = [text for _, text in code_blocks() if text.startswith(begins_with)]
    return block


if __name__ == "__main__":
    README.write_text(filled_in(README.read_text(encoding="utf-8")), encoding="utf-8")
