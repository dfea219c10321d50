"""Efficiency of a run: ESS per simulation and per second, the time for a given accuracy, the discount of draws.

The variances behind it are those of `monte_carlo_error.py`; docs/theory.md has the terms.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import positive, seed_or_fresh, whole_number
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.model.model import Model
from onedraw.results.monte_carlo_error import Interval, Variances, interval, monte_carlo, variances
from onedraw.results.posterior import Posterior, function_values, points
from onedraw.results.summary import Efficiency, EfficiencyRow, table

TURNS = 6
"""Turns in which simulations or steps are timed; the first is thrown away."""

Function = Callable[..., Any]


class RunningTimeRow(NamedTuple):
    """Running times of one function, in draws of a pseudo-sample with its set-up (docs/theory.md)."""

    steps: float
    """Steps of all chains together (proposals, for rejection) that reach the error: v(f, Q)/error²."""
    serial: float
    """On one processor: steps times c_M."""
    within: float
    """(a) one chain whose M draws are made side by side."""
    across: float
    """(b) as many chains as processors, each with all its M draws."""
    simulations: float
    """Simulations after early rejection, at this run's mean per step."""
    seconds: float
    """At this run's speed, on as many processors as it had."""


@dataclass(frozen=True)
class RunningTime:
    """Times to reach a Monte Carlo error, `running_time(...)["mu"].serial`; printed as a table."""

    rows: dict[str, RunningTimeRow]
    mc_error: dict[str, float]
    pseudo_samples: int
    processors: int
    discount: float
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> RunningTimeRow:
        return self.rows[name]

    def __str__(self) -> str:
        lines = [["", "mc_error", "steps", "serial", "(a) within", "(b) across", "simulations", "seconds"]]
        for name, row in self.rows.items():
            lines.append([name, f"{self.mc_error[name]:.4g}", *(f"{x:.4g}" for x in row)])
        setting = (
            f"M = {self.pseudo_samples}, {self.processors} processors, discount {self.discount:.4g}; serial, (a) and "
            "(b) in draws of one pseudo-sample with its set-up, no early rejection"
        )
        return table(lines, (setting, *self.notes))

    __repr__ = __str__


def step_cost(pseudo_samples: int, discount: float = 1.0) -> float:
    """c_M = 1 + (M − 1)/δ, the nominal cost of a step in steps with one pseudo-sample."""
    return 1 + (pseudo_samples - 1) / discount


def checked_discount(discount: Any) -> float:
    """A discount of at least 1."""
    discount = positive("discount", discount, "how much cheaper further draws at one theta are")
    if discount < 1:
        raise ValueError(f"discount must be at least 1, got {discount!r}: further draws never cost more than the first")
    return discount


def chain_simulations(post: Posterior) -> tuple[float, bool]:
    """Simulations of the chains' own steps, and True; or of the whole run, and False, if they are not known apart.

    A step of Algorithm 2 or 3 asks for M pseudo-samples; those it did not draw are counted as skipped, which pilots
    and starts never are. For a lazy chain, the number of steps that were not held is taken at its expectation.
    """
    settings = post.settings
    if settings.get("algorithm") not in ("pseudo_marginal", "wilkinson"):
        return float(post.cost.simulations), False
    chains, draws = post.shape
    steps = chains * draws * int(settings.get("thin", 1))
    if not steps:
        return 0.0, True
    proposal = settings.get("proposal") or {}
    proposals = steps * (1 - proposal.get("hold", 0.0)) if proposal.get("name") == "lazy" else steps
    return float(int(settings.get("pseudo_samples", 1)) * proposals - post.cost.skipped), True


def efficiency(post: Posterior, functions: Mapping[str, Function] | None = None) -> Efficiency:
    """What `Posterior.efficiency` returns."""
    simulations, own = chain_simulations(post)
    seconds = post.cost.seconds
    size = math.prod(post.shape)
    rows, notes = {}, []
    for name, values in function_values(post, functions).items():
        found = variances(values, post.weights, post.independent)
        ess = monte_carlo(values, post.drawn).ess
        per_simulation = ess / simulations if simulations else math.nan
        per_second = ess / seconds if seconds else math.nan
        rows[name] = EfficiencyRow(name, found, ess, per_simulation, per_second, _kappa_arviz(values, post, found))
        if found.reason:
            notes.append(f"kappa of {name} cannot be estimated: {found.reason}")
    if post.independent:
        kappa = "is 1" if post.weights is None else "says what their weights cost"
        notes.append(f"independent draws: kappa {kappa}; simulations and seconds are those of the whole run")
    elif own:
        notes.append("simulations are those of the chains' own steps; seconds include the pilot and the starts")
    else:
        notes.append("simulations and seconds include the pilot and the starts")
    if int(post.settings.get("thin", 1)) > 1:
        notes.append(f"kappa counts kept draws, each of {post.settings['thin']} steps")
    return Efficiency(rows, size, simulations, seconds, tuple(notes))


def _kappa_arviz(values: Array, post: Posterior, found: Variances) -> float:
    if post.independent or post.weights is not None or values.shape[1] < 4 or not found.v.value > 0:
        return math.nan
    from arviz_stats.base import array_stats

    with np.errstate(divide="ignore", invalid="ignore"):
        return values.size / float(array_stats.ess(values, chain_axis=0, draw_axis=1, method="mean"))


def running_time(
    post: Posterior,
    *,
    mc_error: float | Mapping[str, float],
    processors: int = 1,
    discount: float | str = 1.0,
    functions: Mapping[str, Function] | None = None,
) -> RunningTime:
    """How long this run's algorithm takes to bring the Monte Carlo error of a mean down to `mc_error`.

    Parameters
    ----------
    mc_error
        The standard error wanted of the posterior mean of each function: one number for all, or a dict by name.
        The Monte Carlo variance of docs/theory.md is its square.
    processors
        Of the parallel layouts: (a) one chain whose M draws are made side by side, (b) a chain on each processor.
    discount
        delta: draws after the first at one theta cost 1/delta, so that a step costs c_M = 1 + (M - 1)/delta; or
        "measured", by timing the simulator at draws of the run.
    functions
        As in `efficiency`.

    >>> import onedraw as od
    >>> from onedraw import paper
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.25), draws=1_000, chains=64, seed=1)
    >>> coarse, fine = (paper.running_time(post, mc_error=error)["theta"].serial for error in (0.02, 0.01))
    >>> round(fine / coarse, 6)
    4.0
    """
    processors = whole_number("processors", processors, "the number of processors")
    discount = checked_discount(_discount_of(post) if discount == "measured" else discount)
    found = efficiency(post, functions)
    if isinstance(mc_error, Mapping) and set(mc_error) != set(found.rows):
        raise ValueError(f"mc_error names {sorted(mc_error)}, the functions are {sorted(found.rows)}")
    errors = dict(mc_error) if isinstance(mc_error, Mapping) else dict.fromkeys(found.rows, mc_error)
    errors = {name: positive("mc_error", value, "the standard error wanted") for name, value in errors.items()}
    draws_each = int(post.settings.get("pseudo_samples", 1))
    # Algorithm 1 needs 1/p_acc proposals for a draw.
    algorithm_1 = post.independent and post.acceptance_rate > 0
    per_draw = 1 / post.acceptance_rate if algorithm_1 else float(post.settings.get("thin", 1))
    cost = step_cost(draws_each, discount)
    # Side by side, every processor pays the set-up of its own share of the M draws.
    cost_within = step_cost(math.ceil(draws_each / processors), discount)
    rows = {}
    for name, row in found.rows.items():
        draws = row.variances.v_chain.value / errors[name] ** 2
        steps = draws * per_draw
        share = draws / found.draws if found.draws else math.nan
        costs = (steps * cost, steps * cost_within, steps * cost / processors)
        rows[name] = RunningTimeRow(steps, *costs, share * found.simulations, share * found.seconds)
    return RunningTime(rows, errors, draws_each, processors, discount, found.notes)


def _discount_of(post: Posterior) -> float:
    if post.model is None:
        raise ValueError("discount='measured' needs a model to time: this run used an estimator of its own")
    theta = points(post.columns)[-1024 if post.model.batched else -8 :]
    return measured_discount(post.model, theta=np.asfortranarray(theta), seed=post.seed).value


def measured_discount(model: Model, *, theta: Array | None = None, seed: int | None = None) -> Interval:
    """delta of a simulator alone, in seconds: further draws at one theta cost 1/delta of the first with its set-up.

    Parameters: `theta` (n, dim), where to time it; by default at draws of the prior. A step of a chain has an overhead
    of its own, which acts as a further discount: `od.advise` measures whole steps.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(mu=stats.norm(0, 1)), lambda rng, mu: rng.normal(mu, 1.0), observed=0.0)
    >>> measured_discount(model, seed=1).value >= 1
    True
    """
    seed = seed_or_fresh(seed)
    if theta is None:
        theta = model.prior.sample(np.random.default_rng(seed), 1024 if model.batched else 8)
    many, ratios = 9, []
    with one_blas_thread():
        for turn in range(TURNS):
            seconds = []
            for draws in (1, many):
                began = time.perf_counter()
                model.simulate_rows(Rng(seed, Phase.SEARCH, step=turn), theta, None, draws)
                seconds.append(time.perf_counter() - began)
            ratios.append(seconds[1] / seconds[0])
    each = np.log((many - 1) / np.maximum(np.array(ratios[1:]) - 1, 1e-3))
    value = float(np.exp(np.median(each)))
    # The error of a median is about 1.25 times that of a mean; no further draw can cost more than the first.
    return interval(max(value, 1.0), value * 1.25 * float(each.std(ddof=1)) / math.sqrt(len(each)), len(each) - 1)
