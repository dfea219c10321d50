"""Summary statistics learnt by regression (semi-automatic ABC).

The posterior mean of the parameters, as a function of the data, is the summary that loses least for estimating them;
it is approximated by a ridge regression of parameters on data over simulations. Besides each parameter its distance
from the centre is regressed, so that a parameter of which the data tell only the size is not lost. Columns are divided
by the spread that the regression leaves, which puts distances in units of what the data leave open.

Reference: Fearnhead and Prangle (2012).
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import one_of, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.numba import Compiled
from onedraw.model.model import Model
from onedraw.model.simulator import CHUNK_VALUES, Batched, Failure, JaxSimulator, summarise_observed
from onedraw.results.adjustment import RIDGE, Support, support_of
from onedraw.run.blocks import Block, Deadline, cut, in_order
from onedraw.run.options import Shared, check_model
from onedraw.run.pilot import FromPrior, Piloted, refuse_hopeless
from onedraw.run.pool import hired
from onedraw.run.progress import Progress, Show

PLAIN_BLOCK = 32
"""Simulations a block for simulators that are called once a pseudo-sample."""
TERMS = ("linear", "squares", "products")
LEAST_EXPLAINED = 0.02
"""Share of a parameter's variance that a column must explain to be kept."""
FEWEST_EACH = 5
"""Simulations for each coefficient from which squares and products are used unless asked for."""


@dataclass(frozen=True, eq=False)
class Learnt:
    """A summary: standardised data and their squares or products, times fitted coefficients."""

    centre: Array
    scale: Array
    terms: str
    coefficients: Array
    """(1 + terms, columns)"""

    def __call__(self, rows: Array) -> Array:
        """Rows of data (n, s) to rows of the summary (n, columns)."""
        return _design((rows - self.centre) / self.scale, self.terms) @ self.coefficients


def _design(scaled: Array, terms: str) -> Array:
    parts = [np.ones((len(scaled), 1)), scaled]
    if terms == "squares":
        parts.append(scaled**2)
    elif terms == "products":
        i, j = np.triu_indices(scaled.shape[1])
        parts.append(scaled[:, i] * scaled[:, j])
    return np.concatenate(parts, axis=1)


def terms_for(width: int, simulations: int) -> str:
    """The richest regression on so many columns that so many simulations can carry.

    >>> terms_for(10, 1000), terms_for(100, 1200), terms_for(100, 400)
    ('products', 'squares', 'linear')
    """
    if simulations > FEWEST_EACH * (width * (width + 3) // 2) and width <= 40:
        return "products"
    return "squares" if simulations > FEWEST_EACH * 2 * width else "linear"


def learn(free: Array, rows: Array, weights: Array, terms: str) -> Learnt | None:
    """The summary that regression of parameters (n, dim) on rows (n, s) gives; None where the rows explain nothing."""
    share = weights / weights.sum()
    centre, spread = rows.mean(axis=0), rows.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    middle = share @ free
    deviation = np.sqrt(share @ (free - middle) ** 2)
    scaled = (free - middle) / np.where(deviation > 0, deviation, 1.0)
    targets = np.concatenate([scaled, np.abs(scaled)], axis=1)
    design = _design((rows - centre) / scale, terms)
    weighted = design * share[:, None]
    penalty = np.full(design.shape[1], RIDGE)
    penalty[0] = 1e-10
    coefficients = np.linalg.solve(weighted.T @ design + np.diag(penalty), weighted.T @ targets)
    fitted = design @ coefficients
    left = share @ (targets - fitted) ** 2
    explained = share @ (fitted - share @ fitted) ** 2
    r_squared = explained / np.maximum(explained + left, 1e-300)
    worth = 1.0 / float(np.square(share).sum())
    keep = r_squared > max(LEAST_EXPLAINED, 3.0 * design.shape[1] / worth / 2)
    if not keep.any():
        return None
    return Learnt(centre, scale, terms, coefficients[:, keep] / np.sqrt(np.maximum(left[keep], 1e-12)))


@dataclass(frozen=True, eq=False)
class Composed:
    """A model's own summary followed by the learnt one, for one data set."""

    inner: Any
    flatten: Any
    learnt: Learnt

    def __call__(self, value: Any) -> Array:
        row = self.flatten(summarise_observed(self.inner, value))
        return self.learnt(row[None, :])[0]


@dataclass(frozen=True, eq=False)
class ComposedBatch:
    """The same for a batch."""

    inner: Any
    flatten_batch: Any
    learnt: Learnt

    def __call__(self, values: Any) -> Array:
        n = len(next(iter(values.values())) if isinstance(values, dict) else values)
        if isinstance(self.inner, Compiled):
            return self.learnt(self.flatten_batch([self.inner(one) for one in values], n))
        return self.learnt(self.flatten_batch(values if self.inner is None else self.inner(values), n))


class Fitted(NamedTuple):
    """A model with a learnt summary, and the simulations it was learnt from.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> fitted = od.fit_summary(model, budget=200, seed=1)
    >>> fitted.theta.shape
    (200, 1)
    """

    model: Model
    theta: Array
    """(n, dim) draws from the prior."""
    rows: Array
    """(n, s) summaries of the model that was given, at these draws; NaN where a simulation failed."""
    cost: Cost
    learnt: Learnt
    seed: int


def block_rows(model: Model) -> int:
    """Simulations a block."""
    return PLAIN_BLOCK if model.block is None else max(1, min(model.block, CHUNK_VALUES // model.recipe.width))


def fit_summary(
    model: Model,
    *,
    budget: int,
    terms: str | None = None,
    seed: int | None = None,
    on_error: str = "reject",
    workers: int | None = None,
    executor: Any = None,
    progress: Show = None,
) -> Fitted:
    """Learn a summary of few numbers from simulations, by regression of the parameters on the data.

    Parameters
    ----------
    model
        What to simulate; its own summary, where it has one, is what the regression sees.
    budget
        Simulations to spend. They come back in the result, and `od.infer(fitted, ...)` uses them again.
    terms
        "linear", "squares" (squares too) or "products" (squares and products too); None takes the richest that the
        budget can carry.
    seed, on_error, workers, executor, progress
        As in every sampler: see `od.rejection`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(mu=stats.norm(0, 2)), lambda rng, mu: rng.normal(mu, 1.0, size=20), np.zeros(20))
    >>> fitted = od.fit_summary(model, budget=500, seed=1)
    >>> fitted.model, fitted.cost.simulations
    (Model(mu -> 2 summaries), 500)
    """
    shared = Shared.checked(locals())
    check_model(model)
    budget = whole_number("budget", budget, "the number of simulations to learn from", least=10)
    if terms is not None:
        one_of("terms", terms, TERMS)
    if isinstance(model.simulate, JaxSimulator):
        raise ValueError(
            "od.fit_summary composes NumPy functions, which no program for a device can hold: use od.infer, which "
            "learns from the simulations of an od.jax_simulator by itself, or write the summary with jax.numpy"
        )
    theta: list[Array] = []
    rows: list[Array] = []
    failures: list[Failure] = []
    failed = setups = 0

    def take(block: Block, piloted: Piloted) -> bool:
        nonlocal failed, setups
        result = piloted.result
        theta.append(piloted.theta)
        rows.append(result.rows[:, 0, :])
        failed, setups = failed + result.failed, setups + result.setups
        failures.extend(result.failures[: 1 - len(failures)])
        refuse_hopeless(block.first + block.size, failed, failures, last=block.first + block.size == budget)
        return False

    deadline = Deadline(None)
    bar = Progress(progress, "learn the summary", budget, "simulations")
    with hired(workers, executor, threads=model.compiled):
        reason = in_order(FromPrior(model, shared.seed, on_error), cut(budget, block_rows(model)), take, deadline, bar)
    if reason != "done":
        raise KeyboardInterrupt(f"{reason} while simulations for the summary were made")
    all_theta, all_rows = np.concatenate(theta), np.concatenate(rows)
    good = ~np.isnan(all_rows[:, 0])
    chosen = terms_for(all_rows.shape[1], int(good.sum())) if terms is None else terms
    support: Support = support_of(model.prior)
    learnt = learn(support.free(all_theta[good]), all_rows[good], np.ones(int(good.sum())), chosen)
    if learnt is None:
        raise ValueError(
            f"{int(good.sum())} simulations show no dependence of the data on the parameters: raise budget = {budget}, "
            "or give a summary of your own"
        )
    made = with_learnt(model, learnt)
    cost = Cost(simulations=budget, setups=setups, failed=failed, proposals=budget, seconds=deadline.seconds())
    return Fitted(made, all_theta, all_rows, cost, learnt, shared.seed)


def with_learnt(model: Model, learnt: Learnt) -> Model:
    """The model with the learnt summary behind its own, and Euclidean distance."""
    layout = model.recipe.layout
    whole = model.batched and (model.summary is None or isinstance(model.summary, Batched | Compiled))
    summary: Any = Composed(model.summary, layout.flatten, learnt)
    if whole:
        summary = Batched(ComposedBatch(model.summary, layout.flatten_batch, learnt))
    return replace(model, summary=summary, distance=None)
