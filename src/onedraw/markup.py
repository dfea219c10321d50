"""Small pieces of HTML for notebooks: tables, and intervals as bars.

Colours are the page's own (currentColor), so that they fit light and dark notebooks alike. Everything is escaped, there
are no scripts, and styles are inline, which every notebook shows.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

WIDE, HIGH = 130, 12
"""The size of a bar, in pixels."""
NARROWEST = 0.05
"""The narrowest interval, as a share of the span of all, for which all bars have one scale."""
CELL = "padding:1px 10px 1px 0;border:0;background:none;color:inherit;white-space:nowrap"
RULE = "border-bottom:1px solid currentColor"
QUIET = "opacity:0.75;font-size:0.92em"


ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


def escape(text: str) -> str:
    """Text that is text in HTML, also inside an attribute.

    >>> escape("<b>")
    '&lt;b&gt;'
    """
    return text.translate(ESCAPES)


class Span(NamedTuple):
    """An interval with a point inside it."""

    low: float
    middle: float
    high: float


def bars(intervals: Sequence[Span]) -> list[str]:
    """Intervals as drawings: on one scale if they can be seen on it, otherwise each on its own."""
    known = [one for one in intervals if all(map(math.isfinite, one)) and one.high > one.low]
    if not known:
        return ["" for _ in intervals]
    ends = min(one.low for one in known), max(one.high for one in known)
    common = min(one.high - one.low for one in known) >= NARROWEST * (ends[1] - ends[0])
    found = []
    for one in intervals:
        room = 0.35 * (one.high - one.low)
        low, high = ends if common and len(known) > 1 else (one.low - room, one.high + room)
        found.append(_drawing(one, low, high) if one in known else "")
    return found


def _drawing(one: Span, low: float, high: float) -> str:
    start, middle, end = (round(3 + (WIDE - 6) * (value - low) / (high - low), 1) for value in one)
    words = escape(f"{one.middle:.4g}, {one.low:.4g} to {one.high:.4g}")
    return (
        f'<svg width="{WIDE}" height="{HIGH}" role="img" aria-label="{words}" style="vertical-align:middle">'
        f'<line x1="0" x2="{WIDE}" y1="6" y2="6" stroke="currentColor" stroke-opacity="0.2"/>'
        f'<line x1="{start}" x2="{end}" y1="6" y2="6" stroke="currentColor" stroke-width="4" stroke-opacity="0.5"/>'
        f'<circle cx="{middle}" cy="6" r="3.2" fill="currentColor"/></svg>'
    )


def table(lines: Sequence[Sequence[str]], drawings: Sequence[str] | None = None, title: str = "") -> str:
    """Lines of cells as an HTML table, the first line its head; `drawings` are a last column, already HTML.

    >>> "&lt;b&gt;" in table([["", "mean"], ["<b>", "1"]])
    True
    """
    head, *body = lines
    rows = [_row(head, "th", f";{RULE}", "" if drawings is None else _cell("th", "", f"text-align:left;{RULE}"))]
    for index, cells in enumerate(body):
        drawn = "" if drawings is None else _cell("td", drawings[index], "text-align:left")
        rows.append(_row(cells, "td", "", drawn))
    above = f"<caption style='caption-side:top;text-align:left;color:inherit;padding:0'>{escape(title)}</caption>"
    return (
        '<table style="border-collapse:collapse;border:0;margin:2px 0;font-variant-numeric:tabular-nums;color:inherit">'
        f"{above if title else ''}{''.join(rows)}</table>"
    )


def _row(cells: Sequence[str], kind: str, style: str, more: str) -> str:
    first, *others = ("–" if cell == "nan" else cell for cell in cells)
    parts = [_cell("th", escape(first), f"text-align:left;font-weight:600{style}")]
    weight = ";font-weight:400;opacity:0.75" if kind == "th" else ""
    parts += [_cell(kind, escape(cell), f"text-align:right{weight}{style}") for cell in others]
    return f'<tr style="background:none">{"".join(parts)}{more}</tr>'


def _cell(kind: str, inner: str, style: str) -> str:
    return f'<{kind} style="{CELL};{style}">{inner}</{kind}>'


def lines(texts: Iterable[str]) -> str:
    """Sentences below a table; those that warn stand out."""
    found = []
    for text in texts:
        warns = text.startswith("warning:")
        style = "font-weight:600;font-size:0.92em" if warns else QUIET
        found.append(f'<div style="{style};white-space:normal;max-width:48em">{escape(text)}</div>')
    return "".join(found)


def block(*parts: str) -> str:
    """Parts as one block."""
    return f'<div style="line-height:1.5;color:inherit;overflow-x:auto">{"".join(parts)}</div>'


def heading(text: str, more: str = "") -> str:
    """A bold line, with something quiet behind it."""
    behind = f' <span style="{QUIET}">{escape(more)}</span>' if more else ""
    return f'<div style="max-width:48em"><b>{escape(text)}</b>{behind}</div>'


def progress(text: str, done: int, total: int | None) -> str:
    """A line that says how far something is, with a bar if the end is known."""
    bar = "" if not total else f'<progress value="{min(done, total)}" max="{total}" style="width:12em"></progress> '
    return f'<div style="{QUIET};font-variant-numeric:tabular-nums">{bar}{escape(text)}</div>'
