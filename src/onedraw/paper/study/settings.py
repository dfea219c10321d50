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

Figure = Literal["1L", "1R", "2L", "2R"]
Kernel = Literal["uniform", "gaussian"]
Proposal = Literal["independence", "random_walk"]
Engine = Literal["numpy", "numba", "jax"]

FIGURES: tuple[Figure, ...] = ("1L", "1R", "2L", "2R")
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
        if not (math.isfinite(self.sigma_y) and self.sigma_y > 0):
            raise ValueError(f"sigma_y must be positive, got {self.sigma_y}: it is the noise's sd")

    @property
    def marginal_sd(self) -> float:
        """Standard deviation of y when theta is drawn from the prior."""
        return math.hypot(1.0, self.sigma_y)


def step_cost(pseudo_samples: int, discount: float = 1.0) -> float:
    """Cost of one step with M pseudo-samples when one with M = 1 costs 1: c_M = 1 + (M - 1)/discount.

    >>> step_cost(64, discount=16)
    4.9375
    """
    if pseudo_samples < 1:
        raise ValueError(f"pseudo_samples must be at least 1, got {pseudo_samples}")
    if not discount >= 1:
        raise ValueError(f"discount must be at least 1 (1 is no discount), got {discount}")
    return 1.0 + (pseudo_samples - 1) / discount


@dataclass(frozen=True)
class Point:
    """One point of one figure: either `eps` is given, or the discount and so the acceptance rate to be met."""

    figure: Figure
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
        """The rate that eps must give, RATE_PER_COST * c_M; None where eps itself is given."""
        if self.discount is None:
            return None
        return RATE_PER_COST * step_cost(self.pseudo_samples, self.discount)


@dataclass(frozen=True)
class Series:
    """One line of one figure and how it is drawn: `grey` runs from 0 (black) to 1 (white)."""

    figure: Figure
    label: str
    grey: float
    toy: Toy
    eps: float | None = None
    discount: float | None = None

    @property
    def points(self) -> tuple[Point, ...]:
        """The line's points, in the order of M."""
        return tuple(
            Point(self.figure, self.label, count, self.toy, self.eps, self.discount) for count in PSEUDO_SAMPLES
        )


def greys(count: int, *, black_first: bool) -> tuple[float, ...]:
    """Evenly spaced grey levels of a figure's lines, black at one end and light grey at the other."""
    levels = tuple(LIGHTEST_GREY * (index / max(count - 1, 1)) for index in range(count))
    return levels if black_first else levels[::-1]


EPS_1L: tuple[float, ...] = tuple(0.5**power for power in range(2, 7))
DISCOUNTS_1R: tuple[float, ...] = (1, 2, 4, 8, 16)
Y_OBS_2L: tuple[float, ...] = (2, 4, 6, 8)
SIGMA_Y_2R: tuple[float, ...] = (0.01, 0.05, 0.1, 0.5, 1, 2)
DISCOUNT_2 = 8.0

SERIES: tuple[Series, ...] = (
    *(
        Series("1L", f"eps={eps:g}", grey, Toy(), eps=eps)
        for eps, grey in zip(EPS_1L, greys(len(EPS_1L), black_first=True), strict=True)
    ),
    *(
        Series("1R", f"discount={discount:g}", grey, Toy(), discount=discount)
        for discount, grey in zip(DISCOUNTS_1R, greys(len(DISCOUNTS_1R), black_first=True), strict=True)
    ),
    *(
        Series("2L", f"y_obs={y_obs:g}", grey, Toy(y_obs=y_obs), discount=DISCOUNT_2)
        for y_obs, grey in zip(Y_OBS_2L, greys(len(Y_OBS_2L), black_first=False), strict=True)
    ),
    *(
        Series("2R", f"sigma_y={sigma_y:g}", grey, Toy(sigma_y=sigma_y), discount=DISCOUNT_2)
        for sigma_y, grey in zip(SIGMA_Y_2R, greys(len(SIGMA_Y_2R), black_first=True), strict=True)
    ),
)


@dataclass(frozen=True)
class EfficiencySetting:
    """One panel of the third figure, which the paper reasons about but does not draw: v(f,Q_M)*c_M against M."""

    proposal: Proposal
    eps: float
    toy: Toy = Toy()
    discounts: tuple[float, ...] = DISCOUNTS_1R
    pseudo_samples: tuple[int, ...] = PSEUDO_SAMPLES


# The widest and the narrowest tolerance of figure 1L: kappa below and far above the largest M.
EFFICIENCY: tuple[EfficiencySetting, ...] = tuple(
    EfficiencySetting(proposal, eps) for eps in (EPS_1L[0], EPS_1L[-1]) for proposal in ("independence", "random_walk")
)


def series(figures: Sequence[str] = FIGURES) -> tuple[Series, ...]:
    """The lines of the named figures, in the captions' order.

    >>> [line.label for line in series(["2L"])]
    ['y_obs=2', 'y_obs=4', 'y_obs=6', 'y_obs=8']
    """
    for figure in figures:
        if figure not in FIGURES:
            raise ValueError(f"no figure {figure!r} in the study: choose from {', '.join(FIGURES)}")
    return tuple(line for line in SERIES if line.figure in figures)


def points(figures: Sequence[str] = FIGURES) -> tuple[Point, ...]:
    """All points of the named figures, line by line, each line in the order of M.

    >>> len(points())
    140
    """
    return tuple(point for line in series(figures) for point in line.points)
