"""The bootstrap particle filter: an unbiased estimate of the likelihood of a state-space model.

Hidden states x_0, x_1, ... move by a transition that can be simulated, and y_t is observed with a density that can be
computed. N particles are drawn at t = 0 and moved from time to time; at each time they are weighted by the density
w_t^i of y_t and resampled in proportion. The estimate is

    prod_t (1/N) sum_i w_t^i,

whose mean is the likelihood for every N (the mean of its logarithm is below the log likelihood). Unlike the ABC
average it is not an average of N independent estimates: the variance of its logarithm grows with the length of the
data and falls like 1/N, so that few particles are ruinous and N must be tuned (docs/contrast.md).

Resampling is systematic: one uniform u for each filter, and particle i is copied as often as one of (k + u)/N,
k = 0..N-1, falls into its share of the weights, N w_i times on average.

All filters of a block of chains run side by side in array code, states (chains, N, ...).

Reference: Gordon, Salmond and Smith (1993); Del Moral (2004), for unbiasedness; Andrieu, Doucet and Holenstein (2010).
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import numbers, one_of, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import NO_DISTANCES, Array, DeviceParts, namespace
from onedraw.engines.numba import Compiled, moved_particles
from onedraw.engines.streams import Purpose, Rng
from onedraw.estimators.protocol import Evaluation, from_device, public_estimate
from onedraw.failures import FAULTS, Failure, SimulationError, in_words, told
from onedraw.model.prior import Prior

CHUNK_PARTICLES = 32_768
"""Particles moved at once: few enough for the cache. Part of a run's identity, since a chunk has its own stream."""
FORMS = {
    "initial": "initial(rng, shape, {names}) -> states of shape (chains, N) or (chains, N, ...)",
    "transition": "transition(rng, x, {names}) -> states of the same shape",
    "log_observation": "log_observation(y, x, {names}) -> log densities of shape (chains, N)",
}


class Weighted(NamedTuple):
    """Weights of n filters at one time."""

    shares: Array
    """(n, N), the largest of each filter 1; all 1 if every weight was zero."""
    log_mean: Array
    """(n,) log of the mean weight; -inf if every weight was zero."""


def weigh(log_weight: Array) -> Weighted:
    """Weights from their logarithms (n, N), by their largest, so that none overflows.

    >>> weigh(np.log([[1.0, 3.0], [0.5, 0.5]])).log_mean.round(4).tolist()
    [0.6931, -0.6931]
    """
    xp = namespace(log_weight)
    largest = log_weight.max(axis=1)
    zero = largest == -np.inf
    if xp is not np or zero.any():
        log_weight = xp.where(zero[:, None], 0.0, log_weight)
    shares = log_weight - xp.where(zero, 0.0, largest)[:, None]
    shares = np.exp(shares, out=shares) if xp is np else xp.exp(shares)
    return Weighted(shares, largest + xp.log(shares.sum(axis=1) / shares.shape[1]))


def ancestors(shares: Array, u: Array) -> Array:
    """Systematic resampling: for each of the n x N new particles, its ancestor's place in the flat (n x N) array.

    Parameters: `shares` (n, N), proportional to the weights; `u` (n,), uniform on [0, 1).

    >>> ancestors(np.array([[1.0, 2.0, 1.0, 0.0]]), np.array([0.25])).tolist()
    [0, 1, 1, 2]
    """
    n, particles = shares.shape
    xp = namespace(shares)
    below = xp.cumsum(shares, axis=1)
    below *= particles / below[:, -1:]
    # k + u < N C_i for this many k = 0..N-1.
    below -= u[:, None]
    # Whatever rounding made of it, N particles have an ancestor.
    upto = xp.minimum(xp.ceil(below).astype(int), particles)
    ends = xp.concatenate([upto[:, :-1], xp.full((n, 1), particles)], axis=1)
    copies = xp.diff(ends, axis=1, prepend=0).ravel()
    every = xp.arange(n * particles)
    return np.repeat(every, copies) if xp is np else xp.repeat(every, copies, total_repeat_length=n * particles)


@dataclass(frozen=True, eq=False)
class ParticleFilter:
    """An estimator of the likelihood of a state-space model; made by `particle_filter`."""

    prior: Prior
    initial: Callable[..., Array]
    transition: Callable[..., Array]
    log_observation: Callable[..., Array]
    data: Array
    particles: int
    on_error: str = "reject"
    log_bound: float | None = field(default=None, init=False)
    engine: Any = None
    """The JAX engine, if the filter is to run there."""
    timed: frozenset[str] = field(init=False, repr=False)
    """The functions that are told the time."""
    device_parts = DeviceParts(
        ("data",), ("prior", "initial", "transition", "log_observation", "particles", "timed", "engine")
    )

    def __post_init__(self) -> None:
        timed = frozenset(name for name in FORMS if _wants_time(getattr(self, name), self.prior))
        object.__setattr__(self, "timed", timed)

    @property
    def simulations(self) -> int:
        """Particles that one estimate moves: N x T."""
        return self.particles * len(self.data)

    def with_particles(self, particles: int) -> "ParticleFilter":
        """The same filter with another number of particles."""
        return replace(self, particles=whole_number("particles", particles, "the number N of particles"))

    def evaluate(self, rng: Rng, theta: Array, log_needed: Array | None) -> Evaluation:
        """Estimates at the rows of theta (n, dim) at which any estimate could be accepted."""
        if self.engine is not None:
            return from_device(self, rng, theta, log_needed)
        n = len(theta)
        rows = np.arange(n) if log_needed is None else np.flatnonzero(log_needed < np.inf)
        log_estimate = np.full(n, -np.inf)
        simulations = failed = 0
        failures: tuple[Failure, ...] = ()
        height = max(1, CHUNK_PARTICLES // self.particles)
        for chunk, top in enumerate(range(0, len(rows), height)):
            some = rows[top : top + height]
            found = self._filtered(rng.bulk(Purpose.SIMULATE, chunk), theta[some])
            log_estimate[some] = found.log_estimate
            simulations += found.simulations
            failed += found.failed
            if found.failure is not None and not failures:
                place, message = found.failure
                row = int(some[place])
                where = self.prior.named(theta[row]), rng.seed, rng.phase, rng.first + row, rng.step, 0
                failures = (Failure(*where, message, ""),)
        if failures and self.on_error == "raise":
            raise SimulationError(f"the particle filter failed {failures[0]}")
        return Evaluation(log_estimate, NO_DISTANCES, Cost(simulations, failed=failed), failures)

    def on_device(self, rng: Any, theta: Array, log_needed: Array | None) -> Evaluation:
        """As `evaluate`, as a part of a program for a device: every filter runs to its end."""
        import jax.numpy as jnp
        from jax import lax

        from onedraw.engines.jax import FailureMask
        from onedraw.engines.jax_keys import threefry
        from onedraw.engines.jax_streams import Stream

        n, particles, times = theta.shape[0], self.particles, len(self.data)
        parameters = {name: values[:, None] for name, values in self.prior.columns(theta).items()}
        words = rng.named(Purpose.SIMULATE)
        data = jnp.asarray(self.data, rng.dtype)
        unseen = jnp.isnan(data).reshape(times, -1).all(axis=1)

        def called(name: str, *given: Any, time: Any) -> Any:
            told = {**parameters, "t": time} if name in self.timed else parameters
            return jnp.asarray(getattr(self, name)(*given, **told), rng.dtype)

        def weighed(x: Any, time: Any) -> tuple[Any, Any, Any]:
            log_weight = called("log_observation", data[time], x, time=time)
            if log_weight.shape != (n, particles):
                told = f"returned shape {log_weight.shape} for states of shape {x.shape}"
                raise SimulationError(f"log_observation {told}: it is called as {self._form('log_observation')}")
            bad = ~(log_weight < jnp.inf) & ~unseen[time]
            kept: Any = jnp.where(bad, -jnp.inf, jnp.where(unseen[time], 0.0, log_weight))
            found = weigh(kept)
            return found.shares, found.log_mean, bad.sum(axis=1)

        def later(carry: tuple[Any, ...], time: Any) -> tuple[tuple[Any, ...], None]:
            x, shares, log_estimate, failed = carry
            stream = Stream(threefry(words, time.astype(jnp.uint32), jnp.uint32(0x20000000)), rng.dtype)
            # Equal shares, as at a time that was not observed, leave every particle where it is.
            places = ancestors(shares, stream.random(n))
            moved = called("transition", stream, x.reshape(-1, *x.shape[2:])[places].reshape(x.shape), time=time)
            if moved.shape != x.shape:
                told = f"turned shape {x.shape} into {moved.shape}"
                raise SimulationError(f"transition {told}: it is called as {self._form('transition')}")
            shares, log_mean, bad = weighed(moved, time)
            return (moved, shares, log_estimate + log_mean, failed + bad), None

        x = called("initial", Stream(words, rng.dtype), (n, particles), time=0)
        if x.shape[:2] != (n, particles):
            told = f"returned shape {x.shape} for shape ({n}, {particles})"
            raise SimulationError(f"initial {told}: it is called as {self._form('initial')}")
        carry, _ = lax.scan(later, (x, *weighed(x, jnp.asarray(0))), jnp.arange(1, times))
        log_estimate = carry[2]
        failed: Any = carry[3]
        failed = failed if log_needed is None else jnp.where(log_needed < jnp.inf, failed, 0)
        nothing: Any = None
        failures: Any = (FailureMask(theta, (failed > 0)[:, None]),)
        return Evaluation(log_estimate, nothing, Cost(n * self.simulations, failed=failed), failures)

    def log_estimate(self, rng: np.random.Generator, theta: Array, worth: Array) -> tuple[Array, int]:
        """The public form (see `Estimator`)."""
        return public_estimate(self, rng, theta, worth)

    def _filtered(self, rng: np.random.Generator, theta: Array) -> "Filtered":
        """All filters of a chunk, side by side; one whose weights are all zero ends there."""
        n, particles, times = len(theta), self.particles, len(self.data)
        parameters = _columns(self.prior, theta)
        log_estimate, running = np.zeros(n), np.arange(n)
        simulations, failed = 0, 0
        failure: tuple[int, str] | None = None
        unseen = _unseen(self.data)
        x = self._called("initial", rng, (n, particles), time=0, **parameters)
        if x.shape[:2] != (n, particles):
            raise self._wrong("initial", f"returned shape {x.shape} for shape ({n}, {particles})", theta[0])
        shape = x.shape
        for t in range(times):
            if t:
                x = self._called("transition", rng, x, time=t, **parameters)
                if x.shape != shape:
                    raise self._wrong("transition", f"turned shape {shape} into {x.shape}", theta[running[0]])
            simulations += len(running) * particles
            if unseen[t]:
                continue
            log_weight = self._called("log_observation", self.data[t], x, time=t, **parameters)
            if log_weight.shape != (len(running), particles):
                told = f"returned shape {log_weight.shape} for states of shape {x.shape}"
                raise self._wrong("log_observation", told, theta[running[0]])
            # NaN makes the maximum NaN.
            if not log_weight.max() < np.inf:
                bad = ~(log_weight < np.inf)
                failed += int(bad.sum())
                row, one = (int(k) for k in np.argwhere(bad)[0])
                if failure is None:
                    told = f"log_observation is {log_weight[row, one]} at time {t}, y = {self.data[t]}, state "
                    failure = int(running[row]), f"{told}{x[row, one]}"
                log_weight = np.where(bad, -np.inf, log_weight)
            weighted = weigh(log_weight)
            log_estimate[running] += weighted.log_mean
            shares = weighted.shares
            alive = np.flatnonzero(weighted.log_mean > -np.inf)
            if len(alive) < len(running):
                running, x, shares = running[alive], x[alive], shares[alive]
                parameters = {name: values[alive] for name, values in parameters.items()}
                shape = x.shape
                if not len(running):
                    break
            # One particle is its own ancestor.
            if t < times - 1 and particles > 1:
                flat = x.reshape(-1, *shape[2:])
                x = flat[ancestors(shares, rng.random(len(running)))].reshape(shape)
        return Filtered(log_estimate, simulations, failed, failure)

    def _called(self, name: str, *given: Any, time: int, **parameters: Array) -> Array:
        function = getattr(self, name)
        if name in self.timed:
            parameters["t"] = time  # type: ignore[assignment]
        try:
            if name == "transition" and isinstance(function, Compiled):
                theta = np.concatenate([parameters[one].reshape(len(given[1]), -1) for one in self.prior.names], axis=1)
                return moved_particles(function, self.prior, given[0], given[1], theta, time)
            return np.asarray(function(*given, **parameters), dtype=float)
        except FAULTS as error:
            rows = len(next(iter(parameters.values())))
            raise SimulationError(
                f"{name} failed at time {time} on {rows} rows of parameters: {told(error)}. It is "
                f"called as {self._form(name)}"
            ) from error

    def _form(self, name: str) -> str:
        return (
            FORMS[name].format(names=", ".join(self.prior.names))
            + ", each parameter of shape (chains, 1), vectors (chains, 1, size)"
        )

    def _wrong(self, name: str, told: str, theta: Array) -> SimulationError:
        return SimulationError(
            f"{name} {told} at {in_words(self.prior.named(theta))}: it is called as {self._form(name)}"
        )


class Filtered(NamedTuple):
    """What a chunk of filters gave."""

    log_estimate: Array
    simulations: int
    failed: int
    failure: tuple[int, str] | None
    """Row and message of the first failure."""


def particle_filter(
    prior: Prior,
    *,
    initial: Callable[..., Array],
    transition: Callable[..., Array],
    log_observation: Callable[..., Array],
    data: Any,
    particles: int,
    on_error: str = "reject",
) -> ParticleFilter:
    """A bootstrap particle filter as an estimator, for `od.pseudo_marginal(estimator=..., start=...)`.

    The three functions work on all chains and particles at once. Parameters come by name as arrays (chains, 1), which
    broadcast against states (chains, N), and vectors as (chains, 1, size), of which `p[..., 0]` does; states may have
    further axes, as (chains, N, 2). A function with an argument `t` is also given the time, 0 at the first observation.

    Parameters
    ----------
    prior
        Of the parameters.
    initial
        `initial(rng, shape, **parameters)`: states at the time of the first observation; shape is (chains, N).
    transition
        `transition(rng, x, **parameters)`: states one time later. Marked by `od.compiled`, it moves one particle: x and
        the parameters are numbers (a state of shape (chains, N, k) comes as an array (k,)), and so is what it returns.
    log_observation
        `log_observation(y, x, **parameters)`: log density of one observation given the states, (chains, N).
    data
        Observations, an array (T,) or (T, ...). A time at which all is NaN was not observed.
    particles
        N. One estimate counts as N x T simulations, those of a filter whose weights all became zero up to there.
    on_error
        "reject": a weight that is NaN or infinite is a failed simulation, counted, and taken as zero; "raise" stops.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> level = od.particle_filter(
    ...     od.Prior(a=stats.uniform(0, 1)),
    ...     initial=lambda rng, shape, a: rng.standard_normal(shape),
    ...     transition=lambda rng, x, a: a * x + rng.standard_normal(x.shape),
    ...     log_observation=lambda y, x, a: -0.5 * (y - x) ** 2,
    ...     data=[0.3, -0.1, 1.2, 0.8],
    ...     particles=50,
    ... )
    >>> post = od.pseudo_marginal(estimator=level, start={"a": 0.5}, chains=8, budget=80_000, seed=1)
    >>> post.cost.simulations, post.shape
    (79200, (8, 104))
    """
    if not isinstance(prior, Prior):
        raise ValueError(f"prior must be an od.Prior, got {prior!r}")
    for name, function in (
        ("initial", initial),
        ("transition", transition),
        ("log_observation", log_observation),
    ):
        _check_form(name, function, prior)
    try:
        observed = numbers(data, truth_values=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"data must be numbers, an array (T,) or (T, ...): {error}") from error
    if observed.ndim == 0 or observed.size == 0:
        raise ValueError(f"data must hold at least one observation, got shape {observed.shape}: an array (T,) or more")
    if np.isinf(observed).any():
        raise ValueError(f"data is infinite at time {int(np.argwhere(np.isinf(observed))[0, 0])}: use NaN for missing")
    observed.flags.writeable = False
    return ParticleFilter(
        prior,
        initial,
        transition,
        log_observation,
        observed,
        whole_number("particles", particles, "the number N of particles"),
        one_of("on_error", on_error, ("reject", "raise")),
    )


def _columns(prior: Prior, theta: Array) -> dict[str, Array]:
    return {name: values[:, None] for name, values in prior.columns(theta).items()}


def _unseen(data: Array) -> Array:
    return np.asarray(np.isnan(data).reshape(len(data), -1).all(axis=1))


def _wants_time(function: Callable[..., Any], prior: Prior) -> bool:
    if "t" in prior.names:
        return False
    try:
        return "t" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _check_form(name: str, function: Any, prior: Prior) -> None:
    if not callable(function):
        raise ValueError(f"{name} must be a function, got {function!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    time = {"t": None} if _wants_time(function, prior) else {}
    try:
        signature.bind(None, None, **dict.fromkeys(prior.names), **time)
    except TypeError as error:
        form = FORMS[name].format(names=", ".join(prior.names))
        raise ValueError(f"{name}{signature} does not fit ({error}): it is called as {form}") from None
