"""The most accurate posterior for a budget: stages that adapt to each other, and an estimate that is tried out.

1. *Pilot*: simulations at draws from the prior, from which the scale of each summary is learnt.
2. *Stages*: the simulations so far are assessed (`results.assessment`): whether a learnt likelihood
   (`results.learnt_likelihood`) or a regression predicts held-out simulations near the data best. The next stage draws
   from normals around draws of the learnt likelihood. If regression is ahead, it draws from the prior, or from normals
   around the nearest draws with local covariances, whichever promises more effective draws near the data: with prior
   draws in the region R, a simulation from q counts as 1 / E_R[pi / q] simulations from the prior; this is measured on
   draws that q was not made from. A simulation at theta has the weight

       w(theta) = pi(theta) / sum_k (n_k / n) q_k(theta),

   whichever q_k it came from, the prior among them, so that every simulation is used to the end. With a bank of earlier
   simulations (`run.earlier`) the first stage already begins with these.
3. *Estimate*: a thorough assessment, and draws of the best estimate. A part of the budget is spent on replicates
   at these draws, to check whether they look like the data.

Reference: docs/choosing.md; Cornuet, Marin, Mira and Robert (2012) for the weights; Filippi et al. (2013) for local
covariances.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, Unpack

import numpy as np

from onedraw.arguments import whole_number
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.failures import NoAnswer
from onedraw.model.coordinates import Support, support_of
from onedraw.model.kernels import uniform
from onedraw.model.model import Model
from onedraw.proposals.mixture import Mixture, normals_around
from onedraw.results.assessment import Assessment, assess, own_distance
from onedraw.results.coverage import coverage_note, measure_coverage
from onedraw.results.diagnostics import predictive_check
from onedraw.results.learned_summary import Fitted
from onedraw.results.learnt_likelihood import LATE_WORK
from onedraw.results.posterior import Posterior
from onedraw.run.bank import DEFENSIVE, Bank, block_size, stage_block
from onedraw.run.blocks import Block, BlockPart, cut, whole_of
from onedraw.run.earlier import (
    MIXTURE,
    ArrayBank,
    as_round,
    bank_round,
    mixture_of,
    packed,
    recorded_bank,
    starting_bank,
)
from onedraw.run.estimate import COMPONENTS, around_estimate, estimated
from onedraw.run.options import Options, RunOptions, check_parts, on_engine
from onedraw.run.plan import Decision, Limits, Outcome, Plan, Round, both, whole_outcome
from onedraw.run.prior_draws import parted
from onedraw.run.registry import sampler
from onedraw.run.result import Result, nothing
from onedraw.run.session import Run
from onedraw.run.signals import Stopped
from onedraw.run.specification import specify_model
from onedraw.run.stage_sizes import check_size, next_size

AHEAD = 0.25
"""Share of all simulations so far, the last by number, that may still be on their way when a stage is decided on."""
SMALL_REST = 0.02
"""A rest of the budget below this share, left by proposals outside the prior, goes to the prior, which makes none."""
TRIAL_COMPONENTS = 200
SCALES = (0.5, 1.0, 2.0, 4.0)
"""Covariances of the normals that are tried, in covariances of a draw's neighbours."""
WORTHWHILE = 1.1
"""Gain over the prior from which a proposal is used."""
CHECK_STAGE = 2**20
"""The number that names the streams of the check."""
INTERIM = 1000
"""Draws of the estimate that a file holds while a run goes on."""
MOST_PROPOSALS = 20
"""Proposals per simulation of the budget after which a run ends: nearly all were outside the prior."""


class Inference(NamedTuple):
    """What stays the same during a run."""

    model: Model
    support: Support
    seed: int
    on_error: str

    def rng(self, stage: int, step: int = 0, purpose: int = Purpose.MOVE) -> np.random.Generator:
        """The stream of one decision after this many stages."""
        return Rng(self.seed, Phase.RESAMPLE, 1 + stage, step).bulk(purpose)

    def estimated(self, bank: Bank, found: Assessment, draws: int, reason: str) -> Result:
        """Draws of the best estimate."""
        return estimated(self.model, bank, found, draws, self.rng(bank.stages, 2), reason)


@dataclass(frozen=True, eq=False)
class ProposeAndSimulate:
    """The pure task of a stage: propose and simulate in one block."""

    run: Inference
    stage: int
    mixture: Mixture | None = None
    given: Array | None = None
    """Parameters to simulate at, if they are not to be proposed."""

    def __call__(self, item: Block | BlockPart) -> Outcome:
        block, rows = whole_of(item)
        model, rng = self.run.model, Rng(self.run.seed, Phase.RUN, block.first, self.stage)
        theta = self._proposals(rng, block)
        # A proposal outside the prior has weight zero whatever it would give.
        inside = rows[model.prior.logpdf(theta[rows]) > -np.inf]
        theta = theta if len(inside) == len(theta) else np.asfortranarray(theta[inside])
        result = model.simulate_rows(rng, theta, inside, on_error=self.run.on_error)
        if own_distance(model) is not None:
            result, _ = model.measured(result, rng, theta, inside, 0, self.run.on_error)
        cost = result.cost._replace(skipped=item.size - len(theta), proposals=item.size)
        return Outcome({"theta": theta, "rows": result.rows[:, 0, :]}, cost, result.failures, result.ignored_rng)

    def _proposals(self, rng: Rng, block: Block) -> Array:
        prior = self.run.model.prior
        if self.given is not None:
            return np.asfortranarray(self.given[block.first : block.first + block.size])
        if self.mixture is None:
            return prior.sample(rng.bulk(Purpose.PRIOR), block.size)
        of_prior = (block.first + np.arange(block.size)) % DEFENSIVE == 0
        number, theta = int(of_prior.sum()), np.empty((block.size, prior.dim), order="F")
        theta[of_prior] = prior.sample(rng.bulk(Purpose.PRIOR), number)
        theta[~of_prior] = self.run.support.bounded(self.mixture.sample(rng.bulk(Purpose.MOVE), block.size - number))
        return theta


def next_proposal(run: Inference, bank: Bank, found: Assessment) -> Mixture | None:
    """Normals around draws of a learnt likelihood, or around the nearest draws if that is worthwhile, or None."""
    rng, discrete = run.rng(bank.stages, 1), np.asarray(run.model.prior.discrete)
    if found.likelihood is not None:
        return around_estimate(bank, found.likelihood, run.rng(bank.stages, 4), rng)
    near, _ = found.chosen
    theta, weights = near.theta[found.draws.source], near.weights(found.draws.source)
    scale = worthwhile_scale(run, bank, theta, weights, discrete)
    return None if scale is None else normals_around(theta, weights, scale, COMPONENTS, rng, discrete)


def worthwhile_scale(run: Inference, bank: Bank, theta: Array, weights: Array, discrete: Array) -> float | None:
    """The scale of normals that promises most effective draws near the data; None if the prior promises as many."""
    n, dim = theta.shape
    if n < 4 * (dim + 1):
        return None
    # No proposal is made from the draws that validate it.
    half = np.arange(max(30, n // 2) if n > 30 else n)
    validation = half[half % 2 == 1]
    training = np.setdiff1d(np.arange(n), validation)
    log_prior, share = bank.log_prior(theta[validation]), weights[validation] / weights[validation].sum()
    best: tuple[float, float | None] = (WORTHWHILE, None)
    rng = run.rng(bank.stages, 1, Purpose.PRIOR)
    trial = normals_around(theta[training], weights[training], 1.0, TRIAL_COMPONENTS, rng, discrete)
    for scale in SCALES:
        log_density = trial.widened(scale).log_density(theta[validation]) + math.log1p(-1 / DEFENSIVE)
        log_mixed = np.logaddexp(log_density, log_prior - math.log(DEFENSIVE))
        best = max(best, (1.0 / float(share @ np.exp(log_prior - log_mixed)), scale), key=lambda one: one[0])
    return best[1]


def assessed(run: Inference, bank: Bank, thorough: bool, less: bool = False, most_work: float = math.inf) -> Assessment:
    """What all simulations so far say, with less of a trial of regressions, or of a likelihood, if so asked."""
    simulations, own = bank.simulations(), own_distance(run.model)
    if own is not None and not np.isfinite(own(simulations.rows, run.model.observed_row)).any():
        number = len(simulations.rows)
        raise NoAnswer(f"none of the {number:,} simulations has a finite distance: check the distance, or raise budget")
    return assess(run.model, simulations, bank.ends[0], run.rng(bank.stages), thorough, less, most_work)


def decide_stage(
    run: Inference, bank: Bank, done: int, limit: int, assessment: Callable[[], Assessment], to_limit: bool = False
) -> tuple[dict[str, Any], dict[str, Array]]:
    """How many proposals the next stage makes, and from which mixture, for the run's file; from the prior if none.

    `done` are the simulations that are made or on their way.
    """
    size = limit - done if to_limit else next_size(limit, done)
    few = not bank.ends or bank.ends[-1] < 2 * run.model.prior.dim + 10
    mixture = None if few or limit - done < SMALL_REST * limit else next_proposal(run, bank, assessment())
    return {"size": size}, {} if mixture is None else {name: getattr(mixture, name) for name in MIXTURE}


def given_simulations(run: Inference, fitted: Fitted) -> Round:
    """The simulations that a summary was learnt from, at draws from the prior, as a stage that is done already."""
    rows = np.full((len(fitted.rows), run.model.observed_row.size), np.nan)
    good = ~np.isnan(fitted.rows[:, 0])
    rows[good] = fitted.learnt(fitted.rows[good])
    outcome = Outcome(
        {"theta": fitted.theta, "rows": rows}, fitted.cost._replace(proposals=len(rows), surplus=0, seconds=0.0)
    )
    return as_round(outcome, len(rows), "pilot")


class OpenStage(NamedTuple):
    """A stage that was left open: workers are at the rest of its simulations."""

    before: Bank
    """The simulations of the stages before it."""
    mixture: Mixture | None
    part: Outcome
    rest: int
    """Proposals that are on their way."""


def one_stage(
    run: Inference, bank: Bank, last: OpenStage | None, limit: int, few: bool
) -> Plan[tuple[Bank, OpenStage | None, str]]:
    """The simulations with one more stage, whether it was left open, and why it ended before its time, if it did.

    The proposals of a stage are learnt while the rest of the stage before, by number, is still simulated: which
    simulations they are learnt from does not depend on how long any of them takes.
    """
    rest = 0 if last is None else last.rest
    done, proposals = bank.cost.simulations + rest, bank.cost.proposals + rest

    def completed(answer: Outcome | None) -> Bank:
        if last is None or answer is None or answer.before is None:
            return bank
        return last.before.with_stage(both(last.part, answer.before), last.mixture, run.seed)

    assessment = cache(lambda: assessed(run, bank, thorough=False, less=few))
    try:
        scalars, arrays = yield Decision(
            "stage", lambda: decide_stage(run, bank, done, limit, assessment, few), droppable=True
        )
    except Stopped as stopped:
        return completed(stopped.partial), None, stopped.reason
    mixture, size = mixture_of(arrays, run.model.prior), int(scalars["size"])
    final = done + size >= limit or proposals + size >= MOST_PROPOSALS * limit
    request = Round(
        ProposeAndSimulate(run, bank.stages, mixture),
        lambda gathered: cut(size, stage_block(run.model, size), gathered.done),
        note=lambda gathered: f"stage {bank.stages + 1}",
        join=whole_outcome if parted(run.model) else None,
        shown=(lambda: estimated(run.model, bank, assessment(), INTERIM, run.rng(bank.stages, 2), "unfinished"))
        if bank.ends
        else None,
        prefix=None if final else max(1, size - int(AHEAD * (done + size))),
    )
    try:
        outcome, reason = (yield request), ""
    except Stopped as stopped:
        outcome, reason = stopped.partial, stopped.reason
    whole = completed(outcome)
    now = whole.with_stage(outcome, mixture, run.seed)
    left = None if final or reason else OpenStage(whole, mixture, outcome, size - outcome.cost.proposals)
    return now, left, reason


def stages(run: Inference, bank: Bank, limit: int, few: bool = False) -> Plan[tuple[Bank, str]]:
    """Stages up to a number of simulations, and why they ended before, if they did.

    If they are to be few, a single one goes to the limit, with no more than a learnt likelihood to propose from.
    """
    last: OpenStage | None = None
    reason = ""
    while not reason and bank.cost.simulations < limit and bank.cost.proposals < MOST_PROPOSALS * limit:
        bank, last, reason = yield from one_stage(run, bank, last, limit, few)
    return bank, reason


class Replicates(NamedTuple):
    """Simulations at posterior draws, and the budget whose estimate they check."""

    budget: int
    rows: Array


def check(run: Inference, theta: Array, number: int) -> Round:
    """Replicates at `number` of the posterior draws (n, dim)."""
    task = ProposeAndSimulate(run, CHECK_STAGE, given=theta[:: len(theta) // number][:number])
    join = whole_outcome if parted(run.model) else None
    return Round(task, lambda gathered: cut(number, block_size(run.model), gathered.done), "check", join=join)


def with_coverage(
    run: Inference, bank: Bank, result: Result, budget: int, number: int, assessment: Callable[[], Assessment]
) -> Plan[Result]:
    """The result with the coverage of intervals at `number` simulations near the data."""

    def measure() -> tuple[dict[str, Any], dict[str, Array]]:
        return measure_coverage(assessment(), run.model.prior.labels, number, run.rng(bank.stages, 3)), {}

    try:
        scalars, _ = yield Decision(f"coverage.{budget}.{number}", measure, droppable=True)
    except Stopped as stopped:
        return replace(result, reason=stopped.reason)
    coverage = {name: scalars[name] for name in ("number", "levels", "held", "se")}
    return replace(
        result,
        made=f"{result.made}, coverage measured at {coverage['number']} simulations",
        settings={**result.settings, "coverage": coverage},
        notes=(*result.notes, coverage_note(coverage)),
    )


def fulfil(
    run: Inference, bank: Bank, replicates: Replicates, budget: int, draws: int, coverage: int
) -> Plan[tuple[Bank, Replicates, Result]]:
    """Stages, estimate and check of one budget, and the coverage of intervals at `coverage` simulations."""
    model, limit = run.model, max(budget - check_size(budget), bank.cost.simulations)
    bank, reason = yield from stages(run, bank, limit)
    if not bank.ends:
        note = "No simulation has succeeded: there is no posterior."
        return bank, replicates, nothing(model.prior.dim, reason or "budget", model=model, notes=(note,))
    assessment = cache(lambda: assessed(run, bank, thorough=True))
    if not reason:
        try:
            packed = yield Decision(
                "estimate", lambda: run.estimated(bank, assessment(), draws, "budget").packed(), droppable=True
            )
        except Stopped as stopped:
            reason = stopped.reason
    if reason:
        # Whoever stops a run does not want to wait for the thorough one.
        found = assessed(run, bank, thorough=False, most_work=LATE_WORK)
        return bank, replicates, run.estimated(bank, found, draws, reason)
    result = replace(Result.unpacked(*packed), model=model, kept=bank)
    number = min(check_size(budget), budget - bank.cost.simulations, draws)
    # More draws of the same estimate need no other check.
    if budget > replicates.budget:
        replicates = Replicates(budget, bank.rows[:0])
        if number > 0:
            try:
                outcome = yield check(run, result.theta[0], number)
            except Stopped as stopped:
                return bank, replicates, replace(result, reason=stopped.reason)
            bank, replicates = bank.with_cost(outcome.cost), Replicates(budget, outcome.arrays["rows"])
    checked = predictive_check(replicates.rows, model.observed_row, model.labels())
    result = replace(result, notes=(*result.notes, *checked))
    if coverage:
        result = yield from with_coverage(run, bank, result, budget, coverage, assessment)
    return bank, replicates, result


def plan(run: Inference, bank: Bank, fitted: Fitted | None, coverage: int, limits: list[Limits]) -> Plan[Result]:
    """Each budget in turn; the result is that of the last. Checks of smaller budgets are paid for and not used."""
    replicates, result = Replicates(0, bank.rows), nothing(run.model.prior.dim, "budget", model=run.model)
    try:
        if bank.reused:
            yield bank_round(bank)
        if fitted is not None:
            made = yield given_simulations(run, fitted)
            bank = bank.with_stage(made, None, run.seed)._replace(stages=bank.stages)
    except Stopped as stopped:
        return replace(result, reason=stopped.reason)
    for limit in limits:
        assert limit.budget is not None and limit.draws is not None
        measured = coverage if limit is limits[-1] else 0
        bank, replicates, result = yield from fulfil(run, bank, replicates, limit.budget, limit.draws, measured)
        if result.reason != "budget":
            break
    return result


@sampler(kept=recorded_bank)
def infer(
    model: Model | Fitted,
    *,
    budget: int,
    draws: int = 10_000,
    coverage: int = 0,
    bank: Posterior | ArrayBank | Sequence[Posterior | ArrayBank] | None = None,
    **options: Unpack[RunOptions],
) -> Posterior:
    """The most accurate posterior for a budget of simulations, with a statement of its accuracy.

    Method, tolerance, summary and adjustment are those that perform best at held-out simulations near the data
    (docs/choosing.md); `post.notes` and `post.summary()` say what was chosen and why.

    Parameters
    ----------
    model
        What to simulate. Its distance is kept if you gave one; otherwise summaries are scaled, and summaries learnt by
        regression are tried beside them. The result of `od.fit_summary` may be given: its simulations count towards
        the budget and are used.
    budget
        The largest number of simulations, checks included. It is never exceeded.
    draws
        How many draws to return. They come from a smoothed estimate, and their effective number is smaller:
        `summary()` says how small.
    coverage
        Let this many simulations near the data take the place of the data in turn, and measure how often intervals
        contain their known parameters: `post.settings["coverage"]`, and a line of the summary. It takes time, but no
        simulations.
    bank
        Earlier simulations, which do not count towards the budget: the Posterior of an earlier run of the same model,
        typically for other data, or `od.bank_from_arrays(theta, x)`, or a list of these. Those of `od.infer` with the
        same prior are used as if they belonged to this run; the others are used only by a learnt likelihood.
    **options
        As in every function that simulates: see `RunOptions` (seed, workers, executor, engine, timeout, store,
        segment, progress, max_seconds, on_error).

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.infer(model, budget=2000, seed=1)
    >>> bool(abs(post.summary()["theta"].mean - 1.0) < 0.1), post.cost.simulations
    (True, 2000)
    """
    checked = Options.checked(options)
    fitted = model if isinstance(model, Fitted) else None
    if isinstance(model, Fitted):
        model = model.model
    if not isinstance(model, Model):
        raise ValueError(f"model must be an od.Model or the result of od.fit_summary, got {type(model).__name__}")
    check_parts(model, "infer")
    budget = whole_number("budget", budget, "the largest number of simulations")
    draws = whole_number("draws", draws, "the number of posterior draws")
    coverage = whole_number("coverage", coverage, "how many simulations are taken as data", least=0)
    if fitted is not None and fitted.cost.simulations > budget:
        raise ValueError(
            f"budget = {budget} is below the {fitted.cost.simulations} simulations that od.fit_summary has spent: they "
            "count towards it"
        )
    if fitted is not None and bank is not None:
        raise ValueError(
            "bank cannot be given with the result of od.fit_summary, whose simulations may be in it as well: give its "
            "model, as in od.infer(fitted.model, budget=..., bank=post)"
        )
    # The kernel is not used: what is put on an engine is the simulator.
    estimator = on_engine(AbcAverage(model.limited(checked.timeout), uniform(1.0)), checked)
    run = Inference(estimator.model, support_of(model.prior), checked.seed, checked.on_error)
    start = starting_bank(bank, model, run.support)
    arguments = {
        "budget": budget, "draws": draws, "coverage": coverage, "bank": start.reused or None,
        "replicates": model.replicates, **checked.identity(estimator),
    }  # fmt: skip
    parts: dict[str, Any] = {} if fitted is None else {"simulations of od.fit_summary": (fitted.theta, fitted.rows)}
    if start.reused:
        parts["bank"] = tuple(packed(start).values())
    return Run(
        algorithm="infer",
        arguments=arguments,
        specification=lambda: specify_model("infer", run.model, arguments, **parts),
        options=checked,
        plan=lambda limits: plan(run, start, fitted, coverage, limits),
        prior=model.prior,
        kernel=None,
        threads=run.model.compiled,
    ).posterior()
