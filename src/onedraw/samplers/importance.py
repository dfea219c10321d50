"""Importance sampling in rounds: proposals that close in on the posterior, and weights in which every round counts.

Round 0 draws from the prior. Each later round draws a defensive share from the prior and the rest from Student
distributions around the nearest draws so far, each with the covariance of *its own* neighbours, so that a posterior
in several pieces is followed piece by piece. If the Posterior of another run is given, round 0 draws in the same way,
with Student distributions around its draws, and later rounds too, until those around the run's own draws are better.
With n_k proposals from component q_k, a proposal at theta has the weight

    w(theta) = pi(theta) / sum_k (n_k / n) q_k(theta),      n = sum_k n_k,

whichever component it came from: the balance heuristic (`proposals.mixture`). A draw's weight in the posterior is
w(theta) times the mean of K over its pseudo-samples. No simulation of any round is left out, and since the prior is
among the q_k, w is never above n / n_prior.

Reference: Veach and Guibas (1995); Owen and Zhou (2000) for the defensive share; Cornuet, Marin, Mira and Robert (2012)
for reweighting all rounds; Filippi, Barnes, Cornebise and Stumpf (2013) for local covariances.
"""

import math
from collections.abc import Iterator
from typing import Unpack

import numpy as np

from onedraw.arguments import checked_pseudo_samples, one_of, positive, share, whole_number
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.tolerances import kernel_asked
from onedraw.estimators.weights import effective
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.proposals.mixture import Mixture
from onedraw.results.posterior import Posterior
from onedraw.run.blocks import cut
from onedraw.run.fitted_mixture import MOST_NEAR, around, check_proposal, given_proposal, prior_constant, widened
from onedraw.run.options import Options, RunOptions, check_parts, check_pays, on_engine
from onedraw.run.pilot import pilot
from onedraw.run.plan import Gathered, Limits, Outcome, Plan, Round
from onedraw.run.prior_draws import block_size, parted
from onedraw.run.registry import sampler
from onedraw.run.result import Result, Stage, nothing
from onedraw.run.session import Run
from onedraw.run.signals import Stopped
from onedraw.run.specification import specify
from onedraw.run.weighted_draws import (
    Design,
    ProposalBlock,
    RoundProposals,
    Simulate,
    WeightedDraws,
    apart,
    final,
    first_draws,
    nearest,
    relearned,
    result_of,
    settings_of,
    taken,
)

DEFENSIVE = 0.1
"""Share of the proposals of every round that comes from the prior."""
GROWTH = 1.5
"""Size of a round over that of the one before."""
KEPT_NEAR, CLOSER = 0.1, 0.4
"""Effective number of near draws from which the next proposal is made, as a share of all draws so far: the smaller of
KEPT_NEAR and CLOSER to the power of the dimension, since in many dimensions few draws are much nearer than others."""
AHEAD = 1 / 6
"""Share of all simulations, the last by number, that may be on their way when the next round is made."""
TOP_UP_ROUNDS = 30
"""Rounds after the last in which what was saved on proposals outside the prior is spent."""


def next_mixture(now: WeightedDraws) -> tuple[WeightedDraws, Mixture | None]:
    """The mixture of the next round, made from the nearest draws or the one given; None if there is neither."""
    (n, dim), design = now.theta.shape, now.design
    given = () if design.proposal is None else (design.proposal.mixture,)
    target = min(max(min(min(KEPT_NEAR, CLOSER**dim) * n, MOST_NEAR), 10.0 * (dim + 1)), 0.5 * n)
    eps, some, weight = nearest(now, target)
    some, weight = some[weight > 0], weight[weight > 0]
    if some.size < dim + 2:
        return now, given[0] if given else None
    rng, prior = Rng(design.seed, Phase.IMPORTANCE, now.rounds).bulk(Purpose.HANDICAP), now.estimator.prior
    made, centres = around(now.theta[some], weight, np.asarray(prior.discrete), rng)
    constant = prior_constant(prior, design.seed) if now.constant is None else now.constant
    log_prior = now.log_prior[some] - constant[0]
    best = widened((*given, made), now.theta[some], weight, log_prior, centres, design.defensive)
    return now._replace(eps=eps, constant=constant), best


def proposed(now: WeightedDraws, count: int, mixture: Mixture | None) -> RoundProposals:
    """`count` parameters, from the prior and the mixture."""
    rng, prior = Rng(now.design.seed, Phase.IMPORTANCE, now.rounds), now.estimator.prior
    of_prior = count if mixture is None else min(count, math.ceil(now.design.defensive * count))
    theta = prior.sample(rng.bulk(Purpose.PRIOR), of_prior)
    if mixture is not None and of_prior < count:
        theta = np.concatenate([theta, mixture.sample(rng.bulk(Purpose.MOVE), count - of_prior)])
    theta = np.asfortranarray(theta)
    return RoundProposals(theta, prior.logpdf(theta), of_prior, mixture)


def round_of(now: WeightedDraws, new: RoundProposals, late: int, ahead: bool) -> Round:
    """Simulations at the proposals inside the prior, while so many of the round before are on their way.

    If the next round is to look `ahead`, this one is left open: the next is made when all but its last are done.
    """
    estimator, inside, begin = now.estimator, new.inside, len(now.theta) + late
    size = block_size(estimator.model, estimator.pseudo_samples)
    ends = np.append(inside[:-1] + 1, len(new.theta))

    def items(gathered: Gathered) -> Iterator[ProposalBlock]:
        for first, length in cut(inside.size, size, gathered.done):
            theta = np.asfortranarray(new.theta[inside[first : first + length]])
            proposals = int(ends[first + length - 1] - (ends[first - 1] if first else 0))
            yield ProposalBlock(begin + first, length, theta, proposals)

    first = "prior" if now.design.proposal is None else "given proposal"
    note = first if math.isinf(now.eps) else f"eps {now.eps:.3g}"
    shown = (lambda: result_of(apart(now), "unfinished")) if len(now.theta) else None
    prefix = max(1, inside.size - int(AHEAD * (begin + inside.size))) if ahead else None
    task = Simulate(estimator, now.design.seed)
    return Round(
        task, items, note=lambda gathered: note, join=task.joined if parted(estimator.model) else None, shown=shown,
        prefix=prefix,
    )  # fmt: skip


def ended(now: WeightedDraws, before: WeightedDraws, mixture: Mixture | None) -> tuple[WeightedDraws, bool]:
    """With what a round adds to the path, and whether the run has reached what was asked for."""
    begin, design = len(before.theta), now.design
    if mixture is not None and now.estimator.model.adaptive:
        now = relearned(now, begin)
    eps, _, weight = final(now)
    if math.isfinite(eps):
        average = np.exp(now.estimator.kernel.with_eps(eps).log_average(now.distances[begin:]))
        proposals = now.proposals - before.proposals
        rate, spent = float(average.sum()) / proposals, int(now.spent - before.spent)
        stage = Stage(eps, rate, proposals, spent, effective(weight))
        now = now._replace(path=(*now.path, stage))
    reached = design.ess is not None and effective(weight) >= design.ess
    return now, reached and design.target is not None and eps <= design.target


def completed(now: WeightedDraws, late: RoundProposals, answer: Outcome, before: WeightedDraws) -> WeightedDraws:
    """With what was on its way of a round, as it comes with an answer; `before` is what was known when it began."""
    if answer.before is None or "distances" not in answer.before.arrays:
        return now
    return ended(taken(now, late, answer.before)._replace(path=before.path), before, late.mixture)[0]


def round_sizes(total: int, dim: int) -> list[int]:
    """Proposals of each round, growing, so that most are made where the posterior is known best.

    >>> round_sizes(1000, 1)
    [123, 184, 276, 417]
    """
    if total < 20 * (dim + 1):
        return [max(total, 0)]
    rounds = int(np.clip(2 + 2.5 * math.log10(total / 100), 2, 12))
    share = GROWTH ** np.arange(rounds)
    sizes = np.floor(total * share / share.sum()).astype(int)
    sizes[-1] += total - int(sizes.sum())
    return [int(size) for size in sizes]


def plan(estimator: AbcAverage, design: Design, limits: list[Limits]) -> Plan[Result]:
    """Rounds until each budget in turn is spent."""
    estimator = estimator.with_model(estimator.model.for_budget(limits[0].budget))
    now, new, late, reason, each = first_draws(design, estimator, 0), None, None, "budget", estimator.worst
    try:
        # The kernel of the estimator has no tolerance of its own here.
        kernel = estimator.kernel if design.target is None else estimator.kernel.with_eps(design.target)
        model = yield from pilot(estimator.model, design.seed, limits[0].budget, estimator.on_error, kernel)
        check_pays(limits[0].budget, estimator.pseudo_samples, estimator.model.ahead, model.worst)
        before = now = first_draws(design, estimator.with_model(model), estimator.model.ahead)
        # A distance is learnt again, and the end is decided on, when a round is complete.
        looks_ahead = not model.adaptive and (design.target is None or design.ess is None)
        for _, budget in limits:
            assert budget is not None
            sizes, reason = round_sizes(int((budget - now.spent) // each), model.prior.dim), "budget"
            mixture = None if design.proposal is None else design.proposal.mixture
            for number in range(len(sizes) + TOP_UP_ROUNDS):
                # The sizes pay for what is on its way; when they are used up, nothing is.
                left, top_up = int((budget - now.spent) // each), number >= len(sizes)
                if left < 1:
                    break
                if now.rounds and not top_up:
                    now, mixture = next_mixture(now)
                new = proposed(now, left if top_up else min(left, sizes[number]), mixture)
                now, ahead = now._replace(rounds=now.rounds + 1), looks_ahead and number + 1 < len(sizes)
                outcome = yield round_of(now, new, 0 if late is None else late.inside.size, ahead)
                if late is not None:
                    now = completed(now, late, outcome, before)
                before, now = now, taken(now, new, outcome)
                late = new.behind(outcome.cost.proposals) if ahead else None
                if not top_up:
                    now, done = ended(now, before, mixture)
                    if done:
                        reason = "ess"
                        break
    except Stopped as stopped:
        reason = stopped.reason
        if late is not None and stopped.partial is not None:
            now = completed(now, late, stopped.partial, before)
        if new is not None and stopped.partial is not None and "distances" in stopped.partial.arrays:
            now = taken(now, new, stopped.partial)
    if len(now.theta) == 0:
        model = now.estimator.model
        return nothing(model.prior.dim, reason, settings=settings_of(now), eps=math.nan, model=model)
    return result_of(now, reason)


@sampler()
def importance(
    model: Model,
    *,
    budget: int,
    kernel: Kernel | None = None,
    ess: float | None = None,
    pseudo_samples: int = 1,
    defensive: float = DEFENSIVE,
    proposal: Posterior | None = None,
    keep: str = "distances",
    **options: Unpack[RunOptions],
) -> Posterior:
    """Weighted draws from pi_K by importance sampling in rounds, at a tolerance that fits the budget.

    Proposals close in on the posterior, piece by piece if it has several, and every simulation of every round is
    weighted by the mixture of all proposals made (docs/theory.md). `settings["eps"]` is the tolerance reached.

    The final tolerance is chosen from the simulations that are then kept. For independent proposals and the uniform
    kernel with M = 1 that does no harm: given the distance of the next draw, which is the tolerance and is left out,
    the nearer ones are as at a tolerance fixed beforehand. With weights this holds only approximately, and proposals
    that learn from earlier rounds make rounds dependent: the draws are consistent as the budget grows, not unbiased.

    A distance `od.scaled(adapt=True)` is learned again after every round, from all simulations of the round, and all
    distances so far are computed again. Weights do not depend on the distance, so the only bias is that the last
    distance and the draws come from the same simulations.

    What the prior's density integrates to is estimated if it has a `where=` constraint or is an `od.Prior.joint`; the
    error is reported in the notes and in `settings["prior_constant"]`.

    Parameters
    ----------
    model
        What to simulate.
    budget
        The largest number of simulations, pilot included; never exceeded. Proposals outside the prior cost none.
    kernel
        `od.uniform()` (the default), `od.gaussian()`, ...: the tolerance is the smallest that leaves `ess` draws. One
        with a tolerance, as `od.uniform(0.1)`, is used as it is, unless it leaves too few; then a note says so.
    ess
        The effective number of draws, by their weights, that the final tolerance must leave: by default
        sqrt(10 budget), or 10 per parameter and 10 more if the kernel has a tolerance. With a tolerance and ess, the
        run ends when both are reached.
    pseudo_samples
        M, the pseudo-samples at one theta. More than one pays for simulators whose set-up is expensive.
    defensive
        Fraction of every round that is proposed from the prior, between 0 and 1: no weight exceeds its inverse.
    proposal
        The Posterior of another run with the same parameters, typically of `od.infer`, whose estimate takes few
        simulations. Student distributions are placed around its draws, and rounds propose from them, from the first on,
        until those around the run's own draws are better. The weights are those of all proposals made, so the draws
        follow the same pi_K as without it; if the Posterior is far off, the run needs more simulations. A part of the
        posterior that it lacks altogether, such as a second mode, is found only by proposals from the prior: a note
        says how large a part they may have missed.
    keep
        "distances" (the default) or "all": `bank` of the Posterior then has theta, summaries, distances and weights of
        every simulation.
    **options
        As in every function that simulates: see `RunOptions` (seed, workers, executor, engine, timeout, store,
        segment, progress, max_seconds, on_error).

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.importance(model, budget=10_000, seed=1)
    >>> post.settings["eps"] < 0.2, post.cost.simulations
    (True, 10000)
    >>> abs(post.summary()["theta"].mean - 1.0) < 0.2
    True
    """
    checked = Options.checked(options)
    kernel = kernel_asked(kernel)
    budget = whole_number("budget", budget, "the largest number of simulations")
    pseudo_samples = checked_pseudo_samples(pseudo_samples)
    check_parts(model, "importance", signed=True, pseudo_samples=pseudo_samples, kernel=kernel)
    check_pays(budget, pseudo_samples, worst=model.worst)
    if ess is not None:
        ess = positive("ess", ess, "the effective number of draws wanted")
    defensive = share("defensive", defensive, "the share from the prior")
    if model.pair is not None and keep == "all":
        raise ValueError("keep='all' needs whole simulations, and the simulator has two parts: leave keep= out")
    design = Design(kernel.eps, ess, defensive, one_of("keep", keep, ("distances", "all")), checked.seed)
    made_of = None
    if proposal is not None:
        check_proposal(proposal, model.prior)
        made_of = ({name: proposal.columns[name] for name in model.prior.labels}, proposal.weights)
        with one_blas_thread():
            design = design._replace(proposal=given_proposal(proposal, model.prior, defensive, checked.seed))
    estimator = AbcAverage(
        model.limited(checked.timeout), kernel.with_eps(1.0), pseudo_samples, on_error=checked.on_error, early=False,
        keep_rows=keep == "all" or model.adaptive,
    )  # fmt: skip
    estimator = on_engine(estimator, checked)
    arguments = {
        "eps": kernel.eps, "ess": ess, "pseudo_samples": pseudo_samples, "defensive": design.defensive,
        "budget": budget, "keep": keep, **checked.identity(estimator),
    }  # fmt: skip
    return Run(
        "importance", arguments, lambda: specify("importance", estimator, arguments, proposal=made_of), checked,
        lambda limits: plan(estimator, design, limits), model.prior, kernel, threads=model.compiled,
    ).posterior()  # fmt: skip
