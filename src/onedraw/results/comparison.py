"""Comparison: the probabilities of models, how sure they are, and what is said of them."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from onedraw import markup
from onedraw.arguments import seed_or_fresh, true_or_false, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.failures import Failure
from onedraw.results.misfit import SURE, AmongSimulations, Misfit
from onedraw.results.model_choice import RouteEstimate, log_odds, probabilities
from onedraw.results.model_trial import ACCEPTANCE, LEARNT, ROUTES, Beyond, DecidedModels
from onedraw.results.posterior import HIGHER, Posterior, Status
from onedraw.surrogate.likelihood import mean_gain

LEVEL = 0.9
"""Of the intervals."""
DECISIVE, CLEAR, SOME = 150.0, 20.0, 3.0
"""Bayes factors from which evidence is called very strong, strong and positive (Kass and Raftery 1995)."""
MOST_SHOWN = 1e6
"""Bayes factors beyond this are not told apart in words."""
LARGE_ERROR = 0.2
"""Local error rate from which the choice is called unreliable."""
DECIDED, UNDECIDED = 0.95, 0.75
"""Probabilities from which predictions need no other model, and below which the data do not decide."""
DIGITS = 1000
"""What is a smaller part of an interval than one in so many is not told apart from 0 or 1 in words."""
WIDE = 0.2
"""Length of an interval from which more simulations, and not other data, are what is missing."""


class ComparedModel(NamedTuple):
    """What is said of one model."""

    name: str
    prior: float
    probability: float
    se: float
    low: float
    high: float
    """90 % interval of the probability."""
    log_evidence: float
    """Relative to the most probable model: the log of its Bayes factor against that."""
    log_evidence_se: float
    simulations: int
    failed: int
    near: int
    """Simulations in the neighbourhood of the acceptance ratio."""
    misfit: float
    """p-value: whether the data can come from this model (docs/did_it_work.md); NaN if too few simulations succeeded.
    """

    @property
    def told(self) -> str:
        """The probability as text."""
        return shown(self.probability, self.high - self.low)

    @property
    def interval(self) -> str:
        """The ends of the interval as text."""
        return "–".join(shown(end, self.high - self.low) for end in (self.low, self.high))


class RouteTried(NamedTuple):
    """What the trial says of one way to the probabilities."""

    route: str
    chosen: bool
    score: float
    """Mean log probability of the true model at held-out simulations; NaN if it was not tried."""
    behind: float
    """The best score less this one, and its standard error."""
    behind_se: float
    probabilities: tuple[float, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Posterior probabilities of models for the same data, and what they rest on.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> @od.batched
    ... def simulate(rng, mu):
    ...     return rng.normal(mu, 1.0)
    >>> narrow = od.Model(od.Prior(mu=stats.norm(0, 0.5)), simulate, observed=2.0)
    >>> wide = od.Model(od.Prior(mu=stats.norm(0, 3)), simulate, observed=2.0)
    >>> found = od.compare({"narrow": narrow, "wide": wide}, budget=2000, seed=1)
    >>> found.best, bool(0.5 < found["wide"].probability < 0.65)
    ('wide', True)
    >>> found.posteriors["wide"].names
    ('mu',)
    """

    names: tuple[str, ...]
    prior: Mapping[str, float]
    posteriors: Mapping[str, Posterior]
    """Of each model, from the same simulations; without draws if all of its simulations failed."""
    decided: DecidedModels = field(repr=False)
    misfits: Mapping[str, Misfit]
    """Whether the data can come from each model."""
    beyond: tuple[Beyond, ...]
    """Checks of the raw data that tell the models apart, and that the summaries leave out."""
    has_summary: bool
    """Whether any model compares summaries, and not the data themselves."""
    cost: Cost
    status: Status
    seed: int
    failures: tuple[Failure, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def log_prior(self) -> Array:
        """(models,)"""
        return np.log([self.prior[name] for name in self.names])

    @cached_property
    def models(self) -> tuple[ComparedModel, ...]:
        """What is said of each, in the order given."""
        estimate = self.decided.chosen
        found = probabilities(estimate, self.log_prior, self.decided.bounds, LEVEL)
        best = int(np.argmax([one.value for one in found]))
        rows = []
        for k, (name, one) in enumerate(zip(self.names, found, strict=True)):
            post = self.posteriors[name]
            factor, se = _log_factor(estimate, k, best)
            rows.append(ComparedModel(
                name, self.prior[name], one.value, one.se, one.low, one.high, factor, se, post.cost.simulations,
                post.cost.failed, int(self.decided.near[k]), _misfit_p(self.misfits[name]),
            ))  # fmt: skip
        return tuple(rows)

    def __getitem__(self, name: str) -> ComparedModel:
        """What is said of one model."""
        return self.models[self._index(name)]

    def _index(self, name: str) -> int:
        if not isinstance(name, str) or name not in self.names:
            raise KeyError(f"there is no model {name!r}: there are {', '.join(self.names)}")
        return self.names.index(name)

    @property
    def best(self) -> str:
        """The most probable model."""
        return max(self.models, key=lambda one: one.probability).name

    @property
    def probabilities(self) -> dict[str, float]:
        """By model; they sum to 1."""
        return {one.name: one.probability for one in self.models}

    def log_bayes_factor(self, first: str, second: str) -> tuple[float, float]:
        """Log of the Bayes factor of the first model against the second, and its standard error.

        Infinite if no simulation of one of them came near the data and its evidence is not learnt; NaN if this holds
        for both.
        """
        return _log_factor(self.decided.chosen, self._index(first), self._index(second))

    @property
    def route(self) -> str:
        """How the probabilities were found: "learnt likelihoods", "classifier" or "acceptance ratio"."""
        return ROUTES[self.decided.route]

    @cached_property
    def trial(self) -> tuple[RouteTried, ...]:
        """All routes, the chosen one first."""
        scores, share, found = self.decided.scores, self.decided.share, []
        top = max((one for one in scores if one is not None), key=lambda one: float(share @ one), default=None)
        for k, (route, estimate, one) in enumerate(zip(ROUTES, self.decided.estimates, scores, strict=True)):
            if estimate is None:
                continue
            score = behind = se = math.nan
            if one is not None and top is not None:
                score, (behind, se) = float(share @ one), mean_gain(top, one, share)
            values = probabilities(estimate, self.log_prior, np.full(len(self.names), np.nan), LEVEL)
            chosen = k == self.decided.route
            found.append(RouteTried(route, chosen, score, behind, se, tuple(value.value for value in values)))
        return tuple(sorted(found, key=lambda one: not one.chosen))

    # --- words ---------------------------------------------------------------------------------------------

    @property
    def unlike(self) -> tuple[str, ...]:
        """Models that do not reproduce the data."""
        return tuple(one.name for one in self.models if one.misfit <= SURE)

    @property
    def undecided(self) -> bool:
        """Whether no model can be chosen: the best may have less than one half, or has too little."""
        first = self[self.best]
        return not first.low >= 0.5 or first.probability < UNDECIDED

    @property
    def level(self) -> str:
        """The verdict: "green" if a model can be chosen, "amber" if not or with care, "red" if unlike the data."""
        first = self[self.best]
        if first.name in self.unlike or len(self.unlike) == len(self.names):
            return "red"
        wrong = self.decided.errors.local > LARGE_ERROR and first.probability > DECIDED
        return "amber" if self.beyond or self.undecided or wrong else "green"

    @cached_property
    def headline(self) -> str:
        """The decision in words."""
        order = sorted(self.models, key=lambda one: (-one.probability, -one.high))
        first, second = order[0], order[1]
        if len(self.unlike) == len(self.names):
            least = "" if self.undecided else f"; {first.name} does so least badly among them"
            return f"None of the models reproduces the data{least}"
        told = f"{first.told} ({100 * LEVEL:.0f} % interval {first.interval})"
        what = "These simulations" if first.high - first.low > WIDE else "The data"
        between = f"{what} do not decide between {first.name} and {second.name}"
        if first.name in self.unlike:
            best = f"{between}, and" if self.undecided else f"{first.name} is the most probable of these models, but"
            return f"{best} {first.name} does not reproduce the data"
        if self.undecided:
            return f"{between}: {first.name} has probability {told}"
        return f"{first.name} is the most probable model, with probability {told}: {self._strength(first, second)}"

    def _strength(self, first: ComparedModel, second: ComparedModel) -> str:
        value, _ = self.log_bayes_factor(first.name, second.name)
        bound = float(self.decided.bounds[self._index(second.name)])
        if not math.isnan(bound):
            value = float(self.decided.chosen.log_evidence[self._index(first.name)]) - bound
        factor = math.exp(min(value, 700.0))
        if factor >= DECISIVE:
            word = "very strong"
        else:
            word = "strong" if factor >= CLEAR else "positive" if factor >= SOME else "weak"
        size = f"above {MOST_SHOWN:,.0f}" if factor > MOST_SHOWN else _number(factor)
        if not math.isnan(bound):
            return f"at least {word} evidence against {second.name} (Bayes factor {size} or more)"
        return f"{word} evidence against {second.name} (Bayes factor {size})"

    @cached_property
    def findings(self) -> tuple[str, ...]:
        """What must be known before the probabilities are used, the most important first."""
        found = [
            f"{name} does not reproduce the data (p = {self.misfits[name].p:.2g}): {_blamed(self.misfits[name])}"
            for name in self.unlike
        ]
        if self.beyond:
            labels = " and ".join(one.label for one in self.beyond[:2])
            found.append(
                f"the summaries leave out what tells the models apart: beyond them, {labels} of the raw data tell "
                "simulations of one model from those of another. Add this to the summary and compare again: these "
                "probabilities may be far from those of the data"
            )
        known = np.isnan(self.decided.bounds)
        found += [self._absent(one) for one, near in zip(self.models, known, strict=True) if not near]
        errors = self.decided.errors
        if not math.isnan(errors.local):
            found.append(
                f"near the data, the most probable model is the wrong one for {100 * errors.local:.2g} % "
                f"± {100 * errors.local_se:.1g} % of held-out simulations; {100 * errors.prior:.2g} % "
                f"± {100 * errors.prior_se:.1g} % of those from the priors"
            )
        return tuple(found)

    def _absent(self, one: ComparedModel) -> str:
        if one.failed == one.simulations:
            return f"every simulation of {one.name} failed: {self._first_failure(one.name)}"
        return (
            f"no simulation of {one.name} came near the data: its probability is at most {shown(one.high)} by the "
            f"number of its {one.simulations:,} simulations"
            + (", and what is stated rests on its learnt likelihood beyond them" if self.route == LEARNT else "")
        )

    def _first_failure(self, name: str) -> str:
        failures = self.posteriors[name].failures
        return failures[0].message if failures else "no simulation succeeded"

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the probabilities rest on, in plain words."""
        decided, told = self.decided, []
        if decided.exact:
            told.append(
                f"Route: {ACCEPTANCE} of simulations that match the data exactly ({int(decided.near.sum()):,} do)."
            )
        else:
            tried = [one for one in self.trial if not math.isnan(one.score)]
            how = f"chosen by its log score at {self._held_out()} held-out simulations"
            if not tried:
                how = "without a trial: fewer than two models came near the data often enough"
            told.append(f"Route: {self.route}, {how}.")
        if decided.unavailable and not decided.exact:
            told.append(f"Learnt likelihoods could not be compared: {decided.unavailable}.")
        if self.route == ACCEPTANCE and not decided.exact:
            told.append(f"Tolerance: {decided.eps:.4g} in scaled summaries, at which the probabilities hold.")
        if self.has_summary and not self.beyond:
            told.append(
                "The probabilities are those given the summaries. Summaries that are sufficient for every model need "
                "not be so for the choice between them (docs/model_choice.md)."
            )
        if self.status.reason not in ("finished", "budget"):
            told.append(self.status.message)
        return tuple(told)

    def _held_out(self) -> int:
        return next((len(one) for one in self.decided.scores if one is not None), 0)

    @property
    def advice(self) -> str:
        """What to do next."""
        if self.level == "red":
            return "Look first at what the models cannot reproduce: comparison.posteriors[name].misfit()."
        if self.beyond:
            return "Add statistics to the summary that tell the models apart, such as those named, and compare again."
        first = self[self.best]
        if self.undecided and first.high - first.low > WIDE:
            return "Raise the budget: the interval is wide."
        if first.probability < DECIDED:
            return "Use comparison.predict(n), which averages over the models, for predictions."
        return f"Report the probability with its interval, and the posterior of {first.name}."

    def summary(self) -> str:
        """Decision, table and trial, as text."""
        told = [f"- {one}" for one in self.findings]
        parts = [self.title, f"{self.level}: {self.headline}.", *told, self.advice, "", *self._table()]
        return "\n".join((*parts, *(f"note: {note}" for note in self.notes)))

    __str__ = summary

    def __repr__(self) -> str:
        shares = ", ".join(f"{one.name} {one.told}" for one in self.models)
        return f"Comparison({shares}; {self.cost.simulations:,} simulations)"

    @property
    def title(self) -> str:
        """What was compared."""
        return f"comparison of {', '.join(self.names)} ({self.cost.simulations:,} simulations)"

    def _rows(self) -> list[list[str]]:
        head = ["", "probability", "se", f"{100 * LEVEL:.0f} % interval", "log Bayes factor", "simulations", "misfit p"]
        body = [
            [one.name, one.told, f"{one.se:.2g}", one.interval,
             factor_shown(one.log_evidence, one.log_evidence_se), f"{one.simulations:,}",
             "" if math.isnan(one.misfit) else f"{one.misfit:.2g}"]
            for one in self.models
        ]  # fmt: skip
        return [head, *body]

    def _table(self) -> list[str]:
        rows = self._rows()
        wide = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        return [
            "  ".join([row[0].ljust(wide[0]), *(cell.rjust(w) for cell, w in zip(row[1:], wide[1:], strict=True))])
            for row in rows
        ]

    def _repr_html_(self) -> str:
        """For notebooks: the decision, and the table with intervals as bars."""
        spans = [markup.Span(one.low, one.probability, one.high) for one in self.models]
        drawings = markup.bars(spans)
        head = markup.heading("Comparison of models", f"{self.cost.simulations:,} simulations; {self.route}")
        told = markup.lines([f"{self.level}: {self.headline}.", *self.findings])
        return markup.block(head, told, markup.table(self._rows(), drawings))

    # --- use -----------------------------------------------------------------------------------------------

    def predict(self, n: int, *, seed: int | None = None, data: bool = False) -> Any:
        """n predictive simulations, averaged over the models: each at a draw of a model picked by its probability.

        They have the form of `Posterior.predict`: the models' summary or, with `data=True`, the simulated data. Models
        without draws are left out. The simulations are not added to the cost.
        """
        n, data = whole_number("n", n, "the number of predictive simulations"), true_or_false("data", data)
        seed = seed_or_fresh(self.seed if seed is None else seed)
        rng = Rng(seed, Phase.PREDICT).bulk(Purpose.MOVE)
        share = np.array([one.probability if self.posteriors[one.name].shape[1] else 0.0 for one in self.models])
        if not share.any():
            raise ValueError("no model has draws to predict from")
        label = rng.choice(len(share), n, p=share / share.sum())
        parts, places, layout = [], [], None
        for k, name in enumerate(self.names):
            mine, post = np.flatnonzero(label == k), self.posteriors[name]
            if not mine.size:
                continue
            model = post.model_for("predict")
            model = model.with_summary(None) if data else model
            own = Rng(seed, Phase.PREDICT, step=1 + k)
            theta, layout = post.picked(len(mine), seed + k), model.recipe.layout
            parts.append(model.simulate_rows(own, theta, np.arange(len(mine))).rows[:, 0, :])
            places.append(mine)
        assert layout is not None
        return layout.restore(np.concatenate(parts)[np.argsort(np.concatenate(places))])

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write decision, probabilities, curve, error rates and predictive checks as one offline HTML file.

        Returns its path.
        """
        return cast(Path, HIGHER["comparison"](self, path))


def _log_factor(estimate: RouteEstimate, first: int, second: int) -> tuple[float, float]:
    """Log Bayes factor and its standard error."""
    if first == second:
        return 0.0, 0.0
    some = [first, second]
    if not np.isfinite(estimate.log_evidence[some]).any():
        return math.nan, math.nan
    both = RouteEstimate(estimate.log_evidence[some], estimate.covariance[np.ix_(some, some)])
    return log_odds(both, np.log([0.5, 0.5]), 0)


def _misfit_p(misfit: Misfit) -> float:
    return math.nan if misfit.worst is None else misfit.p


def _blamed(misfit: Misfit) -> str:
    worst: AmongSimulations | None = misfit.worst
    return "" if worst is None else worst.words()


def factor_shown(value: float, se: float) -> str:
    """A log Bayes factor as text, with no more digits than its error allows.

    >>> factor_shown(-0.2612, 0.0634), factor_shown(-1675.42, 2657.0), factor_shown(-math.inf, 0.0)
    ('-0.26 ± 0.063', '-1,675 ± 2,657', '-inf')
    """
    if value == 0.0 or math.isinf(value):
        return f"{value:.0f}"
    return f"{value:.2f} ± {se:.2g}" if se < 10 else f"{value:,.0f} ± {se:,.0f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def shown(probability: float, length: float = 0.0) -> str:
    """A probability as text, exact near 0 and 1 as far as the length of its interval allows.

    >>> shown(0.1234), shown(0.00012), shown(0.99988), shown(1.0)
    ('0.123', '0.00012', '0.99988', '1')
    >>> shown(1e-12, 0.05), shown(1 - 1e-12, 0.05), shown(0.00012, 0.05)
    ('0', '1', '0.00012')
    """
    rest = 1.0 - probability
    if min(probability, rest) < length / DIGITS:
        return "0" if probability < rest else "1"
    if probability < 0.01:
        return f"{probability:.2g}"
    if rest < 0.01:
        return "1" if rest < 1e-12 else f"{probability:.{max(3, 1 - math.floor(math.log10(rest)))}f}"
    return f"{probability:.3f}"
