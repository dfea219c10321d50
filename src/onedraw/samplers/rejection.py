"""Algorithm 1, generalised rejection ABC.

Repeat: theta' from the prior, M pseudo-samples at theta', u uniform on [0, 1]; accept when
u < (1/M) sum_i K(distance_i). The draws are independent and exactly from pi_K for every kernel K <= 1 and every M.
The acceptance rate does not depend on M, so M > 1 costs M times as much for nothing (docs/theory.md, L1).

The step itself is `run.prior_draws.PriorDraws`, which finds the starting points of chains too.

Reference: Bornn, Pillai, Smith and Woodard, Algorithm 1; Wilkinson (2013).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np

from onedraw.arguments import checked_pseudo_samples, one_of
from onedraw.cost import Cost
from onedraw.engines.streams import Phase
from onedraw.estimators.abc_average import AbcAverage, check_model_and_kernel
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.results.posterior import Posterior, Simulations
from onedraw.run.options import Options, RunOptions, check_parts, check_pays, checked_ends, on_engine
from onedraw.run.pilot import continuation_setting, pilot
from onedraw.run.plan import Decision, Limits, Outcome, Plan
from onedraw.run.prior_draws import PriorDraws, accepted, block_size, grown, parted
from onedraw.run.recorded import Recorded, joined
from onedraw.run.registry import sampler
from onedraw.run.result import Result, nothing
from onedraw.run.session import Run
from onedraw.run.signals import Stopped
from onedraw.run.specification import distance_setting, specify

KEPT_PSEUDO_SAMPLES = 64
"""The largest M for which the distances of all M pseudo-samples are kept by default."""


def plan(estimator: AbcAverage, arguments: Mapping[str, Any], limits: list[Limits]) -> Plan[Result]:
    """Proposals in blocks until there are enough acceptances or the budget is spent."""
    estimator = estimator.with_model(estimator.model.for_budget(limits[0].budget))
    model, draws, budget = estimator.model, *limits[-1]
    seed, each = arguments["seed"], estimator.pseudo_samples
    reason, found = "done", no_proposals(model.prior.dim)
    try:
        model = yield from pilot(model, seed, budget, estimator.on_error, estimator.kernel, by_hits=True)
        check_pays(budget, each, estimator.model.ahead, model.worst)
        yield Decision("ready", lambda: ({"settings": settings_of(model)}, {}))
        task = PriorDraws(estimator.with_model(model), seed, Phase.RUN, keep=arguments["keep"])
        unit = "proposals" if draws is None else "draws"
        size = arguments["block"]
        for limit in limits if model.priced else limits[-1:]:
            spent = estimator.model.ahead + model.units(found.cost)
            while True:
                # Simulations that cost less than they might leave something for another round.
                proposals = None if limit.budget is None else int((limit.budget - spent) // estimator.worst)
                wanted = None if limit.draws is None else limit.draws - len(found.arrays["theta"])
                if proposals == 0 or (wanted is not None and wanted <= 0):
                    break
                begin = found.cost.proposals
                sizes = partial(next_size, size, model, each, begin)
                more = yield from accepted(
                    task, wanted, proposals, sizes, "run", "rejection", unit, begin, parted(model)
                )
                found = together(found, more)
                spent += model.units(more.cost)
                if limit.budget is None or not model.priced:
                    break
    except Stopped as stopped:
        if stopped.partial is None or "theta" not in stopped.partial.arrays or model.ahead:
            return nothing(model.prior.dim, stopped.reason, model=model)
        reason, found = stopped.reason, together(found, stopped.partial)
    if reason == "done":
        enough = draws is not None and len(found.arrays["theta"]) >= draws
        reason = "finished" if enough else "budget"
    result = result_of(found, arguments, draws, reason, settings_of(model))
    return replace(result, model=model, bank=_bank(found, draws))


def next_size(size: int, model: Model, pseudo_samples: int, begin: int, done: int, _: int) -> int:
    """The size of the next block of a round that began with proposal `begin`, after those `done` in it."""
    return grown(size, model, pseudo_samples, begin + done)


def settings_of(model: Model) -> dict[str, Any]:
    """What a run has chosen, by what its pilot has learnt."""
    return {"distance": distance_setting(model), **continuation_setting(model)}


def result_of(
    found: Outcome, arguments: Mapping[str, Any], draws: int | None, reason: str, settings: Mapping[str, Any]
) -> Result:
    """The result of some proposals."""
    theta = found.arrays["theta"]
    count, made = len(theta), found.cost.proposals
    kept = count if draws is None else min(count, draws)
    rate = count / made if made else math.nan
    error = math.sqrt(rate * (1 - rate) / made) if made else math.nan
    notes, weights = [], None
    if kept == 0:
        notes.append(f"nothing was accepted in {made:,} proposals: raise eps or the budget")
    elif "weight" in found.arrays:
        every, weights = found.arrays["weight"], found.arrays["weight"][:kept]
        rate = float(every.sum()) / made
        error = math.sqrt(max(float(np.square(every).sum()) / made - rate * rate, 0.0) / made)
        if not weights.sum() > 0:
            notes.append(f"the weights of {kept:,} draws add up to {weights.sum():.3g}: raise eps or the budget")
            return nothing(theta.shape[1], reason, notes=tuple(notes), settings=settings)
        weights = (weights / weights.sum())[None]
    keep_distances = arguments["keep"] != "draws"
    return Result(
        theta[:kept][None],
        found.arrays["distances"][:kept][None] if keep_distances else None,
        reason,
        f"{kept:,} draws",
        rate,
        error,
        settings,
        tuple(notes),
        weights,
        after=f" after {made:,} proposals",
        log_evidence=math.log(rate) if count else None,
        log_evidence_se=error / rate if count else None,
    )


def no_proposals(dim: int) -> Outcome:
    """What there is before the first proposal."""
    return Outcome({"theta": np.empty((0, dim))}, Cost())


def together(before: Outcome, more: Outcome) -> Outcome:
    """The draws of two rounds as one."""
    if before.cost.proposals == 0:
        return more
    arrays = {name: np.concatenate([before.arrays[name], part]) for name, part in more.arrays.items()}
    return Outcome(arrays, before.cost.plus(more.cost))


def _bank(found: Outcome, draws: int | None) -> Simulations | None:
    """The draws' summaries, for `post.adjust`."""
    if "rows" not in found.arrays:
        return None
    theta, distances, rows = (found.arrays[name][:draws] for name in ("theta", "distances", "rows"))
    return Simulations(theta, distances, np.zeros(len(theta)), rows)


def recorded_rejection(run: Recorded) -> Result:
    """The result so far of a run that a file holds."""
    found, ready = run.outcome("run"), run.decision("ready")
    settings = {"distance": run.facts["distance"]} if ready is None else ready.scalars["settings"]
    if "theta" not in found.arrays:
        return nothing(run.columns.layout.size, "unfinished", settings=settings)
    draws = run.arguments["draws"]
    result = result_of(found, run.arguments, draws, "unfinished", settings)
    # With keep="all" the file has every simulation beside the draws.
    kept = joined([record.arrays for record in run.store.records("run.bank")])
    return replace(result, bank=_bank(found, draws), kept=kept)


@sampler(recorded_rejection)
def rejection(
    model: Model,
    kernel: Kernel,
    *,
    draws: int | None = None,
    budget: int | None = None,
    pseudo_samples: int = 1,
    keep: str | None = None,
    **options: Unpack[RunOptions],
) -> Posterior:
    """Independent draws from pi_K by Algorithm 1.

    Parameters
    ----------
    model, kernel
        What to simulate, and how distances become weights.
    draws
        Stop when this many proposals have been accepted.
    budget
        The largest number of simulations, never exceeded: floor(budget / M) proposals, after subtracting the pilot
        simulations of the distance. `draws` or `budget` or both: whichever comes first. Of a simulator in two
        parts with a price it is in units of that price, and draws have weights (`od.stages`, `od.multifidelity`).
    pseudo_samples
        M, the number of pseudo-samples per proposal. The posterior is the same for every M, and 1 is the cheapest.
    keep
        What is kept besides the draws: "draws" nothing; "distances" those of all M pseudo-samples of each draw (the
        default up to M = 64); "summaries" also those of the draws, for `post.adjust()`; "all" also theta, summaries
        and distances of every proposal in the file, for `od.reuse`.
    **options
        As in every function that simulates: see `RunOptions` (seed, workers, executor, engine, timeout, store,
        segment, progress, max_seconds, on_error).

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> post = od.rejection(model, od.uniform(0.5), draws=200, seed=1)
    >>> post.draws["theta"].shape
    (1, 200)
    """
    checked = Options.checked(options)
    check_model_and_kernel(model, kernel)
    draws, budget = checked_ends(draws, budget, "the number of posterior draws")
    each = checked_pseudo_samples(pseudo_samples)
    check_parts(model, "rejection", signed=True, pseudo_samples=each)
    check_pays(budget, each, worst=model.worst)
    # A weight that comes from two distances cannot be made anew from one.
    two = model.pair is not None and model.pair.signed
    if keep is None:
        keep = "distances" if each <= KEPT_PSEUDO_SAMPLES and not two else "draws"
    if one_of("keep", keep, ("draws", "distances", "summaries", "all")) == "all" and checked.store is None:
        raise ValueError("keep='all' keeps every simulation in the run's file: say which with store='run.db'")
    if keep == "distances" and two:
        raise ValueError("keep='distances': weights of od.multifidelity come from two distances each; leave keep= out")
    if model.pair is not None and keep in ("summaries", "all"):
        raise ValueError(f"keep={keep!r} needs whole simulations, and the simulator has two parts: leave keep= out")
    estimator = AbcAverage(
        model.limited(checked.timeout), kernel, each, on_error=checked.on_error, keep_distances=keep != "draws",
        early=False, keep_rows=keep in ("summaries", "all"),
    )  # fmt: skip
    estimator = on_engine(estimator, checked)
    arguments = {
        "pseudo_samples": each, "draws": draws, "budget": budget, "keep": keep, "block": block_size(model, each),
        **checked.identity(estimator),
    }  # fmt: skip
    return Run(
        "rejection", arguments, lambda: specify("rejection", estimator, arguments), checked,
        lambda limits: plan(estimator, arguments, limits), model.prior, kernel, threads=model.compiled,
    ).posterior()  # fmt: skip
