"""`post.observed`: the posterior of another data set from the simulations of a run of infer."""

from dataclasses import replace
from typing import Any

import numpy as np

from onedraw.arguments import seed_or_fresh, whole_number
from onedraw.cost import Cost
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.model.model import Model
from onedraw.results.assessment import assess
from onedraw.results.posterior import Posterior
from onedraw.run.bank import Bank
from onedraw.run.estimate import around_estimate, estimated
from onedraw.run.result import Result, posterior, status_of


def observed(post: Posterior, data: Any, draws: int, seed: int | None) -> Posterior:
    """The posterior of other data: see `Posterior.observed`."""
    model = post.model_for("observed")
    if not isinstance(post.kept, Bank) or not post.kept.ends:
        raise ValueError(
            "observed needs every simulation of a run of od.infer, and this Posterior has none: use "
            "od.infer(model, budget=..., bank=post) with the other data, if the run has kept its simulations"
        )
    draws = whole_number("draws", draws, "the number of posterior draws")
    seed = post.seed if seed is None else seed_or_fresh(seed)
    model, bank = with_data(model, data), post.kept.for_other_data()
    with one_blas_thread():
        result = of_bank(model, bank, draws, seed)
    arguments = {"draws": draws, "seed": seed}
    return posterior(
        "infer", arguments, result, model.prior, None, None, Cost(reused=bank.reused), (), status_of(result, None)
    )


def with_data(model: Model, data: Any) -> Model:
    """The model with other data, of the form that the simulations have."""
    other = replace(model, observed=data)
    before, now = model.recipe.layout, other.recipe.layout
    if before != now:
        raise ValueError(
            f"data has another form than the data of the run: {other.observed_row.size} numbers to compare instead of "
            f"{model.observed_row.size}, or other keys or shapes"
        )
    return other


def of_bank(model: Model, bank: Bank, draws: int, seed: int) -> Result:
    """Draws of the best estimate, chosen anew at simulations near these data.

    A first look says where the posterior is; then the simulations there count more.
    """

    def rng(step: int) -> np.random.Generator:
        return Rng(seed, Phase.RESAMPLE, 1 + bank.stages, step).bulk(Purpose.PRIOR)

    found = assess(model, bank.simulations(), bank.ends[0], rng(0), thorough=False)
    if found.likelihood is not None:
        bank = bank._replace(focus=around_estimate(bank, found.likelihood, rng(1), rng(2)))
    found = assess(model, bank.simulations(), bank.ends[0], rng(3), thorough=True)
    told = f"None of the {bank.reused:,} simulations was made for these data: od.infer(..., bank=post) adds some."
    result = estimated(model, bank._replace(reused=0), found, draws, rng(4), "finished")
    return replace(result, notes=(*result.notes, told))
