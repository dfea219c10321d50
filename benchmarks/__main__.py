"""Run every benchmark, or those named: python -m benchmarks [rejection ...]; options belong to the one named."""

import sys
from importlib import import_module

ALL = [
    "rejection", "chains", "engines", "store", "sequential", "study", "particle_filter", "executors", "scaling",
    "job_array",
]  # fmt: skip
SLOW = [
    "multifidelity", "compare", "peers", "alarms", "calibration", "coverage", "budgets", "infer_time", "references",
    "accuracy", "gpu", "growth",
]  # fmt: skip
"""Run only when they are named."""

if __name__ == "__main__":
    given = sys.argv[1:]
    first = next((k for k, word in enumerate(given) if word.startswith("-")), len(given))
    names, options = given[:first] or ALL, given[first:]
    if options and len(names) > 1:
        sys.exit(f"{options[0]} belongs to one benchmark: name it alone, as in python -m benchmarks alarms --share 0.2")
    unknown = [name for name in names if name not in (*ALL, *SLOW)]
    if unknown:
        sys.exit(f"there is no benchmark {unknown[0]!r}; there are {', '.join((*ALL, *SLOW))}")
    reached = [import_module(f"benchmarks.{name}").main(*([options] if options else [])) for name in names]
    sys.exit(0 if all(reached) else 1)
