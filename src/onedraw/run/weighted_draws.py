"""The draws of importance sampling: what a run carries, their weights, and the tolerance that leaves enough of them.

Everything here is a pure function of its arguments; what to propose next is decided in `samplers.importance`.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.pairs import estimates
from onedraw.estimators.protocol import Evaluation
from onedraw.estimators.tolerances import tolerance_with
from onedraw.estimators.weights import effective
from onedraw.model.simulator import Simulated
from onedraw.proposals.mixture import Mixture, log_weights
from onedraw.results.posterior import Simulations
from onedraw.run.blocks import BlockPart, whole_of
from onedraw.run.fitted_mixture import GivenProposal
from onedraw.run.pilot import continuation_setting
from onedraw.run.plan import Outcome, whole_outcome
from onedraw.run.result import Result, Stage, nothing
from onedraw.run.specification import distance_setting

FEWEST = 20
"""Fewest simulations from which a distance's scale is learned again."""
UNSEEN = 0.1
"""Share of the posterior that a given proposal may lack unnoticed without a note about it."""


class ProposalBlock(NamedTuple):
    """Parameters at which a block simulates."""

    first: int
    size: int
    theta: Array
    proposals: int
    """Those inside the prior, and those before them that were not."""


class RoundProposals(NamedTuple):
    """The proposals of one round."""

    theta: Array
    log_prior: Array
    of_prior: int
    """The first ones, which came from the prior; the others came from the mixture."""
    mixture: Mixture | None

    @property
    def inside(self) -> Array:
        """Those inside the prior's support: the others have weight zero whatever they would give."""
        return np.flatnonzero(self.log_prior > -np.inf)

    def behind(self, first: int) -> "RoundProposals":
        """Those behind the first ones."""
        return RoundProposals(self.theta[first:], self.log_prior[first:], max(0, self.of_prior - first), self.mixture)


class UsedMixture(NamedTuple):
    """A mixture, how many proposals came from it, and its log density at all draws."""

    mixture: Mixture
    number: int
    log_density: Array
    """(n,), NaN where it was not needed yet."""


class Design(NamedTuple):
    """What was asked for."""

    target: float | None
    ess: float | None
    defensive: float
    keep: str
    seed: int
    proposal: GivenProposal | None = None

    @property
    def least(self) -> float:
        """No tolerance below this is of use."""
        return 0.0 if self.target is None else self.target


class WeightedDraws(NamedTuple):
    """All simulated proposals of a run so far, and where they came from."""

    design: Design
    estimator: AbcAverage
    """With the distance as it was learned last."""
    theta: Array
    log_prior: Array
    distances: Array
    rows: Array | None
    """Summaries (n, M, s) if they are kept."""
    spent: float
    """By the whole run, in the unit of the budget."""
    counted: Array | None = None
    """Of a simulator in two parts, (n, 2): what each simulation counts, see `estimators.pairs`."""
    proposals: int = 0
    of_prior: int = 0
    sources: tuple[UsedMixture, ...] = ()
    rounds: int = 0
    eps: float = math.inf
    """The tolerance from whose draws the last proposal was made."""
    constant: tuple[float, float] | None = None
    """Log of what the prior's density integrates to, and its standard error, once it is needed."""
    path: tuple[Stage, ...] = ()
    scales: tuple[list[float], ...] = ()
    """Of the distance, as it was learned again."""
    strata: tuple[tuple[int, int], ...] = ()
    """Draws and proposals of each round, from the prior and from its mixture, in the order of the draws."""


def apart(now: WeightedDraws) -> WeightedDraws:
    """With densities of its own: those that are missing are filled in when they are needed, as they are for a reader.

    The last bits of a density depend on which others are computed with it.
    """
    return now._replace(sources=tuple(one._replace(log_density=one.log_density.copy()) for one in now.sources))


@dataclass(frozen=True, eq=False)
class Simulate:
    """The pure task of importance sampling: simulate at given parameters, in one block or a part of it."""

    estimator: AbcAverage
    seed: int

    def __call__(self, item: ProposalBlock | BlockPart) -> Outcome:
        block: Any = item.block if isinstance(item, BlockPart) else item
        rng = Rng(self.seed, Phase.IMPORTANCE, block.first)
        if not isinstance(item, BlockPart) or item.size == block.size:
            return self._measured(block, self.estimator.evaluate(rng, block.theta, None))
        rows = whole_of(item)[1]
        found = self.estimator.simulated(rng, np.asfortranarray(block.theta[rows]), rows)
        return Outcome({"simulated": found.rows}, found.cost, found.failures, found.ignored_rng)

    def joined(self, block: ProposalBlock, parts: list[Outcome]) -> Outcome:
        """The outcome of a block whose parts were simulated apart: compared as a whole."""
        if len(parts) == 1:
            return parts[0]
        whole, rng = whole_outcome(block, parts), Rng(self.seed, Phase.IMPORTANCE, block.first)
        found = Simulated(whole.arrays["simulated"], whole.cost, whole.failures, whole.ignored_rng)
        return self._measured(block, self.estimator.compared(found, rng, block.theta, None, 0))._replace(
            first=whole.first
        )

    def _measured(self, block: ProposalBlock, result: Evaluation) -> Outcome:
        more = {"rows": result.rows, "counted": result.counted}
        arrays = {"distances": result.distances, **{name: part for name, part in more.items() if part is not None}}
        skipped = (block.proposals - block.size) * self.estimator.pseudo_samples
        cost = result.cost._replace(proposals=block.proposals, skipped=skipped)
        return Outcome(arrays, cost, result.failures, result.ignored_rng)


def first_draws(design: Design, estimator: AbcAverage, spent: float) -> WeightedDraws:
    """No proposals yet."""
    draws, width = estimator.pseudo_samples, estimator.model.observed_row.size
    rows = np.empty((0, draws, width)) if estimator.keep_rows else None
    empty = np.empty((0, estimator.prior.dim), order="F"), np.empty(0), np.empty((0, draws))
    constant = None if design.proposal is None else design.proposal.constant
    counted = None if estimator.model.pair is None else np.empty((0, 2))
    return WeightedDraws(design, estimator, *empty, rows, spent, counted, constant=constant)


def log_weight(now: WeightedDraws, some: Array) -> Array:
    """Log of pi over the mixture of all proposals so far, at some of the draws."""
    for source in now.sources:
        # A density is computed once, when it is first needed.
        missing = some[np.isnan(source.log_density[some])]
        source.log_density[missing] = source.mixture.log_density(now.theta[missing])
    log_prior = now.log_prior[some] - (0.0 if now.constant is None else now.constant[0])
    return log_weights(log_prior, now.of_prior, [(one.number, one.log_density[some]) for one in now.sources])


def nearest(now: WeightedDraws, target: float) -> tuple[float, Array, Array]:
    """The least tolerance, not below the one asked for, with an effective number `target` of draws; which, and weights.

    Weights are computed only if they are needed: of the nearest draws, as many as it takes.
    """
    kernel, distance, least = now.estimator.kernel, now.distances.min(axis=1, initial=math.inf), now.design.least
    alive = int(np.count_nonzero(np.isfinite(distance)))
    if alive == 0:
        return math.inf, np.empty(0, dtype=np.intp), np.empty(0)
    # Nothing beyond the support counts, and nothing within it may be left out.
    sure = alive if math.isinf(kernel.support) else int(np.count_nonzero(distance < least * kernel.support))
    count = min(alive, max(64, int(2 * target), sure))
    while True:
        beyond = math.inf if count == alive else float(np.partition(distance, count)[count])
        some = np.flatnonzero(distance < beyond)
        weight = np.exp(log_weight(now, some))
        if now.counted is not None and not signed(now):
            weight *= now.counted[some, 0]
        eps = max(tolerance_with(kernel, math.inf, now.distances[some], weight, target), least)
        weight = weight * np.exp(kernel.with_eps(eps).log_average(now.distances[some]))
        if count == alive or (effective(weight) >= target and eps * kernel.support <= beyond):
            return eps, some, weight
        count = min(alive, 2 * count)


def signed(now: WeightedDraws) -> bool:
    """Whether weights may be negative."""
    pair = now.estimator.model.pair
    return pair is not None and pair.signed


def final(now: WeightedDraws) -> tuple[float, Array, Array]:
    """The tolerance of the draws that are returned, which they are, and their weights.

    If these may be negative, the tolerance is the one asked for: a larger one would be chosen by what is random.
    """
    if not signed(now):
        return nearest(now, wanted(now))
    eps = now.design.least
    assert now.counted is not None
    estimate = estimates(now.estimator.kernel.with_eps(eps), now.distances[:, 0], now.counted)
    some = np.flatnonzero(estimate)
    return eps, some, np.exp(log_weight(now, some)) * estimate[some]


def taken(now: WeightedDraws, new: RoundProposals, outcome: Outcome) -> WeightedDraws:
    """With the proposals of a round, or with the first of them if it was stopped."""
    count = outcome.cost.proposals
    of_prior = min(new.of_prior, count)
    inside, distances = new.inside[: len(outcome.arrays["distances"])], outcome.arrays["distances"]
    unknown = np.full(inside.size, np.nan)
    sources = now.sources
    if new.mixture is not None and of_prior < count:
        if not sources or sources[-1].mixture is not new.mixture:
            sources = (*sources, UsedMixture(new.mixture, 0, np.full(len(now.theta), np.nan)))
        sources = (*sources[:-1], sources[-1]._replace(number=sources[-1].number + count - of_prior))
    drawn = int(np.count_nonzero(inside < of_prior))
    return now._replace(
        strata=(*now.strata, (drawn, of_prior), (inside.size - drawn, count - of_prior)),
        theta=np.asfortranarray(np.concatenate([now.theta, new.theta[inside]])),
        log_prior=np.concatenate([now.log_prior, new.log_prior[inside]]),
        distances=np.asfortranarray(np.concatenate([now.distances, distances])),
        rows=None if now.rows is None else np.concatenate([now.rows, outcome.arrays["rows"]]),
        counted=None if now.counted is None else np.concatenate([now.counted, outcome.arrays["counted"]]),
        spent=now.spent + now.estimator.model.units(outcome.cost),
        proposals=now.proposals + count,
        of_prior=now.of_prior + of_prior,
        sources=tuple(one._replace(log_density=np.concatenate([one.log_density, unknown])) for one in sources),
    )


def relearned(now: WeightedDraws, begin: int) -> WeightedDraws:
    """With the distance scaled by the simulations from number `begin` on, and all draws measured with it."""
    model, rows = now.estimator.model, now.rows
    assert rows is not None
    good = rows[begin:].reshape(-1, rows.shape[2])
    good = good[~np.isnan(good[:, 0])]
    if len(good) < FEWEST:
        return now
    model = model.with_distance(model.distance.relearnt(good, model.observed_row))
    scales = (*now.scales, np.asarray(model.distance.scale).tolist())
    return now._replace(estimator=now.estimator.with_model(model), distances=model.distances(rows), scales=scales)


def wanted(now: WeightedDraws) -> float:
    """The effective number of draws that the final tolerance is to leave."""
    ess = now.design.ess
    if ess is None:
        ess = math.sqrt(10 * now.spent) if now.design.target is None else 10.0 * (now.estimator.prior.dim + 1)
    return min(ess, 0.9 * max(len(now.theta), 1))


def settings_of(now: WeightedDraws) -> dict[str, Any]:
    """What a run has chosen, whether it has draws or not."""
    given = now.design.proposal
    return {
        "distance": distance_setting(now.estimator.model),
        "proposal": None if given is None else given.source,
        **continuation_setting(now.estimator.model),
    }


def accepted_share(now: WeightedDraws, eps: float) -> tuple[float, float]:
    """The mean of the estimates at a tolerance over all proposals, and its error."""
    kernel = now.estimator.kernel.with_eps(eps)
    if now.counted is None:
        rate = float(np.exp(kernel.log_average(now.distances)).sum()) / now.proposals
        return rate, math.sqrt(rate * max(1 - rate, 0.0) / now.proposals)
    estimate = estimates(kernel, now.distances[:, 0], now.counted)
    rate = float(estimate.sum()) / now.proposals
    return rate, math.sqrt(max(float(np.square(estimate).sum()) / now.proposals - rate * rate, 0.0) / now.proposals)


def unseen_note(now: WeightedDraws, evidence: float) -> list[str]:
    """How large a part of the posterior may be missing if the given proposal lacks it.

    Proposals from the prior hit with probability `evidence`, and a share p of the hits lies in a part of share p. None
    of n hits there has probability exp(-n p) at most, which is 5 % at n p = 3.
    """
    if now.design.proposal is None:
        return []
    share = 3.0 / max(now.of_prior * evidence, 1e-300)
    if share < UNSEEN:
        return []
    what = "however large" if share >= 1 else f"with less than {100 * share:.0f} % of it"
    return [
        f"a part of the posterior that the given proposal lacks, {what}, may be missing here: the {now.of_prior:,} "
        f"proposals from the prior give about {now.of_prior * evidence:.2g} draws; if there may be one, run without "
        "proposal=, or raise budget or defensive"
    ]


def log_evidence(now: WeightedDraws, some: Array, weight: Array) -> tuple[float, float]:
    """Log of the prior mean of K, from the weights of some draws with K, and its standard error.

    Proposals of one round from the prior, and those from its mixture, are independent of each other; the weights of
    proposals outside the prior are zero. An estimated constant of the prior adds its own error.
    """
    every = np.zeros(len(now.theta))
    every[some] = weight
    variance, begin = 0.0, 0
    for draws, proposals in now.strata:
        part, begin = every[begin : begin + draws], begin + draws
        if proposals > 1:
            centred = float(np.square(part).sum()) - float(part.sum()) ** 2 / proposals
            variance += max(centred, 0.0) * proposals / (proposals - 1)
    total, of_constant = float(weight.sum()), 0.0 if now.constant is None else now.constant[1]
    return math.log(total / now.proposals), math.hypot(math.sqrt(variance) / total, of_constant)


def result_of(now: WeightedDraws, reason: str) -> Result:
    """The draws at the final tolerance, wherever a run is stopped."""
    design, model = now.design, now.estimator.model
    eps, some, weight = final(now)
    settings = settings_of(now)
    if now.scales:
        settings["scales"] = list(now.scales)
    notes = []
    if now.constant is not None and now.constant[1] > 0:
        constant = math.exp(now.constant[0])
        settings["prior_constant"] = [constant, constant * now.constant[1]]
        what = "the prior's density integrates to" if model.prior.where is None else (
            "the constraint where= holds with prior probability"
        )  # fmt: skip
        notes.append(f"{what} {constant:.4g} ± {constant * now.constant[1]:.1g} (estimated); the weights rest on it")
    if math.isinf(eps) or not weight.any() or not weight.sum() > 0:
        few = "no simulation gave a distance" if not weight.any() else "the weights do not add up to more than 0"
        notes.append(f"{few}: there are no draws")
        return nothing(model.prior.dim, reason, notes=tuple(notes), settings=settings, eps=math.nan, model=model)
    if design.target is not None and eps > design.target:
        notes.append(
            f"eps = {design.target:g} left an effective number of draws below {wanted(now):.0f}: these are at eps = "
            f"{eps:.4g}; raise the budget"
        )
    notes += unseen_note(now, float(weight.sum()) / now.proposals)
    value, se = log_evidence(now, some, weight)
    some, weight = some[weight != 0], weight[weight != 0] / weight.sum()
    rate, rate_se = accepted_share(now, eps)
    bank = None
    if design.keep == "all" and reason != "unfinished":
        bank = Simulations(now.theta, now.distances, log_weight(now, np.arange(len(now.theta))), now.rows)
    return Result(
        now.theta[some][None], None if signed(now) else now.distances[some][None],
        "finished" if reason == "ess" else reason,
        f"eps = {eps:.4g}, effective sample size {effective(weight):,.0f}", rate, rate_se, settings, tuple(notes),
        weight[None], path=now.path,
        eps=eps, model=model, bank=bank, log_evidence=value, log_evidence_se=se,
    )  # fmt: skip
