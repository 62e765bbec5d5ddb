"""Makes matplotlib's SVG fit into a page: the page's colours, text as text, unique ids, nothing to be fetched.

A picture is drawn in *stand-in* colours. They become the CSS variables of the same names, which the page sets for light and dark.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

WIDTH, HEIGHT = 400, 208  # points; a phone shows a picture at four fifths of that
# CSS variable -> stand-in. No other colour may be used.
INK, MUTED, GRID = "#010101", "#020202", "#030303"
LINE_COLORS = ("#110101", "#110102", "#110103", "#110104", "#110105", "#110106")
HEAT = ("#220100", "#220101", "#220102", "#220103", "#220104", "#220105", "#220106")
VARIABLES = {
    **{INK: "ink", MUTED: "muted", GRID: "grid"},
    **{color: f"line-{number}" for number, color in enumerate(LINE_COLORS)},
    **{color: f"heat-{number}" for number, color in enumerate(HEAT)},
}
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.family": "DejaVu Sans",  # matplotlib's own; the page names wide fonts like it, so that no label is cut off
    "font.size": 12,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 11,
    "lines.linewidth": 1.8,
    "lines.solid_joinstyle": "round",
    "path.simplify": True,
}


def new_figure(height: float = HEIGHT) -> Figure:
    return Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")


def to_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """An <svg> element for a page, with a title and a description for those who cannot see it. `name`: unique on the page."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    for stand_in, variable in VARIABLES.items():
        text = text.replace(stand_in, f"var(--{variable})")
    text = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", text)
    text = re.sub(r"\n\s*", "\n", text)
    box = re.search(r'viewBox="[^"]+"', text)
    assert box is not None, "matplotlib writes one"
    head = f'<svg class="picture" role="img" aria-labelledby="{name}-title {name}-desc" {box[0]}>'
    words = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    return head + words + text[text.index(">") + 1 :].strip()
