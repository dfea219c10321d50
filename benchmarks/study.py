"""The study's figure 1L against the speed of NumPy's normal generator, both on all cores."""

import time

import numpy as np

from benchmarks.timing import report
from onedraw.paper.study.run import StudyPlan, run_point
from onedraw.paper.study.settings import ITERATIONS, points
from onedraw.paper.tasks import processes, usable_cores

RAW_DRAWS = 100_000_000
BLOCK = 16_384


def raw_seconds(seed):
    """Seconds for RAW_DRAWS normals of NumPy's default generator into one small array."""
    rng = np.random.default_rng(seed)
    block = np.empty(BLOCK)
    began = time.perf_counter()
    for _ in range(RAW_DRAWS // BLOCK):
        rng.standard_normal(out=block)
    return time.perf_counter() - began


def raw_speed(pool, workers):
    """Normals per second over all processes at once."""
    return sum(RAW_DRAWS / seconds for seconds in pool.map(raw_seconds, range(workers)))


def main(iterations: int = ITERATIONS) -> bool:
    workers = usable_cores()
    plan = StudyPlan(iterations, figures=("1L",))
    wanted = [index for index, point in enumerate(points()) if point.figure == "1L"]
    # The longest first, so that no process is left alone at the end.
    wanted.sort(key=lambda index: -points()[index].pseudo_samples)
    drawn = iterations * sum(points()[index].pseudo_samples for index in wanted)
    with processes(workers) as pool:
        raw_speed(pool, workers)
        before = raw_speed(pool, workers)
        began = time.perf_counter()
        list(pool.map(run_point, [plan] * len(wanted), wanted))
        speed = drawn / (time.perf_counter() - began)
        raw = max(before, raw_speed(pool, workers))
    return report(
        f"Figure 1L, {len(wanted)} points of {iterations:,} iterations, {workers} processes",
        [
            ("standard normals/s, NumPy alone", f"{raw / 1e6:.0f} million", "", None),
            ("pseudo-samples/s, Algorithm 2", f"{speed / 1e6:.0f} million", "", None),
            ("ratio", f"{speed / raw:.2f}", "at least 0.45", speed / raw >= 0.45),
        ],
    )
