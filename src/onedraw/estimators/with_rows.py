"""The ABC average with its summaries, for chains whose states are measured again when the distance changes."""

from dataclasses import dataclass, replace

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.protocol import Evaluation
from onedraw.model.prior import Prior


@dataclass(frozen=True, eq=False)
class WithRows:
    """The ABC average whose distances (n, M) are followed by the summaries (n, M s) that they were measured on."""

    inner: AbcAverage
    log_bound: float | None = 0.0

    @property
    def prior(self) -> Prior:
        return self.inner.prior

    def evaluate(self, rng: Rng, theta: Array, log_needed: Array | None) -> Evaluation:
        """As the average within, all M draws at once."""
        rows = np.arange(len(theta)) if log_needed is None else np.flatnonzero(log_needed <= 0.0)
        width = self.inner.pseudo_samples * (1 + self.inner.model.observed_row.size)
        wide, log_estimate = np.full((len(theta), width), np.inf), np.full(len(theta), -np.inf)
        if rows.size == 0:
            return Evaluation(log_estimate, wide)
        inner = replace(self.inner, keep_rows=True)
        if self.inner.engine is None or log_needed is None:
            part = inner.all_draws(rng, theta[rows], rows)
        else:
            # A device simulates all rows: those of no use at the place of one that is.
            there = theta.copy()
            there[log_needed > 0.0] = theta[rows[0]]
            part, rows = inner.evaluate(rng, there, log_needed), np.arange(len(theta))
        assert part.rows is not None
        log_estimate[rows] = part.log_estimate
        wide[rows] = np.concatenate([part.distances, part.rows.reshape(rows.size, -1)], axis=1)
        if log_needed is not None:
            log_estimate[log_needed > 0.0] = -np.inf
        return part._replace(log_estimate=log_estimate, distances=wide, rows=None)
