"""What the build adds to the package's metadata: the README, with links that also work on a package index.

A relative link becomes one into the repository, at the version's tag. The repository's address is that of [project.urls] in
pyproject.toml. Hatchling finds this file there as well; it needs nothing else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURES = (".svg", ".png")
_TARGET = re.compile(r"""(?P<before>\]\(|\b(?:src|srcset|href)=")(?!https?:)(?P<target>[^)\s"]+)""")
_CODE_BLOCK = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


class ReadmeHook(MetadataHookInterface):
    """Sets the metadata field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = with_absolute_links(readme, metadata["urls"]["Repository"], f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(readme: str, repository: str, tag: str) -> str:
    """The text with each relative link made absolute. Links inside of code blocks stay."""

    def absolute(link: re.Match[str]) -> str:
        target = link["target"]
        path = f"README.md{target}" if target.startswith("#") else target
        kind = "raw" if path.endswith(PICTURES) else "blob"
        return f"{link['before']}{repository}/{kind}/{tag}/{path}"

    parts = _CODE_BLOCK.split(readme)  # text and code blocks, in turn
    parts[::2] = [_TARGET.sub(absolute, part) for part in parts[::2]]
    return "".join(parts)
