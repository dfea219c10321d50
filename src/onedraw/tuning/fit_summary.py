"""Learn a summary by regression before a run: see `results.learned_summary`."""

from typing import Unpack

import numpy as np

from onedraw.arguments import one_of, whole_number
from onedraw.estimators.abc_average import AbcAverage
from onedraw.failures import NoAnswer
from onedraw.model.coordinates import support_of
from onedraw.model.kernels import uniform
from onedraw.model.model import Model
from onedraw.model.simulator import JaxSimulator
from onedraw.results.learned_summary import Fitted, LearnedSummary, learn, terms_for, with_learned
from onedraw.run.bank import block_size
from onedraw.run.blocks import cut
from onedraw.run.options import Options, RunOptions, check_parts, on_engine
from onedraw.run.pilot import FromPrior
from onedraw.run.plan import Limits, Outcome, Plan, Round
from onedraw.run.session import Run
from onedraw.run.signals import Stopped
from onedraw.run.specification import specify_model

TERMS = ("linear", "squares", "products")


def plan(
    model: Model, seed: int, on_error: str, terms: str | None, limits: list[Limits]
) -> Plan[tuple[Outcome, LearnedSummary]]:
    """Simulations at draws from the prior, as many as the budget or the time allows, and what they teach."""
    budget = limits[-1].budget
    try:
        outcome: Outcome = yield Round(
            FromPrior(model, seed, on_error), lambda gathered: cut(budget, block_size(model), gathered.done), "pilot"
        )
    except Stopped as stopped:
        if stopped.reason != "max_seconds":
            raise
        if stopped.partial is None or not stopped.partial.simulations:
            raise TimeoutError("max_seconds passed before the first simulations were done: raise it") from None
        outcome = stopped.partial
    return outcome, learnt_from(model, outcome, terms)


def learnt_from(model: Model, outcome: Outcome, terms: str | None) -> LearnedSummary:
    """The summary learnt from simulations."""
    theta, rows = outcome.arrays["theta"], outcome.arrays["rows"]
    good = ~np.isnan(rows[:, 0])
    number = int(good.sum())
    terms = terms_for(rows.shape[1], number) if terms is None else terms
    learnt = learn(support_of(model.prior).unbounded(theta[good]), rows[good], np.ones(number), terms)
    if learnt is None:
        raise NoAnswer(
            f"{number} simulations show no dependence of the data on the parameters: raise budget = {len(rows)}, or "
            "give a summary of your own"
        )
    return learnt


def fit_summary(model: Model, *, budget: int, terms: str | None = None, **options: Unpack[RunOptions]) -> Fitted:
    """Learn a summary of few numbers from simulations, by regression of the parameters on the data.

    Parameters
    ----------
    model
        What to simulate; its own summary, if it has one, is what the regression sees.
    budget
        The number of simulations. The result contains them, and `od.infer(fitted, ...)` uses them again.
    terms
        "linear", "squares" (squares too) or "products" (squares and products too); None takes the richest that the
        budget can support.
    **options
        As in every function that simulates: see `RunOptions` (seed, workers, executor, engine, timeout, store,
        segment, progress, max_seconds, on_error).

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(mu=stats.norm(0, 2)), lambda rng, mu: rng.normal(mu, 1.0, size=20), np.zeros(20))
    >>> fitted = od.fit_summary(model, budget=500, seed=1)
    >>> fitted.model, fitted.cost.simulations
    (Model(mu -> 1 summary), 500)
    """
    checked = Options.checked(options)
    check_parts(model, "fit_summary")
    budget = whole_number("budget", budget, "the number of simulations to learn from", least=10)
    if terms is not None:
        one_of("terms", terms, TERMS)
    if isinstance(model.simulate, JaxSimulator):
        raise ValueError(
            "od.fit_summary composes NumPy functions, which no program for a device can hold: use od.infer, which "
            "learns from the simulations of an od.jax_simulator by itself, or write the summary with jax.numpy"
        )
    limited = model.limited(checked.timeout)
    # The kernel is not used: what is put on an engine is the simulator.
    estimator = on_engine(AbcAverage(limited, uniform(1.0)), checked)
    arguments = {"budget": budget, **checked.identity(estimator)}
    (outcome, learnt), cost = Run(
        "fit_summary", arguments, lambda: specify_model("fit_summary", limited, arguments), checked,
        lambda limits: plan(limited, checked.seed, checked.on_error, terms, limits), model.prior, None, model.compiled,
    ).value()  # fmt: skip
    theta, rows = outcome.arrays["theta"], outcome.arrays["rows"]
    cost = cost._replace(proposals=len(rows))
    return Fitted(with_learned(model, learnt), theta, rows, cost, learnt, checked.seed)
