"""Where figures are drawn and what their panels are called: what all functions of `od.plots` share."""

import io
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import names_in, number_or_nan, shown
from onedraw.engines.arrays import Array
from onedraw.report.style import BLUE, GREEN, ORANGE, PURPLE, SKY, styled
from onedraw.results.posterior import Posterior

LINES: tuple[tuple[str, Any], ...] = (
    ("black", "-"), (BLUE, "-"), (ORANGE, (0, (4, 1))), (SKY, "-"), ("0.55", (0, (2, 1))), (GREEN, "-"),
)  # fmt: skip
"""Colours and line styles of several chains, runs or functions in one panel."""
LONGEST_NAME = 24
SCREEN = 90
"""Dots per inch of a figure in a notebook."""
TRUTH: dict[str, Any] = {"color": PURPLE, "linewidth": 1.3}
"""How known values are marked."""

One = Sequence[str] | str | None
"""What `parameters=` may be."""
Names = Mapping[str, str] | Sequence[str] | str | None
"""What `names=` may be."""
Truth = Mapping[str, Any] | Sequence[float] | float | None
"""What `truth=` may be."""
Posts = Posterior | Mapping[str, Posterior]
"""A posterior, or several by label."""


class Quantity(NamedTuple):
    """Something that is drawn: a parameter, a summary, a function."""

    key: str
    label: str
    math: bool = False
    """Whether $...$ in the label is mathematics: in names that were given it is, in those of a model it is not."""
    truth: float | None = None

    def text(self, longest: int = LONGEST_NAME) -> str:
        """The label for an axis."""
        return self.label if self.math else short(self.label, longest)


def quantities(known: Sequence[str], parameters: One, names: Names, truth: Truth, word: str) -> list[Quantity]:
    """Those that are asked for by `parameters`, with the labels and known values given for them.

    >>> quantities(["mu", "nu"], "mu", {"mu": "$\\\\mu$"}, {"mu": 2}, "parameters")
    [Quantity(key='mu', label='$\\\\mu$', math=True, truth=2.0)]
    """
    asked = [parameters] if isinstance(parameters, str) else known
    if not isinstance(parameters, str | None):
        asked = names_in("parameters", parameters)
    keys = [entry for key in asked for entry in entries_of(key, known)]
    if not keys or any(not entries_of(key, known) for key in asked):
        raise ValueError(f"parameters must be among {', '.join(known)}, got {shown(parameters)}: they are {word}")
    labels = _by_key("names", [names] if isinstance(names, str) else names, keys, known)
    values = _by_key("truth", [truth] if isinstance(truth, int | float) else truth, keys, known)
    return [Quantity(key, str(labels.get(key, key)), key in labels, _number(key, values.get(key))) for key in keys]


def entries_of(key: Any, known: Sequence[str]) -> list[str]:
    """A name that is known, or the entries of the vector that it names.

    >>> entries_of("mu", ["mu", "beta[0]", "beta[1]"]), entries_of("beta", ["mu", "beta[0]", "beta[1]"])
    (['mu'], ['beta[0]', 'beta[1]'])
    """
    return [key] if key in known else [one for one in known if one.startswith(f"{key}[")]


def _by_key(argument: str, given: Any, keys: Sequence[str], known: Sequence[str]) -> dict[str, Any]:
    """A mapping, or one value for each key in their order, as a dict; of a vector by its name, one for each entry."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        found: dict[str, Any] = {}
        for name, value in given.items():
            entries = entries_of(name, known)
            if not entries:
                raise ValueError(f"{argument} has {name!r}, which is not among {', '.join(known)}")
            found |= {name: value} if entries == [name] else _by_entry(argument, name, value, entries)
        return found
    values = np.asarray(given, dtype=object).reshape(-1).tolist()
    if len(values) != len(keys):
        raise ValueError(
            f"{argument} has {len(values)} values for {', '.join(keys)}: give one for each, or a dict by name"
        )
    return dict(zip(keys, values, strict=True))


def _by_entry(argument: str, name: str, value: Any, entries: Sequence[str]) -> dict[str, Any]:
    """What is given for a vector, by entry: a name stands for all of them, values are one for each."""
    if isinstance(value, str):
        return {entry: value + entry[len(name) :] for entry in entries}
    values = np.asarray(value, dtype=object).reshape(-1).tolist()
    if len(values) != len(entries):
        raise ValueError(f"{argument} has {len(values)} values for {name}, which has {len(entries)}: give one for each")
    return dict(zip(entries, values, strict=True))


def _number(key: str, value: Any) -> float | None:
    if value is None:
        return None
    number = number_or_nan(value)
    if math.isnan(number):
        raise ValueError(f"truth of {key} must be a number, got {shown(value)}")
    return number


def a_posterior(post: Any) -> Posterior:
    """`post` if it is a posterior."""
    if not isinstance(post, Posterior):
        raise ValueError(f"post must be a posterior, got {shown(post)}")
    return post


def line_of(index: int) -> tuple[str, Any]:
    """Colour and line style of a run or curve, numbered from 0; black comes last."""
    return LINES[(index + 1) % len(LINES)]


def of_posteriors(post: Posts) -> dict[str, Posterior]:
    """Posteriors by label; the label of a single one is empty."""
    several = dict(post) if isinstance(post, Mapping) else {"": post}
    if not several or any(not hasattr(one, "settings") for one in several.values()):
        raise ValueError(
            f"post must be a posterior, or a dict of posteriors by label, as in {{'smc': post}}, got {shown(post)}"
        )
    return {str(label): one for label, one in several.items()}


def parameters_of(
    posts: Mapping[str, Posterior], parameters: One, names: Names = None, truth: Truth = None
) -> list[Quantity]:
    """The parameters that all posteriors have, or those asked for, with labels and known values."""
    if any(math.prod(a_posterior(post).shape) == 0 for post in posts.values()):
        raise ValueError("there are no draws to plot: nothing was accepted")
    first, *others = posts.values()
    known = [name for name in first.columns if all(name in post.columns for post in others)]
    if not known:
        raise ValueError(f"{' and '.join(posts)} have no parameter in common")
    return quantities(known, parameters, names, truth, "the parameters")


class Panels(NamedTuple):
    """Axes to draw in."""

    figure: Any
    places: list[Any]
    own: bool
    """Whether the figure was made here. In axes that were given, the legend is left to their owner."""

    def legend(self, axes: Any = None, where: str = "outside upper left") -> None:
        """The legend of one panel, above or below all of them."""
        handles, labels = (axes or self.places[0]).get_legend_handles_labels()
        if labels and self.own:
            # In as few rows as the figure is wide enough for, of about the same length.
            wide = sum(0.5 + 0.075 * len(label) for label in labels)
            rows = math.ceil(wide / self.figure.get_figwidth())
            self.figure.legend(handles, labels, loc=where, ncols=math.ceil(len(labels) / rows))


def panels(ax: Any, count: int, columns: int, size: tuple[float, float], extra: float = 0.4) -> Panels:
    """`count` panels: in a figure of their own, in the figure `ax`, or the axes that `ax` holds."""
    rows = -(-count // columns)
    if ax is not None and not hasattr(ax, "add_subplot"):
        places = list(np.asarray(ax, dtype=object).reshape(-1))
        if len(places) != count or not all(hasattr(one, "plot") and hasattr(one, "transAxes") for one in places):
            some = "one matplotlib Axes" if count == 1 else f"{count} matplotlib Axes, one for each panel,"
            raise ValueError(f"ax must be {some} or a Figure, got {len(places)}: {shown(ax)}")
        for one in places:
            one.spines[["top", "right"]].set_visible(False)
        return Panels(places[0].figure, places, False)
    figure = empty_figure(size[0] * columns, size[1] * rows + extra) if ax is None else ax
    return Panels(figure, [figure.add_subplot(rows, columns, index + 1) for index in range(count)], ax is None)


def empty_figure(width: float, height: float) -> Any:
    """A figure that no list of pyplot's holds, and that a notebook shows all the same."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(width, height), layout="constrained")
    figure._repr_png_ = partial(_png, figure)
    return figure


def _png(figure: Any) -> tuple[bytes, dict[str, int]]:
    """A figure as an image for a notebook, sharp on fine screens, and its size there."""
    image = io.BytesIO()
    with in_style():
        figure.savefig(image, format="png", dpi=2 * SCREEN)
    wide, high = (round(SCREEN * float(side)) for side in figure.get_size_inches())
    return image.getvalue(), {"width": wide, "height": high}


def columns_for(count: int) -> int:
    """The number of columns, two or three if there are so many panels, that leaves the fewest gaps.

    >>> [columns_for(count) for count in range(1, 8)]
    [1, 2, 3, 2, 3, 3, 2]
    """
    return min(range(min(2, count), min(3, count) + 1), key=lambda columns: (-count % columns, -columns))


def in_style() -> Any:
    """A context in which figures look like all others."""
    try:
        return styled({"axes.formatter.useoffset": False})
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'onedraw[report]'") from error


def titled(axes: Any, one: Quantity) -> None:
    """A panel's name above it."""
    axes.set_title(one.text(), loc="left", parse_math=one.math)


def labelled(axes: Any, across: Quantity | None = None, up: Quantity | None = None, longest: int = 14) -> None:
    """Names on the axes."""
    if across is not None:
        axes.set_xlabel(across.text(longest), parse_math=across.math)
    if up is not None:
        axes.set_ylabel(up.text(longest), parse_math=up.math)


def rows_labelled(axes: Any, places: Array, rows: Sequence[Quantity]) -> None:
    """A name for each row of a panel."""
    axes.set_yticks(places, [row.text() for row in rows])
    for text, row in zip(axes.get_yticklabels(), rows, strict=True):
        text.set_parse_math(row.math)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def few_plain_ticks(axes: Any, at: Array) -> None:
    """Up to five of the tolerances as ticks of a logarithmic axis."""
    places = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), 5)).round().astype(int))]
    axes.set_xticks(places, [f"{place:.3g}" for place in places])
    axes.minorticks_off()


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name for an axis: one line, and not longer than a panel is wide."""
    name = " ".join("".join(letter if letter.isprintable() else " " for letter in str(name)).split())
    return name if len(name) <= longest else name[: longest - 1] + "…"


def plain_label(one: Quantity) -> str:
    """A label for a legend, which always reads $...$ as mathematics."""
    return one.text() if one.math else one.text().replace("$", r"\$")
