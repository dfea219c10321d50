"""What theory says of each line's shape, each statement decided by intervals (docs/contrast.md)."""

from __future__ import annotations

import math
from typing import NamedTuple

from onedraw.paper.contrast.run import Contrast, Measured
from onedraw.results.efficiency import Estimate, estimate

FLAT = 1.1
"""A line that gains less than this over M = 1 is flat; theory allows a factor below two."""
ORDER, SURE = 10.0, 5.0
"""How much particle MCMC gains between its fewest particles and the best number, and what its interval must exclude.

kappa of the fewest is too small rather than too large: chains that hardly move have not yet met their largest
estimates.
"""


class Shape(NamedTuple):
    """One statement, whether it holds, and the numbers that decide."""

    panel: str
    statement: str
    holds: bool
    number: str


def ratio(above: Measured, below: Measured) -> Estimate:
    """Efficiency of one point over another, with its interval; limits alone where one is only bounded from above."""
    if above.resolved and below.resolved:
        a, b = above.efficiency, below.efficiency
        value = a.value / b.value
        return estimate(value, value * math.hypot(a.se / a.value, b.se / b.value), min(above.degrees, below.degrees))
    low = above.efficiency.low / below.efficiency.high
    high = above.efficiency.high / below.efficiency.low if below.efficiency.low > 0 else math.inf
    return Estimate(math.nan, math.nan, low, high)


def best_of(line: tuple[Measured, ...]) -> Measured:
    """The point with the largest efficiency among those that could be measured."""
    return max((point for point in line if point.resolved), key=lambda point: point.efficiency.value, default=line[-1])


def shapes_of(contrast: Contrast) -> list[Shape]:
    """The statements about the lines that were run."""
    shapes = []
    for panel, key, name in (("1", "toy", "the toy"), ("2", "g-and-k", "g-and-k")):
        if line := contrast.line(key):
            shapes.append(_flat_or_falling(panel, name, line))
    if line := contrast.line("process"):
        shapes.append(_rises_and_falls(line))
    for key, name in (("filter-100", "T = 100"), ("filter-400", "T = 400")):
        if line := contrast.line(key):
            shapes.append(_needs_many(name, line))
    fixed, hits = contrast.line("tails"), contrast.line("hits")
    if fixed and hits:
        shapes.append(_no_long_stalls(fixed, hits))
    return shapes


def _flat_or_falling(panel: str, name: str, line: tuple[Measured, ...]) -> Shape:
    first, last = line[0], line[-1]
    over = {point.number: ratio(point, first) for point in line[1:]}
    top = max(over, key=lambda count: over[count].low)
    end = ratio(last, first)
    return Shape(
        panel,
        f"{name}: flat or falling from M = 1",
        first.resolved and over[top].low <= FLAT and end.high < FLAT,
        f"the most over M = 1 is {over[top]} at M = {top}; M = {last.number} has {end}",
    )


def _rises_and_falls(line: tuple[Measured, ...]) -> Shape:
    best = best_of(line)
    rise, fall = ratio(best, line[0]), ratio(line[-1], best)
    return Shape(
        "3",
        "a Gaussian process with a set-up: rises, then falls",
        rise.low > 1 and fall.high < 1,
        f"M = {best.number} gains {rise} over M = 1; M = {line[-1].number} has {fall} of that",
    )


def _needs_many(name: str, line: tuple[Measured, ...]) -> Shape:
    best = best_of(line)
    rise, fall = ratio(best, line[0]), ratio(line[-1], best)
    gained = f"at least {rise.low:.3g}" if math.isnan(rise.value) else str(rise)
    return Shape(
        "4",
        f"particle MCMC, {name}: rises by an order of magnitude, then falls",
        (rise.low >= ORDER or (rise.value >= ORDER and rise.low >= SURE)) and fall.high < 1,
        f"N = {best.number} gains {gained} over N = {line[0].number}; N = {line[-1].number} has {fall} of that",
    )


def _no_long_stalls(fixed: tuple[Measured, ...], hits: tuple[Measured, ...]) -> Shape:
    longest = max(point.stall.high for point in hits)
    at_one, least = fixed[0].stall, min(point.stall.value for point in fixed)
    return Shape(
        "5",
        "heavy tails: r-hit without the long stalls of fixed M",
        longest < at_one.low and 2 * longest < least,
        f"the longest stall of r-hit is {longest:.0f} draws; of M = 1 {at_one.value:,.0f}, no group of chains below "
        f"{at_one.low:,.0f}; of M = {fixed[-1].number} {fixed[-1].stall.value:,.0f}",
    )
