"""The posterior of a run after a regression adjustment: what `Posterior.adjust` gives."""

import math
from dataclasses import replace

import numpy as np

from onedraw.arguments import seed_or_fresh, whole_number
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.model.coordinates import support_of
from onedraw.results.posterior import Posterior
from onedraw.results.regression import Neighbourhood, effective_draws, estimate, posterior_draws, with_clusters
from onedraw.results.trial import FEWEST, choose_method, held_out_count, near_data


def adjusted(post: Posterior, draws: int | None, seed: int | None) -> Posterior:
    """The posterior from a method that a trial at held-out simulations near the data has chosen."""
    model, bank = post.model, post.bank
    if bank is None or bank.rows is None:
        raise ValueError(
            "adjust needs the summaries of the simulations, which this run did not keep: run "
            "od.rejection(..., keep='summaries') or od.importance(..., keep='all'); od.infer adjusts by itself"
        )
    if model is None:
        raise ValueError("adjust needs the model: this run was read from a file, which holds no functions")
    if bank.rows.shape[1] > 1:
        raise ValueError(f"adjust needs one pseudo-sample per draw, this run had {bank.rows.shape[1]}: run with one")
    number = math.prod(post.shape) if draws is None else whole_number("draws", draws, "the number of draws")
    seed = seed_or_fresh(post.seed if seed is None else seed)
    good = np.isfinite(bank.distances[:, 0])
    count = int(np.count_nonzero(good))
    if count < FEWEST:
        note = f"not adjusted: {count} simulations are too few to fit a regression"
        return replace(post, notes=(*post.notes, note))
    support = support_of(model.prior)
    rows = bank.rows[good, 0, :]
    spread = rows.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    observed, continuous = model.observed_row / scale, ~np.asarray(model.prior.discrete)
    near = Neighbourhood(support.unbounded(bank.theta[good]), rows / scale, bank.log_weight[good], continuous)
    rng = Rng(seed, Phase.RESAMPLE, 1).bulk(Purpose.MOVE)
    with one_blas_thread():
        near = with_clusters(near, observed)
        held_out = near_data(near, observed, max(count // 5, FEWEST), held_out_count(thorough=True), rng)
        result = choose_method([near], held_out, all_or_adjust=True)
        method, notes = result.method, (*post.notes, result.words())
        if method.terms == "none":
            return replace(post, notes=notes)
        found = estimate(near, observed, method)
        theta, _, _ = posterior_draws(rng, near, found, method, number, model.prior, support)
        worth = effective_draws(near, observed, method, found)
    return replace(
        post,
        draws={name: column[None] for name, column in model.prior.columns(theta).items()},
        weights=None,
        run_weights=None,
        groups=None,
        refits=None,
        distances=None,
        kernel=None,
        bank=None,
        independent=True,
        effective=worth,
        settings={**post.settings, "adjustment": method.words(), "nearest": len(found.source)},
        notes=notes,
    )
