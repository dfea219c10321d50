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
from typing import Any, Unpack

import numpy as np

from onedraw.arguments import checked_pseudo_samples, one_of
from onedraw.engines.streams import Phase
from onedraw.estimators.abc_average import AbcAverage, check_model_and_kernel
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.results.posterior import Posterior, Simulations
from onedraw.run.options import Options, RunOptions, check_pays, checked_ends, on_engine
from onedraw.run.pilot import pilot
from onedraw.run.plan import Decision, Limits, Outcome, Plan
from onedraw.run.prior_draws import PriorDraws, accepted, block_size
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
    model, draws, budget = estimator.model, *limits[-1]
    seed, each = arguments["seed"], estimator.pseudo_samples
    reason = "done"
    try:
        model = yield from pilot(model, seed, budget, estimator.on_error)
        check_pays(budget, each, estimator.model.pilot)
        proposals = None if budget is None else (budget - estimator.model.pilot) // each
        resolved = {"distance": distance_setting(model)}
        yield Decision("ready", lambda: ({"settings": resolved}, {}))
        task = PriorDraws(estimator.with_model(model), seed, Phase.RUN, keep=arguments["keep"])
        unit = "proposals" if draws is None else "draws"
        size = arguments["block"]
        found = yield from accepted(task, draws, proposals, lambda *_: size, "run", "rejection", unit)
    except Stopped as stopped:
        if stopped.partial is None or "theta" not in stopped.partial.arrays or model.pilot:
            return nothing(model.prior.dim, stopped.reason, model=model)
        reason, found = stopped.reason, stopped.partial
    if reason == "done":
        enough = draws is not None and len(found.arrays["theta"]) >= draws
        reason = "finished" if enough else "budget"
    result = result_of(found, arguments, draws, reason, {"distance": distance_setting(model)})
    return replace(result, model=model, bank=_bank(found, draws))


def result_of(
    found: Outcome, arguments: Mapping[str, Any], draws: int | None, reason: str, settings: Mapping[str, Any]
) -> Result:
    """The result of some proposals."""
    theta = found.arrays["theta"]
    count, made = len(theta), found.cost.proposals
    kept = count if draws is None else min(count, draws)
    rate = count / made if made else math.nan
    notes = []
    if kept == 0:
        notes.append(f"nothing was accepted in {made:,} proposals: raise eps or the budget")
    keep_distances = arguments["keep"] != "draws"
    return Result(
        theta[:kept][None],
        found.arrays["distances"][:kept][None] if keep_distances else None,
        reason,
        f"{kept:,} draws",
        rate,
        math.sqrt(rate * (1 - rate) / made) if made else math.nan,
        settings,
        tuple(notes),
        after=f" after {made:,} proposals",
        log_evidence=math.log(rate) if count else None,
        log_evidence_se=math.sqrt((1 - rate) / count) if count else None,
    )


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
        return nothing(len(run.columns.names), "unfinished", settings=settings)
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
        Stop when this many proposals were accepted.
    budget
        Stop before this many simulations would be passed: floor(budget / M) proposals are made, pilot simulations
        of the distance taken off first. `draws` or `budget` or both: whichever comes first.
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
    check_pays(budget, each)
    if keep is None:
        keep = "distances" if each <= KEPT_PSEUDO_SAMPLES else "draws"
    if one_of("keep", keep, ("draws", "distances", "summaries", "all")) == "all" and checked.store is None:
        raise ValueError("keep='all' keeps every simulation in the run's file: say which with store='run.db'")
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
