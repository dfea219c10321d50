"""Unbiased, non-negative estimates of the likelihood part of the target: the ABC average, handicapped, or your own.

The ABC average with M pseudo-samples at one theta is T_M / pi(theta) = (1/M) sum_i K(distance_i); its expectation is
the integral that defines pi_K (docs/theory.md). Samplers ask for it through `evaluate`, and hand over the least
log estimate that would still be accepted, so that a pseudo-sample that cannot matter is not drawn (early rejection).
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from onedraw.arguments import one_of, whole_number
from onedraw.engines.arrays import Array, namespace
from onedraw.engines.numba import CHUNK_ROWS as COMPILED_ROWS
from onedraw.engines.numba import averages, fusible
from onedraw.engines.streams import Purpose, Rng
from onedraw.model.kernels import Kernel, log_share
from onedraw.model.model import Model
from onedraw.model.prior import FAMILIES, Prior
from onedraw.model.simulator import CHUNK_ROWS, CHUNK_VALUES, Failure, JaxSimulator, Simulated, note_drawn
from onedraw.run.blocks import Deadline, in_order
from onedraw.run.progress import Progress
from onedraw.run.signals import Stopped

NO_DISTANCES = np.empty((0, 0))


class Evaluation(NamedTuple):
    """Estimates at n rows of theta, and what they cost."""

    log_estimate: Array
    """(n,), the prior not included; -inf for an estimate of zero and for rows that were skipped."""
    distances: Array
    """(n, M) where they are kept (inf where not simulated or failed), otherwise (0, 0)."""
    simulations: int
    setups: int = 0
    failed: int = 0
    failures: tuple[Failure, ...] = ()
    ignored_rng: bool = False
    rows: Array | None = None
    """Summaries (n, M, s) where they are asked for."""


@runtime_checkable
class Estimator(Protocol):
    """What Algorithm 2 needs of an estimator. Any object with these three may be given to a sampler.

    `log_bound` is a number that no log estimate passes (0 for an ABC average), or None where none is known: then
    nothing is rejected early, and starting points must be given. An estimate that takes more than one simulation says
    how many at the most in an attribute `simulations`, by which a budget is kept.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> class Exact:
    ...     prior = od.Prior(theta=stats.norm(0, 1))
    ...     log_bound = 0.0
    ...     def log_estimate(self, rng, theta, worth):
    ...         return -0.5 * (theta[:, 0] - 2.0) ** 2, int(worth.sum())
    >>> isinstance(Exact(), od.Estimator)
    True
    """

    @property
    def prior(self) -> Prior:
        """Of the parameters; not part of the estimate."""
        ...

    @property
    def log_bound(self) -> float | None:
        """A number that no log estimate passes, or None."""
        ...

    def log_estimate(self, rng: np.random.Generator, theta: Array, worth: Array) -> tuple[Array, int]:
        """Log of an unbiased non-negative estimate at each row of theta (n, dim), and the simulations it took.

        Rows where `worth` (n,) is False are rejected whatever the estimate: their value is not read. The prior is
        not part of the estimate.
        """
        ...


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
    side_by_side: bool = False
    """Whether the M draws of one estimate go to the run's workers, all of them, instead of being made here."""
    keep_rows: bool = False
    """Whether evaluations without a threshold hand back the summaries of all pseudo-samples."""
    log_bound: float | None = field(default=0.0, init=False)

    @property
    def prior(self) -> Prior:
        return self.model.prior

    @property
    def simulations(self) -> int:
        """Pseudo-samples of one estimate."""
        return self.pseudo_samples

    @property
    def engine(self) -> Any:
        """The JAX engine, where the simulator is on it."""
        return getattr(self.model.simulate, "engine", None)

    def with_model(self, model: Model) -> "AbcAverage":
        """The same estimator for a model whose distance is ready."""
        return replace(self, model=model)

    def evaluate(self, rng: Rng, theta: Array, log_needed: Array | None) -> Evaluation:
        """The average at each row of theta, (n, dim), where an estimate of at most 1 could still be accepted.

        `log_needed` (n,) is the least log estimate that would be accepted; None where every estimate is wanted.
        """
        if log_needed is None or self.engine is not None:
            return self._evaluate(rng, theta, None, log_needed)
        worth = log_needed <= 0.0
        if np.count_nonzero(worth) == len(worth):
            return self._evaluate(rng, theta, None, log_needed)
        rows = np.flatnonzero(worth)
        if rows.size == 0:
            return Evaluation(np.full(len(theta), -np.inf), self._no_distances(len(theta)), 0)
        part = self._evaluate(rng, theta[rows], rows, log_needed[rows])
        log_estimate = np.full(len(theta), -np.inf)
        log_estimate[rows] = part.log_estimate
        distances = self._no_distances(len(theta))
        if self.keep_distances:
            distances[rows] = part.distances
        return part._replace(log_estimate=log_estimate, distances=distances)

    def _no_distances(self, n: int) -> Array:
        return np.full((n, self.pseudo_samples), np.inf) if self.keep_distances else NO_DISTANCES

    def on_device(self, rng: Any, theta: Array, log_needed: Array | None) -> Evaluation:
        """As `evaluate`, as a part of a program for a device: all rows are simulated, and `failed` is (n,)."""
        from onedraw.engines import jax as device

        n, draws, width = theta.shape[0], self.pseudo_samples, self.model.recipe.width
        together = device.groups(draws, n, width)
        nothing: Any = None
        if together == draws:
            drawn = device.draw(self.model, rng, theta, 0, draws, draws)
            if self.kernel.indicator and 1 < draws < 2**15 and not self.keep_distances and not self.keep_rows:
                # One sum for hits and failures: two would draw every pseudo-sample twice.
                total = namespace(theta).where(drawn.bad, 2**16, drawn.distances < self.kernel.eps).sum(axis=1)
                log_estimate, failed = log_share(total & 0xFFFF, draws), total >> 16
                bad = drawn.bad
                if log_needed is not None:
                    wanted = log_needed <= 0.0
                    failed, bad = failed * wanted, bad & wanted[:, None]
                shown: Any = (device.Bad(theta, bad),)
                return Evaluation(log_estimate, nothing, n * draws, failed=failed, failures=shown)
            log_estimate = self.kernel.log_average(drawn.distances)
        else:
            drawn, log_estimate = self._in_groups(rng, theta, together)
        # What is rejected whatever it gives has not failed.
        bad = drawn.bad if log_needed is None else drawn.bad & (log_needed <= 0.0)[:, None]
        distances = namespace(theta).where(drawn.bad, np.inf, drawn.distances) if self.keep_distances else nothing
        failures: Any = (device.Bad(theta, bad),)
        rows = drawn.rows if self.keep_rows else None
        return Evaluation(log_estimate, distances, n * draws, failed=bad.sum(axis=1), failures=failures, rows=rows)

    def _in_groups(self, rng: Any, theta: Array, together: int) -> tuple[Any, Any]:
        """All M pseudo-samples, `together` of them at once, summed up on the way."""
        import jax.numpy as jnp
        from jax import lax

        from onedraw.engines import jax as device

        draws = self.pseudo_samples
        keep = device.Drawn(self.keep_distances, True, self.keep_rows)

        def add(log_total: Any, first: Any) -> Any:
            drawn = device.draw(self.model, rng, theta, first, together, draws)
            kept = device.Drawn(*(part if wanted else None for part, wanted in zip(drawn, keep, strict=True)))
            return jnp.logaddexp(log_total, self.kernel.log_average(drawn.distances)), kept

        start = jnp.full(theta.shape[0], -jnp.inf, rng.dtype)
        log_total, parts = lax.scan(add, start, jnp.arange(0, draws, together))
        joined = (None if part is None else jnp.concatenate(list(part), axis=1) for part in parts)
        return device.Drawn(*joined), jnp.minimum(log_total + math.log(together / draws), 0.0)

    def _evaluate(self, rng: Rng, theta: Array, rows: Array | None, log_needed: Array | None) -> Evaluation:
        if self.engine is not None:
            return _from_device(self, rng, theta, log_needed)
        if self.side_by_side and self.model.plain and log_needed is not None:
            return self._draws_side_by_side(rng, theta, rows)
        if log_needed is not None and self.early and self.pseudo_samples > 1 and self.model.plain:
            return self._one_draw_at_a_time(rng, theta, rows, log_needed)
        return self._in_chunks(rng, theta, rows)

    def _in_chunks(self, rng: Rng, theta: Array, rows: Array | None) -> Evaluation:
        """All M draws of every row, with at most a chunk of them in memory at once."""
        if self.engine is not None:
            return _from_device(self, rng, theta, None)
        if fusible(self.model, self.kernel):
            return self._in_compiled_code(rng, theta, rows)
        n, draws = len(theta), self.pseudo_samples
        most = max(1, min(CHUNK_ROWS, CHUNK_VALUES // self.model.recipe.width))
        # A staged simulator pays its set-up at each call, so its draws at one theta are never cut.
        width = min(draws, most) if self.model.batched else draws
        height = max(1, most // width)
        if n <= height and width == draws:
            part = self.model.simulate_rows(rng, theta, rows, draws, on_error=self.on_error)
            distance = self.model.distances(part)
            kept_all = distance if self.keep_distances else NO_DISTANCES
            whole = _tally(self.kernel.log_average(distance), kept_all, n * draws, [part])
            return whole._replace(rows=part.rows) if self.keep_rows else whole
        parts: list[Simulated] = []
        log_estimates: list[Array] = []
        kept: list[Array] = []
        rows_kept: list[Array] = []
        for top in range(0, n, height):
            some = slice(top, min(top + height, n))
            places = np.arange(some.start, some.stop) if rows is None else rows[some]
            log_shares: list[Array] = []
            kept_here: list[Array] = []
            rows_here: list[Array] = []
            for left in range(0, draws, width):
                m = min(width, draws - left)
                part = self.model.simulate_rows(rng, theta[some], places, m, left, len(parts), self.on_error)
                distance = self.model.distances(part)
                log_average = self.kernel.log_average(distance)
                log_shares.append(log_average if m == draws else log_average + math.log(m / draws))
                if self.keep_distances:
                    kept_here.append(distance)
                if self.keep_rows:
                    rows_here.append(part.rows)
                part.rows = NO_DISTANCES
                parts.append(part)
            if len(log_shares) == 1:
                log_estimates.append(log_shares[0])
            else:
                log_estimates.append(np.minimum(np.logaddexp.reduce(log_shares), 0.0))
            if self.keep_distances:
                kept.append(_joined(kept_here, axis=1))
            if self.keep_rows:
                rows_kept.append(_joined(rows_here, axis=1))
        distances = _joined(kept, axis=0) if self.keep_distances else NO_DISTANCES
        whole = _tally(_joined(log_estimates, axis=0), distances, n * draws, parts)
        return whole._replace(rows=_joined(rows_kept, axis=0)) if self.keep_rows else whole

    def _in_compiled_code(self, rng: Rng, theta: Array, rows: Array | None) -> Evaluation:
        """All M draws of every row, none of them in memory unless it is kept."""
        model, n, draws = self.model, len(theta), self.pseudo_samples
        parts: list[Simulated] = []
        found = []
        for top in range(0, n, COMPILED_ROWS):
            some = slice(top, min(top + COMPILED_ROWS, n))
            places = range(some.start, some.stop) if rows is None else rows[some]
            one = averages(model, self.kernel, rng, theta[some], draws, len(parts), self.keep_distances, self.keep_rows)
            part = Simulated(NO_DISTANCES)
            note_drawn(model.recipe, rng, theta[some], places, 0, one.drawn, part, self.on_error)
            parts.append(part)
            found.append(one)
        log_estimate = _joined([one.log_estimate for one in found], axis=0)
        distances = _joined([one.distances for one in found], axis=0)
        whole = _tally(log_estimate, distances, n * draws, parts)
        return whole._replace(rows=_joined([one.rows for one in found], axis=0)) if self.keep_rows else whole

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
        simulations = 0
        parts: list[Simulated] = []
        for m in range(draws):
            places = still if rows is None else rows[still]
            part = self.model.simulate_rows(rng, theta[still], places, 1, m, 0, self.on_error)
            simulations += len(still)
            distances[still, m] = self.model.distances(part)[:, 0]
            total[still] += np.exp(self.kernel.log_weight(distances[still, m]))
            part.rows = NO_DISTANCES
            parts.append(part)
            still = still[total[still] + (draws - 1 - m) >= needed[still] * (1.0 - 1e-12)]
            if still.size == 0:
                break
        closed = np.ones(n, dtype=bool)
        closed[still] = False
        log_estimate = np.where(closed, -np.inf, self.kernel.log_average(distances))
        return _tally(log_estimate, distances if self.keep_distances else NO_DISTANCES, simulations, parts)

    @cached_property
    def _draw(self) -> "Draw":
        return Draw(self.model, self.on_error)

    def _draws_side_by_side(self, rng: Rng, theta: Array, rows: Array | None) -> Evaluation:
        """Every draw a piece of work of its own."""
        n, draws = len(theta), self.pseudo_samples
        places = range(n) if rows is None else rows.tolist()
        asked = [
            Asked(rng.seed, rng.phase, rng.first, rng.step, place, m, theta[row : row + 1])
            for row, place in enumerate(places)
            for m in range(draws)
        ]
        parts: list[Simulated] = []

        def take(_: Asked, part: Simulated) -> bool:
            parts.append(part)
            return False

        reason = in_order(self._draw, asked, take, Deadline(None), Progress(False, "", None))
        if reason != "done":
            raise Stopped(reason)
        together = Simulated(np.concatenate([part.rows for part in parts], axis=1).reshape(n, draws, -1))
        together.failed = sum(part.failed for part in parts)
        distance = self.model.distances(together)
        return _tally(self.kernel.log_average(distance), distance if self.keep_distances else NO_DISTANCES,
                      n * draws, parts)  # fmt: skip

    def log_estimate(self, rng: np.random.Generator, theta: Array, worth: Array) -> tuple[Array, int]:
        """The public form (see `Estimator`): streams are keyed from a number drawn from `rng`."""
        return _public(self, rng, theta, worth)


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


@dataclass(frozen=True, eq=False)
class Handicapped:
    """An estimator made worse on purpose; made by `handicapped`."""

    estimator: Any
    alpha: float

    @property
    def prior(self) -> Prior:
        prior: Prior = self.estimator.prior
        return prior

    @property
    def log_bound(self) -> float | None:
        bound: float | None = self.estimator.log_bound
        return None if bound is None else bound - math.log1p(-self.alpha)

    @property
    def simulations(self) -> int:
        """Simulations of one estimate, where it is not zero."""
        return int(getattr(self.estimator, "simulations", 1))

    @property
    def engine(self) -> Any:
        """The JAX engine, where the estimator within is on it."""
        return getattr(self.estimator, "engine", None)

    def with_model(self, model: Model) -> "Handicapped":
        """The same estimator for a model whose distance is ready."""
        return replace(self, estimator=self.estimator.with_model(model))

    def evaluate(self, rng: Rng, theta: Array, log_needed: Array | None) -> Evaluation:
        """As the estimator within, at the rows whose coin spared them."""
        if self.engine is not None and isinstance(rng, Rng):
            return _from_device(self, rng, theta, log_needed)
        spared = rng.bulk(Purpose.HANDICAP).random(len(theta)) >= self.alpha
        xp = namespace(spared)
        log_share = -math.log1p(-self.alpha)
        log_needed_within = -np.inf if log_needed is None else log_needed - log_share
        inner = evaluate(self.estimator, rng, theta, xp.where(spared, log_needed_within, np.inf))
        return inner._replace(log_estimate=xp.where(spared, inner.log_estimate + log_share, -np.inf))

    on_device = evaluate

    def log_estimate(self, rng: np.random.Generator, theta: Array, worth: Array) -> tuple[Array, int]:
        """The public form (see `Estimator`)."""
        return _public(self, rng, theta, worth)


@dataclass(frozen=True, eq=False)
class FunctionEstimator:
    """A user's function as an Estimator; made by `unbiased`."""

    prior: Prior
    function: Callable[[np.random.Generator, Array], Array]
    log_bound: float | None = None
    simulations: int = 1
    engine: Any = None
    """The JAX engine, where the function is to run there."""

    def on_device(self, rng: Any, theta: Array, log_needed: Array | None) -> Evaluation:
        """The function as a part of a program for a device; what is no estimate is zero there, and failed."""
        from onedraw.engines.jax import Bad

        log_estimate = self.function(rng.bulk(Purpose.SIMULATE), theta)
        xp = namespace(log_estimate)
        if log_estimate.shape != (theta.shape[0],):
            raise ValueError(f"the estimator returned shape {log_estimate.shape} for {theta.shape[0]} rows")
        wrong = ~(log_estimate < np.inf) if self.log_bound is None else ~(log_estimate <= self.log_bound + 1e-6)
        wrong = wrong if log_needed is None else wrong & (log_needed < np.inf)
        kept = xp.where(wrong, -np.inf, log_estimate)
        nothing: Any = None
        failures: Any = (Bad(theta, wrong[:, None]),)
        failed: Any = wrong.astype(int)
        return Evaluation(kept, nothing, theta.shape[0] * self.simulations, failed=failed, failures=failures)

    def log_estimate(self, rng: np.random.Generator, theta: Array, worth: Array) -> tuple[Array, int]:
        """The function at the rows that are worth it."""
        log_estimate = np.full(len(theta), -np.inf)
        rows = np.flatnonzero(worth)
        if rows.size:
            log_estimate[rows] = self.function(rng, theta[rows])
        return log_estimate, self.simulations * int(rows.size)


def abc_average(model: Model, kernel: Kernel, *, pseudo_samples: int = 1, on_error: str = "reject") -> AbcAverage:
    """The ABC estimator T_M / pi(theta): the mean of the kernel over M pseudo-samples.

    Samplers make it themselves from a model and a kernel; make it yourself to handicap it or to look at it.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> estimator = od.abc_average(model, od.uniform(0.5), pseudo_samples=4)
    >>> theta, worth = np.array([[2.0], [9.0]]), np.array([True, True])
    >>> log_estimate, simulations = estimator.log_estimate(np.random.default_rng(1), theta, worth)
    >>> log_estimate.shape, simulations
    ((2,), 8)
    """
    check_model_and_kernel(model, kernel)
    return AbcAverage(
        model,
        kernel,
        whole_number("pseudo_samples", pseudo_samples, "the number M of pseudo-samples at one theta"),
        one_of("on_error", on_error, ("reject", "raise")),
    )


def handicapped(estimator: Any, alpha: float) -> Handicapped:
    """The estimator replaced by 0 with probability alpha and divided by 1 - alpha otherwise.

    It has the same mean and is worse in the convex order, which is the paper's way of comparing M pseudo-samples
    with one (docs/theory.md, L3). Where it is 0 nothing is simulated.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> half = od.handicapped(od.abc_average(model, od.uniform(0.5)), alpha=0.5)
    >>> round(half.log_bound, 4)
    0.6931
    """
    if not 0.0 <= alpha < 1.0:
        raise ValueError(f"alpha must be at least 0 and below 1, got {alpha!r}: it is the chance of a zero")
    check_estimator(estimator)
    return Handicapped(estimator, float(alpha))


def unbiased(
    function: Callable[[np.random.Generator, Array], Array],
    prior: Prior,
    *,
    log_bound: float | None = None,
    simulations: int = 1,
) -> FunctionEstimator:
    """An estimator from a function `log_estimate(rng, theta)` of a batch of parameters (n, dim) -> (n,).

    exp(log_estimate) must have the likelihood (up to one constant) as its mean, and be non-negative. `simulations`
    is what one estimate counts for in the cost; `log_bound`, where you know one, lets proposals be rejected early.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> def log_estimate(rng, theta):
    ...     return -0.5 * (theta[:, 0] - 2.0) ** 2 + np.log(rng.exponential(size=len(theta)))
    >>> estimator = od.unbiased(log_estimate, od.Prior(theta=stats.norm(0, 1)))
    >>> post = od.pseudo_marginal(estimator=estimator, start={"theta": 1.0}, draws=500, chains=64,
    ...                           proposal=od.random_walk(1.0), seed=1)
    >>> bool(abs(post.draws["theta"][:, 100:].mean() - 1.0) < 0.1)
    True
    """
    if not callable(function):
        raise ValueError(f"function must be callable as function(rng, theta), got {function!r}")
    if not isinstance(prior, Prior):
        raise ValueError(f"prior must be an od.Prior, got {prior!r}")
    if log_bound is not None and not math.isfinite(log_bound):
        raise ValueError(f"log_bound must be a finite number or None, got {log_bound!r}")
    return FunctionEstimator(
        prior, function, log_bound, whole_number("simulations", simulations, "the cost of one estimate")
    )


def _public(estimator: Any, rng: np.random.Generator, theta: Array, worth: Array) -> tuple[Array, int]:
    """`Estimator.log_estimate` from `evaluate`: the streams are keyed by a number drawn from `rng`."""
    keyed = Rng(int(rng.integers(2**63)), 0)
    result = estimator.evaluate(keyed, np.asarray(theta, dtype=float), np.where(worth, -np.inf, np.inf))
    return result.log_estimate, result.simulations


def placed(estimator: Any, engine: Any) -> Any:
    """The estimator on the engine that a run asks for, or None for the one that its simulator is for."""
    inner = estimator.estimator if isinstance(estimator, Handicapped) else estimator
    on_jax = isinstance(inner, AbcAverage) and isinstance(inner.model.simulate, JaxSimulator)
    if not isinstance(engine, str | None):
        raise ValueError(
            f"engine must be None, 'numpy', 'numba', 'jax', 'jax:float32' or 'jax:float64', got {engine!r}"
        )
    if engine == "numba" and not (isinstance(inner, AbcAverage) and inner.model.compiled):
        raise ValueError("engine='numba' needs a simulator made by od.compiled(function): leave engine= out")
    if engine in (None, "numpy", "numba"):
        if on_jax and engine == "numpy":
            raise ValueError("engine='numpy' cannot run a simulator made by od.jax_simulator: leave engine= out")
        if not on_jax:
            return estimator
    if isinstance(inner, AbcAverage) and not on_jax:
        raise ValueError(
            f"engine={engine!r} needs a simulator made by od.jax_simulator(function), with function(key, **parameters) "
            "written with jax.numpy: this model's is for NumPy; leave engine= out"
        )
    if not isinstance(inner, AbcAverage) and not hasattr(inner, "on_device"):
        raise ValueError(
            f"engine={engine!r} cannot run an estimator of your own class {type(inner).__name__}: write it as a "
            "function with jax.numpy, od.unbiased(function, prior), or leave engine= out"
        )
    if not estimator.prior.on_device:
        raise ValueError(
            f"engine={engine!r} has no JAX form of this prior: it takes {', '.join(FAMILIES)} with bounded densities "
            "(where= may be used); leave engine= out, or use one of these"
        )
    try:
        from onedraw.engines.jax import Engine
    except ImportError as error:
        raise ValueError(f'engine={engine!r} needs JAX: install it with pip install "onedraw[jax]"') from error

    chosen = Engine.named(engine or "jax")
    if isinstance(inner, AbcAverage):
        return estimator.with_model(inner.model.placed(chosen))
    if isinstance(estimator, Handicapped):
        return replace(estimator, estimator=replace(inner, engine=chosen))
    return replace(estimator, engine=chosen)


def _from_device(estimator: Any, rng: Rng, theta: Array, log_needed: Array | None) -> Evaluation:
    from onedraw.engines import jax as device

    result: Evaluation = device.evaluate(estimator, estimator.engine, rng, theta, log_needed)
    return result


def evaluate(
    estimator: Any, rng: Rng, theta: Array, log_needed: Array | None, instead: Array | None = None
) -> Evaluation:
    """Estimates of any estimator at rows of theta; for those of users, checked.

    Where all rows are simulated, those that nothing is wanted of are simulated at the rows of `instead`: a proposal
    outside the prior may be one that a simulator never returns from.
    """
    if getattr(estimator, "engine", None) is not None or not isinstance(theta, np.ndarray):
        if instead is not None and log_needed is not None:
            theta = namespace(theta).where((log_needed < np.inf)[:, None], theta, instead)
        on_device = partial(_from_device, estimator) if isinstance(theta, np.ndarray) else estimator.on_device
        there: Evaluation = on_device(rng, theta, log_needed)
        return there
    if hasattr(estimator, "evaluate"):
        result: Evaluation = estimator.evaluate(rng, theta, log_needed)
        return result
    bound = math.inf if estimator.log_bound is None else estimator.log_bound
    worth = np.ones(len(theta), bool) if log_needed is None else (log_needed <= bound) & (log_needed < np.inf)
    if not worth.any():
        return Evaluation(np.full(len(theta), -np.inf), NO_DISTANCES, 0)
    log_estimate, simulations = estimator.log_estimate(rng.bulk(Purpose.SIMULATE), theta, worth)
    log_estimate = np.asarray(log_estimate, dtype=float)
    if log_estimate.shape != (len(theta),):
        raise ValueError(
            f"log_estimate returned shape {log_estimate.shape} for {len(theta)} rows: expected ({len(theta)},)"
        )
    log_estimate = np.where(worth, log_estimate, -np.inf)
    wrong = ~(log_estimate <= (math.inf if bound is math.inf else bound + 1e-9)) | (log_estimate == np.inf)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"log_estimate is {log_estimate[row]} at {estimator.prior.named(theta[row])}: it must be a number or "
            f"-inf, and not above log_bound = {estimator.log_bound}"
        )
    return Evaluation(log_estimate, NO_DISTANCES, _counted(estimator, simulations, int(np.count_nonzero(worth))))


def _counted(estimator: Any, simulations: Any, rows: int) -> int:
    """The simulations that a user's estimator reports, checked: a budget is kept by what one estimate may take."""
    most = int(getattr(estimator, "simulations", 1))
    try:
        count = operator.index(simulations)
    except TypeError:
        count = -1
    if not 0 <= count <= most * rows:
        raise ValueError(
            f"log_estimate reported {simulations!r} simulations for {rows} estimates: it must be a whole number of at "
            f"most {most} each; say how many an estimate may take in an attribute `simulations` of the estimator"
        )
    return count


def joined(parts: list[Evaluation]) -> Evaluation:
    """The evaluations of several blocks of rows as one."""
    return Evaluation(
        np.concatenate([part.log_estimate for part in parts]),
        np.concatenate([part.distances for part in parts]),
        sum(part.simulations for part in parts),
        sum(part.setups for part in parts),
        sum(part.failed for part in parts),
        tuple(failure for part in parts for failure in part.failures),
        parts[0].ignored_rng,
    )


def check_model_and_kernel(model: Any, kernel: Any) -> None:
    """A ValueError where the first two arguments of a sampler are not a model and a kernel."""
    if not isinstance(model, Model):
        raise ValueError(f"model must be an od.Model, got {type(model).__name__}")
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel must be a kernel such as od.uniform(0.1), got {kernel!r}")


def check_estimator(estimator: Any) -> None:
    """A ValueError where an object is not an Estimator."""
    missing = [name for name in ("prior", "log_bound", "log_estimate") if not hasattr(estimator, name)]
    if missing:
        raise ValueError(
            f"estimator {estimator!r} has no {missing[0]}: wrap a function as od.unbiased(function, prior)"
        )


def _joined(arrays: list[Array], axis: int) -> Array:
    """Arrays end to end, without a copy where there is only one."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=axis)


def _tally(log_estimate: Array, distances: Array, simulations: int, parts: list[Simulated]) -> Evaluation:
    if len(parts) == 1:
        (one,) = parts
        return Evaluation(
            log_estimate, distances, simulations, one.setups, one.failed, tuple(one.failures), one.ignored_rng
        )
    return Evaluation(
        log_estimate,
        distances,
        simulations,
        setups=sum(part.setups for part in parts),
        failed=sum(part.failed for part in parts),
        failures=tuple(failure for part in parts for failure in part.failures[:1])[:1],
        ignored_rng=bool(parts) and parts[0].ignored_rng,
    )
