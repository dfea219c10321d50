"""May these numbers be used? What a run's own numbers say about that, in plain words, and what to do next.

A verdict looks at what can be seen from the run alone: whether it came to its end, whether its chains agree and move,
how many draws its draws are worth, how many simulations failed, and whether the answer still changes with the
tolerance. It cannot see whether the model is right or whether the summaries tell enough about the parameters.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onedraw.report.tolerances import Position
from onedraw.results.posterior import ESS_LIMIT, R_HAT_LIMIT, Posterior
from onedraw.results.summary import Row

GOOD, CARE, BAD = "good", "care", "bad"
WANTED_ESS = 400
"""What a longer run is planned for."""
BAD_ESS, BAD_R_HAT = 20, 1.05
MANY_FAILED = 0.05
"""Share of failed simulations from which a reader must be told before all else."""
SHIFT = 0.1
"""A change of the mean, in posterior standard deviations, or of the standard deviation itself, that matters."""
COMPARED_ESS = 100
"""Draws' worth that the smaller tolerance must have before it is compared."""


WORDS = {"budget": "budget spent", "max_seconds": "out of time"}


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: str
    name: str
    value: str
    text: str


class Verdict(NamedTuple):
    """The level of the worst finding ("good", "care" or "bad"), a sentence, what was found, and what to do next."""

    level: str
    headline: str
    findings: tuple[Finding, ...]
    todo: tuple[str, ...]


HEADLINES = {
    GOOD: "Nothing speaks against these numbers.",
    CARE: "Use these numbers with care.",
    BAD: "Do not use these numbers yet.",
}


def judge(post: Posterior, positions: Sequence[Position] = ()) -> Verdict:
    """The verdict on a run; `positions` are the run at smaller tolerances (`onedraw.report.tolerances`).

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> judge(od.rejection(model, od.uniform(0.5), draws=50, seed=1)).headline
    'Use these numbers with care.'
    """
    findings: list[Finding] = []
    todo: list[str] = []
    rows = post.summary().rows if math.prod(post.shape) else {}
    _end(post, findings, todo)
    if rows:
        _agreement(post, rows, findings, todo)
        _worth(post, rows, findings, todo)
    _acceptance(post, findings, todo)
    _failures(post, findings, todo)
    if rows and positions:
        _tolerance(post, positions, findings, todo)
    _notes(post, findings)
    levels = [one.level for one in findings]
    level = BAD if BAD in levels else CARE if CARE in levels else GOOD
    if level == GOOD:
        todo.append("Report the tolerance and the effective number of draws together with the numbers.")
    return Verdict(level, HEADLINES[level], tuple(findings), tuple(todo))


def _end(post: Posterior, findings: list[Finding], todo: list[str]) -> None:
    level = GOOD if post.status.complete else CARE
    findings.append(
        Finding(level, "The run", WORDS.get(post.status.reason, post.status.reason), f"{post.status.message}.")
    )
    if not post.status.complete:
        todo.append("Let the run come to its end: the same call, or onedraw resume with its file, goes on.")


def _agreement(post: Posterior, rows: dict[str, Row], findings: list[Finding], todo: list[str]) -> None:
    if post.independent or post.weights is not None:
        return
    chains = post.shape[0]
    still = chains - int(np.count_nonzero(post._moves().any(axis=1))) if post.shape[1] > 1 else chains
    if still:
        text = f"{still:,} of {chains:,} chains never moved, so that their spread says nothing about the posterior."
        findings.append(Finding(BAD, "Chains that stand still", f"{still:,}", text))
        todo.append("Run longer, raise eps, or use smaller steps (proposal=od.random_walk(scale=...)).")
    known = {name: row.r_hat for name, row in rows.items() if not math.isnan(row.r_hat)}
    if not known:
        findings.append(Finding(CARE, "R-hat", "–", "There are too few draws to see whether the chains agree."))
        return
    name, worst = max(known.items(), key=lambda item: item[1])
    level = BAD if worst > BAD_R_HAT else CARE if worst > R_HAT_LIMIT else GOOD
    text = f"largest for {name}; chains that agree are below {R_HAT_LIMIT}."
    findings.append(Finding(level, "R-hat", f"{worst:.3f}", text))
    if level != GOOD:
        todo.append(f"The chains do not agree on {name} yet: run longer, and look at the traces for chains apart.")


def _worth(post: Posterior, rows: dict[str, Row], findings: list[Finding], todo: list[str]) -> None:
    name, least = min(rows.items(), key=lambda item: -math.inf if math.isnan(item[1].ess) else item[1].ess)
    ess = least.ess
    if math.isnan(ess):
        findings.append(Finding(BAD, "Effective draws", "unknown", f"no error can be stated for {name}."))
        todo.append("Run longer: there are too few different draws to state an error.")
        return
    level = BAD if ess < BAD_ESS else CARE if ess < ESS_LIMIT else GOOD
    error = least.mcse / least.sd if least.sd > 0 else math.nan
    total = math.prod(post.shape)
    text = (
        f"of {total:,} draws, smallest for {name}: its mean is known to {100 * error:.2g} % of the posterior's "
        "standard deviation."
    )
    findings.append(Finding(level, "Effective draws", f"{ess:,.0f}", text))
    if level != GOOD and ess > 0:
        more = WANTED_ESS / ess
        budget = float(f"{post.cost.simulations * more:.2g}")
        todo.append(
            f"For {WANTED_ESS} effective draws, run about {more:.2g} times as long: some {budget:,.0f} simulations."
        )


def _acceptance(post: Posterior, findings: list[Finding], todo: list[str]) -> None:
    if math.prod(post.shape) == 0:
        findings.append(Finding(BAD, "Accepted", "nothing", f"{post.cost.proposals:,} proposals, and none accepted."))
        todo.append("Raise eps or the budget: nothing came near enough to the data.")
        return
    if math.isnan(post.acceptance_rate):
        return
    text = f"of {post.cost.proposals:,} proposals."
    if not math.isnan(post.acceptance_rate_se):
        text = f"± {100 * post.acceptance_rate_se:.2g} %, {text}"
    findings.append(Finding(GOOD, "Accepted", f"{100 * post.acceptance_rate:.3g} %", text))


def _failures(post: Posterior, findings: list[Finding], todo: list[str]) -> None:
    failed, made = post.cost.failed, post.cost.simulations
    if failed == 0:
        findings.append(Finding(GOOD, "Failed simulations", "none", f"of {made:,}."))
        return
    share = failed / max(made, 1)
    level = CARE if share >= MANY_FAILED else GOOD
    text = (
        f"of {made:,} ({100 * share:.2g} %): they count as misses, so the posterior is that of a model which does "
        "not fail."
    )
    findings.append(Finding(level, "Failed simulations", f"{failed:,}", text))
    todo.append("Look at the failures below; od.replay runs one again under a debugger.")


def _tolerance(post: Posterior, positions: Sequence[Position], findings: list[Finding], todo: list[str]) -> None:
    """Whether mean or spread change from the posterior's tolerance to the smallest with enough draws."""
    now = float(post.settings["eps"])
    here = next((one for one in positions if one.eps == now), None)
    smaller = [one for one in positions if one.eps < now and min(row.ess for row in one.rows.values()) >= COMPARED_ESS]
    if here is None or not smaller:
        return
    there = smaller[-1]
    changed, largest = [], 0.0
    for name, row in there.rows.items():
        before = here.rows[name]
        if not (before.sd > 0 and row.mcse > 0):
            continue
        shift = abs(row.mean - before.mean) / before.sd
        narrower = abs(row.sd / before.sd - 1)
        # Both from the same draws: the error of the smaller set is the larger, and bounds that of the difference.
        noise = row.mcse / before.sd
        largest = max(largest, shift, narrower)
        if max(shift, narrower) > SHIFT and (shift > 4 * noise or narrower > 4 * noise):
            changed.append(name)
    value = f"{now:.3g} → {there.eps:.3g}"
    if changed:
        text = (
            f"the answer still depends on the tolerance: at {there.eps:.3g}, {', '.join(changed)} changed by up to "
            f"{largest:.2g} posterior standard deviations."
        )
        findings.append(Finding(CARE, "Tolerance ε", value, text))
        todo.append(f"Move the slider, or run again at eps = {there.eps:.3g}: a smaller tolerance is nearer the truth.")
    else:
        text = "mean and spread stay as they are, within their errors, when the tolerance is lowered."
        findings.append(Finding(GOOD, "Tolerance ε", value, text))


def _notes(post: Posterior, findings: list[Finding]) -> None:
    for note in post.notes:
        forced = note.startswith(("this run went on with force", "warning"))
        if forced or "conditional on" in note:
            findings.append(Finding(CARE, "Note", "", f"{note}."))
