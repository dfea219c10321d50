"""How far an estimate from a budget of simulations can be trusted."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.results.assessment import FROM_MOMENTS, Assessment
from onedraw.results.learnt_likelihood import LearntLikelihood
from onedraw.results.misfit import SURE, AmongSimulations, compare
from onedraw.results.trial import TrialResult

FEW_EFFECTIVE = 10
"""Effective draws of an estimate below which a warning is given: means are uncertain by a third of a sd."""
KNOWN_SHARE = 0.4
"""That of a learnt likelihood comes from eight fits or more, each without a part of the simulations: in nine of ten
cases the right number is above this share of it (chi square with 7 degrees of freedom)."""
USES = (
    (10, "a first look"),
    (25, "a mean with its interval"),
    (100, "a mean to a tenth of a standard deviation"),
    (400, "the ends of intervals"),
)
"""Effective draws, and what they are enough for (docs/effective_draws.md). With 25, an interval would have to be 2 %
wider to include the error of the mean; below, a learnt likelihood has a warning (FEW_EFFECTIVE over KNOWN_SHARE)."""
FEWEST_PLACED = 20
"""Simulations near the posterior from which coverage is told and judged."""
NOMINAL, LEAST_COVERAGE, BY_CHANCE = 0.9, 0.85, 0.01
"""Intervals are too narrow if fewer than this share of those with content NOMINAL contain the known parameters, and
chance alone gives so few with at most this probability, for any of the parameters."""
MOST_UNSEEN = 0.05
"""Share of the posterior far from all simulations that is not worth a warning."""
LEAST_ALIKE, ENOUGH, BEYOND = 0.02, 50, 1.1
"""Share of the replicates that must be at least as unusual as the data; how many are enough for that alone; and how far
beyond fewer ones the data must be, in their largest departure: among 20 replicates, data are the first by chance in one
case of 21."""


NARROW = "warning: 90 % intervals"
LITTLE = "warning: learnt summaries say hardly anything of"
LOST = "Fewer summaries were learnt from those given, by regression"
MISFIT = "warning: the model may not be able to produce these data"
FEW = "warning: the effective sample size is only about"
"""How notes begin that say what findings of a verdict say: "Intervals", "Summaries", "Misfit" and "Effective draws"."""


def tolerance_path(distances: Array, ends: tuple[int, ...], nearest: int) -> list[list[float]]:
    """The distance of the nearest simulations at the end of each stage: [simulations, tolerance]."""
    count = max(10, min(nearest, ends[0] // 4))
    return [[end, float(np.partition(distances[:end], count)[count])] for end in ends if end > count]


def chosen_settings(found: Assessment, proposals: int, path: list[list[float]]) -> dict[str, Any]:
    """What a run has chosen, for `settings`; `proposals` besides the prior were adapted to the posterior."""
    trial, method = found.trial, found.method
    return {
        "method": _method(proposals), "summary": found.names[method.summary], "nearest": len(found.draws.source),
        "adjustment": method.words(), "smoothing": "local" if method.local else "whole", "path": path,
        "held_out": {"number": trial.tried, "gain": _or_none(trial.gain), "se": _or_none(trial.gain_se),
                     "cover_90": _or_none(trial.coverage)},
        "estimate": f"draws {method.words()}", "alternatives": alternatives(found),
    }  # fmt: skip


def _method(proposals: int) -> str:
    others = f" and from {proposals} adapted proposal{'s' if proposals > 1 else ''}" if proposals else ""
    return f"simulations from the prior{others}"


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


REDUCED = (
    LOST + "{}. The posterior is that given these: what they lose "
    "of the data makes it wider than the exact one, and neither the effective sample size nor any other stated error "
    "shows this."
)
"""What is said if summaries were learnt, and from what."""
OF_SERIES = (
    " on moments of the series (level, size, and how values depend on earlier ones)",
    "Summaries of your own may show more of a series. If a hidden state is behind it, and the probability of a value "
    "given the state is known, od.particle_filter makes the posterior exact.",
)
HARDLY_ANY = 0.95
"""Posterior over prior standard deviation of a parameter, in unbounded coordinates, from which learnt summaries say
hardly anything of it."""


def reduced(learnt_from: str) -> list[str]:
    """What is said if summaries were learnt, by what these are called."""
    series = learnt_from == FROM_MOMENTS
    return [REDUCED.format(OF_SERIES[0]), OF_SERIES[1]] if series else [REDUCED.format("")]


def little_learnt(draws: Array, prior_draws: Array, names: Sequence[str]) -> list[str]:
    """That learnt summaries say hardly anything of some parameters, of which these are draws (n, dim), in plain words.

    >>> prior = np.random.default_rng(1).standard_normal((500, 2))
    >>> [note[:51] for note in little_learnt(prior * [0.97, 0.5], prior, ["mu", "phi"])]
    ['warning: learnt summaries say hardly anything of mu']
    >>> little_learnt(prior * [0.9, 0.5], prior, ["mu", "phi"])
    []
    """
    unknown = draws.std(axis=0) >= HARDLY_ANY * prior_draws.std(axis=0)
    if not unknown.any():
        return []
    named = [name for name, one in zip(names, unknown, strict=True) if one]
    whose = "its posterior is" if len(named) == 1 else "their posteriors are"
    return [
        f"{LITTLE} {', '.join(named)}: {whose} nearly as wide as the prior. The data themselves may say more; give "
        "summaries of your own that depend on it"
    ]


def notes(
    found: Assessment,
    proposals: int,
    simulations: int,
    effective: float,
    before: AmongSimulations | None,
    unadjusted: float,
) -> list[str]:
    """What was done and how far to trust it, in plain words."""
    name, count, eps = found.names[found.method.summary], len(found.draws.source), found.draws.eps
    told = [
        f"Method: {_method(proposals)}; the nearest {count:,} of {simulations:,} by {name} are used.",
        f"Tolerance: {eps:.4g}. Effective sample size: about {effective:.0f}.",
        f"The draws are {found.trial.words()}.",
        *(reduced(name) if found.method.summary else []),
        *warnings(effective, found.trial, before),
    ]
    if found.left_out:
        told.append(
            "No likelihood was learnt, since that would have taken too long after the run was stopped: if the run goes "
            "on, it may be more accurate."
        )
    if unadjusted > 0.01:
        share = f"{100 * unadjusted:.0f} %"
        told.append(f"{share} of the draws were left unadjusted: adjustment would have moved them outside the prior.")
    return told


def learnt_settings(
    found: Assessment, learnt: LearntLikelihood, names: Sequence[str], proposals: int
) -> dict[str, Any]:
    """What a run has chosen, for `settings`, if its estimate is a learnt likelihood."""
    form, (gain, error) = learnt.surrogate.form, found.gain
    return {
        "method": _method(proposals),
        "estimate": "learnt likelihood",
        "summary": _described(found, learnt),
        "terms": [list(terms) for terms in form.terms[: form.common + 1]],
        "residuals": form.law.name,
        "power": learnt.surrogate.power,
        "held_out": {"number": len(learnt.scores), "gain": _or_none(gain), "se": _or_none(error),
                     "cover_90": _or_none(float(learnt.coverage(0.9).mean()))},
        "calibration": calibration(learnt, names),
        "alternatives": alternatives(found),
    }  # fmt: skip


def _described(found: Assessment, learnt: LearntLikelihood) -> str:
    if learnt.rows:
        return f"{learnt.rows:,} independent rows"
    return found.names[-1] if learnt.learnt_summary else "summaries as given"


def calibration(learnt: LearntLikelihood, names: Sequence[str]) -> dict[str, Any]:
    """How 90 % intervals and standard deviations of each parameter did at simulations proposed near the posterior.

    `spread` is the root mean square of the distances of known parameters from their posterior means, in posterior
    standard deviations: 1 if these are right.
    """
    covered, spread = learnt.coverage(0.9), learnt.spread()
    return {
        "number": len(learnt.ranks),
        "cover_90": {name: _or_none(float(one)) for name, one in zip(names, covered, strict=True)},
        "spread": {name: _or_none(float(one)) for name, one in zip(names, spread, strict=True)},
    }


def alternatives(found: Assessment) -> list[dict[str, Any]]:
    """The estimates that were tried, the chosen one first: how far each falls behind it in mean log score."""
    gain, error = found.gain
    regression = found.method.words()
    if found.learnt is None:
        return [{"estimate": regression, "behind": 0.0, "se": 0.0}]
    both = [{"estimate": "learnt likelihood", "behind": _or_none(-gain), "se": _or_none(error)},
            {"estimate": regression, "behind": _or_none(gain), "se": _or_none(error)}]  # fmt: skip
    first, second = both if found.likelihood is not None else both[::-1]
    return [first | {"behind": 0.0, "se": 0.0}, second]


def learnt_notes(
    found: Assessment,
    learnt: LearntLikelihood,
    names: Sequence[str],
    proposals: int,
    simulations: int,
    effective: float,
    before: AmongSimulations | None,
    unseen: float,
) -> list[str]:
    """What was done and how far to trust it, in plain words, if the estimate is a learnt likelihood."""
    gain, error = found.gain
    form, width = learnt.surrogate.form, learnt.observed.shape[-1]
    what = "the summaries"
    if learnt.rows:
        what = f"one of {learnt.rows:,} independent rows"
    elif learnt.learnt_summary:
        what = "a learnt summary" if width == 1 else f"{width} learnt summaries"
    elif form.long:
        what = f"a time series of {width:,} values"
    told = [
        f"Method: {_method(proposals)}; the likelihood of {what} was learnt from {simulations:,} of them.",
        f"Effective sample size: about {effective:.0f}, from how much the posterior means change when a part of the "
        "simulations is left out.",
    ]
    if learnt.learnt_summary:
        told += reduced(found.names[-1])
    if not math.isnan(gain):
        told.append(
            f"Held-out score: {gain:+.2f} ± {error:.2f} relative to draws {found.method.words()} (mean log density of "
            f"the known parameters of {len(learnt.scores)} simulations near the data)."
        )
    if len(learnt.ranks) >= FEWEST_PLACED:
        told.append(_calibrated(learnt, names))
    if learnt.surrogate.power < 1.0:
        told.append(
            f"The learnt likelihood is raised to the power {learnt.surrogate.power:g}: without that, intervals were "
            "too narrow."
        )
    return [*told, *learnt_warnings(learnt, names, effective, before, unseen)]


def _calibrated(learnt: LearntLikelihood, names: Sequence[str]) -> str:
    covered, number = learnt.coverage(0.9), len(learnt.ranks)
    worst = int(np.argmin(covered))
    return (
        f"At {number} simulations proposed near the posterior, 90 % intervals contain {100 * covered.mean():.0f} % of "
        f"the known parameters (least: {names[worst]}, {100 * covered[worst]:.0f} ± {_percent_error(number):.0f} %)."
    )


def _percent_error(number: int) -> float:
    """Two standard errors of the coverage of 90 % intervals."""
    return 200.0 * math.sqrt(0.9 * 0.1 / number)


def too_narrow(covered: float, number: int, parameters: int = 1) -> bool:
    """Whether 90 % intervals are too narrow that contain this share of `number` known values, the least of parameters.

    The one rule for all notes and verdicts.

    >>> too_narrow(0.82, 100), too_narrow(0.80, 100), too_narrow(0.80, 100, parameters=20), too_narrow(0.6, 19)
    (False, True, False, False)
    """
    if number < FEWEST_PLACED or not covered < LEAST_COVERAGE:
        return False
    from scipy.stats import binom

    # Each of the parameters may be the worst by chance.
    return bool(parameters * binom.cdf(round(covered * number), number, NOMINAL) < BY_CHANCE)


def learnt_warnings(
    learnt: LearntLikelihood, names: Sequence[str], effective: float, before: AmongSimulations | None, unseen: float
) -> list[str]:
    """What a reader must know before using draws of a learnt likelihood, in plain words."""
    found, covered, number = _few(effective, learnt=True), learnt.coverage(0.9), len(learnt.ranks)
    if number and too_narrow(float(covered.min()), number, len(covered)):
        worst = int(np.argmin(covered))
        found.append(
            f"{NARROW} of {names[worst]} contain only {100 * covered[worst]:.0f} % of the known parameters of "
            f"{number} simulations near the posterior: they are too narrow or biased; raise the budget"
        )
    if unseen > MOST_UNSEEN:
        found.append(
            f"warning: {100 * unseen:.0f} % of the posterior lies where there are hardly any simulations; raise the "
            "budget"
        )
    return [*found, *prior_check(before)]


def sure_effective(effective: float, learnt: bool) -> float:
    """The effective draws that an estimate has at least, as far as is known: what notes and verdicts judge.

    >>> sure_effective(20.0, learnt=True), sure_effective(20.0, learnt=False)
    (8.0, 20.0)
    """
    return KNOWN_SHARE * effective if learnt else effective


def enough_for(effective: float) -> str:
    """What so many effective draws are enough for, and what they are too few for, in words.

    >>> enough_for(24.0), enough_for(400.0)
    ('enough for a first look, too few for a mean with its interval', 'enough for the ends of intervals')
    """
    reached = [use for least, use in USES if effective >= least]
    missed = [use for least, use in USES if effective < least]
    if not reached:
        return ""
    return f"enough for {reached[-1]}" + (f", too few for {missed[0]}" if missed else "")


def _few(effective: float, learnt: bool) -> list[str]:
    sure = sure_effective(effective, learnt)
    if not sure < FEW_EFFECTIVE:
        return []
    return [
        f"{FEW} {effective:.0f}: posterior means may be uncertain by {1 / math.sqrt(sure):.1g} posterior standard "
        "deviations; raise the budget"
    ]


def warnings(effective: float, trial: TrialResult, before: AmongSimulations | None) -> list[str]:
    """What a reader must know before using the draws, in plain words."""
    found = _few(effective, learnt=False)
    if trial.tried and too_narrow(trial.coverage, trial.tried):
        found.append(
            f"{NARROW} contain only {100 * trial.coverage:.0f} % of the known parameters of {trial.tried} simulations "
            "near the data: they are too narrow or biased; raise the budget"
        )
    return [*found, *prior_check(before)]


def prior_check(found: AmongSimulations | None) -> list[str]:
    """That the data are unlike simulations from the prior, in plain words; nothing if they are not."""
    if found is None or found.p > SURE:
        return []
    return [f"{MISFIT} (prior predictive check, p = {found.p:.2g}): {found.words()}"]


def predictive_check(rows: Array, observed: Array, labels: list[str] | None = None) -> list[str]:
    """Whether the observed row looks like replicates (n, s) in plain words; nothing if there are too few of them."""
    found = compare(rows, observed, labels)
    if found is None:
        return []
    counted = f"{found.alike} of {found.number} replicates are at least as unusual as the data"
    if found.alike / found.number < LEAST_ALIKE:
        if found.number >= ENOUGH or found.beyond > BEYOND:
            return [f"{MISFIT}: the posterior predictive check failed: {counted}; {found.words()}"]
        return [f"Posterior predictive check undecided: {counted}; post.misfit() makes more replicates."]
    return [f"Posterior predictive check passed: {counted}."]
