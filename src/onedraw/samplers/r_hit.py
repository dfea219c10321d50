"""The one-hit and r-hit kernels: a random number of pseudo-samples (Lee and Łatuszyński).

For the uniform kernel, with tau the chance of a hit. Let rho = pi(theta') q(theta | theta') / (pi(theta) q(theta' |
theta)).

r = 1, a race: reject with probability 1 - min(1, rho); otherwise draw pairs (y' at theta', y at theta) until at least
one of the pair hits, and accept if y' did. Given that it comes to a race, it is won with probability
tau' / (tau + tau' - tau tau').

r >= 2: draw at theta until the (r-1)-th hit, N draws; draw at theta' until the r-th, N' draws; accept when
u <= rho N / (N' - 1).

Where a fixed-M chain gets stuck in the tails, this one draws as often as it takes (docs/theory.md). Draws that
cannot change the outcome are not made: y is not drawn where y' has hit, and draws at theta' end once N' is too large.

Reference: Lee (2012); Lee and Łatuszyński (2014).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import whole_number
from onedraw.arrays import Array
from onedraw.engine.lockstep import Info
from onedraw.engine.streams import Purpose, Rng
from onedraw.estimator import AbcAverage, check_model_and_kernel
from onedraw.kernels import Kernel
from onedraw.model import Model
from onedraw.posterior import Posterior
from onedraw.progress import Show
from onedraw.samplers.chains import Request, run_chains
from onedraw.samplers.pseudo_marginal import chosen, proposals_of
from onedraw.samplers.start import Start
from onedraw.simulator import Failure

MAX_DRAWS = 100_000


class State(NamedTuple):
    """What a block of n chains carries from step to step."""

    theta: Array
    log_prior: Array
    distances: Array
    """(n, 1) of the hit with which theta was accepted, for smaller tolerances later; no decision depends on it."""


class Tries:
    """Draws of one step, one for each open chain at a time, with what they cost."""

    def __init__(self, estimator: AbcAverage, rng: Rng) -> None:
        self.estimator, self.rng = estimator, rng
        self.simulations = self.setups = self.failed = self.calls = 0
        self.failures: list[Failure] = []
        self.ignored_rng = False

    def distances(self, theta: Array, rows: Array, number: int) -> Array:
        """Distances (k,) of one pseudo-sample at theta[rows]; `number` names it among its chain's in this step."""
        model = self.estimator.model
        drawn = model.simulate_rows(
            self.rng, theta[rows], rows, 1, number, chunk=self.calls, on_error=self.estimator.on_error
        )
        self.ignored_rng = drawn.ignored_rng if self.calls == 0 else self.ignored_rng
        self.calls += 1
        self.simulations += len(rows)
        self.setups += drawn.setups
        self.failed += drawn.failed
        self.failures.extend(drawn.failures[: 1 - len(self.failures)])
        return model.distances(drawn)[:, 0]


def race(
    tries: Tries, eps: float, state: State, proposed: Array, runners: Array, most: int
) -> tuple[Array, Array, int]:
    """r = 1: who of the `runners` is accepted (n,), at which distance (n,), and how many reached `most` pairs."""
    accepted = np.zeros(len(proposed), dtype=bool)
    distance = np.full(len(proposed), np.inf)
    for pair in range(most):
        if runners.size == 0:
            return accepted, distance, 0
        there = tries.distances(proposed, runners, 2 * pair)
        hit = there < eps
        accepted[runners[hit]] = True
        distance[runners[hit]] = there[hit]
        runners = runners[~hit]
        if runners.size:
            runners = runners[~(tries.distances(state.theta, runners, 2 * pair + 1) < eps)]
    return accepted, distance, runners.size


def count_hits(
    tries: Tries, eps: float, theta: Array, runners: Array, hits: int, most: Array, offset: int
) -> tuple[Array, Array]:
    """Draws needed for so many hits, (n,), and the last hit's distance; draws end at `most` (n,), then inf."""
    needed = np.full(len(theta), np.inf)
    distance = np.full(len(theta), np.inf)
    found = np.zeros(len(theta), dtype=np.int64)
    draw = 0
    while runners.size:
        there = tries.distances(theta, runners, 2 * draw + offset)
        draw += 1
        hit = there < eps
        distance[runners[hit]] = there[hit]
        found[runners[hit]] += 1
        done = found[runners] >= hits
        needed[runners[done]] = draw
        runners = runners[~done & (draw < most[runners])]
    return needed, distance


@dataclass(frozen=True, eq=False)
class RHit:
    """The r-hit kernel with a proposal; of the estimator only model and tolerance are used."""

    estimator: AbcAverage
    proposal: Any
    hits: int
    max_draws: int

    def step(self, rng: Rng, state: State) -> tuple[State, Info]:
        """One step of every chain of the block."""
        moves = rng.bulk(Purpose.MOVE)
        proposed = self.proposal.propose(moves, state.theta, state.log_prior)
        log_u = -moves.standard_exponential(len(state.theta))
        log_rho = np.broadcast_to(proposed.log_ratio, log_u.shape)
        log_rho = log_rho if proposed.held is None else np.where(proposed.held, -np.inf, log_rho)
        eps = self.estimator.kernel.eps
        tries = Tries(self.estimator, rng)
        if self.hits == 1:
            runners = np.flatnonzero(log_u <= log_rho)
            accepted, distance, capped = race(tries, eps, state, proposed.theta, runners, self.max_draws // 2)
        else:
            accepted, distance, capped = self._by_counts(tries, state, proposed.theta, log_rho, log_u)
        state = State(
            chosen(accepted, proposed.theta, state.theta),
            chosen(accepted, proposed.log_prior, state.log_prior),
            chosen(accepted, distance[:, None], state.distances),
        )
        return state, Info(
            accepted,
            proposals_of(proposed),
            tries.simulations,
            tries.setups,
            0,
            tries.failed,
            tuple(tries.failures),
            tries.ignored_rng,
            capped,
        )

    def _by_counts(
        self, tries: Tries, state: State, theta: Array, log_rho: Array, log_u: Array
    ) -> tuple[Array, Array, int]:
        eps, half = self.estimator.kernel.eps, self.max_draws // 2
        limit = np.full(len(theta), half)
        here, _ = count_hits(tries, eps, state.theta, np.flatnonzero(log_rho > -np.inf), self.hits - 1, limit, 1)
        capped = int(np.count_nonzero((log_rho > -np.inf) & np.isinf(here)))
        # u <= rho N / (N' - 1) holds up to N' = 1 + rho N / u: draws beyond that cannot change the outcome.
        with np.errstate(over="ignore", invalid="ignore"):
            last_useful = np.where(np.isinf(here), 0.0, np.floor(1.0 + here * np.exp(log_rho - log_u)))
        last_useful = np.nan_to_num(last_useful, nan=0.0)
        limit = np.minimum(last_useful, half).astype(np.int64)
        there, distance = count_hits(tries, eps, theta, np.flatnonzero(limit >= self.hits), self.hits, limit, 0)
        accepted = there <= last_useful
        capped += int(np.count_nonzero(np.isinf(there) & (last_useful > half)))
        return accepted, distance, capped


def starting_state(start: Start, log_prior: Array) -> State:
    """The state of a block from its starting draws."""
    return State(start.theta, log_prior, start.distances)


def r_hit(
    model: Model,
    kernel: Kernel,
    *,
    hits: int = 1,
    max_draws: int | None = None,
    draws: int | None = None,
    chains: int | None = None,
    proposal: Any = None,
    start: Any = "rejection",
    budget: int | None = None,
    thin: int = 1,
    seed: int | None = None,
    on_error: str = "reject",
    max_seconds: float | None = None,
    workers: int | None = None,
    executor: Any = None,
    timeout: float | None = None,
    store: Any = None,
    segment: float = 30.0,
    progress: Show = None,
) -> Posterior:
    """Draws from pi_eps by the one-hit (hits=1) or r-hit kernel; the kernel must be `od.uniform`.

    `max_draws` bounds the simulations of one step of one chain (100,000 by default, less where a budget would not
    pay for ten such steps). A step that reaches it is rejected and reported: then the posterior is no longer exact.
    The other arguments are those of `od.pseudo_marginal`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> od.r_hit(model, od.uniform(0.5), draws=100, chains=64, seed=1).shape
    (64, 100)
    """
    given = locals()
    check_model_and_kernel(model, kernel)
    if not kernel.indicator:
        raise ValueError(
            f"r_hit counts hits, which the {kernel.name} kernel does not have: use od.uniform(eps), or another sampler"
        )
    hits = whole_number("hits", hits, "the number r of hits that end the draws")
    request = Request.checked(model, given)
    if max_draws is None:
        affordable = MAX_DRAWS if request.budget is None else request.budget // (10 * request.chains * request.thin)
        max_draws = max(min(MAX_DRAWS, affordable), 100)
    max_draws = whole_number("max_draws", max_draws, "the most simulations of one step", least=2 * hits)
    most = max_draws
    return run_chains(
        "r_hit",
        request,
        AbcAverage(model, kernel, 1, on_error=on_error),
        lambda ready, walk: RHit(ready, walk, hits, most),
        starting_state,
        worst=most,
        settings={"hits": hits, "max_draws": most},
    )
