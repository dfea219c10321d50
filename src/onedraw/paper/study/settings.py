"""The settings of the paper's simulation study, as data (docs/study.md).

Parameter theta ~ N(0, 1), one observation y | theta ~ N(theta, sigma_y^2), independence proposal equal to the
prior, summary eta(y) = y. Figure 1L fixes eps and asks for the acceptance rate per pseudo-sample; figures 1R, 2L
and 2R fix the acceptance rate per unit of cost and ask for eps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from onedraw.arguments import positive, whole_number
from onedraw.results import efficiency

FigureName = Literal["1L", "1R", "2L", "2R"]
KernelName = Literal["uniform", "gaussian"]
ProposalName = Literal["independence", "random_walk"]
EngineName = Literal["numpy", "numba", "jax"]

FIGURES: tuple[FigureName, ...] = ("1L", "1R", "2L", "2R")
KERNELS: tuple[KernelName, ...] = ("uniform", "gaussian")
PSEUDO_SAMPLES: tuple[int, ...] = tuple(2**power for power in range(7))
ITERATIONS = 5_000_000
RATE_PER_COST = 0.004
"""Accepted proposals per unit of cost required in figures 1R, 2L and 2R (0.4 %)."""

LIGHTEST_GREY = 0.8
"""The light end of every caption's scale from black (0) towards white (1): still visible on white paper."""


@dataclass(frozen=True)
class Toy:
    """The study's model: prior N(0, 1), one observation `y_obs` from N(theta, sigma_y^2)."""

    y_obs: float = 2.0
    sigma_y: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.y_obs):
            raise ValueError(f"y_obs must be a finite number, got {self.y_obs}: it is the observation")
        positive("sigma_y", self.sigma_y, "the noise's standard deviation")

    @property
    def marginal_sd(self) -> float:
        """Standard deviation of y when theta is drawn from the prior."""
        return math.hypot(1.0, self.sigma_y)


def step_cost(pseudo_samples: int, discount: float = 1.0) -> float:
    """Cost of one step with M pseudo-samples when one with M = 1 costs 1: c_M = 1 + (M - 1)/discount.

    >>> step_cost(64, discount=16)
    4.9375
    """
    whole_number("pseudo_samples", pseudo_samples, "the number of draws per proposal")
    if not discount >= 1:
        raise ValueError(f"discount must be at least 1 (1 is no discount), got {discount}")
    return efficiency.step_cost(pseudo_samples, discount)


@dataclass(frozen=True)
class FigurePoint:
    """One point of one figure: either `eps` is given, or the discount and so the acceptance rate to be met."""

    figure: FigureName
    series: str
    pseudo_samples: int
    toy: Toy
    eps: float | None = None
    discount: float | None = None

    def __post_init__(self) -> None:
        if (self.eps is None) == (self.discount is None):
            raise ValueError(f"a point needs either eps or a discount, got eps={self.eps} and discount={self.discount}")

    @property
    def acceptance_rate(self) -> float | None:
        """The rate that eps must give, RATE_PER_COST * c_M; None if eps itself is given."""
        if self.discount is None:
            return None
        return RATE_PER_COST * step_cost(self.pseudo_samples, self.discount)


@dataclass(frozen=True)
class Series:
    """One line of one figure, a point for each M, and how it is drawn: `grey` runs from 0 (black) to 1 (white)."""

    figure: FigureName
    label: str
    grey: float
    points: tuple[FigurePoint, ...]


def greys(count: int, *, black_first: bool = True) -> tuple[float, ...]:
    """Evenly spaced grey levels of a figure's lines, black at one end and light grey at the other."""
    levels = tuple(LIGHTEST_GREY * (index / max(count - 1, 1)) for index in range(count))
    return levels if black_first else levels[::-1]


EPS_1L: tuple[float, ...] = tuple(0.5**power for power in range(2, 7))
DISCOUNTS_1R: tuple[float, ...] = (1, 2, 4, 8, 16)
Y_OBS_2L: tuple[float, ...] = (2, 4, 6, 8)
SIGMA_Y_2R: tuple[float, ...] = (0.01, 0.05, 0.1, 0.5, 1, 2)
DISCOUNT_2 = 8.0


def _lines(figure: FigureName, name: str, values: Sequence[float], black_first: bool = True) -> list[Series]:
    """The lines of a figure that differ in the quantity `name`."""
    lines = []
    for value, grey in zip(values, greys(len(values), black_first=black_first), strict=True):
        toy = Toy(**{name: value}) if name in ("y_obs", "sigma_y") else Toy()
        given = {name: value} if name in ("eps", "discount") else {"discount": DISCOUNT_2}
        label = f"{name}={value:g}"
        points = tuple(FigurePoint(figure, label, count, toy, **given) for count in PSEUDO_SAMPLES)
        lines.append(Series(figure, label, grey, points))
    return lines


SERIES: tuple[Series, ...] = (
    *_lines("1L", "eps", EPS_1L),
    *_lines("1R", "discount", DISCOUNTS_1R),
    *_lines("2L", "y_obs", Y_OBS_2L, black_first=False),
    *_lines("2R", "sigma_y", SIGMA_Y_2R),
)


EFFICIENCY: tuple[tuple[ProposalName, float], ...] = (
    ("independence", EPS_1L[0]),
    ("random_walk", EPS_1L[0]),
    ("independence", EPS_1L[-1]),
    ("random_walk", EPS_1L[-1]),
)
"""Proposals and eps of the third figure, which the paper reasons about but does not draw: v(f,Q_M)*c_M against M.

The widest and the narrowest tolerance of figure 1L: kappa below and far above the largest M.
"""


def series(figures: Sequence[str] = FIGURES) -> tuple[Series, ...]:
    """The lines of the named figures, in the captions' order.

    >>> [line.label for line in series(["2L"])]
    ['y_obs=2', 'y_obs=4', 'y_obs=6', 'y_obs=8']
    """
    for figure in figures:
        if figure not in FIGURES:
            raise ValueError(f"no figure {figure!r} in the study: choose from {', '.join(FIGURES)}")
    return tuple(line for line in SERIES if line.figure in figures)


def points(figures: Sequence[str] = FIGURES) -> tuple[FigurePoint, ...]:
    """All points of the named figures, line by line, each line in the order of M.

    >>> len(points())
    140
    """
    return tuple(point for line in series(figures) for point in line.points)
