"""Posterior: the draws of a run with everything that says what they are worth."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onedraw.arguments import one_of, positive, seed_or_fresh, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.model.kernels import EPS_MEANING, Kernel
from onedraw.model.model import Model
from onedraw.model.simulator import Failure
from onedraw.results.summary import Over, Point, Row, Summary, describe, ratio_error

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from onedraw.results.efficiency import Efficiency

R_HAT_LIMIT, ESS_LIMIT = 1.01, 100


class Status(NamedTuple):
    """How a run ended.

    `reason` is "finished", "budget", "max_seconds", "interrupted" (Ctrl-C), "terminated" (SIGTERM), or "unfinished"
    for a file whose run still goes on or was killed.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
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
    """(n, M), inf where the simulation failed."""
    log_weight: Array
    """(n,) log of pi over the mixture of all proposals, K not included."""
    rows: Array | None
    """Summaries (n, M, s) where they were kept."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """Draws from pi_K, the prior weighted by how well simulations match the data.

    `draws[name]` has shape (chains, draws); for rejection there is one row. Arrays are read-only.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
    >>> post.names, post.shape
    (('theta',), (1, 500))
    >>> bool(abs(post.draws["theta"].mean() - 1.0) < 0.15)
    True
    """

    draws: Mapping[str, Array]
    """By parameter, (chains, draws)."""
    weights: Array | None
    """None for equal weights, otherwise (chains, draws), summing to 1."""
    distances: Array | None
    """Distances of each draw's pseudo-samples: (chains, draws) for M = 1, (chains, draws, M) for more; None where
    they were not kept."""
    acceptance_rate: float
    """Accepted share of all proposals (held steps are not proposals)."""
    acceptance_rate_se: float
    """Its standard error."""
    cost: Cost
    """What the run has spent."""
    status: Status
    """How it ended."""
    seed: int
    """The seed, given or drawn: with it the same call makes the run again."""
    settings: Mapping[str, Any]
    """What the run was asked to do, and what it has chosen itself: algorithm, kernel, eps, ..."""
    failures: tuple[Failure, ...] = ()
    """The first failed simulations; `cost.failed` counts all."""
    model: Model | None = field(default=None, repr=False)
    """The run's model; None where it came from a file."""
    kernel: Kernel | None = None
    """The run's kernel, with its eps; None where it had none."""
    independent: bool = False
    """Whether the draws are independent of each other (rejection)."""
    notes: tuple[str, ...] = ()
    """What a reader should know, in plain words."""
    groups: Array | None = field(default=None, repr=False)
    """Of weighted draws that have ancestors in common: (chains, draws) whole numbers, equal for draws whose errors
    may go together. None where there are no such draws."""
    path: tuple[Any, ...] = ()
    """Of a sequential run: its stages, each with eps, acceptance_rate, proposals, simulations and ess."""
    run_weights: Array | None = field(default=None, repr=False)
    """The weights that the run itself gave, before `at`."""
    bank: Any = field(default=None, repr=False)
    """Every simulation of a run that kept them: see `Simulations`."""
    effective: float | None = None
    """How many independent draws these are worth, where they come from fewer simulations than there are draws."""

    def __post_init__(self) -> None:
        for array in (*self.draws.values(), self.weights, self.distances, self.groups, self.run_weights):
            if array is not None:
                array.flags.writeable = False
        object.__setattr__(self, "draws", MappingProxyType(dict(self.draws)))
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters."""
        return tuple(self.draws)

    @property
    def shape(self) -> tuple[int, int]:
        """(chains, draws)."""
        chains, draws = next(iter(self.draws.values())).shape
        return chains, draws

    @property
    def longest_stall(self) -> int:
        """The most steps in a row in which a chain did not move (a multiple of thin); 0 for independent draws."""
        chains, draws = self.shape
        if self.independent or draws < 2:
            return 0
        # Where the state changes, with sentinels at both ends: the longest gap is the longest stall.
        moved = np.ones((chains, draws + 1), dtype=bool)
        moved[:, 1:-1] = self._moves()
        gaps = np.diff(np.flatnonzero(moved.ravel()))
        return int(gaps.max() - 1) * int(self.settings.get("thin", 1))

    def _moves(self) -> Array:
        """(chains, draws - 1): whether any parameter changed from a kept draw to the next."""
        return np.any([np.diff(values, axis=1) != 0 for values in self.draws.values()], axis=0)

    def _doubts(self, rows: Mapping[str, Row]) -> list[str]:
        """What the draws of chains give reason to doubt, in plain words."""
        chains, draws = self.shape
        if self.independent or self.weights is not None or draws < 2:
            return []
        doubts = []
        still = chains - int(np.count_nonzero(self._moves().any(axis=1)))
        if still:
            doubts.append(f"{still} of {chains} chains never moved: run longer, raise eps, or use smaller steps")
        unmixed = [name for name, row in rows.items() if row.r_hat > R_HAT_LIMIT]
        if unmixed:
            doubts.append(f"R-hat of {', '.join(unmixed)} is above {R_HAT_LIMIT}: the chains do not agree yet")
        thin = [name for name, row in rows.items() if not row.ess >= ESS_LIMIT]
        if thin:
            doubts.append(f"ESS of {', '.join(thin)} is below {ESS_LIMIT}: the numbers above are rough; run longer")
        return doubts

    def summary(self, hdi_prob: float = 0.9) -> Summary:
        """Mean, sd, highest density interval, Monte Carlo error, ESS and R-hat of each parameter.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
        ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
        >>> summary = post.summary()
        >>> summary["theta"].hdi_low < summary["theta"].mean < summary["theta"].hdi_high
        True
        """
        if not 0 < hdi_prob < 1:
            raise ValueError(f"hdi_prob must lie between 0 and 1, got {hdi_prob!r}: it is the interval's content")
        rows = {
            name: describe(values, self.weights, self.independent, hdi_prob, self.groups)
            for name, values in self.draws.items()
        }
        if self.effective is not None:
            rows = {name: row.worth(self.effective) for name, row in rows.items()}
        return Summary(rows, hdi_prob, (*self.notes, *self._doubts(rows)))

    def efficiency(self, functions: Mapping[str, Callable[..., Array]] | None = None) -> "Efficiency":
        """Asymptotic variance, autocorrelation time and ESS per simulation and second: see `results.efficiency`.

        `functions` are further quantities, {"name": function of the parameters as arrays by name}.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
        ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
        >>> post = od.pseudo_marginal(model, od.uniform(0.5), draws=500, chains=64, seed=1)
        >>> post.efficiency({"square": lambda theta: theta**2})["square"].kappa.value > 1
        True
        """
        if self.effective is not None:
            raise ValueError(
                f"efficiency is for the draws of a sampler: these come from a smoothed estimate, worth about "
                f"{self.effective:.0f} independent draws, as summary() says"
            )
        from onedraw.results.efficiency import efficiency

        return efficiency(self, functions)

    def at(self, eps: float) -> "Posterior":
        """The posterior at a smaller tolerance, from the same run: the draws with new weights.

        A draw with distances d_1..d_M gets its weight in the run (equal for most samplers) times
        mean K_eps'(d_i) / mean K_eps(d_i) (docs/theory.md; Vihola and Franks 2020). A larger tolerance would need
        simulations that were thrown away, and is refused.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
        ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
        >>> smaller = post.at(0.1)
        >>> smaller.settings["eps"], int((smaller.weights > 0).sum()) < 500
        (0.1, True)
        """
        kernel = self._kernel_for_at()
        new = kernel.with_eps(positive("eps", eps, EPS_MEANING))
        if new.eps > kernel.eps:
            raise ValueError(
                f"eps = {eps} is larger than the run's {kernel.eps}: the run says nothing about distances it never "
                "accepted; run again at the larger eps, and use at() to come down"
            )
        assert self.distances is not None
        distances = self.distances[..., None] if self.distances.ndim == 2 else self.distances
        # A start that was given has no distance yet (inf) and no weight.
        log_run = kernel.log_average(distances)
        log_weights = np.where(np.isneginf(log_run), -np.inf, new.log_average(distances) - np.maximum(log_run, -1e300))
        before = self._weights_of_the_run()
        if before is not None:
            with np.errstate(divide="ignore"):
                log_weights = log_weights + np.log(before)
        if not np.isfinite(log_weights).any():
            nearest = float(distances.min()) if distances.size else math.nan
            raise ValueError(f"no draw is within eps = {eps}: the nearest simulation is at distance {nearest:.6g}")
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        note = f"weighted from a run at eps = {kernel.eps:g} to eps = {new.eps:g}"
        return replace(
            self,
            weights=weights,
            run_weights=before,
            distances=self.distances,
            kernel=self.kernel,
            settings={**self.settings, "eps": new.eps, "run_eps": kernel.eps},
            notes=(*self._notes_of_the_run(), note),
        )

    def over(
        self,
        eps: Sequence[float] | Array,
        functions: Mapping[str, Callable[..., Array]] | None = None,
        probability: float = 0.95,
    ) -> Over:
        """Estimates with their intervals over a range of tolerances from one run: `at` for each eps.

        A run at a tolerance larger than needed thus shows how its answer changes with eps, and how far down its draws
        carry. `functions` are further quantities, as in `efficiency`; by default the parameters. The intervals are
        those of the Monte Carlo error, with `probability`. They come from one run and are not independent.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
        ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
        >>> post = od.pseudo_marginal(model, od.uniform(1.0), draws=200, chains=64, seed=1)
        >>> points = post.over([1.0, 0.5, 0.25])["theta"]
        >>> [point.low < point.mean < point.high for point in points]
        [True, True, True]
        """
        from statistics import NormalDist

        from onedraw.results.efficiency import function_values

        wanted = np.sort(np.unique(np.asarray(eps, dtype=float).reshape(-1)))[::-1].tolist()
        if not wanted:
            raise ValueError("eps must hold at least one tolerance, as in over([0.5, 0.25])")
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie between 0 and 1, got {probability!r}: it is the interval's content")
        reach = NormalDist().inv_cdf(0.5 + probability / 2)
        points: dict[str, list[Point]] = {}
        for one in wanted:
            there = self.at(one)
            weights = there.weights
            assert weights is not None
            for name, values in function_values(there, functions).items():
                values = np.asarray(values, dtype=float)
                mean = float((weights * values).sum())
                variance = float((weights * (values - mean) ** 2).sum())
                error = ratio_error(values, weights, self.independent, self.groups)
                ess = variance / error**2 if error > 0 else math.nan
                point = Point(one, mean, mean - reach * error, mean + reach * error, error, ess)
                points.setdefault(name, []).append(point)
        return Over({name: tuple(some) for name, some in points.items()}, probability)

    def _weights_of_the_run(self) -> Array | None:
        return self.run_weights if "run_eps" in self.settings else self.weights

    def _notes_of_the_run(self) -> tuple[str, ...]:
        return tuple(note for note in self.notes if not note.startswith("weighted from a run at"))

    def _kernel_for_at(self) -> Kernel:
        if self.kernel is None:
            tried = "chose its region of the nearest simulations by trial"
            why = tried if self.settings.get("adjustment") else "used an estimator or kernel of its own"
            raise ValueError(f"at(eps) needs a run with a kernel: this one {why}")
        if self.distances is None:
            raise ValueError(
                "at(eps) needs the distance of every pseudo-sample, which this run did not keep: run again with "
                "keep_distances=True"
            )
        return self.kernel

    def adjust(self, *, draws: int | None = None, seed: int | None = None) -> "Posterior":
        """The posterior after a regression adjustment, where held-out simulations near the data say that it helps.

        It needs the summaries of the simulations: `od.rejection(..., keep="summaries")` and
        `od.importance(..., keep_rows=True)` keep them. Whether the draws were adjusted, and why, is in `notes`
        (docs/choosing.md). `draws` of equal weight are drawn from the smoothed result, by default as many as there are.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
        ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
        >>> post = od.rejection(model, od.uniform(1.5), draws=2_000, seed=1, keep="summaries")
        >>> adjusted = post.adjust(seed=1)
        >>> adjusted.shape
        (1, 2000)
        """
        from onedraw.results.adjustment import adjusted

        return adjusted(self, draws, seed)

    def sample(self, n: int, *, seed: int | None = None) -> dict[str, Array]:
        """n draws with equal weights, drawn from these with replacement: {name: (n,)}.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
        ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1).at(0.1)
        >>> post.sample(20, seed=1)["theta"].shape
        (20,)
        """
        n = whole_number("n", n, "the number of draws")
        return {name: values.reshape(-1)[self._pick(n, seed)] for name, values in self.draws.items()}

    def _pick(self, n: int, seed: int | None) -> Array:
        size = math.prod(self.shape)
        if size == 0:
            raise ValueError("there are no draws to sample from: nothing was accepted")
        rng = Rng(seed_or_fresh(self.seed if seed is None else seed), Phase.RESAMPLE).bulk(Purpose.MOVE)
        if self.weights is None:
            return rng.integers(0, size, n)
        return rng.choice(size, n, p=self.weights.reshape(-1))

    def predict(self, n: int, *, seed: int | None = None) -> Any:
        """Posterior predictive simulations: n new pseudo-samples at n draws, in the form of the model's summary.

        Failed simulations are rows of NaN. The simulations are not added to this run's cost.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
        ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
        >>> post.predict(50, seed=1).shape
        (50,)
        """
        if self.model is None:
            raise ValueError(
                "predict needs a model to simulate from: this run used an estimator of its own, or was read from a "
                "file, which holds no functions"
            )
        n = whole_number("n", n, "the number of predictive simulations")
        pick = self._pick(n, seed)
        theta = np.column_stack([values.reshape(-1)[pick] for values in self.draws.values()]).astype(float)
        rng = Rng(seed_or_fresh(self.seed if seed is None else seed), Phase.PREDICT)
        rows = self.model.simulate_rows(rng, np.asfortranarray(theta), np.arange(n)).rows[:, 0, :]
        return self.model.recipe.layout.restore(rows)

    def to_datatree(self) -> Any:
        """The draws as an xarray DataTree in ArviZ's groups: posterior, sample_stats, observed_data.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
        ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
        >>> tree = od.rejection(model, od.uniform(0.5), draws=500, seed=1).to_datatree()
        >>> tree["posterior"]["theta"].shape
        (1, 500)
        """
        try:
            import xarray
        except ImportError as error:
            raise ImportError("to_datatree needs xarray: pip install 'onedraw[arviz]'") from error
        chains, draws = self.shape
        coords = {"chain": np.arange(chains), "draw": np.arange(draws)}
        dims = ("chain", "draw")
        attrs = {
            "inference_library": "onedraw",
            "seed": str(self.seed),
            "status": self.status.message,
            "acceptance_rate": self.acceptance_rate,
            **{f"cost_{name}": value for name, value in self.cost._asdict().items()},
            **{f"setting_{name}": str(value) for name, value in self.settings.items()},
        }
        stats: dict[str, Any] = {}
        if self.weights is not None:
            stats["weight"] = (dims, self.weights)
        if self.groups is not None:
            stats["group"] = (dims, self.groups)
        if self.distances is not None:
            more = ("pseudo_sample",) if self.distances.ndim == 3 else ()
            stats["distance"] = ((*dims, *more), self.distances)
        groups = {
            "posterior": xarray.Dataset({k: (dims, v) for k, v in self.draws.items()}, coords, attrs),
            "sample_stats": xarray.Dataset(stats, coords),
        }
        if self.model is not None:
            observed = self.model.recipe.layout.restore(self.model.observed_row)
            parts = observed if isinstance(observed, dict) else {"observed": observed}
            groups["observed_data"] = xarray.Dataset(
                {key: (tuple(f"{key}_{i}" for i in range(part.ndim)), part) for key, part in parts.items()}
            )
        return xarray.DataTree.from_dict(groups)

    def plot(self, what: str = "marginals", **options: Any) -> Any:
        """A matplotlib Figure: "marginals", "pairs", "traces", "predictive" or "path" (see `od.plots`).

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
        ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
        >>> figure = od.rejection(model, od.uniform(0.5), draws=500, seed=1).plot()
        >>> len(figure.axes)
        1
        """
        from onedraw.report import plots

        known = ("marginals", "pairs", "traces", "predictive", "path")
        return getattr(plots, one_of("what", what, known))(self, **options)

    def report(self, path: "str | os.PathLike[str]", *, predictive: int | None = None) -> "Path":
        """Write what this run says, and whether to trust it, as one HTML file that opens offline; returns its path.

        `predictive` is the number of new simulations that are compared with the data: 0 for none; by default 200, or
        as many as take 20 seconds.

        >>> import onedraw as od
        >>> from scipy import stats
        >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
        ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = f"{folder.name}/run.html"
        >>> post = od.rejection(model, od.uniform(0.5), draws=500, seed=1)
        >>> post.report(file, predictive=20).name
        'run.html'
        >>> folder.cleanup()
        """
        from onedraw.report.page import write_report

        return write_report(self, path, predictive=predictive).path

    def __repr__(self) -> str:
        chains, draws = self.shape
        return (
            f"Posterior({self.settings.get('algorithm')}: {', '.join(self.names)}; {chains} x {draws} draws, "
            f"{self.cost.simulations:,} simulations, acceptance rate {self.acceptance_rate:.4g}; {self.status.message})"
        )
