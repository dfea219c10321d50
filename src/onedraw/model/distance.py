"""Distances between simulated and observed summaries, in batches.

A distance is a function (simulated rows (n, s), observed row (s,)) -> (n,). `scaled` and `mahalanobis` first learn
their scale from pilot simulations: a run draws those, counts them, and keeps them apart from the draws it returns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from onedraw.arguments import numbers, shown, true_or_false, whole_number
from onedraw.engines.arrays import Array, DeviceParts, Formula, namespace

PILOT_MEANING = "the number of simulations from which the scale is learnt"
MAD_OF_A_NORMAL = 0.6744897501960817


class Distance(Protocol):
    """A distance on rows of summaries, and how many pilot simulations it needs first."""

    @property
    def pilot(self) -> int:
        """Pilot simulations still needed; 0 when the distance is ready."""
        ...

    def learnt(self, rows: Array, labels: Sequence[str]) -> "Distance":
        """The distance made ready from pilot rows (n, s); labels name the columns in errors."""
        ...

    def __call__(self, simulated: Array, observed: Array) -> Array:
        """Distances (n,) of simulated rows (n, s) from the observed row (s,)."""
        ...


@dataclass(frozen=True)
class Euclidean:
    """The root of the summed squared differences."""

    pilot: int = 0
    formula = Formula("euclidean")
    device_parts = DeviceParts()

    def learnt(self, rows: Array, labels: Sequence[str]) -> "Euclidean":
        return self

    def __call__(self, simulated: Array, observed: Array) -> Array:
        return _length(simulated - observed)


@dataclass(frozen=True, eq=False)
class Scaled:
    """Euclidean after each column is divided by its scale."""

    pilot: int
    scale: Array | None = None
    adapt: bool = False
    """Whether samplers that close in on the posterior learn the scale again on the way."""
    robust: bool = False
    """Whether differences are added up instead of their squares, and columns that never fit count less."""
    device_parts = DeviceParts(numbers=("scale",), fixed=("robust",))

    @property
    def formula(self) -> Formula:
        """For compiled loops."""
        assert self.scale is not None
        return Formula("robust" if self.robust else "scaled", self.scale[None, :])

    def learnt(self, rows: Array, labels: Sequence[str]) -> "Scaled":
        spread = _mad(rows)
        _refuse_zero_spread(spread, rows, labels)
        return replace(self, pilot=0, scale=spread)

    def relearnt(self, rows: Array, observed: Array) -> "Scaled":
        """The scale from simulations (n, s) nearer to the data; a column without spread there keeps the one it has."""
        assert self.scale is not None
        spread = _mad(rows)
        if self.robust:
            spread = spread + np.abs(np.median(rows, axis=0) - observed)
        return replace(self, scale=np.where(spread > 0, spread, self.scale))

    def __call__(self, simulated: Array, observed: Array) -> Array:
        assert self.scale is not None
        if self.robust:
            total: Array = (abs(simulated - observed) / self.scale).sum(axis=1)
            return total
        return _length(simulated / self.scale - observed / self.scale)


def _mad(rows: Array) -> Array:
    """The spread of each column of rows (n, s): median absolute deviation, as a normal's standard deviation."""
    spread: Array = np.median(np.abs(rows - np.median(rows, axis=0)), axis=0) / MAD_OF_A_NORMAL
    return spread


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """Euclidean after the columns are whitened by their covariance."""

    pilot: int
    whiten: Array | None = None
    device_parts = DeviceParts(numbers=("whiten",))

    @property
    def formula(self) -> Formula:
        """For compiled loops."""
        return Formula("mahalanobis", self.whiten)

    def learnt(self, rows: Array, labels: Sequence[str]) -> "Mahalanobis":
        _refuse_zero_spread(rows.std(axis=0), rows, labels)
        if len(rows) <= rows.shape[1]:
            raise ValueError(
                f"od.mahalanobis needs more pilot simulations than summaries: {len(rows)} for {rows.shape[1]}"
            )
        covariance = np.atleast_2d(np.cov(rows, rowvar=False))
        deviation = np.sqrt(np.diag(covariance))
        values, vectors = np.linalg.eigh(covariance / np.outer(deviation, deviation))
        if values[0] < 1e-10 * values[-1]:
            share = np.abs(vectors[:, 0])
            involved = [label for label, part in zip(labels, share, strict=True) if part > 0.3 * share.max()]
            raise ValueError(
                f"the pilot's covariance is singular: {', '.join(involved)} depend on each other linearly; drop one "
                "of them or use od.scaled()"
            )
        return replace(self, pilot=0, whiten=(vectors / np.sqrt(values)).T / deviation)

    def __call__(self, simulated: Array, observed: Array) -> Array:
        assert self.whiten is not None
        return _length((simulated - observed) @ self.whiten.T)


def _length(difference: Array) -> Array:
    """The Euclidean length of each row of (n, s); the rows are not needed afterwards."""
    if isinstance(difference, np.ndarray):
        if difference.shape[1] == 1:
            return np.abs(difference[:, 0], out=difference[:, 0])
        return np.sqrt(np.einsum("ij,ij->i", difference, difference))
    if difference.shape[1] == 1:
        return abs(difference[:, 0])
    return namespace(difference).sqrt((difference * difference).sum(axis=1))


def euclidean() -> Euclidean:
    """The Euclidean distance, which a Model uses when none is given.

    >>> euclidean()(np.array([[3.0, 4.0], [0.0, 1.0]]), np.zeros(2))
    array([5., 1.])
    """
    return Euclidean()


def scaled(
    *, pilot: int = 500, scale: Sequence[float] | Array | None = None, adapt: bool = False, robust: bool = False
) -> Scaled:
    """Euclidean distance with each summary divided by its spread.

    The spread is the median absolute deviation (MAD, times 1.4826 so that it estimates a normal's standard
    deviation) over `pilot` simulations from the prior, or `scale` if you know it.

    With `adapt`, `od.importance` and `od.smc` update the spread during the run, from simulations at parameters near
    the posterior, where it can be far from the prior's. The tolerance is then stated in the last distance, which
    `settings["distance"]` holds. Other samplers keep the pilot's spread, since a chain needs one target.

    With `robust`, differences are summed instead of their squares; and if the scale
    is learnt again, the distance of the data from the simulations' median is added to it, so that a summary which
    the model cannot reproduce does not dominate the others.

    >>> scaled(scale=[1.0, 100.0])(np.array([[1.0, 100.0]]), np.zeros(2)).round(4)
    array([1.4142])
    >>> scaled(scale=[1.0, 100.0], robust=True)(np.array([[1.0, 100.0]]), np.zeros(2))
    array([2.])
    """
    adapt, robust = true_or_false("adapt", adapt), true_or_false("robust", robust)
    if scale is None:
        return Scaled(whole_number("pilot", pilot, PILOT_MEANING, least=10), None, adapt, robust)
    try:
        given = numbers(scale).reshape(-1)
    except (TypeError, ValueError):
        given = np.empty(0)
    if given.size == 0 or not (np.isfinite(given) & (given > 0)).all():
        raise ValueError(f"scale must hold positive numbers, one for each summary, got {shown(scale)}")
    return Scaled(0, given, adapt, robust)


def mahalanobis(*, pilot: int = 1000) -> Mahalanobis:
    """Mahalanobis distance: correlated summaries count once. The covariance comes from `pilot` prior simulations.

    >>> pilot = np.random.default_rng(1).multivariate_normal([0, 0], [[1, 0.9], [0.9, 1]], size=2000)
    >>> ready = mahalanobis().learnt(pilot, ["first", "second"])
    >>> along, across = ready(np.array([[1.0, 1.0], [1.0, -1.0]]), np.zeros(2))
    >>> bool(across > 4 * along)
    True
    """
    return Mahalanobis(whole_number("pilot", pilot, PILOT_MEANING, least=10))


def _refuse_zero_spread(spread: Array, rows: Array, labels: Sequence[str]) -> None:
    for column in np.flatnonzero(~(spread > 0)).tolist():
        values, counts = np.unique(rows[:, column], return_counts=True)
        most = int(counts.argmax())
        raise ValueError(
            f"{labels[column]} has no spread: it was {values[most]:.6g} in {counts[most]} of {len(rows)} pilot "
            "simulations; drop it from the summary, or give od.scaled(scale=[...]) yourself"
        )
