"""How charts look, and how one drawing becomes an SVG element or a PNG. Equal charts give equal bytes.

Colours are named: in the SVG they become CSS variables, so that a page sets them for a light and a dark ground.
"""
# The drawing library leaves its keywords untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

INK, MUTED, GRID, PAPER = "#1b1f24", "#57606a", "#d9dee3", "#ffffff"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#6b6b6b")
"""Okabe and Ito's colours, told apart by most eyes; markers differ as well, so that print in grey can be read."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    **{colour: f"series-{number}" for number, colour in enumerate(SERIES, 1)},
}
WIDTH_IN = 4.9
"""So narrow that its text can be read on a telephone without scaling."""
DPI = 200
STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.linewidth": 0.8,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "text.parse_math": False,  # a `$` in a name is a `$`
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "legend.handlelength": 1.9,
    "legend.borderaxespad": 0.0,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes the page's font
    "svg.hashsalt": "rigbench",
    "figure.constrained_layout.use": True,
}
SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile("|".join(VARIABLES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One drawing, ready to be made in any form."""

    name: str
    """Of the file, and the prefix of ids in the SVG."""
    title: str
    note: str
    """What the marks mean."""
    alt: str
    """The same in words, for whoever does not see it."""
    height_in: float
    draw: Callable[[Axes], None]


def as_svg(chart: Chart) -> str:
    """An element to be put into a page: no size but its proportions, ids of its own, colours by variables."""
    root = ET.fromstring(_drawn(chart, "svg"))  # noqa: S314 - the drawing library's own output
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": chart.alt}
    for metadata in root.findall(f"{SVG}metadata"):
        root.remove(metadata)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, f"{chart.name}-{value}")
            elif name == HREF:
                element.set(name, f"#{chart.name}-{value.removeprefix('#')}")
            elif name in ("clip-path", "style"):
                own = value.replace("url(#", f"url(#{chart.name}-")
                element.set(name, _COLOUR.sub(lambda hit: f"var(--{VARIABLES[hit[0]]}, {hit[0]})", own))
    ET.register_namespace("", SVG[1:-1])
    ET.register_namespace("xlink", HREF[1:].partition("}")[0])
    return ET.tostring(root, encoding="unicode")


def as_png(chart: Chart) -> bytes:
    return _drawn(chart, "png")


def _drawn(chart: Chart, form: str) -> bytes:
    with _style():
        canvas = Canvas(figsize=(WIDTH_IN, chart.height_in), facecolor="none" if form == "svg" else PAPER)
        axes = canvas.add_subplot()
        axes.set_facecolor("none")
        chart.draw(axes)
        # No date and no version: equal reports give equal bytes.
        nothing = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        buffer = io.BytesIO()
        canvas.savefig(buffer, format=form, dpi=DPI, metadata=nothing)
    return buffer.getvalue()


@contextmanager
def _style() -> Generator[None]:
    with mpl.rc_context(), warnings.catch_warnings():
        # A name in a script that the font lacks is a box in the PNG; in the page the browser finds a font.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield
