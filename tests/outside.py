"""A kernel, a distance and a sampler that are no part of the package, made as docs/extending.md says."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onedraw.engines.arrays import DeviceParts, namespace
from onedraw.engines.streams import Purpose
from onedraw.estimators.abc_average import AbcAverage, check_model_and_kernel
from onedraw.estimators.protocol import evaluate
from onedraw.run.chains import recorded_chains, run_chains
from onedraw.run.options import Options
from onedraw.run.registry import sampler
from onedraw.samplers.pseudo_marginal import accept, info_of, least_needed, moved, starting_state


def log_cosine(u):
    xp = namespace(u)
    return xp.log((1.0 + xp.cos(np.pi * xp.minimum(u, 1.0))) / 2.0)


@dataclass(frozen=True, eq=False)
class City:
    """The sum of differences, each in units of its spread among pilot simulations."""

    pilot: int = 100
    spread: Any = None
    device_parts = DeviceParts(numbers=("spread",))

    def learnt(self, rows, labels):
        return replace(self, pilot=0, spread=rows.std(axis=0))

    def __call__(self, simulated, observed):
        return namespace(simulated).abs((simulated - observed) / self.spread).sum(axis=1)


@dataclass(frozen=True, eq=False)
class Barker:
    estimator: Any
    proposal: Any
    device_parts = DeviceParts(numbers=("estimator", "proposal"))

    def step(self, rng, state):
        moves = rng.bulk(Purpose.MOVE)
        proposed = self.proposal.propose(moves, state.theta, state.log_prior)
        e = moves.standard_exponential(len(state.theta))  # u = exp(-e)
        log_needed = least_needed(state, proposed, -e - namespace(e).log(-namespace(e).expm1(-e)))
        result = evaluate(self.estimator, rng, proposed.theta, log_needed, state.theta)
        accepted = accept(result.log_estimate, log_needed)
        return moved(state, proposed, result, accepted), info_of(accepted, proposed, result, 1)


@sampler(recorded_chains)
def barker(model, kernel, *, draws=None, budget=None, chains=None, thin=1, proposal=None, start="rejection", **options):
    checked = Options.checked(options)
    check_model_and_kernel(model, kernel)
    average = AbcAverage(model, kernel, on_error=checked.on_error)
    return run_chains("barker", checked, average, Barker, starting_state, worst=1, arguments={"pseudo_samples": 1},
                      draws=draws, budget=budget, chains=chains, thin=thin, proposal=proposal, start=start)  # fmt: skip
