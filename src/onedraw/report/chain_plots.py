"""Figures of chains: traces with their stalls, and ranks."""

import math
from typing import Any

import numpy as np

from onedraw.arguments import whole_number
from onedraw.engines.arrays import Array
from onedraw.report.panels import (
    LINES,
    TRUTH,
    Names,
    One,
    Quantity,
    Truth,
    columns_for,
    in_style,
    labelled,
    panels,
    parameters_of,
    titled,
)
from onedraw.report.style import BLUE, DASHED
from onedraw.results.posterior import Posterior
from onedraw.results.summary import GROUPS

MOST_POINTS = 1500
STILL = "steps still"


def traces(
    post: Posterior,
    parameters: One = None,
    chains: int = 4,
    *,
    names: Names = None,
    truth: Truth = None,
    ax: Any = None,
) -> Any:
    """The first chains step by step, and at the bottom for how many steps each has not moved.

    Draws of rejection are independent: they have no chains and no stalls.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(a=stats.norm(), b=stats.norm()), lambda rng, a, b: rng.normal([a, b]), [1.0, 0.0])
    >>> post = od.pseudo_marginal(model, od.uniform(1.0), draws=50, chains=4, seed=1)
    >>> [axes.get_ylabel() for axes in od.plots.traces(post).axes]
    ['a', 'b', 'steps still']
    """
    drawn = _of_chains(post, parameters, names, truth, "traces")
    chains = min(whole_number("chains", chains, "the number of chains to draw"), post.shape[0], len(LINES))
    steps = np.arange(post.shape[1])
    stride = max(1, math.ceil(len(steps) / MOST_POINTS))
    thin = int(post.settings.get("thin", 1))
    with in_style():
        found = panels(ax, len(drawn) + 1, columns=1, size=(5.2, 1.15))
        for axes, one in zip(found.places, drawn, strict=False):
            for chain in range(chains):
                colour, line = LINES[chain]
                values = post.columns[one.key][chain, ::stride]
                axes.plot(steps[::stride], values, color=colour, linestyle=line, linewidth=0.8, alpha=0.85)
            if one.truth is not None:
                axes.axhline(one.truth, zorder=3, **TRUTH)
            labelled(axes, up=one)
            axes.tick_params(labelbottom=False)
            axes.margins(x=0.01)
        stalls = _stalls(post)[:chains] * thin
        last = found.places[-1]
        for chain in range(chains):
            colour, line = LINES[chain]
            # The longest in each stretch, so that no stall is lost between two points.
            pooled = np.maximum.reduceat(stalls[chain], steps[::stride])
            last.plot(steps[::stride], pooled, color=colour, linestyle=line, linewidth=0.9, label=f"chain {chain}")
        if any(one.truth is not None for one in drawn):
            last.plot([], [], label="truth", **TRUTH)
        last.set_ylabel(STILL)
        last.set_xlabel("draw")
        last.margins(x=0.01)
        last.set_ylim(bottom=0)
        if found.own:
            found.figure.suptitle(
                f"{chains} of {post.shape[0]} chains; the longest stall of all is {post.longest_stall:,} steps",
                x=0.01, ha="left", fontsize=10,
            )  # fmt: skip
            found.figure.align_ylabels(found.places)
        found.legend(last, "outside lower left")
    return found.figure


def ranks(
    post: Posterior, parameters: One = None, bins: int = 20, *, names: Names = None, truth: Truth = None, ax: Any = None
) -> Any:
    """Histograms of the ranks of each chain's draws among all draws: flat if the chains agree (Vehtari et al. 2021).

    Dashed lines show a flat histogram. More than 8 chains are put into 8 groups. `truth` is shown at its
    rank among the draws.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(a=stats.norm(), b=stats.norm()), lambda rng, a, b: rng.normal([a, b]), [1.0, 0.0])
    >>> post = od.pseudo_marginal(model, od.uniform(1.0), draws=200, chains=4, seed=1)
    >>> [label.get_text() for label in od.plots.ranks(post).axes[0].get_yticklabels()]
    ['chain 0', 'chain 1', 'chain 2', 'chain 3']
    """
    drawn = _of_chains(post, parameters, names, truth, "ranks")
    bins = whole_number("bins", bins, "the number of bins of a histogram", least=2)
    many = post.shape[0] > GROUPS
    rows = min(post.shape[0], GROUPS)
    with in_style():
        columns = columns_for(len(drawn))
        found = panels(ax, len(drawn), columns, size=(3.4, 0.7 + 0.36 * rows))
        for index, (axes, one) in enumerate(zip(found.places, drawn, strict=True)):
            counted = rank_counts(post.columns[one.key], bins)
            flat = counted.mean(axis=1)[:, None]
            edges = np.linspace(0, 1, bins + 1)
            for row, heights in enumerate(counted / np.maximum(flat, 1e-300)):
                base = rows - 1 - row
                # Twice the flat height fills the space of a chain.
                tops = base + 0.42 * np.minimum(heights, 2.2)
                axes.stairs(tops, edges, baseline=base, fill=True, color=BLUE, alpha=0.45)
                axes.plot([0, 1], [base + 0.42] * 2, color="0.25", linestyle=DASHED, linewidth=0.9)
            if one.truth is not None:
                at = float(np.mean(post.columns[one.key] < one.truth))
                axes.axvline(at, label="truth", **TRUTH)
            word = "chains" if many else "chain"
            told = [f"{word} {row if not many else f'{row + 1}/{GROUPS}'}" for row in range(rows)]
            axes.set_yticks(
                np.arange(rows)[::-1] + 0.42, told if index % columns == 0 or not found.own else [""] * rows
            )
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
            axes.set_xlim(0, 1)
            axes.set_ylim(0, rows)
            axes.set_xlabel("rank among all draws")
            titled(axes, one)
        found.legend()
    return found.figure


def rank_counts(values: Array, bins: int) -> Array:
    """(chains or groups, bins): how many draws of each have a rank in each bin; equal draws share their mean rank.

    >>> rank_counts(np.array([[1.0, 2.0], [3.0, 4.0]]), 2).tolist()
    [[2, 0], [0, 2]]
    """
    from scipy import stats

    place = (stats.rankdata(values) - 0.5) / values.size
    bin_of = np.minimum((place * bins).astype(int), bins - 1).reshape(values.shape)
    # Chains are dealt out to groups as the nested R-hat does.
    groups = np.arange(len(values)) % GROUPS if len(values) > GROUPS else np.arange(len(values))
    return np.array([np.bincount(bin_of[groups == one].reshape(-1), minlength=bins) for one in np.unique(groups)])


def _of_chains(post: Posterior, parameters: One, names: Names, truth: Truth, what: str) -> list[Quantity]:
    drawn = parameters_of({"": post}, parameters, names, truth)
    if post.independent or post.weights is not None:
        raise ValueError(f"{what} are of chains: these draws are independent or weighted, and have no order")
    return drawn


def _stalls(post: Posterior) -> Array:
    """(chains, draws): the number of draws since a chain last moved."""
    chains, draws = post.shape
    moved = np.ones((chains, draws), dtype=bool)
    moved[:, 1:] = post.moves()
    steps = np.arange(draws)
    return np.asarray(steps - np.maximum.accumulate(np.where(moved, steps, 0), axis=1))
