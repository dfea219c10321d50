"""Run every benchmark, or those named: python -m benchmarks [rejection ...]."""

import sys
from importlib import import_module

ALL = ["rejection", "chains", "engines", "store", "sequential", "study", "particle_filter", "executors", "scaling"]
SLOW = ["alarms", "compare", "coverage", "budgets", "infer_time", "references", "accuracy", "gpu"]
"""Run only when they are named."""

if __name__ == "__main__":
    names = sys.argv[1:] or ALL
    unknown = [name for name in names if name not in (*ALL, *SLOW)]
    if unknown:
        sys.exit(f"there is no benchmark {unknown[0]!r}; there are {', '.join((*ALL, *SLOW))}")
    reached = [import_module(f"benchmarks.{name}").main() for name in names]
    sys.exit(0 if all(reached) else 1)
