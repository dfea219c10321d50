"""How time and memory grow with the size of a run: python -m benchmarks growth [--write].

One thing grows at a time, the others stay as they are. The exponent is the slope of log time (or log memory) over log
size at the upper end, where what a run costs whatever its size no longer counts.
"""

import argparse
import math
import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import report

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
FIGURE = PAGE.parent / "img" / "growth.png"
BEGIN, END = "<!-- growth: written by python -m benchmarks growth --write -->", "<!-- growth: end -->"
MOST = 1.1
"""The largest exponent of what should be linear."""


class Growing(NamedTuple):
    """A run whose size is one argument."""

    what: str
    run: Callable[[int], object]
    sizes: Sequence[int]
    shown: str
    """What the run is, in words."""
    linear: bool = True
    clock: Callable[[], float] = time.process_time
    """Seconds of the processor, which a busy machine leaves nearly as they are."""


class Grown(NamedTuple):
    """What was measured of it."""

    seconds: list[float]
    megabytes: list[float]
    of_time: float
    """The exponent of time."""
    of_memory: float


@od.batched
def normal(rng: Any, theta: Any) -> Any:
    return theta + rng.standard_normal(theta.size)


def sleeping(rng: Any, theta: float) -> float:
    time.sleep(0.01)
    return theta + rng.standard_normal()


def toy() -> od.Model:
    return od.Model(od.Prior(theta=stats.norm(0, 1)), normal, observed=2.0)


def simulations(size: int) -> object:
    return od.rejection(toy(), od.uniform(0.25), budget=size, seed=1)


def chains(size: int) -> object:
    return od.pseudo_marginal(
        toy(), od.uniform(0.5), draws=200, chains=size, seed=1, start={"theta": np.full(size, 2.0)}
    )


def steps(size: int) -> object:
    return od.pseudo_marginal(toy(), od.uniform(0.5), draws=size, chains=256, seed=1)


def parameters(size: int) -> object:
    prior = od.Prior(beta=od.vector(stats.norm(0, 1), size))
    model = od.Model(prior, od.batched(lambda rng, beta: beta[:, 0] + rng.standard_normal(len(beta))), observed=1.0)
    return od.rejection(model, od.uniform(0.5), budget=100_000, seed=1)


def summaries(size: int) -> object:
    simulate = od.batched(lambda rng, theta: theta[:, None] + rng.standard_normal((len(theta), size)))
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=np.zeros(size))
    return od.rejection(model, od.uniform(2.0 * math.sqrt(size)), budget=2000, seed=1)


def pseudo_samples(size: int) -> object:
    return od.pseudo_marginal(toy(), od.uniform(0.5), draws=50, chains=64, pseudo_samples=size, seed=1, keep="draws")


def workers(size: int) -> object:
    """Threads, since 64 processes would take longer to start than to run; a simulator that waits needs no core."""
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), sleeping, observed=2.0)
    with ThreadPoolExecutor(size) as pool:
        return od.rejection(model, od.uniform(1.0), budget=64 * size, seed=1, executor=pool)


def powers(last: int, first: int = 0) -> list[int]:
    return [10**k for k in range(first, last + 1)]


CASES = [
    Growing("simulations", simulations, powers(7, 3), "rejection, batched"),
    Growing("steps", steps, [10, 100, 1000, 10_000], "256 chains, batched"),
    Growing("chains", chains, powers(5), "200 steps, batched"),
    Growing("parameters", parameters, [1, 3, 10, 30, 100], "rejection, 100,000 simulations"),
    Growing("summaries", summaries, powers(4), "rejection, 2,000 simulations"),
    Growing("M", pseudo_samples, powers(4), "64 chains of 50 steps"),
    Growing(
        "workers",
        workers,
        [1, 2, 4, 8, 16, 32, 64],
        "64 simulations of 10 ms per worker, threads",
        linear=False,
        clock=time.perf_counter,
    ),
]


def seconds_of(case: Growing, size: int, rounds: int) -> float:
    best = math.inf
    for _ in range(rounds):
        began = case.clock()
        case.run(size)
        best = min(best, case.clock() - began)
    return best


def megabytes_of(run: Callable[[int], object], size: int) -> float:
    tracemalloc.start()
    try:
        run(size)
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The slope of log value over log size between the last three sizes.

    >>> round(exponent([1, 10, 100, 1000], [1.0, 2.0, 20.0, 200.0]), 6)
    1.0
    """
    return float(np.polyfit(np.log(sizes[-3:]), np.log(values[-3:]), 1)[0])


def measured(case: Growing, rounds: int) -> Grown:
    case.run(case.sizes[0])
    seconds = [seconds_of(case, size, rounds) for size in case.sizes]
    # The last run is the longest, and memory is traced at a price.
    megabytes = [megabytes_of(case.run, size) for size in case.sizes]
    return Grown(seconds, megabytes, exponent(case.sizes, seconds), exponent(case.sizes, megabytes))


def table(found: dict[str, Grown]) -> str:
    """The rows of the page."""
    lines = ["| | what | sizes | seconds | MB | exponent of time | of memory |", "|---|---|---|---|---|---|---|"]
    for case in CASES:
        if case.what in found:
            one = found[case.what]
            last = case.sizes[len(one.seconds) - 1]
            lines.append(
                f"| {case.what} | {case.shown} | {case.sizes[0]:,} to {last:,} | {one.seconds[0]:.3g} to "
                f"{one.seconds[-1]:.3g} | {one.megabytes[0]:.3g} to {one.megabytes[-1]:.3g} | {one.of_time:.2f} | "
                f"{one.of_memory:.2f} |"
            )
    return "\n".join(lines)


def drawn(found: dict[str, Grown], path: Path) -> None:
    """Time and memory over size, each relative to its last value."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for case in CASES:
        if case.what in found:
            one = found[case.what]
            for ax, values in zip(axes, (one.seconds, one.megabytes), strict=True):
                ax.loglog(case.sizes[: len(values)], values, marker="o", markersize=3, label=case.what)
    for ax, label in zip(axes, ("seconds", "peak memory, MB"), strict=True):
        ax.set_xlabel("size")
        ax.set_ylabel(label)
    axes[0].legend(fontsize=7)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)


def write(found: dict[str, Grown]) -> None:
    """Put table and figure into the page."""
    drawn(found, FIGURE)
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    picture = f"![Time and memory over the size of a run]({FIGURE.relative_to(PAGE.parent)})"
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{picture}\n\n{END}{after}")


def main(options: Sequence[str] = ()) -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[case.what for case in CASES], help="which of them")
    parser.add_argument("--most", type=int, default=10**7, help="the largest size")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is run; the best counts")
    parser.add_argument("--write", action="store_true", help="put table and figure into docs/benchmarks.md")
    given = parser.parse_args(list(options))
    found, rows = {}, list[tuple[str, str, str, bool | None]]()
    for case in CASES:
        if given.only and case.what not in given.only:
            continue
        case = case._replace(sizes=[size for size in case.sizes if size <= given.most])
        one = found[case.what] = measured(case, given.rounds)
        good = one.of_time <= MOST and one.of_memory <= MOST
        what = f"{case.what}, {case.sizes[0]:,} to {case.sizes[-1]:,}: time, memory"
        limit = f"at most {MOST}" if case.linear else ""
        rows.append((what, f"{one.of_time:.2f}, {one.of_memory:.2f}", limit, good if case.linear else None))
        spread = f"{one.seconds[0]:.2g} to {one.seconds[-1]:.2g} s"
        rows.append((f"  {case.shown}", spread, f"{one.megabytes[-1]:.3g} MB", None))
    if given.write:
        write(found)
    return report("How time and memory grow: exponents", rows)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
