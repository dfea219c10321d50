"""What the paper's text says of its study, each statement with the number that decides it.

Verdicts rest on the exact values of the outcomes; the simulated values are shown beside them and are tested against
the exact ones point by point elsewhere (`run.agreement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.paper.page import Claim
from onedraw.paper.study.quadrature import acceptance_rate, tolerance
from onedraw.paper.study.run import SimulatedPoint, StudyResults
from onedraw.paper.study.settings import DISCOUNT_2, PSEUDO_SAMPLES, RATE_PER_COST, Toy, step_cost

PRINTED_EPS: tuple[tuple[float, float], ...] = ((2.0, 0.08), (8.0, 7.64))
"""(y_obs, eps) as printed in the text for M = 1 and a rate of 0.4 %."""

PRINTED_DIGITS = 0.01
"""Relative difference that rounding to the printed digits could explain, and some more."""

SAME_SHAPE = 0.03
"""Relative difference of two curves that cannot be told apart by eye on the figure's logarithmic axis."""

NO_BENEFIT = 0.02
"""Reduction of eps below which a curve shows no benefit by eye."""

FARTHER_Y_OBS = 16.0
"""An observation beyond the figure's, to see whether the benefit keeps shrinking."""


@dataclass(frozen=True)
class FigureLine:
    """One line of a figure over M: exact and simulated values, shape (7,)."""

    label: str
    pseudo_samples: Array
    exact: Array
    simulated: Array
    std_error: Array

    def ratio(self) -> Array:
        """Exact values over that of M = 1."""
        return self.exact / self.exact[0]

    def best(self) -> tuple[float, int]:
        """The smallest ratio to M = 1, and its M."""
        at = int(self.ratio().argmin())
        return float(self.ratio()[at]), int(self.pseudo_samples[at])


def _bests(lines: dict[str, FigureLine]) -> tuple[list[float], str]:
    """The smallest eps of each line over that at M = 1, and a sentence that lists them."""
    best = {label: line.best() for label, line in lines.items()}
    listed = ", ".join(f"{ratio:.3f} ({label}, M = {count})" for label, (ratio, count) in best.items())
    return [ratio for ratio, _ in best.values()], f"smallest eps over that at M = 1: {listed}"


def lines_of(outcomes: Sequence[SimulatedPoint], figure: str) -> dict[str, FigureLine]:
    """The lines of a figure by label; empty if the figure was not asked for."""
    lines: dict[str, list[tuple[float, ...]]] = {}
    for one in outcomes:
        if one.figure == figure:
            lines.setdefault(one.series, []).append((one.pseudo_samples, one.exact, one.simulated, one.std_error))
    return {label: FigureLine(label, *np.array(rows, dtype=float).T) for label, rows in lines.items()}


def claims_of(study: StudyResults) -> list[Claim]:
    """Every claim that the figures of this study can decide."""
    kernel = study.plan.kernel
    claims: list[Claim] = []
    if lines := lines_of(study.outcomes, "1L"):
        claims += [*_per_pseudo_sample(lines), *_gaussian(study)]
    if lines := lines_of(study.outcomes, "1R"):
        claims += _discounts(lines)
    if lines := lines_of(study.outcomes, "2L"):
        claims += _far_observation(lines, kernel)
        if kernel == "uniform":
            claims += [_printed_eps(y_obs, eps, lines[f"y_obs={y_obs:g}"]) for y_obs, eps in PRINTED_EPS]
    if lines := lines_of(study.outcomes, "2R"):
        claims += _noise(lines)
    return [*claims, _arithmetic()]


def _per_pseudo_sample(lines: dict[str, FigureLine]) -> list[Claim]:
    ratios = np.array([line.ratio()[1:] for line in lines.values()])
    simulated = np.array([line.simulated[1:] / line.simulated[0] for line in lines.values()])
    worst = next(iter(lines.values()))
    return [
        Claim(
            "M > 1 accepts no more per pseudo-sample",
            "Figure 1, left: more pseudo-samples never give more accepted moves per pseudo-sample than M = 1.",
            bool(ratios.max() < 1),
            f"largest rate with M > 1 over that of M = 1: {ratios.max():.4f} exact, {simulated.max():.4f} simulated",
        ),
        Claim(
            "large M can accept fewer per pseudo-sample",
            "Figure 1, left: many pseudo-samples can even reduce it.",
            bool(ratios.min() < 1),
            f"at {worst.label} and M = {worst.pseudo_samples[-1]:.0f} the rate is {worst.ratio()[-1]:.3f} of that at "
            "M = 1",
        ),
    ]


def _gaussian(study: StudyResults) -> list[Claim]:
    if not study.matched:
        return []
    same = max(abs(one.gaussian_same_eps / one.uniform - 1) for one in study.matched)
    shape = max(study.matched, key=lambda one: abs(one.gaussian / one.uniform - 1))
    off = abs(shape.gaussian / shape.uniform - 1)
    off_in_errors = max(abs(one.gaussian - one.uniform) / one.std_error for one in study.matched)
    return [
        Claim(
            "Gaussian kernel indistinguishable at the same eps",
            "A Gaussian kernel gives results that cannot be told apart from the uniform kernel's (taken at the same "
            "eps).",
            same < SAME_SHAPE,
            f"at the same eps the rates differ by up to {100 * same:.0f} %",
            "The Gaussian kernel exp(-d²/2eps²) is wider than the window d < eps, so the lines lie higher.",
        ),
        Claim(
            "Gaussian kernel has the same shape",
            "The same with the Gaussian's eps chosen to give the uniform kernel's rate at M = 1: the lines then have "
            "the same shape.",
            off < SAME_SHAPE,
            f"largest difference {100 * off:.1f} % (eps = {shape.eps:g}, M = {shape.pseudo_samples}), too little to "
            "see on the figure",
            f"It is real all the same: {off_in_errors:.0f} standard errors of {study.plan.iterations:,} iterations.",
        ),
    ]


def _discounts(lines: dict[str, FigureLine]) -> list[Claim]:
    full = lines["discount=1"]
    steps = full.exact[1:] / full.exact[:-1]
    ratios, listed = _bests({label: line for label, line in lines.items() if label != "discount=1"})
    return [
        Claim(
            "without discount eps grows with M",
            "Figure 1, right: without a discount eps grows with M, so that M = 1 gives the smallest eps.",
            bool(steps.min() > 1),
            f"smallest growth from one M to the next: a factor of {steps.min():.4f}; at M = 64 eps is "
            f"{full.ratio()[-1]:.2f} times that at M = 1",
        ),
        Claim(
            "with a discount M > 1 can reduce eps",
            "Figure 1, right: for discounts above 1 more pseudo-samples can reduce eps.",
            max(ratios) < 1,
            listed,
        ),
    ]


def _far_observation(lines: dict[str, FigureLine], kernel: str) -> list[Claim]:
    ratios, listed = _bests(lines)
    label, line = list(lines.items())[-1]
    last, count = line.best()
    return [
        Claim(
            "the benefit shrinks as y_obs grows",
            "Figure 2, left: with a discount of 8 the benefit of larger M shrinks as y_obs grows.",
            bool(np.all(np.diff(ratios) > 0)),
            listed,
        ),
        Claim(
            "the benefit disappears at y_obs = 8",
            "Figure 2, left: and eventually disappears.",
            last > 1 - NO_BENEFIT,
            f"at {label} M = {count} still reduces eps by {100 * (1 - last):.1f} %",
            _beyond_the_figure() if kernel == "uniform" else "",
        ),
    ]


def _beyond_the_figure() -> str:
    eps = [
        tolerance(RATE_PER_COST * step_cost(count, DISCOUNT_2), Toy(y_obs=FARTHER_Y_OBS), count)
        for count in PSEUDO_SAMPLES
    ]
    reduction = 100 * (1 - min(eps) / eps[0])
    return f"It keeps shrinking: at y_obs = {FARTHER_Y_OBS:g} the best M reduces eps by {reduction:.1f} %."


def _noise(lines: dict[str, FigureLine]) -> list[Claim]:
    ratios, listed = _bests(lines)
    small = lines["sigma_y=0.01"]
    return [
        Claim(
            "large sigma_y: a benefit",
            "Figure 2, right: for large sigma_y discounted pseudo-samples help.",
            bool(np.all(np.diff(ratios) <= 0)) and ratios[-1] < 1 - NO_BENEFIT,
            listed,
        ),
        Claim(
            "small sigma_y: no benefit",
            "Figure 2, right: for small sigma_y further pseudo-samples bring little.",
            small.best()[0] > 1 - NO_BENEFIT,
            f"at sigma_y=0.01 no M > 1 brings eps below {min(small.ratio()[1:]):.2f} times that at M = 1; M = 64 needs "
            f"{small.ratio()[-1]:.1f} times",
        ),
    ]


def _printed_eps(y_obs: float, printed: float, line: FigureLine) -> Claim:
    toy = Toy(y_obs=y_obs)
    exact = tolerance(RATE_PER_COST, toy, 1)
    belongs = acceptance_rate(toy, printed, 1)
    return Claim(
        f"eps = {printed:g} at y_obs = {y_obs:g}",
        f"The text prints eps = {printed:g} for y_obs = {y_obs:g}, M = 1 and an acceptance rate of "
        f"{100 * RATE_PER_COST:g} %.",
        abs(printed / exact - 1) < PRINTED_DIGITS,
        f"quadrature gives {exact:.5g}, the simulation {line.simulated[0]:.5g} ± {line.std_error[0]:.1g}",
        f"eps = {printed:g} belongs to an acceptance rate of {100 * belongs:.3g} %.",
    )


def _arithmetic() -> Claim:
    rates = [100 * RATE_PER_COST * step_cost(64, discount) for discount in (1, 16)]
    return Claim(
        "25.6 % and 2.0 % at M = 64",
        "Required acceptance rates at M = 64: 25.6 % without discount and 2.0 % with a discount of 16.",
        [f"{rate:.1f}" for rate in rates] == ["25.6", "2.0"],
        f"0.4 % × 64 = {rates[0]:.1f} %, 0.4 % × (1 + 63/16) = {rates[1]:.3f} %",
    )
