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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import numpy as np

from onedraw.arguments import whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array, DeviceParts, namespace
from onedraw.engines.streams import Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage, check_model_and_kernel
from onedraw.failures import Failure, first_failures
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.results.posterior import Posterior
from onedraw.run.chains import chains_for, recorded_chains, run_chains
from onedraw.run.lockstep import Info
from onedraw.run.options import Options, RunOptions
from onedraw.run.registry import sampler
from onedraw.run.starts import Start
from onedraw.samplers.pseudo_marginal import chosen, proposals_of

MAX_DRAWS = 100_000


class State(NamedTuple):
    """What a block of n chains carries from step to step."""

    theta: Array
    log_prior: Array
    distances: Array
    """(n, 1) of the hit with which theta was accepted, for smaller tolerances later; no decision depends on it."""


class Spent(NamedTuple):
    """What draws cost."""

    cost: Cost = Cost()
    """On a device `simulations` are those of each chain, all of which draw when one does, and `failed` is (n,)."""
    place: Any = None
    """On a device (n, dim), where a chain's last failure was."""

    def plus(self, other: "Spent") -> "Spent":
        """The two added."""
        place = self.place
        if place is not None:
            failed: Any = other.cost.failed
            place = namespace(place).where((failed > 0)[:, None], other.place, place)
        return Spent(self.cost.plus(other.cost), place)


class Tries:
    """Draws of one step, one for each open chain at a time."""

    def __init__(self, estimator: AbcAverage, rng: Any) -> None:
        self.estimator, self.rng = estimator, rng
        self.here = isinstance(rng, Rng)
        self.failures: tuple[Failure, ...] = ()
        self.ignored_rng = False

    def nothing(self, theta: Array) -> Spent:
        """What no draws at theta cost."""
        if self.here:
            return Spent()
        import jax.numpy as jnp

        return Spent(Cost(jnp.uint32(0), failed=jnp.zeros(len(theta), jnp.int32)), theta)

    def distances(self, theta: Array, runners: Array, number: Any) -> tuple[Array, Spent]:
        """Distances (n,) of one pseudo-sample at theta where it is wanted, inf elsewhere, and what they cost.

        `number` names the draw among its chain's in this step.
        """
        model = self.estimator.model
        if not self.here:
            from onedraw.engines import jax as device

            xp = namespace(theta)
            drawn = device.draw(model, self.rng, theta, 0, 1, 1, number + 1)
            cost = Cost(xp.uint32(1), failed=(drawn.bad[:, 0] & runners).astype(xp.int32))
            return xp.where(runners, drawn.distances[:, 0], np.inf), Spent(cost, theta)
        rows = np.flatnonzero(runners)
        distances = np.full(len(theta), np.inf)
        if rows.size == 0:
            return distances, Spent()
        found = model.simulate_rows(
            self.rng, theta[rows], rows, 1, number, chunk=number, on_error=self.estimator.on_error
        )
        found, measured = model.measured(found, self.rng, theta[rows], rows, number, self.estimator.on_error)
        self.ignored_rng |= found.ignored_rng
        self.failures = first_failures(self.failures, found.failures)[:1]
        distances[rows] = measured[:, 0]
        return distances, Spent(found.cost)

    def repeated(self, body: Callable[[Any], Any], going: Callable[[Any], Any], carry: Any) -> Any:
        """The body while it is going on, in Python or as a loop of a program for a device."""
        if self.here:
            while going(carry):
                carry = body(carry)
            return carry
        import jax.numpy as jnp
        from jax import lax

        return lax.while_loop(going, body, carry._replace(draw=jnp.int32(0)))


class Race(NamedTuple):
    """Races of pairs of draws, one for each of n chains."""

    draw: Any
    """Pairs drawn so far."""
    runners: Array
    """(n,) those still in the race."""
    accepted: Array
    distance: Array
    spent: Spent


def race(tries: Tries, eps: float, theta: Array, proposed: Array, runners: Array, most: int) -> Race:
    """r = 1: pairs until one of each pair has hit, or there were `most` of them; who is left then was cut short."""
    xp, n = namespace(proposed), len(proposed)

    def pair(now: Race) -> Race:
        there, spent = tries.distances(proposed, now.runners, 2 * now.draw)
        hit = there < eps
        runners = now.runners & ~hit
        # Who has hit needs no second of the pair.
        here, more = tries.distances(theta, runners, 2 * now.draw + 1)
        distance = xp.where(hit, there, now.distance)
        spent = now.spent.plus(spent).plus(more)
        return Race(now.draw + 1, runners & ~(here < eps), now.accepted | hit, distance, spent)

    nobody, far = xp.zeros(n, dtype=bool), xp.full(n, np.inf, dtype=proposed.dtype)
    start = Race(0, runners, nobody, far, tries.nothing(theta))
    last: Race = tries.repeated(pair, lambda now: now.runners.any() & (now.draw < most), start)
    return last


class Count(NamedTuple):
    """Draws until each of n chains has its hits."""

    draw: Any
    runners: Array
    found: Array
    """(n,) hits so far."""
    needed: Array
    """(n,) draws that the hits took; inf where they were not found."""
    distance: Array
    """(n,) of the last hit."""
    spent: Spent


def count_hits(tries: Tries, eps: float, theta: Array, runners: Array, hits: int, most: Array, offset: int) -> Count:
    """Draws needed for so many hits by each of the `runners` (n,), which end at `most` (n,)."""
    xp, n = namespace(theta), len(theta)

    def one_more(now: Count) -> Count:
        there, spent = tries.distances(theta, now.runners, 2 * now.draw + offset)
        hit = there < eps
        found = now.found + hit
        done = now.runners & (found >= hits)
        return Count(
            now.draw + 1, now.runners & ~done & (now.draw + 1 < most), found, xp.where(done, now.draw + 1, now.needed),
            xp.where(hit, there, now.distance), now.spent.plus(spent),
        )  # fmt: skip

    far = xp.full(n, np.inf, dtype=theta.dtype)
    start = Count(0, runners, xp.zeros(n, dtype=int), far, far, tries.nothing(theta))
    last: Count = tries.repeated(one_more, lambda now: now.runners.any(), start)
    return last


@dataclass(frozen=True, eq=False)
class RHit:
    """The r-hit kernel with a proposal; of the estimator only model and tolerance are used."""

    estimator: AbcAverage
    proposal: Any
    hits: int
    max_draws: int
    device_parts = DeviceParts(("estimator", "proposal"), ("hits", "max_draws"))

    def step(self, rng: Rng, state: State) -> tuple[State, Info]:
        """One step of every chain of the block."""
        moves = rng.bulk(Purpose.MOVE)
        proposed = self.proposal.propose(moves, state.theta, state.log_prior)
        log_u = -moves.standard_exponential(len(state.theta))
        xp = namespace(log_u)
        log_rho = xp.broadcast_to(proposed.log_ratio, log_u.shape)
        log_rho = log_rho if proposed.held is None else xp.where(proposed.held, -np.inf, log_rho)
        # Where all rows are drawn, those that are out of the question are drawn where the chain is.
        theta = proposed.theta
        if not isinstance(rng, Rng):
            theta = xp.where((log_rho > -np.inf)[:, None], theta, state.theta)
        tries = Tries(self.estimator, rng)
        if self.hits == 1:
            last = race(tries, self.estimator.kernel.eps, state.theta, theta, log_u <= log_rho, self.max_draws // 2)
            accepted, distance, capped, spent = last.accepted, last.distance, last.runners.sum(), last.spent
        else:
            accepted, distance, capped, spent = self._by_counts(tries, state, theta, log_rho, log_u)
        state = State(
            chosen(accepted, proposed.theta, state.theta),
            chosen(accepted, proposed.log_prior, state.log_prior),
            chosen(accepted, distance[:, None], state.distances),
        )
        failures: Any = tries.failures
        if not isinstance(rng, Rng):
            from onedraw.engines.jax import FailureMask

            failed: Any = spent.cost.failed
            failures = (FailureMask(spent.place, (failed > 0)[:, None]),)
        capped = int(capped) if isinstance(rng, Rng) else capped
        return state, Info(accepted, proposals_of(proposed), spent.cost, failures, tries.ignored_rng, capped)

    def _by_counts(
        self, tries: Tries, state: State, theta: Array, log_rho: Array, log_u: Array
    ) -> tuple[Array, Array, Any, Spent]:
        xp, eps, half = namespace(theta), self.estimator.kernel.eps, self.max_draws // 2
        asked = log_rho > -np.inf
        here = count_hits(tries, eps, state.theta, asked, self.hits - 1, xp.full(len(theta), half), 1)
        capped = xp.count_nonzero(asked & xp.isinf(here.needed))
        # u <= rho N / (N' - 1) holds up to N' = 1 + rho N / u: draws beyond that cannot change the outcome.
        with np.errstate(over="ignore", invalid="ignore"):
            last_useful = xp.where(xp.isinf(here.needed), 0.0, xp.floor(1.0 + here.needed * xp.exp(log_rho - log_u)))
        last_useful = xp.nan_to_num(last_useful, nan=0.0)
        limit = xp.minimum(last_useful, half).astype(int)
        there = count_hits(tries, eps, theta, limit >= self.hits, self.hits, limit, 0)
        capped = capped + xp.count_nonzero(xp.isinf(there.needed) & (last_useful > half))
        return there.needed <= last_useful, there.distance, capped, here.spent.plus(there.spent)


def starting_state(start: Start, log_prior: Array) -> State:
    """The state of a block from its starting draws."""
    return State(start.theta, log_prior, start.distances)


@sampler(recorded_chains)
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
    **options: Unpack[RunOptions],
) -> Posterior:
    """Draws from pi_eps by the one-hit (hits=1) or r-hit kernel; the kernel must be `od.uniform`.

    `max_draws` bounds the simulations of one step of one chain (100,000 by default, less if the budget would not
    allow ten such steps). A step that reaches it is rejected and reported, and the posterior is no longer exact.
    The other arguments are those of `od.pseudo_marginal`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> od.r_hit(model, od.uniform(0.5), draws=100, chains=64, seed=1).shape
    (64, 100)
    """
    checked = Options.checked(options)
    check_model_and_kernel(model, kernel)
    if not kernel.indicator:
        raise ValueError(
            f"r_hit counts hits, which the {kernel.name} kernel does not have: use od.uniform(eps), or another sampler"
        )
    hits = whole_number("hits", hits, "the number r of hits that end the draws")
    if max_draws is None:
        most = MAX_DRAWS
        if budget is not None and isinstance(budget, int) and isinstance(thin, int):
            most = min(MAX_DRAWS, budget // max(1, 10 * chains_for(start, chains, model.prior, model) * thin))
        max_draws = max(most, 100)
    most = whole_number("max_draws", max_draws, "the most simulations of one step", least=2 * hits)
    estimator = AbcAverage(model, kernel, 1, on_error=checked.on_error)
    return run_chains(
        "r_hit", checked, estimator, lambda ready, proposal: RHit(ready, proposal, hits, most), starting_state,
        worst=most, arguments={"hits": hits, "max_draws": most}, draws=draws, budget=budget, chains=chains, thin=thin,
        start=start, proposal=proposal,
    )  # fmt: skip
