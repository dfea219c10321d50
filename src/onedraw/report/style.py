"""How all figures look: style, colours, axes, and the way to SVG and PNG. Nothing here touches pyplot."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onedraw.arguments import file_name, shown, whole_number

BLUE, ORANGE, SKY, GREEN, PURPLE = "#0072b2", "#d55e00", "#56b4e9", "#009e73", "#aa3377"
"""Colours that eyes without red or green tell apart, of different greys."""
DASHED = (0, (4, 2))
MARKER: dict[str, Any] = {"markersize": 4.5, "markeredgecolor": "0.15", "markeredgewidth": 0.6}

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "axes.facecolor": "none",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def styled(more: Mapping[str, Any] | None = None) -> Any:
    """A context in which figures look like all others, with further settings of matplotlib's."""
    from matplotlib import rc_context

    return rc_context({**STYLE, **(more or {})})


def svg_of(figure: Any, salt: str) -> str:
    """A figure as SVG text, the same for the same figure; its ids follow from `salt`."""
    buffer = io.StringIO()
    with styled({"svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def write_figure(figure: Any, out: Path, name: str, dpi: int) -> list[Path]:
    """Write a figure as .svg and .png; returns their paths."""
    svg, png = out / f"{name}.svg", out / f"{name}.png"
    svg.write_text(svg_of(figure, name), encoding="utf-8")
    with styled():
        figure.savefig(png, dpi=dpi, metadata={"Software": None})
    return [svg, png]


FORMATS: dict[str, dict[str, Any]] = {
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
    ".png": {"Software": None},
}
"""Kinds of files that figures are written to, with what must be left out so that equal figures are equal files."""


def save(figure: Any, *paths: str | os.PathLike[str], dpi: int = 300) -> list[Path]:
    """Write a figure as SVG, PDF or PNG, by the ending of each path; returns the paths.

    Text is outlines in SVG and embedded fonts in PDF, as journals require. Files contain no dates.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> figure = od.plots.marginals(od.rejection(model, od.uniform(0.5), draws=100, seed=1))
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> [path.suffix for path in od.plots.save(figure, f"{folder.name}/theta.pdf", f"{folder.name}/theta.svg")]
    ['.pdf', '.svg']
    >>> folder.cleanup()
    """
    if not hasattr(figure, "savefig"):
        raise ValueError(f"figure must be a matplotlib Figure, got {shown(figure)}")
    found = [file_name("paths", path) for path in paths]
    wrong = [path for path in found if path.suffix.lower() not in FORMATS]
    if wrong or not found:
        raise ValueError(f"paths must end in .svg, .pdf or .png, got {shown(wrong[0] if wrong else paths)}")
    with styled({"svg.hashsalt": "onedraw"}):
        for path in found:
            figure.savefig(path, dpi=whole_number("dpi", dpi, "dots per inch"), metadata=FORMATS[path.suffix.lower()])
    return found


def counts_on_x(axes: Any, counts: Any, label: str) -> None:
    """A logarithmic axis with a tick for each count."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_xlabel(label)


def plain_numbers(axes: Any, **ticks: Any) -> None:
    """Ticks of a logarithmic axis as plain numbers: 0.005, not 5·10⁻³; `ticks` say where, as LogLocator has it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if ticks:
        axes.yaxis.set_major_locator(LogLocator(base=10, **ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
