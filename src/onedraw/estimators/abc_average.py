"""The ABC average, the mean of the kernel over M pseudo-samples.

At one theta it is T_M / pi(theta) = (1/M) sum_i K(distance_i); its expectation is the integral that defines pi_K
(docs/theory.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import one_of, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import NO_DISTANCES, Array, DeviceParts, Formula, namespace
from onedraw.engines.clock import look
from onedraw.engines.numba import CHUNK_ROWS as COMPILED_ROWS
from onedraw.engines.numba import averages, fusible
from onedraw.engines.streams import Rng
from onedraw.estimators.pairs import evaluate_pairs
from onedraw.estimators.protocol import Evaluation, from_device, joined, public_estimate
from onedraw.failures import first_failures
from onedraw.model.kernels import Kernel, log_share
from onedraw.model.model import Model
from onedraw.model.prior import Prior
from onedraw.model.simulator import CHUNK_ROWS, CHUNK_VALUES, Simulated, loop_failures


@dataclass(frozen=True, eq=False)
class AbcAverage:
    """The mean of K over M pseudo-samples; made by `abc_average`."""

    model: Model
    kernel: Kernel
    pseudo_samples: int = 1
    on_error: str = "reject"
    keep_distances: bool = True
    early: bool = True
    """Whether plain simulators stop between draws once acceptance is out of reach."""
    map_draws: Callable[["Draw", list["Asked"]], list[Simulated]] | None = None
    """Given by a run whose workers share the M draws of one estimate: the task done for each item, in their order."""
    keep_rows: bool = False
    """Whether evaluations without a threshold return the summaries of all pseudo-samples."""
    certain: bool = False
    """Whether the second part of a simulator in two parts is run whatever its probability."""
    # What a program does not depend on is left out, so that it is not compiled again for it.
    device_parts = DeviceParts(("model", "kernel"), ("pseudo_samples", "keep_distances", "keep_rows"))

    @property
    def prior(self) -> Prior:
        return self.model.prior

    @property
    def formula(self) -> Formula | None:
        """For compiled loops."""
        return Formula("average") if fusible(self.model, self.kernel) and not self.keep_rows else None

    @property
    def log_bound(self) -> float | None:
        """No average of K is above 1, and no simulation counts more than 1 / floor."""
        return 0.0 if self.model.pair is None else -math.log(self.model.pair.floor)

    @property
    def worst(self) -> float:
        """What one estimate costs at most, in the unit of the budget."""
        return self.pseudo_samples * self.model.worst

    @property
    def simulations(self) -> int:
        """Pseudo-samples of one estimate."""
        return self.pseudo_samples

    @property
    def engine(self) -> Any:
        """The JAX engine, if the simulator is on it."""
        return getattr(self.model.simulate, "engine", None)

    def with_model(self, model: Model) -> "AbcAverage":
        """The same estimator for a model whose distance is ready."""
        return replace(self, model=model)

    def evaluate(self, rng: Rng, theta: Array, log_needed: Array | None) -> Evaluation:
        """The average at each row of theta (n, dim) at which an estimate could still be accepted.

        `log_needed` (n,) is the least log estimate that would be accepted; None if every estimate is wanted.
        """
        if log_needed is None or self.engine is not None:
            return self._evaluate(rng, theta, None, log_needed)
        worth = log_needed <= self.log_bound
        if np.count_nonzero(worth) == len(worth):
            return self._evaluate(rng, theta, None, log_needed)
        rows = np.flatnonzero(worth)
        if rows.size == 0:
            return Evaluation(np.full(len(theta), -np.inf), self._no_distances(len(theta)))
        part = self._evaluate(rng, theta[rows], rows, log_needed[rows])
        log_estimate = np.full(len(theta), -np.inf)
        log_estimate[rows] = part.log_estimate
        distances = self._no_distances(len(theta))
        if self.keep_distances:
            distances[rows] = part.distances
        if part.counted is not None:
            counted = np.tile([0.0, np.inf], (len(theta), 1))
            counted[rows] = part.counted
            part = part._replace(counted=counted)
        return part._replace(log_estimate=log_estimate, distances=distances)

    def _no_distances(self, n: int) -> Array:
        return np.full((n, self.pseudo_samples), np.inf) if self.keep_distances else NO_DISTANCES

    def on_device(self, rng: Any, theta: Array, log_needed: Array | None) -> Evaluation:
        """As `evaluate`, as a part of a program for a device: all rows are simulated."""
        from onedraw.engines import jax as device

        n, draws, width = theta.shape[0], self.pseudo_samples, self.model.recipe.width
        together = device.groups(draws, n, width)
        nothing: Any = None
        if together == draws:
            drawn = device.draw(self.model, rng, theta, 0, draws, draws)
            log_estimate = self.kernel.log_average(drawn.distances)
        else:
            drawn, log_estimate = self._in_groups(rng, theta, together)
        # A row that is rejected whatever it gives has not failed.
        bad = drawn.bad if log_needed is None else drawn.bad & (log_needed <= 0.0)[:, None]
        distances = namespace(theta).where(drawn.bad, np.inf, drawn.distances) if self.keep_distances else nothing
        failed = bad.sum(axis=1)
        nothing_kept = not self.keep_distances and not self.keep_rows
        if together == draws and self.kernel.indicator and 1 < draws < 2**15 and nothing_kept:
            # What was drawn above then names failures alone, in programs that ask for them.
            count, failed = device.hits(self.model, rng, theta, draws, self.kernel.eps)
            log_estimate = log_share(count, draws)
            failed = failed if log_needed is None else failed * (log_needed <= 0.0)
        failures: Any = (device.FailureMask(theta, bad),)
        rows = drawn.rows if self.keep_rows else None
        return Evaluation(log_estimate, distances, Cost(n * draws, failed=failed), failures, rows=rows)

    def _in_groups(self, rng: Any, theta: Array, together: int) -> tuple[Any, Any]:
        """All M pseudo-samples, `together` of them at once, summed up on the way."""
        import jax.numpy as jnp
        from jax import lax

        from onedraw.engines import jax as device

        draws = self.pseudo_samples
        keep = device.DeviceDraws(self.keep_distances, True, self.keep_rows)

        def add(log_total: Any, first: Any) -> Any:
            drawn = device.draw(self.model, rng, theta, first, together, draws)
            kept = device.DeviceDraws(*(part if wanted else None for part, wanted in zip(drawn, keep, strict=True)))
            return jnp.logaddexp(log_total, self.kernel.log_average(drawn.distances)), kept

        start = jnp.full(theta.shape[0], -jnp.inf, rng.dtype)
        log_total, parts = lax.scan(add, start, jnp.arange(0, draws, together))
        joined = (None if part is None else jnp.concatenate(list(part), axis=1) for part in parts)
        return device.DeviceDraws(*joined), jnp.minimum(log_total + math.log(together / draws), 0.0)

    def _evaluate(self, rng: Rng, theta: Array, rows: Array | None, log_needed: Array | None) -> Evaluation:
        if self.engine is not None:
            return from_device(self, rng, theta, log_needed)
        if self.model.pair is not None:
            return evaluate_pairs(self.model, self.kernel, rng, theta, rows, self.on_error, self.certain)
        if self.map_draws is not None and self.model.plain and log_needed is not None:
            return self._mapped(rng, theta, rows)
        if log_needed is not None and self.early and self.pseudo_samples > 1 and self.model.plain:
            return self._one_draw_at_a_time(rng, theta, rows, log_needed)
        return self.all_draws(rng, theta, rows)

    def all_draws(self, rng: Rng, theta: Array, rows: Array | None) -> Evaluation:
        """All M draws at every row of theta, with at most a chunk of them in memory at once.

        `rows` are the places of these rows in their block; None if they are the whole block.
        """
        if self.engine is not None:
            return from_device(self, rng, theta, None)
        if self.model.compiled and fusible(self.model, self.kernel):
            return self._in_compiled_code(rng, theta, rows)
        n, draws = len(theta), self.pseudo_samples
        most = max(1, min(CHUNK_ROWS, CHUNK_VALUES // self.model.recipe.width))
        # A staged simulator pays its set-up at each call, so its draws at one theta are never cut.
        width = min(draws, most) if self.model.batched else draws
        height = max(1, most // width)
        if n <= height and width == draws:
            return self.compared(self.simulated(rng, theta, rows), rng, theta, rows, 0)
        parts: list[Evaluation] = []
        lefts = range(0, draws, width)
        for top in range(0, n, height):
            some = slice(top, min(top + height, n))
            places = np.arange(some.start, some.stop) if rows is None else rows[some]
            chunk = len(parts) * len(lefts)
            across = []
            for place, left in enumerate(lefts):
                m = min(width, draws - left)
                part = self.model.simulate_rows(rng, theta[some], places, m, left, chunk + place, self.on_error)
                across.append((m / draws, self.compared(part, rng, theta[some], places, left)))
            parts.append(across[0][1] if len(across) == 1 else _averaged(across))
        return _stacked(parts)

    def simulated(self, rng: Rng, theta: Array, rows: Array | None) -> Simulated:
        """All M pseudo-samples at every row of theta, at once."""
        return self.model.simulate_rows(rng, theta, rows, self.pseudo_samples, on_error=self.on_error)

    def compared(self, part: Simulated, rng: Rng, theta: Array, places: Array | None, first: int) -> Evaluation:
        """The averages over pseudo-samples, as an evaluation by themselves."""
        part, distances = self.model.measured(part, rng, theta, places, first, self.on_error)
        return Evaluation(
            self.kernel.log_average(distances), distances if self.keep_distances else NO_DISTANCES, part.cost,
            part.failures, part.ignored_rng, part.rows if self.keep_rows else None,
        )  # fmt: skip

    def _in_compiled_code(self, rng: Rng, theta: Array, rows: Array | None) -> Evaluation:
        """All M draws at every row, none of them in memory unless it is kept."""
        model, n, draws = self.model, len(theta), self.pseudo_samples
        parts: list[Evaluation] = []
        for top in range(0, n, COMPILED_ROWS):
            look()
            some = slice(top, min(top + COMPILED_ROWS, n))
            places = range(some.start, some.stop) if rows is None else rows[some]
            one = averages(model, self.kernel, rng, theta[some], draws, len(parts), self.keep_distances, self.keep_rows)
            failures = loop_failures(model.recipe, rng, theta[some], places, 0, one.report, self.on_error)
            cost = Cost(len(places) * draws, failed=one.report.failed)
            kept = one.rows if self.keep_rows else None
            parts.append(Evaluation(one.log_estimate, one.distances, cost, failures, one.report.ignored_rng, kept))
        return _stacked(parts)

    def _one_draw_at_a_time(self, rng: Rng, theta: Array, rows: Array | None, log_needed: Array) -> Evaluation:
        """Draw m for all open rows, then close those whose average can no longer reach what is needed.

        After m draws the average is at most (sum of K so far + M - m) / M. It is compared in a form that rounding
        can only keep open longer, so that the decision is that of the whole average.
        """
        n, draws = len(theta), self.pseudo_samples
        needed = np.exp(np.minimum(log_needed, 0.0)) * draws
        distances = np.full((n, draws), np.inf)
        total = np.zeros(n)
        still = np.arange(n)
        parts: list[Simulated] = []
        for m in range(draws):
            places = still if rows is None else rows[still]
            part = self.model.simulate_rows(rng, theta[still], places, 1, m, 0, self.on_error)
            part, measured = self.model.measured(part, rng, theta[still], places, m, self.on_error)
            distances[still, m] = measured[:, 0]
            total[still] += np.exp(self.kernel.log_weight(distances[still, m]))
            parts.append(part._replace(rows=NO_DISTANCES))
            still = still[total[still] + (draws - 1 - m) >= needed[still] * (1.0 - 1e-12)]
            if still.size == 0:
                break
        closed = np.ones(n, dtype=bool)
        closed[still] = False
        log_estimate = np.where(closed, -np.inf, self.kernel.log_average(distances))
        return self._of_parts(log_estimate, distances, parts)

    @cached_property
    def _draw(self) -> "Draw":
        return Draw(self.model, self.on_error)

    def _mapped(self, rng: Rng, theta: Array, rows: Array | None) -> Evaluation:
        """Every draw a piece of work of its own."""
        assert self.map_draws is not None
        n, draws = len(theta), self.pseudo_samples
        places = range(n) if rows is None else rows.tolist()
        asked = [
            Asked(rng.seed, rng.phase, rng.first, rng.step, place, m, theta[row : row + 1])
            for row, place in enumerate(places)
            for m in range(draws)
        ]
        parts = self.map_draws(self._draw, asked)
        together = np.concatenate([part.rows for part in parts], axis=1).reshape(n, draws, -1)
        first = first_failures(*(part.failures for part in parts))[:1]
        whole = Simulated(together, Cost.total(part.cost for part in parts), first, parts[0].ignored_rng)
        whole, distances = self.model.measured(whole, rng, theta, places, 0, self.on_error)
        return self._of_parts(self.kernel.log_average(distances), distances, [whole])

    def _of_parts(self, log_estimate: Array, distances: Array, parts: list[Simulated]) -> Evaluation:
        cost = Cost.total(part.cost for part in parts)
        failures = first_failures(*(part.failures for part in parts))[:1]
        kept = distances if self.keep_distances else NO_DISTANCES
        return Evaluation(log_estimate, kept, cost, failures, parts[0].ignored_rng)

    def log_estimate(self, rng: np.random.Generator, theta: Array, worth: Array) -> tuple[Array, int]:
        """The public form (see `Estimator`): streams are keyed from a number drawn from `rng`."""
        return public_estimate(self, rng, theta, worth)


class Asked(NamedTuple):
    """One pseudo-sample that is wanted: the name of its stream, and theta (1, dim)."""

    seed: int
    phase: int
    first: int
    step: int
    place: int
    pseudo_sample: int
    theta: Array


@dataclass(frozen=True, eq=False)
class Draw:
    """The pure task of `layout="draws"`: one pseudo-sample."""

    model: Model
    on_error: str

    def __call__(self, asked: Asked) -> Simulated:
        rng = Rng(asked.seed, asked.phase, asked.first, asked.step)
        return self.model.simulate_rows(
            rng, asked.theta, np.array([asked.place]), 1, asked.pseudo_sample, on_error=self.on_error
        )


def abc_average(model: Model, kernel: Kernel, *, pseudo_samples: int = 1, on_error: str = "reject") -> AbcAverage:
    """The ABC estimator T_M / pi(theta): the mean of the kernel over M pseudo-samples.

    Samplers make it themselves from a model and a kernel; make it yourself to handicap it or to inspect it.

    >>> import onedraw as od
    >>> from onedraw import paper
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> estimator = paper.abc_average(model, od.uniform(0.5), pseudo_samples=4)
    >>> theta, worth = np.array([[2.0], [9.0]]), np.array([True, True])
    >>> log_estimate, simulations = estimator.log_estimate(np.random.default_rng(1), theta, worth)
    >>> log_estimate.shape, simulations
    ((2,), 8)
    """
    check_model_and_kernel(model, kernel)
    if model.pair is not None and model.pair.learns:
        raise ValueError("the continuation probability is learnt in a run: give continuation= to od.stages for this")
    return AbcAverage(
        model,
        kernel,
        whole_number("pseudo_samples", pseudo_samples, "the number M of pseudo-samples at one theta"),
        one_of("on_error", on_error, ("reject", "raise")),
    )


def check_model_and_kernel(model: Any, kernel: Any) -> None:
    """A ValueError if the first two arguments of a sampler are not a model and a kernel."""
    if not isinstance(model, Model):
        raise ValueError(f"model must be an od.Model, got {type(model).__name__}")
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel must be a kernel such as od.uniform(0.1), got {kernel!r}")
    if kernel.eps is None:
        raise ValueError(f"kernel = od.{kernel.name}() has no tolerance: give it one, as in od.{kernel.name}(0.1)")


def _averaged(parts: list[tuple[float, Evaluation]]) -> Evaluation:
    """Evaluations of shares of the M draws at the same rows as one."""
    every = [one for _, one in parts]
    rows = [one.rows for one in every if one.rows is not None]
    return Evaluation(
        np.minimum(np.logaddexp.reduce([one.log_estimate + math.log(share) for share, one in parts]), 0.0),
        np.concatenate([one.distances for one in every], axis=1),
        Cost.total(one.cost for one in every),
        first_failures(*(one.failures for one in every)),
        every[0].ignored_rng,
        np.concatenate(rows, axis=1) if rows else None,
    )


def _stacked(parts: list[Evaluation]) -> Evaluation:
    """Evaluations of chunks of rows as one, with the first failure alone, as if there had been one chunk."""
    whole = joined(parts)
    return whole._replace(failures=whole.failures[:1])
