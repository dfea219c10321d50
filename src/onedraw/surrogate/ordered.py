"""Summaries that are always in order, such as sorted samples, quantiles, event times or running totals.

Given the one before, such a summary has a hard edge. Its step from there has none but zero, where a logarithm takes it
away. The map from values to steps is linear with determinant 1 or -1, so densities are the same in both.
"""

from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array

NARROW, USUAL = 0.05, 0.5
"""Quantiles of a step that are compared."""
FEWEST = 3
"""Summaries of a run: two are often in order for another reason, as a mean and a maximum are."""
LEAST_RATIO = 0.5
"""Ratio of the two from which two summaries are only in order because their ranges are far apart."""


class Steps(NamedTuple):
    """A map from summaries to as many others: each is one of them, or how far it is from another."""

    order: tuple[int, ...] = ()
    """Which summary each is."""
    other: tuple[int, ...] = ()
    """The one from which its distance is taken; itself if none is."""
    rising: tuple[bool, ...] = ()
    """Whether the summary is above the other."""

    def __call__(self, rows: Array) -> Array:
        """Of rows (..., s), which stay as they are if there are no steps.

        >>> Steps((1, 0), (1, 1), (True, False))(np.array([[2.0, 7.0]])).tolist()
        [[7.0, 5.0]]
        """
        if not self.order:
            return rows
        itself = np.equal(self.order, self.other)
        found: Array = rows[..., list(self.order)] - np.where(itself, 0.0, rows[..., list(self.other)])
        return found * np.where(np.array(self.rising) | itself, 1.0, -1.0)


AS_THEY_ARE = Steps()


def ways(rows: Array, observed: Array) -> list[Steps]:
    """How summaries (n, s) may be taken in steps; none if no neighbours are in order in all rows and in the data.

    Steps go outwards from the middle of each run, since the ends of a sample vary most, or onwards from its first
    summary.

    >>> rows = np.sort(np.random.default_rng(1).normal(size=(100, 3)), axis=1)
    >>> [(one.order, one.other) for one in ways(rows, rows[0])]
    [((1, 2, 0), (1, 1, 1)), ((0, 1, 2), (0, 0, 1))]
    >>> ways(20.0 * np.arange(3.0) + rows, 20.0 * np.arange(3.0) + rows[0])
    []
    """
    runs = _runs(np.concatenate([rows, observed[None]]))
    if not runs:
        return []
    return list(dict.fromkeys(_steps(rows.shape[1], runs, middle) for middle in (True, False)))


class _Run(NamedTuple):
    """Neighbours in order, from `first` up to `last`."""

    first: int
    last: int
    rising: bool


def _runs(rows: Array) -> list[_Run]:
    """The longest runs, one after another, in which some summaries are near each other."""
    steps = np.diff(rows, axis=1)
    runs: list[_Run] = []
    for k, step in enumerate(steps.T):
        up = bool((step >= 0).all())
        if up == bool((step <= 0).all()):
            continue
        if runs and runs[-1].last == k and runs[-1].rising == up:
            runs[-1] = runs[-1]._replace(last=k + 1)
        elif not runs or runs[-1].last < k:
            runs.append(_Run(k, k + 1, up))
    long = [one for one in runs if one.last - one.first + 1 >= FEWEST]
    return [one for one in long if _near(np.abs(steps[:, one.first : one.last]))]


def _near(steps: Array) -> bool:
    narrow, usual = np.quantile(steps, [NARROW, USUAL], axis=0)
    return bool((narrow < LEAST_RATIO * usual).any())


def _steps(width: int, runs: list[_Run], middle: bool) -> Steps:
    order, other, rising = list(range(width)), list(range(width)), [True] * width
    for first, last, up in runs:
        start = (first + last) // 2 if middle else first
        order[first : last + 1] = [start, *range(start + 1, last + 1), *range(start - 1, first - 1, -1)]
        for place, k in enumerate(order[first : last + 1], first):
            other[place] = k + (k < start) - (k > start)
            rising[place] = up == (k > start)
    return Steps(tuple(order), tuple(other), tuple(rising))
