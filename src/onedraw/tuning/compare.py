"""Which model? Posterior probabilities of several models for the same data.

1. *Pilots*: simulations at draws from the prior of each model, all in one round.
2. *Stages*: each model gets its floor, in stages that close in on the data as those of `od.infer`. What is left of the
   budget is shared out by how probable the models are by then (`shares`).
3. *Estimates*: the posterior of each model from its own simulations, and replicates at its draws.
4. *Choice*: the evidences by three routes and a trial between them (`results.model_trial`).

Everything simulated serves 3 and 4 alike. References: docs/model_choice.md.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, Unpack

import numpy as np

from onedraw.arguments import shown, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng, derived_seed
from onedraw.estimators.abc_average import AbcAverage
from onedraw.failures import FAULTS, Failure, first_failures
from onedraw.model.coordinates import support_of
from onedraw.model.kernels import uniform
from onedraw.model.layout import Layout, WrongForm
from onedraw.model.model import Model
from onedraw.model.simulator import JaxSimulator, summarise_observed
from onedraw.results.assessment import Assessment, own_distance, scaled_summary
from onedraw.results.comparison import Comparison
from onedraw.results.misfit import Described, Misfit, checks_of, kept
from onedraw.results.misfit import compare as among
from onedraw.results.model_choice import accepted, tolerance
from onedraw.results.model_evidence import of_prior
from onedraw.results.model_trial import Beyond, Contender, DecidedModels, beyond_summaries, decide, pooled
from onedraw.results.posterior import Status
from onedraw.run.bank import Bank, block_size
from onedraw.run.blocks import cut
from onedraw.run.earlier import starting_bank
from onedraw.run.options import Options, RunOptions, check_parts, on_engine
from onedraw.run.plan import Decision, Gathered, Limits, Outcome, Plan, Round
from onedraw.run.result import Result, nothing, posterior, status_of
from onedraw.run.saving import Specification
from onedraw.run.session import Run
from onedraw.run.signals import Stopped
from onedraw.run.specification import specify_model
from onedraw.run.stage_sizes import next_size
from onedraw.samplers.infer import (
    CHECK_STAGE,
    Inference,
    assessed,
    stages,
)

FLOOR = 0.5
"""Share of the budget that is divided evenly, whatever the models are worth."""
FEWEST_EACH = 100
"""Simulations of each model, below which a budget is refused."""
CHECK_SHARE, CHECK_MOST = 20, 100
"""One simulation in this many, up to a limit, is a replicate at a posterior draw of its model."""
BRIEF_UPTO = 2000
"""Simulations of a model up to which its stages are few, and regressions are tried briefly."""
CHOICE = 7
"""Names the stream of the choice."""


class ModelBlock(NamedTuple):
    """A block of simulations of one model."""

    first: int
    """Among the simulations of all models."""
    size: int
    model: int
    begin: int
    """Among those of its model."""


@dataclass(frozen=True, eq=False)
class SimulateModels:
    """The pure task of the pilots and of the replicates: simulations of whichever model the block is of.

    Parameters are filled up with NaN to those of the largest model.
    """

    runs: tuple[Inference, ...]
    stage: int
    given: tuple[Array, ...] | None = None
    """Parameters to simulate at, of each model; from its prior if there are none."""

    def __call__(self, item: ModelBlock) -> Outcome:
        run = self.runs[item.model]
        rng = Rng(run.seed, Phase.RUN, item.begin, self.stage)
        prior = run.model.prior
        if self.given is None:
            theta = prior.sample(rng.bulk(Purpose.PRIOR), item.size)
        else:
            theta = np.asfortranarray(self.given[item.model][item.begin : item.begin + item.size])
        found = run.model.simulate_rows(rng, theta, np.arange(item.size), on_error=run.on_error)
        widest = max(one.model.prior.dim for one in self.runs)
        wide = np.full((item.size, widest), np.nan)
        wide[:, : prior.dim] = theta
        arrays = {"theta": wide, "rows": found.rows[:, 0, :], "model": np.full(item.size, item.model)}
        return Outcome(arrays, found.cost._replace(proposals=item.size), found.failures, found.ignored_rng)


def blocks_of(runs: Sequence[Inference], sizes: Sequence[int], done: int) -> Iterator[ModelBlock]:
    """Blocks of all models, one model after the other, behind those that are done."""
    begun = 0
    for number, (run, size) in enumerate(zip(runs, sizes, strict=True)):
        for first, length in cut(size, block_size(run.model), 0):
            if begun + first >= done:
                yield ModelBlock(begun + first, length, number, first)
        begun += size


def models_round(task: SimulateModels, sizes: Sequence[int], phase: str) -> Round:
    """Simulations of all models."""

    def items(gathered: Gathered) -> Iterator[ModelBlock]:
        return blocks_of(task.runs, sizes, gathered.done)

    return Round(
        task, items, phase=phase, mixed=True, note=lambda gathered: "priors" if task.given is None else "checks"
    )


class ModelRun(NamedTuple):
    """One model on its way: its simulations, and the failed ones."""

    run: Inference
    bank: Bank
    failures: tuple[Failure, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether a simulation has succeeded."""
        return bool(self.bank.ends)


class ComparisonSetup(NamedTuple):
    """What stays the same during a comparison."""

    names: tuple[str, ...]
    runs: tuple[Inference, ...]
    log_prior: Array
    seed: int
    described: tuple[Described, ...] | None
    """Models whose summaries are followed by checks of the raw data; None if there are none."""

    @property
    def first(self) -> Model:
        """The model whose distance is used."""
        return self.runs[0].model

    def measure(self, models: Sequence[ModelRun]) -> tuple[Array, Callable[[Array], Array], Any]:
        """The data, the map to scaled summaries, and the user's distance if there is one."""
        pilots = [one.bank.good()[1][: one.bank.ends[0]] for one in models if one.alive]
        fewest = min(map(len, pilots))
        _, scale = scaled_summary(self.first, np.concatenate([rows[:fewest] for rows in pilots]))
        return self.first.observed_row, scale, own_distance(self.first)


def with_pilot(runs: Sequence[Inference], outcome: Outcome) -> list[ModelRun]:
    """Each model with its part of the pilots."""
    found = []
    for number, run in enumerate(runs):
        mine = outcome.arrays["model"] == number
        theta = np.asfortranarray(outcome.arrays["theta"][mine][:, : run.model.prior.dim])
        rows = np.ascontiguousarray(outcome.arrays["rows"][mine])
        cost = Cost(simulations=len(rows), failed=int(np.isnan(rows[:, 0]).sum()), proposals=len(rows))
        bank = starting_bank(None, run.model, run.support)
        names = set(run.model.prior.names)
        failures = tuple(one for one in outcome.failures if one.seed == run.seed and set(one.theta) == names)
        part = Outcome({"theta": theta, "rows": rows}, cost)
        found.append(ModelRun(run, bank.with_stage(part, None, run.seed), failures))
    return found


def check_sizes(limits: Sequence[int]) -> list[int]:
    """Replicates of each model.

    >>> check_sizes([400, 10_000])
    [20, 100]
    """
    return [min(CHECK_MOST, one // CHECK_SHARE) for one in limits]


def shares(log_evidence: Array, log_prior: Array) -> Array:
    """How the budget beyond the floors is divided: by the roots of the probabilities.

    The error of a probability p is p (1 - p) times that of its log odds, so that a model that is far behind matters
    little.

    >>> shares(np.log([0.16, 0.04]), np.log([0.5, 0.5])).round(3).tolist()
    [0.667, 0.333]
    """
    logs = log_evidence + log_prior
    root = np.exp(0.5 * (logs - logs.max()))
    found: Array = root / root.sum()
    return found


def limits_of(models: Sequence[ModelRun], budget: int, setup: ComparisonSetup) -> list[int]:
    """Simulations of each model, checks included, that a budget pays for: its floor, and its share of the rest."""
    floor = int(FLOOR * budget / len(models))
    done = [one.bank.cost.simulations for one in models]
    alive = np.array([one.alive for one in models])
    contenders = [contender(one, None) for one in models]
    found = pooled(contenders, *setup.measure(models)).pool
    ratio = accepted(found, tolerance(found))
    bound = np.log(1.0 / np.array([max(one.of_prior, 1) for one in contenders]))
    logs = np.where(alive, np.maximum(ratio.log_evidence, np.where(np.isfinite(ratio.log_evidence), -np.inf, bound)),
                    -np.inf)  # fmt: skip
    spent = sum(max(floor, used) if lives else used for used, lives in zip(done, alive, strict=True))
    extra = shares(logs, setup.log_prior) * max(budget - spent, 0)
    return [
        max(floor, used) + int(more) if lives else used for used, more, lives in zip(done, extra, alive, strict=True)
    ]


def contender(model: ModelRun, found: Assessment | None) -> Contender:
    """A model as the choice needs it."""
    bank = model.bank
    if not model.alive:
        none = np.empty(0, dtype=np.int64)
        return Contender(None, max(bank.proposals(), 1), max(bank.of_prior, 1), 0, None, none)
    held = np.empty(0, dtype=np.int64) if found is None else found.members[found.trial.held_out]
    learnt, pairs = None if found is None else found.learnt, bank.simulations()
    if found is not None and found.constant is not None:
        learnt = of_prior(found.constant, pairs)
    return Contender(pairs, bank.proposals(), bank.of_prior, bank.ends[0], learnt, held)


class Fulfilled(NamedTuple):
    """What one budget gives."""

    models: list[ModelRun]
    results: list[Result]
    replicates: list[Array]
    """Of each model, (n, s) with the checks behind the summaries."""
    decided: DecidedModels | None
    reason: str


def spend(setup: ComparisonSetup, models: list[ModelRun], budget: int) -> Plan[tuple[list[ModelRun], list[int], str]]:
    """The stages of all models: to the floor, and then each to its share. With the replicates, and why it ended."""
    floor, reason = int(FLOOR * budget / len(models)), ""
    limits = [floor] * len(models)
    for last in (False, True):
        if last:
            limits = limits_of(models, budget, setup)
        checks = check_sizes(limits)
        for number in range(len(models)):
            model = models[number]
            if model.alive and not reason:
                limit = limits[number] - checks[number]
                bank, reason = yield from stages(model.run, model.bank, limit, few=limit <= BRIEF_UPTO)
                models[number] = model._replace(bank=bank)
    left = budget - sum(one.bank.cost.simulations for one in models)
    return models, [min(one, max(left // len(models), 0)) for one in checks], reason


def fulfil(setup: ComparisonSetup, models: list[ModelRun], budget: int, draws: int) -> Plan[Fulfilled]:
    """Stages, posteriors, replicates and the choice of one budget."""
    models, checks, reason = yield from spend(setup, models, budget)
    if reason not in ("", "max_seconds"):
        raise Stopped(reason)
    assessments = [cache(lambda one=one: assessed_at_end(one, not reason)) for one in models]
    results = []
    for one, assessment in zip(models, assessments, strict=True):
        results.append((yield from estimate_of(one, assessment, draws, reason)))
    replicates = [np.empty((0, setup.first.observed_row.size))] * len(models)
    if not reason:
        try:
            models, replicates = yield from replicate(setup, models, results, checks)
        except Stopped as stopped:
            if stopped.reason != "max_seconds":
                raise
            reason = stopped.reason

    def choose() -> tuple[dict[str, Any], dict[str, Array]]:
        contenders = [
            contender(one, assessment() if one.alive else None)
            for one, assessment in zip(models, assessments, strict=True)
        ]
        rng = Rng(setup.seed, Phase.RESAMPLE, CHOICE).bulk(Purpose.MOVE)
        return decide(contenders, *setup.measure(models), setup.log_prior, rng).packed()

    scalars, arrays = (yield Decision("comparison", choose)) if not reason else choose()
    return Fulfilled(models, results, replicates, DecidedModels.unpacked(scalars, arrays), reason)


def assessed_at_end(model: ModelRun, thorough: bool) -> Assessment:
    """What all simulations of a model say; if they are few, what decides between models are their likelihoods."""
    return assessed(model.run, model.bank, thorough, less=model.bank.cost.simulations <= BRIEF_UPTO)


def estimate_of(model: ModelRun, assessment: Callable[[], Assessment], draws: int, reason: str) -> Plan[Result]:
    """The posterior of one model."""
    run, bank = model.run, model.bank
    if not model.alive:
        note = "No simulation has succeeded: there is no posterior."
        return nothing(run.model.prior.dim, "budget", model=run.model, notes=(note,))

    def make() -> tuple[dict[str, Any], dict[str, Array]]:
        return run.estimated(bank, assessment(), draws, reason or "budget").packed()

    packed = make() if reason else (yield Decision("estimate", make))
    return replace(Result.unpacked(*packed), model=run.model, kept=bank)


def replicate(
    setup: ComparisonSetup, models: list[ModelRun], results: Sequence[Result], checks: Sequence[int]
) -> Plan[tuple[list[ModelRun], list[Array]]]:
    """Replicates at the posterior draws of all models, with the checks of the raw data."""
    sizes = [size if one.alive else 0 for size, one in zip(checks, models, strict=True)]
    given = tuple(
        found.theta[0][:: max(len(found.theta[0]) // size, 1)][:size] if size else found.theta[0][:0]
        for size, found in zip(sizes, results, strict=True)
    )
    runs = setup.runs
    if setup.described is not None:
        runs = tuple(
            run._replace(model=run.model.with_summary(one)) for run, one in zip(runs, setup.described, strict=True)
        )
    if not sum(sizes):
        return models, [np.empty((0, runs[0].model.observed_row.size))] * len(models)
    outcome: Outcome = yield models_round(SimulateModels(runs, CHECK_STAGE, given), sizes, "check")
    rows = [outcome.arrays["rows"][outcome.arrays["model"] == number] for number in range(len(models))]
    costs = [Cost(simulations=len(one), failed=int(np.isnan(one[:, 0]).sum())) for one in rows]
    return [one._replace(bank=one.bank.with_cost(cost)) for one, cost in zip(models, costs, strict=True)], rows


def plan(setup: ComparisonSetup, limits: list[Limits]) -> Plan[Fulfilled]:
    """Pilots, and then each budget in turn."""
    assert limits[0].budget is not None
    size = next_size(limits[0].budget // len(setup.runs), 0)
    try:
        outcome = yield models_round(SimulateModels(setup.runs, 0), [size] * len(setup.runs), "run")
    except Stopped as stopped:
        if stopped.reason != "max_seconds":
            raise
        raise TimeoutError(
            "max_seconds passed before every model had its first simulations: raise it; with store= the same call "
            "continues"
        ) from None
    models = with_pilot(setup.runs, outcome)
    found = Fulfilled(models, [], [], None, "")
    for limit in limits:
        assert limit.budget is not None and limit.draws is not None
        found = yield from fulfil(setup, found.models, limit.budget, limit.draws)
        if found.reason:
            break
    return found


# --- the public function ------------------------------------------------------------------------------------


def compare(
    models: Mapping[str, Model],
    *,
    budget: int,
    prior: Mapping[str, float] | None = None,
    draws: int = 5000,
    **options: Unpack[RunOptions],
) -> Comparison:
    """Posterior probabilities of several models for the same data, each with an error, and each model's posterior.

    Three routes to the probabilities are tried at held-out simulations near the data whose model is known
    (docs/model_choice.md). Nothing is simulated twice: the posteriors come from the same simulations.

    Parameters
    ----------
    models
        Two or more models by name. They may have different parameters, as many as they need, and must have the same
        observed data and the same summaries.
    budget
        The largest number of simulations of all models together, checks included. Half of it is divided evenly, the
        rest goes to the models that matter.
    prior
        Prior probabilities of the models by name, summing to 1; equal ones by default.
    draws
        Draws of each model's posterior.
    **options
        As in every function that simulates: see `RunOptions` (seed, workers, executor, engine, timeout, store,
        segment, progress, max_seconds, on_error).

    >>> import onedraw as od
    >>> from scipy import stats
    >>> @od.batched
    ... def simulate(rng, mu):
    ...     return rng.normal(mu, 1.0)
    >>> models = {name: od.Model(od.Prior(mu=stats.norm(centre, 0.5)), simulate, observed=2.0)
    ...           for name, centre in (("zero", 0.0), ("two", 2.0))}
    >>> found = od.compare(models, budget=2000, seed=1)
    >>> found.best, found.cost.simulations <= 2000
    ('two', True)
    >>> exact = 1 / (1 + float(np.exp(-0.5 * 2.0**2 / 1.25)))
    >>> found["two"].low < exact < found["two"].high
    True
    """
    checked = Options.checked(options)
    names, given = checked_models(models)
    log_prior = checked_prior(prior, names)
    budget = whole_number("budget", budget, "the largest number of simulations of all models")
    draws = whole_number("draws", draws, "the number of draws of each posterior")
    if budget < FEWEST_EACH * len(names):
        raise ValueError(
            f"budget = {budget} is too small for {len(names)} models: give at least {FEWEST_EACH * len(names)}, "
            f"{FEWEST_EACH} simulations for each"
        )
    # The kernel is not used: what is put on an engine is the simulator.
    estimators = [on_engine(AbcAverage(one.limited(checked.timeout), uniform(1.0)), checked) for one in given]
    runs = tuple(
        Inference(one.model, support_of(one.model.prior), derived_seed(checked.seed, number), checked.on_error)
        for number, one in enumerate(estimators)
    )
    setup = ComparisonSetup(names, runs, log_prior, checked.seed, described_models(runs))
    arguments = {
        "models": list(names), "prior": [round(float(one), 12) for one in np.exp(log_prior)], "draws": draws,
        "budget": budget, **checked.identity(estimators[0]),
    }  # fmt: skip
    run = Run(
        "compare", arguments, lambda: specification(names, given, arguments), checked,
        lambda limits: plan(setup, limits), given[0].prior, None, threads=all(one.compiled for one in given),
    )  # fmt: skip
    found, cost = run.value()
    return comparison_of(setup, found, cost, arguments, given)


def specification(names: Sequence[str], models: Sequence[Model], arguments: Mapping[str, Any]) -> Specification:
    """What a comparison is, for its file: every model under its name."""
    every = [specify_model("compare", model, {}) for model in models]
    parts = {f"{name}: {key}": one for name, spec in zip(names, every, strict=True) for key, one in spec.parts.items()}
    facts = {"models": {name: {"parameters": list(model.prior.names), **spec.facts}
                        for name, model, spec in zip(names, models, every, strict=True)}}  # fmt: skip
    return Specification("compare", dict(arguments), parts, facts)


def checked_models(models: Any) -> tuple[tuple[str, ...], list[Model]]:
    """Names and models, if they can be compared."""
    if not isinstance(models, Mapping):
        raise ValueError(f"models must be a dict of two models or more by name, got {shown(models)}")
    if len(models) < 2:
        raise ValueError(f"models must hold two models or more to compare, got {len(models)}")
    for name, model in models.items():
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"names of models must be texts, got {shown(name)}")
        check_parts(model, "compare")
    names, given = tuple(models), list(models.values())
    first = given[0]
    for name, model in zip(names[1:], given[1:], strict=True):
        if model.labels() != first.labels() or model.recipe.layout != first.recipe.layout:
            raise ValueError(
                f"{name} has other summaries than {names[0]} ({_labels(model)} instead of {_labels(first)}): give all "
                "models the same summary; probabilities of models mean something for the same data alone"
            )
        if not same_summaries(model, first):
            other = f"{name} has another summary than {names[0]}: they give different numbers for the same data"
            if known_to_differ(model.observed, first.observed):
                other = f"{name} has other observed data than {names[0]}"
            raise ValueError(f"{other}. Give all models the same data and the same summary")
        if not same_distances(model, first):
            raise ValueError(f"{name} has another distance than {names[0]}: give all models the same one")
    return names, given


def known_to_differ(one: Any, other: Any) -> bool:
    """Whether two data sets of the same form are not the same.

    >>> known_to_differ({"x": [1, 2]}, {"x": np.array([1.0, 2.0])}), known_to_differ([1, 2], [2, 1])
    (False, True)
    """
    try:
        layout = Layout.of(one)
        return layout == Layout.of(other) and not np.array_equal(layout.flatten(one), layout.flatten(other))
    except WrongForm:
        return False


def same_summaries(model: Model, first: Model) -> bool:
    """Whether the summaries of two models agree: on the data, their values in another order, picked again, and doubled.

    Summaries that are not the same may well agree on the data alone, as mean and median do on 1, 2, 3.
    """
    if not np.array_equal(model.observed_row, first.observed_row):
        return False
    try:
        layout = Layout.of(first.observed)
        if model.summary is first.summary or layout != Layout.of(model.observed):
            return True
    except WrongForm:
        return True
    row = layout.flatten(first.observed)
    picked = np.random.default_rng(0).integers(row.size, size=row.size)
    for other in (row[::-1], row[picked], 2 * row):
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                mine, its = (
                    one.recipe.layout.flatten(summarise_observed(one.summary, layout.restore(other.copy())))
                    for one in (model, first)
                )
        except FAULTS:
            continue  # A summary need not know what to do with data that nobody simulated.
        if not np.allclose(mine, its, rtol=1e-9, atol=0.0, equal_nan=True):
            return False
    return True


def same_distances(model: Model, first: Model) -> bool:
    """Whether the users' own distances of two models agree on rows like the data, if they have any.

    One neighbourhood of the data serves all models, so that each cannot have its own. Distances may be written twice:
    what counts is what they give.
    """
    its, own = own_distance(first), own_distance(model)
    if its is None or own is None:
        return own is its
    if model.distance is first.distance:
        return True
    row, rng = first.observed_row, np.random.default_rng(0)
    # Summaries of other signs and sizes, each changed by itself: distances may have weights for them.
    for other in (row[::-1], 2 * row, row + 1.0, row * rng.uniform(0.5, 1.5, row.size) + rng.uniform(0, 1, row.size)):
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                one, two = (apart(other[None].copy(), row) for apart in (own, its))
        except FAULTS:
            continue  # A distance need not know what to do with summaries that nobody simulated.
        if not np.allclose(one, two, rtol=1e-9, atol=0.0, equal_nan=True):
            return False
    return True


def _labels(model: Model) -> str:
    labels = model.labels()
    return ", ".join(labels[:6]) + (f", ... ({len(labels)})" if len(labels) > 6 else "")


def checked_prior(prior: Any, names: Sequence[str]) -> Array:
    """Log prior probabilities of the models."""
    if prior is None:
        return np.full(len(names), -math.log(len(names)))
    if not isinstance(prior, Mapping) or set(prior) != set(names):
        raise ValueError(f"prior must be a dict with a probability for each of {', '.join(names)}, got {shown(prior)}")
    try:
        values = np.array([float(prior[name]) for name in names])
    except (TypeError, ValueError):
        raise ValueError(f"prior must hold numbers, got {shown(prior)}") from None
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"prior probabilities must be positive, got {shown(dict(prior))}: leave a model out instead")
    if abs(values.sum() - 1.0) > 1e-6:
        raise ValueError(
            f"prior probabilities must sum to 1, got {values.sum():.6g} for {shown(dict(prior))}: divide by their sum"
        )
    return np.log(values / values.sum())


def described_models(runs: Sequence[Inference]) -> tuple[Described, ...] | None:
    """The models with checks of their raw data, if all of them have the same and allow them."""
    if any(isinstance(run.model.simulate, JaxSimulator) for run in runs):
        return None
    found = tuple(Described(run.model, checks_of(run.model, None)) for run in runs)
    first = found[0].labels
    return found if all(one.labels == first for one in found) and len(first) > len(runs[0].model.labels()) else None


def comparison_of(
    setup: ComparisonSetup, found: Fulfilled, cost: Cost, arguments: Mapping[str, Any], models: Sequence[Model]
) -> Comparison:
    """Everything together."""
    assert found.decided is not None
    posteriors, misfits = {}, {}
    described = setup.described
    for number, (name, one, result) in enumerate(zip(setup.names, found.models, found.results, strict=True)):
        model = one.run.model
        status = status_of(result, one.bank.cost.simulations)
        settings = {"draws": arguments["draws"], "seed": one.run.seed}
        posteriors[name] = posterior(
            "compare", settings, result, model.prior, None, None, one.bank.cost, one.failures, status
        )
        rows = found.replicates[number]
        labels = model.labels() if described is None else described[number].labels
        observed = model.observed_row if described is None else described[number](model.observed)
        some = distinct(np.concatenate([observed[None], rows])) if len(rows) else np.arange(len(observed))
        after = among(rows[:, some], observed[some], [labels[k] for k in some]) if len(rows) else None
        misfits[name] = Misfit(kept(result.settings), after, rows, observed, tuple(labels))
    reason = found.reason or "budget"
    spent = f"the budget of {arguments['budget']:,} simulations is spent"
    message = f"stopped by max_seconds after {cost.simulations:,} simulations" if found.reason else spent
    return Comparison(
        setup.names, dict(zip(setup.names, np.exp(setup.log_prior).tolist(), strict=True)), posteriors, found.decided,
        misfits, tuple(found_beyond(setup, found)), any(model.summary is not None for model in models), cost,
        Status(reason, message), setup.seed, first_failures(*(one.failures for one in found.models)),
        {"budget": arguments["budget"], "draws": arguments["draws"]},
    )  # fmt: skip


def distinct(rows: Array) -> Array:
    """Columns that equal none before them: a check may be one of the summaries."""
    found: list[int] = []
    for k, column in enumerate(rows.T):
        if not any(np.array_equal(column, rows[:, other], equal_nan=True) for other in found):
            found.append(k)
    return np.array(found)


def found_beyond(setup: ComparisonSetup, found: Fulfilled) -> list[Beyond]:
    """Checks of the raw data that tell the models apart beyond the summaries."""
    if setup.described is None or not all(len(rows) for rows in found.replicates):
        return []
    rows = np.concatenate(found.replicates)
    label = np.concatenate([np.full(len(one), number) for number, one in enumerate(found.replicates)])
    return beyond_summaries(rows, label, setup.first.observed_row.size, setup.described[0].labels)
