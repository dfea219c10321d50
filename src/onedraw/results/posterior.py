"""Posterior: the draws of a run, with what is needed to judge and use them."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from onedraw import markup
from onedraw.arguments import (
    MOST_AT_ONCE,
    entry,
    numbers,
    positive,
    seed_or_fresh,
    share,
    shown,
    true_or_false,
    whole_number,
)
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.weights import check_signs
from onedraw.failures import FAULTS, Failure, told
from onedraw.model.kernels import EPS_MEANING, Kernel
from onedraw.model.layout import Layout
from onedraw.model.model import Model
from onedraw.model.prior import parameters_of
from onedraw.results.evidence import LogEvidence, lowered_evidence
from onedraw.results.monte_carlo_error import MANY, Draws, MonteCarlo, monte_carlo
from onedraw.results.summary import (
    ESS_LIMIT,
    Efficiency,
    Summary,
    SummaryRow,
    ToleranceCurve,
    TolerancePoint,
    describe,
    disagree,
)

MOST_STILL = 0.05
"""Share of chains that may never move: of a thousand short ones, some do not, by chance."""

HIGHER: dict[str, Callable[..., Any]] = {}
"""Functions of modules above this one, behind methods such as `adjust`, `misfit`, `plot`, `report` and `to_dataframe`.

`onedraw/__init__.py` fills it with functions that import their module when they are called."""


class Status(NamedTuple):
    """How a run ended.

    `reason` is "finished", "budget", "max_seconds", "interrupted" (Ctrl-C), "terminated" (SIGTERM), or "unfinished"
    for a file whose run is still going or was killed.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> od.rejection(model, od.uniform(0.5), budget=2_000, seed=1).status.reason
    'budget'
    """

    reason: str
    message: str

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for was done (a spent budget counts as done)."""
        return self.reason in ("finished", "budget")


class Simulations(NamedTuple):
    """Every simulation of a run, in the order in which they were made."""

    theta: Array
    """(n, dim)"""
    distances: Array
    """(n, M), inf if the simulation failed."""
    log_weight: Array
    """(n,) log of pi over the mixture of all proposals, K not included."""
    rows: Array | None
    """Summaries (n, M, s) if they were kept."""


class SimulatedData(NamedTuple):
    """Simulations as arrays, for other programs."""

    theta: Array
    """(n, parameters)"""
    x: Array
    """(n, summaries)"""

    @staticmethod
    def of(theta: Array, rows: Array) -> "SimulatedData":
        """Parameters (n, dim) and summaries (n, s) or (n, M, s), those that failed left out."""
        rows = rows[:, None] if rows.ndim == 2 else rows
        theta, rows = np.repeat(theta, rows.shape[1], axis=0), rows.reshape(-1, rows.shape[2])
        good = ~np.isnan(rows[:, 0])
        return SimulatedData(np.ascontiguousarray(theta[good]), np.ascontiguousarray(rows[good]))


class DrawsByName(Mapping[str, Array]):
    """Draws by parameter, (chains, draws) each or (chains, draws, size) for a vector, that cannot be changed."""

    def __init__(self, draws: Mapping[str, Array]) -> None:
        self._draws = dict(draws)

    def __getitem__(self, name: str) -> Array:
        return entry(self._draws, name, "parameter")

    def __iter__(self) -> Iterator[str]:
        return iter(self._draws)

    def __len__(self) -> int:
        return len(self._draws)

    def __repr__(self) -> str:
        return repr(self._draws)

    def __array__(self, *_: Any, **__: Any) -> Array:
        # pandas and NumPy would make a column of names of it.
        raise TypeError("draws by parameter are not one array: use post.to_dataframe(), or post.draws[name] for one")


@dataclass(frozen=True, eq=False)
class Posterior:
    """Draws from pi_K, the prior weighted by how well simulations match the data.

    `draws[name]` has shape (chains, draws), for a vector (chains, draws, size); for rejection there is one row. Arrays
    are read-only.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
    >>> post.names, post.shape
    (('theta',), (1, 500))
    >>> bool(abs(post.draws["theta"].mean() - 1.0) < 0.15)
    True
    """

    draws: Mapping[str, Array]
    """By parameter, (chains, draws); (chains, draws, size) for a vector."""
    weights: Array | None
    """None for equal weights, otherwise (chains, draws), summing to 1."""
    distances: Array | None
    """Distances of each draw's pseudo-samples: (chains, draws) for M = 1, (chains, draws, M) for more; None if
    they were not kept."""
    acceptance_rate: float
    """Accepted share of all proposals (held steps are not proposals)."""
    acceptance_rate_se: float
    """Its standard error."""
    cost: Cost
    """What the run cost."""
    status: Status
    """How it ended."""
    seed: int
    """The seed, given or drawn: with it the same call makes the run again."""
    settings: Mapping[str, Any]
    """What the run was asked to do, and what it chose itself: algorithm, kernel, eps, ..."""
    failures: tuple[Failure, ...] = ()
    """The first failed simulations; `cost.failed` counts all."""
    model: Model | None = field(default=None, repr=False)
    """The run's model; None if it came from a file."""
    kernel: Kernel | None = None
    """The run's kernel, with its eps; None if it had none."""
    independent: bool = False
    """Whether the draws are independent of each other (rejection)."""
    notes: tuple[str, ...] = ()
    """What a reader should know, in plain words."""
    groups: Array | None = field(default=None, repr=False)
    """Of weighted draws that have ancestors in common: (chains, draws) whole numbers, equal for draws whose errors
    may be correlated. None if there are no such draws."""
    path: tuple[Any, ...] = ()
    """Of a sequential run: its stages, each with eps, acceptance_rate, proposals, simulations and ess."""
    run_weights: Array | None = field(default=None, repr=False)
    """The weights that the run itself gave, before `at`."""
    bank: Any = field(default=None, repr=False)
    """Every simulation of a run that kept them: see `Simulations`."""
    kept: Any = field(default=None, repr=False)
    """What `simulations` gives, if the run has kept all of them: as arrays, or as the bank of `od.infer`."""
    effective: float | None = None
    """The effective number of independent draws, if there are more draws than simulations behind them."""
    refits: Array | None = field(default=None, repr=False)
    """Of a learnt likelihood: how the shares of the draws change with fits to other simulations (docs/theory.md)."""
    draws_worth: float | None = field(default=None, repr=False)
    """Of a learnt likelihood: how many independent draws of the fitted posterior the draws are worth."""
    evidence: tuple[float, float] | None = field(default=None, repr=False)
    """The log evidence at the run's own tolerance and its standard error, if the run can tell: see `log_evidence`."""

    def __post_init__(self) -> None:
        for array in (*self.draws.values(), self.weights, self.distances, self.groups, self.refits, self.run_weights):
            if array is not None:
                array.flags.writeable = False
        object.__setattr__(self, "draws", DrawsByName(self.draws))
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters."""
        return tuple(self.draws)

    @property
    def shape(self) -> tuple[int, int]:
        """(chains, draws)."""
        chains, draws = next(iter(self.draws.values())).shape[:2]
        return chains, draws

    @property
    def columns(self) -> dict[str, Array]:
        """The draws of each number by its name, (chains, draws): of a vector each entry, as `beta[0]`, `beta[1]`, ...

        >>> import onedraw as od
        >>> from scipy import stats
        >>> prior = od.Prior(mu=stats.norm(), beta=od.vector(stats.norm(), 2))
        >>> model = od.Model(prior, lambda rng, mu, beta: rng.normal(mu + beta), observed=[1.0, 2.0])
        >>> post = od.rejection(model, od.uniform(1.0), draws=100, seed=1)
        >>> list(post.columns), post.draws["beta"].shape
        (['mu', 'beta[0]', 'beta[1]'], (1, 100, 2))
        """
        shapes = tuple(values.shape[2:] for values in self.draws.values())
        labels = iter(Layout(self.names, shapes).titles(""))
        places = ((values, index) for values in self.draws.values() for index in np.ndindex(values.shape[2:]))
        return {next(labels): values[(..., *index)] for values, index in places}

    @property
    def longest_stall(self) -> int:
        """The most consecutive steps in which a chain did not move (a multiple of thin); 0 for independent draws."""
        chains, draws = self.shape
        if self.independent or draws < 2:
            return 0
        # Where the state changes, with sentinels at both ends: the longest gap is the longest stall.
        moved = np.ones((chains, draws + 1), dtype=bool)
        moved[:, 1:-1] = self.moves()
        gaps = np.diff(np.flatnonzero(moved.ravel()))
        return int(gaps.max() - 1) * int(self.settings.get("thin", 1))

    @property
    def still_chains(self) -> int:
        """Chains that never moved; 0 for independent or weighted draws."""
        if self.independent or self.weights is not None:
            return 0
        return self.shape[0] - int(np.count_nonzero(self.moves().any(axis=1)))

    @property
    def stuck(self) -> bool:
        """Whether more than one chain in twenty never moved, so that the draws are little more than their starts.

        Many chains that start from draws of the posterior are not stuck: their starts are as good as later draws.
        """
        chains, _ = self.shape
        exact = self.settings.get("start") == "rejection" and chains >= MANY
        return not exact and self.still_chains > MOST_STILL * chains

    def moves(self) -> Array:
        """(chains, draws - 1): whether any parameter changed from a kept draw to the next."""
        return np.any([np.diff(values, axis=1) != 0 for values in self.columns.values()], axis=0)

    def _doubts(self, rows: Mapping[str, SummaryRow]) -> list[str]:
        """Reasons to doubt the draws of chains, in plain words."""
        chains, draws = self.shape
        if self.independent or self.weights is not None or draws < 2:
            return []
        doubts = []
        still = self.still_chains
        if self.stuck:
            doubts.append(f"{still} of {chains} chains never moved: run longer, raise eps, or use smaller steps")
        unmixed = [f"{name} ({row.r_hat:.3f})" for name, row in rows.items() if disagree(row, chains)]
        if unmixed:
            doubts.append(f"R-hat of {', '.join(unmixed)} is larger than by chance: the chains do not agree yet")
        thin = [name for name, row in rows.items() if not row.ess >= ESS_LIMIT]
        if thin:
            doubts.append(f"ESS of {', '.join(thin)} is below {ESS_LIMIT}: the numbers above are rough; run longer")
        return doubts

    @property
    def method(self) -> str:
        """How the draws were made, in words: the algorithm, or for `od.infer` the estimate that it chose."""
        return str(self.settings.get("estimate", self.settings.get("algorithm", "")))

    @property
    def alternatives(self) -> list[dict[str, Any]]:
        """The estimates that `od.infer` tried, the chosen one first: how far each fell behind in mean log score."""
        return list(self.settings.get("alternatives", ()))

    def summary(self, hdi_prob: float = 0.9) -> Summary:
        """Mean, sd, highest density interval, Monte Carlo error, ESS and R-hat of each parameter.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
        >>> summary = post.summary()
        >>> summary["theta"].hdi_low < summary["theta"].mean < summary["theta"].hdi_high
        True
        """
        hdi_prob = share("hdi_prob", hdi_prob, "the interval's content")
        rows = {name: describe(values, self.drawn, hdi_prob) for name, values in self.columns.items()}
        unknown = [
            f"the Monte Carlo error of {name} is not known: {row.reason}" for name, row in rows.items() if row.reason
        ]
        return Summary(rows, hdi_prob, (*self.notes, *unknown, *self._doubts(rows)))

    @property
    def drawn(self) -> Draws:
        """How the draws were made, as far as Monte Carlo errors depend on it."""
        return Draws(self.weights, self.independent, self.groups, self.effective, self.refits, self.draws_worth)

    def estimate(self, function: str | Callable[..., Any], of: str | float = "mean") -> MonteCarlo:
        """The posterior mean of a function, its sd, or a quantile, with its Monte Carlo error (docs/theory.md).

        `function` is a parameter's name (`"beta[0]"` for an entry of a vector), or a function of those parameters that
        it names, each an array (chains, draws), vectors (chains, draws, size).
        `of` is "mean", "sd" or the probability of a quantile. A probability is the mean of a function that is true or
        false. Effective draws follow from the error; if it cannot be known, `reason` says why.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
        >>> above = post.estimate(lambda theta: theta > 1)
        >>> abs(above.value - 0.5) < 4 * above.mcse < 0.1, above.ess
        (True, 500.0)
        """
        if not isinstance(function, str):
            values = function_values(self, {"function": function})["function"]
        elif function in self.columns:
            values = self.columns[function]
        else:
            raise ValueError(f"there is no parameter {function!r}: {listed(self)}")
        return monte_carlo(values, self.drawn, of)

    def mcse(self, function: str | Callable[..., Any], of: str | float = "mean") -> float:
        """The Monte Carlo standard error of an `estimate`; NaN if it cannot be known.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.pseudo_marginal(model, od.uniform(0.5), draws=20, chains=200, seed=1)
        >>> post.mcse("theta", of="sd") < post.mcse("theta", of=0.95) < 0.2
        True
        """
        return self.estimate(function, of).mcse

    def efficiency(self, functions: Mapping[str, Callable[..., Array]] | None = None) -> Efficiency:
        """v(f), v(f, Q), kappa and the ESS per simulation and per second, for each f (docs/theory.md).

        `functions` maps names to functions of those parameters that they name, each an array (chains, draws), vectors
        (chains, draws, size), and replaces the parameters themselves. With thin > 1, kappa counts kept draws.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.pseudo_marginal(model, od.uniform(0.5), draws=300, chains=16, seed=1)
        >>> post.efficiency({"square": lambda theta: theta**2})["square"].kappa.value > 1
        True
        """
        if self.effective is not None:
            raise ValueError(
                "efficiency is for the draws of a sampler: these come from a smoothed estimate with about "
                f"{self.effective:.0f} effective draws (see summary())"
            )
        return cast(Efficiency, HIGHER["efficiency"](self, functions))

    def at(self, eps: float) -> "Posterior":
        """The posterior at a smaller tolerance, from the same run: the draws with new weights.

        A draw with distances d_1..d_M gets its weight in the run (equal for most samplers) times
        mean K_eps'(d_i) / mean K_eps(d_i) (docs/theory.md; Vihola and Franks 2020). A larger tolerance would need
        simulations that were not kept, and is refused.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
        >>> smaller = post.at(0.1)
        >>> smaller.settings["eps"], int((smaller.weights > 0).sum()) < 500
        (0.1, True)
        """
        kernel = self.kernel_for_at()
        new = kernel.with_eps(positive("eps", eps, EPS_MEANING))
        if new.eps > kernel.eps:
            raise ValueError(
                f"eps = {eps} is larger than the run's {kernel.eps}: the run has no simulations at distances that it "
                "never accepted; run again at the larger eps, and lower it with at()"
            )
        assert self.distances is not None
        distances = self.distances[..., None] if self.distances.ndim == 2 else self.distances
        log_weights = log_ratios(kernel, new.eps, distances)
        before = self.run_weights if "run_eps" in self.settings else self.weights
        if before is not None:
            with np.errstate(divide="ignore"):
                log_weights = log_weights + np.log(before)
        if not np.isfinite(log_weights).any():
            nearest = float(distances.min()) if distances.size else math.nan
            raise ValueError(f"no draw is within eps = {eps}: the nearest simulation is at distance {nearest:.6g}")
        weights = np.exp(log_weights - log_weights.max())
        notes = (note for note in self.notes if not note.startswith("weighted from a run at"))
        return replace(
            self,
            weights=weights / weights.sum(),
            run_weights=before,
            settings={**self.settings, "eps": new.eps, "run_eps": kernel.eps},
            notes=(*notes, f"weighted from a run at eps = {kernel.eps:g} to eps = {new.eps:g}"),
        )

    def over(
        self,
        eps: Sequence[float] | Array,
        functions: Mapping[str, Callable[..., Array]] | None = None,
        probability: float = 0.95,
    ) -> ToleranceCurve:
        """Estimates with their intervals over a range of tolerances from one run: `at` for each eps.

        A run at a tolerance larger than needed thus shows how its answer changes with eps, and how small an eps its
        draws support. `functions` are further quantities, as in `efficiency`; by default the parameters. The intervals
        are those of the Monte Carlo error, with `probability`. They come from one run and are not independent.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.pseudo_marginal(model, od.uniform(1.0), draws=200, chains=64, seed=1)
        >>> points = post.over([1.0, 0.5, 0.25])["theta"]
        >>> [point.low < point.mean < point.high for point in points]
        [True, True, True]
        """
        from statistics import NormalDist

        try:
            wanted = np.sort(np.unique(numbers(eps).reshape(-1)))[::-1].tolist()
        except (TypeError, ValueError):
            wanted = []
        if not wanted:
            raise ValueError(f"eps must hold at least one tolerance, as in over([0.5, 0.25]), got {shown(eps)}")
        probability = share("probability", probability, "the interval's content")
        reach = NormalDist().inv_cdf(0.5 + probability / 2)
        points: dict[str, tuple[TolerancePoint, ...]] = {}
        for one in wanted:
            there = self.at(one)
            for name, values in function_values(there, functions).items():
                mean, error, ess, *_ = monte_carlo(values, there.drawn)
                point = TolerancePoint(one, mean, mean - reach * error, mean + reach * error, error, ess)
                points[name] = (*points.get(name, ()), point)
        return ToleranceCurve(points, probability)

    @property
    def log_evidence(self) -> LogEvidence:
        """Log of the prior mean of K at the posterior's tolerance, with its standard error (docs/model_choice.md).

        With the uniform kernel it is the probability that a simulation from the prior is within eps. Ratios of two
        models are meaningful if kernel, eps and distance are the same; `od.compare` ensures that. Rejection, importance
        and smc estimate it. A chain cannot, but its draws make a proposal for importance, which can.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> found = od.rejection(model, od.uniform(0.5), budget=5000, seed=1).log_evidence
        >>> exact = stats.norm(0, 2**0.5).cdf(2.5) - stats.norm(0, 2**0.5).cdf(1.5)
        >>> bool(abs(found.value - np.log(exact)) < 3 * found.se), found.kernel, found.eps
        (True, 'uniform', 0.5)
        """
        if self.evidence is None or self.kernel is None:
            raise ValueError(without_evidence(self))
        value, se = self.evidence
        kernel, eps = self.kernel, float(self.settings["eps"])
        if "run_eps" in self.settings and self.distances is not None:
            distances = self.distances.reshape(-1, 1 if self.distances.ndim == 2 else self.distances.shape[2])
            before = None if self.run_weights is None else self.run_weights.reshape(-1)
            groups = None if self.groups is None else self.groups.reshape(-1)
            value, se = lowered_evidence(value, se, log_ratios(kernel, eps, distances), before, groups)
        return LogEvidence(value, se, kernel.name, eps)

    def kernel_for_at(self) -> Kernel:
        """The run's kernel if `at` can weight its draws; otherwise a ValueError that says why not."""
        if self.kernel is None:
            tried = "chose its neighbourhood of the nearest simulations by trial"
            why = tried if self.settings.get("adjustment") else "used an estimator or kernel of its own"
            if self.method == "learnt likelihood":
                why = "has learnt the likelihood, which needs no tolerance"
            raise ValueError(f"at(eps) needs a run with a kernel: this one {why}")
        if self.distances is None and "continuation" in self.settings:
            raise ValueError(
                "at(eps) needs one distance for each simulation, and weights of od.multifidelity come from two: run "
                "again at the other tolerance; a run of od.stages keeps what is needed with keep='distances'"
            )
        if self.distances is None:
            raise ValueError(
                "at(eps) needs the distance of every pseudo-sample, which this run did not keep: run again with "
                "keep='distances'"
            )
        return self.kernel

    def adjust(self, *, draws: int | None = None, seed: int | None = None) -> "Posterior":
        """The posterior after a regression adjustment, if held-out simulations near the data show that it helps.

        It needs the summaries of the simulations: `od.rejection(..., keep="summaries")` and
        `od.importance(..., keep="all")` keep them. Whether the draws were adjusted, and why, is in `notes`
        (docs/choosing.md). `draws` of equal weight are drawn from the smoothed result, by default as many as there are.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.rejection(model, od.uniform(1.5), draws=2_000, seed=1, keep="summaries")
        >>> adjusted = post.adjust(seed=1)
        >>> adjusted.shape
        (1, 2000)
        """
        return cast(Posterior, HIGHER["adjust"](self, draws, seed))

    def sample(self, n: int, *, seed: int | None = None) -> dict[str, Array]:
        """n draws with equal weights, drawn from these with replacement: {name: (n,)}.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1).at(0.1)
        >>> post.sample(20, seed=1)["theta"].shape
        (20,)
        """
        n = whole_number("n", n, "the number of draws")
        pick = self._pick(n, seed)
        return {name: flattened(values)[pick] for name, values in self.draws.items()}

    def _pick(self, n: int, seed: int | None) -> Array:
        size = math.prod(self.shape)
        if size == 0:
            raise ValueError("there are no draws to sample from: nothing was accepted")
        width = sum(array.size for array in self.draws.values()) // size
        if n * width > MOST_AT_ONCE:
            raise ValueError(
                f"n = {n:,} draws of {width} numbers would take {8 * n * width / 1e9:,.0f} GB: take at most "
                f"{MOST_AT_ONCE // width:,} at a time, each time with another seed"
            )
        rng = Rng(seed_or_fresh(self.seed if seed is None else seed), Phase.RESAMPLE).bulk(Purpose.MOVE)
        if self.weights is None:
            return rng.integers(0, size, n)
        check_signs(self.weights)
        return rng.choice(size, n, p=self.weights.reshape(-1))

    def predict(self, n: int, *, seed: int | None = None, data: bool = False) -> Any:
        """Posterior predictive simulations: n new pseudo-samples at n draws, in the form of the model's summary.

        With `data=True` they are the simulated data themselves, in the form of the observed data, which must be
        numbers then. Failed simulations are rows of NaN. The simulations are not added to this run's cost.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
        >>> post.predict(50, seed=1).shape
        (50,)
        """
        model = self.model_for("predict")
        n = whole_number("n", n, "the number of predictive simulations")
        # A model without a summary compares the data themselves.
        model = model.with_summary(None) if true_or_false("data", data) else model
        rng = Rng(seed_or_fresh(self.seed if seed is None else seed), Phase.PREDICT)
        return model.recipe.layout.restore(model.simulate_rows(rng, self.picked(n, seed), np.arange(n)).rows[:, 0, :])

    def model_for(self, what: str) -> Model:
        """The model to simulate from; a ValueError that names `what` needs it if there is none."""
        if self.model is None:
            raise ValueError(
                f"{what} needs a model to simulate from: this run used an estimator of its own, or was read from a "
                "file, which holds no functions: od.load(file, model)"
            )
        return self.model

    def picked(self, n: int, seed: int | None) -> Array:
        """n draws with equal weights, as rows of theta (n, dim)."""
        n = whole_number("n", n, "the number of draws")
        return np.asfortranarray(points(self.columns)[self._pick(n, seed)])

    def misfit(
        self,
        n: int = 200,
        *,
        prior: int | None = None,
        checks: Mapping[str, Callable[[Any], Any]] | None = None,
        seed: int | None = None,
    ) -> Any:
        """Whether the data can come from the model at all, and which summaries are to blame (docs/did_it_work.md).

        The data are compared with n simulations at posterior draws, and with `prior` simulations from the prior (by
        default n; with 0, those of `od.infer` itself are used, if there are any). Under the model the p-value of the
        second is uniform, and that of the first conservative. The simulations are not added to this run's cost.

        What the summary leaves out is compared too: extremes, skewness, tails and autocorrelation of the raw data, and
        your own `checks`, a dict of functions that take one data set and return one number.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> data = np.random.default_rng(1).standard_t(2, size=100)
        >>> model = od.Model(od.Prior(mu=stats.norm(0, 3), sigma=stats.uniform(0.1, 5)),
        ...                  lambda rng, mu, sigma: rng.normal(mu, sigma, size=100), data,
        ...                  summary=lambda y: [y.mean(), y.std()])
        >>> post = od.infer(model, budget=500, seed=1)
        >>> found = post.misfit(checks={"range": np.ptp}, seed=1)
        >>> found.p < 0.01, found.posterior.blamed[0].label in ("tails", "skewness", "range", "minimum", "maximum")
        (True, True)
        """
        return HIGHER["misfit"](self, n, prior, checks, seed)

    def resample(self, draws: int | None = None, *, seed: int | None = None) -> "Posterior":
        """Equally weighted draws from these, by default as many as the effective number of draws.

        Each draw represents an equal part of the posterior, so means change little.
        They have no chains. With more `draws` than that, summaries still state the errors of the original.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1).at(0.1)
        >>> equal = post.resample()
        >>> equal.weights is None, equal.shape == (1, int(post.summary()["theta"].ess))
        (True, True)
        """
        return cast(Posterior, HIGHER["resample"](self, draws, seed))

    def to_dataframe(self, *, weighted: bool = False, draws: int | None = None, seed: int | None = None) -> Any:
        """The draws as a pandas DataFrame, a column for each parameter, and for each entry of a vector.

        Draws with weights, and more draws than there are simulations behind them, are resampled to equal weights, to
        the effective number of draws or `draws` (see `resample`). With `weighted=True` it has all draws as
        they are, and their weights in a column "weight".

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
        >>> post.to_dataframe().shape
        (500, 1)
        >>> list(post.at(0.1).to_dataframe(weighted=True))
        ['theta', 'weight']
        """
        return HIGHER["to_dataframe"](self, weighted, draws, seed)

    def to_datatree(
        self,
        *,
        weighted: bool = False,
        draws: int | None = None,
        predictive: int | None = None,
        seed: int | None = None,
    ) -> Any:
        """The draws as an xarray DataTree in ArviZ's groups.

        These are posterior and sample_stats and, if the run has its model, prior, posterior_predictive and
        observed_data. ArviZ does not support weights: draws with weights, and more draws than there are simulations
        behind them, are resampled to equal weights, to the effective number or `draws` (see `resample`). So are
        many chains that are too short for ArviZ. With `weighted=True` the draws are as they are, with their weights in
        sample_stats. `predictive` is the number of new simulations; by default 200, or as many as take 20 seconds.

        A vector has a further axis, as ArviZ names it: `beta_dim_0`.

        A further group, monte_carlo_error, has for each parameter the mean, the sd and some quantiles, each with its
        value, mcse and ess.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> tree = od.rejection(model, od.uniform(0.5), draws=500, seed=1).to_datatree()
        >>> tree["posterior"]["theta"].shape, tree["posterior_predictive"]["observed"].shape
        ((1, 500), (1, 200))
        """
        return HIGHER["to_datatree"](self, weighted, draws, predictive, seed)

    @property
    def simulations(self) -> "SimulatedData":
        """All simulations that the run has kept, as arrays: `theta, x = post.simulations`.

        theta is (n, parameters), a column for each of `columns`, and x is (n, summaries), without those that failed:
        what sbi's `append_simulations` and BayesFlow take. `od.infer` keeps all of them, `od.importance(...,
        keep="all")` too, and `od.rejection` those accepted with keep="summaries". `od.load` gives those of a file, with
        keep="all" of rejection also those that were rejected. Only simulations of `od.rejection` with keep="all" are at
        draws from the prior.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> theta, x = od.infer(model, budget=500, seed=1).simulations
        >>> theta.shape, x.shape
        ((500, 1), (500, 1))
        """
        if self.kept is not None:
            return self.kept if isinstance(self.kept, SimulatedData) else cast(SimulatedData, self.kept.data())
        if self.bank is None or self.bank.rows is None:
            raise ValueError(
                "this run has not kept its simulations: od.infer does, od.importance with keep='all', and od.rejection "
                "with keep='summaries', or keep='all' and a file that od.load reads"
            )
        return SimulatedData.of(self.bank.theta, self.bank.rows)

    def observed(self, data: Any, *, draws: int = 10_000, seed: int | None = None) -> "Posterior":
        """The posterior of another data set, from the simulations of this run of `od.infer` and no new ones.

        The estimate is chosen again, at simulations near these data, and `notes` say how far to trust it: whether the
        data are far from all simulations, or the posterior lies where there are few. `od.load(file, model)` gives a
        Posterior that can do the same. `od.infer(model, budget=..., bank=post)` adds simulations for the other data.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> post = od.infer(model, budget=1000, seed=1)
        >>> other = post.observed(-1.0, seed=1)
        >>> bool(abs(other.summary()["theta"].mean + 0.5) < 0.1), other.cost.simulations
        (True, 0)
        """
        return cast(Posterior, HIGHER["observed"](self, data, draws, seed))

    def plot(self, what: str = "marginals", **options: Any) -> Any:
        """A matplotlib Figure of a kind of `od.plots`: "marginals", "corner", "traces", "predictive" and others.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> figure = od.rejection(model, od.uniform(0.5), draws=500, seed=1).plot()
        >>> len(figure.axes)
        1
        """
        return HIGHER["plot"](self, what, **options)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        predictive: int | None = None,
        checks: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> Path:
        """Write the results of this run, and whether to trust them, as one offline HTML file; returns its path.

        `predictive` is the number of new simulations that are compared with the data: 0 for none; by default 200, or
        as many as take 20 seconds. `checks` are those of `misfit`.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = f"{folder.name}/run.html"
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
        >>> post.report(file, predictive=20).name
        'run.html'
        >>> folder.cleanup()
        """
        return cast(Path, HIGHER["report"](self, path, predictive=predictive, checks=checks).path)

    def __repr__(self) -> str:
        chains, draws = self.shape
        rate = "" if math.isnan(self.acceptance_rate) else f", acceptance rate {self.acceptance_rate:.4g}"
        return (
            f"Posterior({self.settings.get('algorithm')}: {', '.join(self.names)}; {chains} x {draws} draws, "
            f"{self.cost.simulations:,} simulations{rate}; {self.status.message})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: what it is, the summary with its intervals as bars, and what it cost."""
        chains, draws = self.shape
        size = f"{draws:,} draws" if chains == 1 else f"{chains:,} chains of {draws:,} draws"
        spent = f"{self.cost.simulations:,} simulations, {self.cost.seconds:.3g} s"
        failed = f", {self.cost.failed:,} failed" if self.cost.failed else ""
        head = markup.heading(f"Posterior of {', '.join(self.names)}", f"{self.method}; {size}; {spent}{failed}")
        told = markup.lines([self.status.message])
        return markup.block(head, told, self.summary()._repr_html_() if draws else "")


def flattened(values: Array) -> Array:
    """Draws (chains, draws, ...) of all chains one after the other, (n, ...)."""
    return values.reshape(-1, *values.shape[2:])


def listed(post: Posterior) -> str:
    """The parameters, in words, and what entries of vectors are called."""
    vectors = [name for name in post.names if post.draws[name].ndim > 2]
    more = f"; entries of a vector are called {vectors[0]}[0], {vectors[0]}[1], ..." if vectors else ""
    return f"the parameters are {', '.join(post.names)}{more}"


def log_ratios(kernel: Kernel, eps: float, distances: Array) -> Array:
    """Log of mean K at a smaller tolerance over mean K at that of the kernel, of distances (..., M).

    A start that was given has no distance yet (inf) and no weight.
    """
    new, log_run = kernel.with_eps(eps), kernel.log_average(distances)
    return np.where(np.isneginf(log_run), -np.inf, new.log_average(distances) - np.maximum(log_run, -1e300))


def without_evidence(post: Posterior) -> str:
    """Why a posterior has no evidence, and what to do."""
    algorithm, spent = post.settings.get("algorithm"), post.cost.proposals
    if post.kernel is None and post.evidence is not None:
        return "log_evidence is that of a run's own draws: ask the Posterior before it was adjusted or resampled"
    if algorithm in ("rejection", "smc", "importance") and post.shape[1] == 0:
        bound = (
            f" of {spent:,} proposals: it is below log(3/{spent:,}) = {math.log(3 / spent):.3g} (95 %)" if spent else ""
        )
        return f"log_evidence is not known, since nothing was accepted{bound}; raise eps or the budget"
    if algorithm == "infer":
        return "od.infer has no kernel, and its evidence has no tolerance to state: compare models with od.compare"
    if post.kernel is None:
        return "log_evidence needs a run with a kernel: od.rejection, od.importance or od.smc"
    if algorithm in ("rejection", "smc", "importance"):
        return "log_evidence is not known for this file: make the run again"
    return (
        f"{algorithm} is a chain: it visits parameters in proportion to the posterior and never sees the constant. Its "
        f"draws make a proposal for a run that does: od.importance(model, budget=..., kernel=od.{post.kernel.name}"
        f"({post.kernel.eps:g}), proposal=post).log_evidence"
    )


def points(draws: Mapping[str, Array]) -> Array:
    """Draws of each number by name (`Posterior.columns`) as rows of theta, (n, dim).

    >>> points({"a": np.array([[1, 2]]), "b": np.array([[3, 4]])}).tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    return np.column_stack([np.reshape(values, -1) for values in draws.values()]).astype(float)


def check_functions(functions: Any, names: tuple[str, ...]) -> None:
    """A ValueError, before anything is simulated, if `functions` are not functions of draws, by name."""
    if functions is None:
        return
    if not isinstance(functions, Mapping) or not functions:
        raise ValueError(f"functions must be a dict of functions of the parameters by name, got {shown(functions)}")
    for name, function in functions.items():
        if not callable(function):
            raise ValueError(f"functions[{name!r}] must be a function of {', '.join(names)}, got {shown(function)}")


def function_values(post: Posterior, functions: Mapping[str, Callable[..., Any]] | None) -> dict[str, Array]:
    """f along the chains, (chains, draws): the parameters, or the functions given in their place."""
    if functions is None:
        return {name: np.asarray(values, dtype=float) for name, values in post.columns.items()}
    check_functions(functions, post.names)
    found = {}
    for name, function in functions.items():
        wanted = parameters_of(f"functions[{name!r}]", function, post.names)
        try:
            values = np.asarray(function(**{one: post.draws[one] for one in wanted}), dtype=float)
        except FAULTS as error:
            raise ValueError(
                f"functions[{name!r}] failed ({told(error)}): it is called with the draws of "
                f"{', '.join(wanted)} by name, as arrays (chains, draws), vectors (chains, draws, size)"
            ) from error
        if values.shape != post.shape:
            raise ValueError(f"functions[{name!r}] returned shape {values.shape}: expected {post.shape}, as the draws")
        if not np.isfinite(values).all():
            raise ValueError(f"functions[{name!r}] is not finite everywhere: leave such functions out")
        found[name] = values
    return found
