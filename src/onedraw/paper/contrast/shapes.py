"""What theory says of each line's shape, each statement decided by intervals (docs/contrast.md)."""

from __future__ import annotations

import json
import math
from typing import Any

from onedraw.paper.contrast.run import Contrast, Measured
from onedraw.paper.page import Claim
from onedraw.results.monte_carlo_error import Interval, interval

FLAT = 1.1
"""A line that gains less than this over M = 1 is flat; theory allows a factor below two."""
ORDER, SURE = 10.0, 5.0
"""How much particle MCMC gains between its fewest particles and the best number, and what its interval must exclude.

kappa of the fewest is too small rather than too large: chains that hardly move have not yet met their largest
estimates.
"""


def ratio(above: Measured, below: Measured) -> Interval:
    """Efficiency of one point over another, with its interval; limits alone if one is only bounded from above."""
    if above.resolved and below.resolved:
        a, b = above.efficiency, below.efficiency
        value = a.value / b.value
        return interval(value, value * math.hypot(a.se / a.value, b.se / b.value), min(above.degrees, below.degrees))
    low = above.efficiency.low / below.efficiency.high
    high = above.efficiency.high / below.efficiency.low if below.efficiency.low > 0 else math.inf
    return Interval(math.nan, math.nan, low, high)


def best_of(line: tuple[Measured, ...]) -> Measured:
    """The point with the largest efficiency among those that could be measured."""
    return max((point for point in line if point.resolved), key=lambda point: point.efficiency.value, default=line[-1])


def shapes_of(contrast: Contrast) -> list[Claim]:
    """The statements about the lines that were run."""
    shapes = []
    for key, name in (("toy", "1, the toy"), ("g-and-k", "2, g-and-k")):
        if line := contrast.line(key):
            shapes.append(_flat_or_falling(name, line))
    if line := contrast.line("process"):
        shapes.append(_rises_and_falls("3, a Gaussian process with a set-up: rises, then falls", "M", line))
    for key, name in (("filter-100", "T = 100"), ("filter-400", "T = 400")):
        if line := contrast.line(key):
            statement = f"4, particle MCMC, {name}: rises by an order of magnitude, then falls"
            shapes.append(_rises_and_falls(statement, "N", line, ORDER, SURE))
    fixed, hits = contrast.line("tails"), contrast.line("hits")
    if fixed and hits:
        shapes.append(_no_long_stalls(fixed, hits))
    return shapes


def _flat_or_falling(name: str, line: tuple[Measured, ...]) -> Claim:
    first, last = line[0], line[-1]
    over = {point.number: ratio(point, first) for point in line[1:]}
    top = max(over, key=lambda count: over[count].low)
    end = ratio(last, first)
    return Claim(
        name,
        f"{name}: flat or falling from M = 1",
        first.resolved and over[top].low <= FLAT and end.high < FLAT,
        f"the most over M = 1 is {over[top]} at M = {top}; M = {last.number} has {end}",
    )


def _rises_and_falls(
    statement: str, letter: str, line: tuple[Measured, ...], order: float = 1.0, sure: float = 1.0
) -> Claim:
    """From the first point to the best by a factor `order` (`sure` is what its interval excludes), then down."""
    best = best_of(line)
    rise, fall = ratio(best, line[0]), ratio(line[-1], best)
    gained = f"at least {rise.low:.3g}" if math.isnan(rise.value) else str(rise)
    return Claim(
        statement.split(":")[0],
        statement,
        (rise.low >= order or (rise.value >= order and rise.low > sure)) and fall.high < 1,
        f"{letter} = {best.number} gains {gained} over {letter} = {line[0].number}; {letter} = {line[-1].number} has "
        f"{fall} of that",
    )


def _no_long_stalls(fixed: tuple[Measured, ...], hits: tuple[Measured, ...]) -> Claim:
    longest = max(point.stall.high for point in hits)
    at_one, least = fixed[0].stall, min(point.stall.value for point in fixed)
    return Claim(
        "5, heavy tails",
        "5, heavy tails: r-hit without the long stalls of fixed M",
        longest < at_one.low and 2 * longest < least,
        f"the longest stall of r-hit is {longest:.0f} draws; of M = 1 {at_one.value:,.0f}, no group of chains below "
        f"{at_one.low:,.0f}; of M = {fixed[-1].number} {fixed[-1].stall.value:,.0f}",
    )


def to_json(contrast: Contrast) -> str:
    """The numbers as JSON text; null for what could not be measured."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return {name: plain(part) for name, part in value._asdict().items()} if hasattr(value, "_asdict") else value
        return None if isinstance(value, float) and not math.isfinite(value) else value

    points, shapes = ([plain(one) for one in part] for part in (contrast.points, shapes_of(contrast)))
    found = {"seed": contrast.plan.seed, "quick": contrast.plan.quick, "points": points, "shapes": shapes}
    return json.dumps(found, allow_nan=False)
