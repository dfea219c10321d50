"""Can these numbers be used? What the run itself says about that, in plain words, and what to do next.

The level of a verdict is that of its worst finding. All limits are the constants below and those of `diagnostics` and
`misfit`; docs/did_it_work.md has how often each finding is amber or red although nothing is wrong.

- Green: no problems found. The numbers can be used.
- Amber: the numbers can be used with care, and readers must know about the problem.
- Red: the numbers should not be used until the problem is solved.

A verdict uses what can be seen from the run and a few simulations: whether the model can produce such data, whether the
run finished, whether its chains agree and move, the effective number of draws, how many simulations failed, and whether
the answer still changes with the tolerance. It cannot detect a misfit that no summary or check shows, nor tell whether
the summaries are informative enough about the parameters.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onedraw.report.tolerances import SliderPosition
from onedraw.results.diagnostics import (
    FEW,
    FEW_EFFECTIVE,
    FEWEST_PLACED,
    LITTLE,
    LOST,
    MISFIT,
    NARROW,
    enough_for,
    sure_effective,
    too_narrow,
)
from onedraw.results.misfit import DOUBTFUL, SURE, Misfit, kept
from onedraw.results.posterior import Posterior
from onedraw.results.summary import ESS_LIMIT, SummaryRow, disagree

GREEN, AMBER, RED = "green", "amber", "red"
WANTED_ESS = 400
"""What a longer run is planned for."""
ESS, EFFECTIVE = (ESS_LIMIT, 20), (FEW_EFFECTIVE, 4)
"""Effective draws below which a verdict is amber, and red: of a sampler, and of an estimate by `od.infer`, for which
they say how well the simulations determine the posterior means."""
RED_R_HAT = 1.05
"""R-hat of chains that disagree (`summary.disagree`) above which a verdict is red."""
MANY_FAILED = 0.05
"""Share of failed simulations from which a reader must be warned."""
SHIFT = 0.1
"""A change of the mean, in posterior standard deviations, or of the standard deviation itself, that matters."""
COMPARED_ESS = 100
"""Effective draws that the smaller tolerance must have before it is compared."""
WORDS = {"budget": "budget spent", "max_seconds": "out of time"}
HEADLINES = {
    GREEN: "No problems found.",
    AMBER: "Use these numbers with care.",
    RED: "Do not use these numbers yet.",
}
MISFITS = {
    AMBER: "The model may not reproduce these data: look into that before anything else.",
    RED: "The model does not reproduce these data: a longer run does not help.",
}
"""The headlines if the data are unlike simulations."""


class Finding(NamedTuple):
    """The result of one check."""

    level: str
    name: str
    value: str
    text: str
    todo: str = ""
    """What to do about it, if anything."""


class Verdict(NamedTuple):
    """The level of the worst finding ("green", "amber" or "red"), a sentence, what was found, and what to do next."""

    level: str
    headline: str
    findings: tuple[Finding, ...]
    todo: tuple[str, ...]


def level_of(amber: bool, red: bool) -> str:
    """Red if it must be, amber if it should be, otherwise green."""
    return RED if red else AMBER if amber else GREEN


def judge(post: Posterior, positions: Sequence[SliderPosition] = (), misfit: Misfit | None = None) -> Verdict:
    """The verdict on a run; `positions` are the run at smaller tolerances (`onedraw.report.tolerances`).

    `misfit` is what `post.misfit` has found; without it, what the run itself has found counts. A misfit comes first:
    its headline and what to do about it stand above everything else.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> judge(od.rejection(model, od.uniform(0.5), draws=50, seed=1)).headline
    'Use these numbers with care.'
    """
    rows = post.summary().rows if math.prod(post.shape) else {}
    wrong = _misfit(post, misfit)
    findings = [*([wrong] if wrong else []), _end(post)]
    if rows:
        findings += [*_agreement(post, rows), _effective_draws(post, rows)]
    findings += [*_acceptance(post), *_calibration(post), *_summaries(post), _failures(post)]
    if rows and positions:
        findings += _tolerance(post, positions)
    warned = ("this run was continued with force", "warning")
    told = (MISFIT, FEW, LITTLE, *([NARROW] if "calibration" in post.settings else []))
    notes = [note for note in post.notes if note.startswith(warned) or "conditional on" in note]
    notes = [note for note in notes if not note.startswith(told)]
    findings += [Finding(AMBER, "Note", "", f"{note}.") for note in notes]
    level = next((level for level in (RED, AMBER) if level in [one.level for one in findings]), GREEN)
    todo = [one.todo for one in findings if one.todo]
    if wrong is not None and wrong.level != GREEN:
        # Nothing else is worth doing before a misfit is understood that is certain.
        todo = [*_steps(post, misfit), *(todo if wrong.level == AMBER else [])]
    if level == GREEN:
        what = "the tolerance" if post.settings.get("eps") is not None else "the method"
        todo.append(f"Report {what} and the effective number of draws together with the numbers.")
    headline = MISFITS[level] if wrong is not None and wrong.level == level != GREEN else HEADLINES[level]
    return Verdict(level, headline, tuple(findings), tuple(todo))


def _misfit(post: Posterior, found: Misfit | None) -> Finding | None:
    """Whether the data can come from the model."""
    if found is None:
        note = next((note for note in post.notes if note.startswith(MISFIT)), None)
        if note is not None:
            return Finding(RED, "Misfit", "found", f"{note.removeprefix('warning: ')}.")
        found = Misfit(kept(post.settings), None)
    worst = found.worst
    if worst is None:
        return None
    level = level_of(found.p <= DOUBTFUL, found.p <= SURE)
    places = (("at posterior draws", found.posterior), ("from the prior", found.prior))
    counted = " and ".join(
        f"{one.alike} of {one.number} simulations {where} (p = {one.p:.2g})" for where, one in places if one is not None
    )
    text = f"{counted} are at least as unusual as the data"
    return Finding(level, "Misfit", "none found" if level == GREEN else "found" if level == RED else "suspected",
                   f"{text}." if level == GREEN else f"{text}: {worst.words()}.")  # fmt: skip


def _steps(post: Posterior, found: Misfit | None) -> list[str]:
    """What to do about a misfit, in this order."""
    worst = Misfit(kept(post.settings), None).worst if found is None else found.worst
    names = [one.label for one in worst.blamed[:3]] if worst is not None else []
    what = ", ".join(names) if names else "the data"
    conflict = found is None or (found.prior is not None and found.prior.p <= DOUBTFUL)
    return [
        f"Check {what}: are data and simulations measured in the same way (units, missing values, order)?",
        "Simulate at plausible parameters, and compare such data with yours by eye.",
        *(["Widen the prior if it excludes plausible values."] if conflict else []),
        "Add to the model what it lacks: outliers, heavier tails, dependence, another mechanism.",
        "If this part of the data does not matter for your question, leave it out of the summary, and say so when you "
        "report the result.",
    ]


def _end(post: Posterior) -> Finding:
    level, todo = GREEN, ""
    if not post.status.complete:
        level, todo = AMBER, "Finish the run: repeat the same call, or use onedraw resume on its file."
    reason = post.status.reason
    return Finding(level, "The run", WORDS.get(reason, reason), f"{post.status.message}.", todo)


def _agreement(post: Posterior, rows: dict[str, SummaryRow]) -> Iterator[Finding]:
    if post.independent or post.weights is not None:
        return
    still = post.still_chains
    if post.stuck:
        text = f"{still:,} of {post.shape[0]:,} chains never moved, so their spread says nothing about the posterior."
        todo = "Run longer, raise eps, or use smaller steps (proposal=od.random_walk(scale=...))."
        yield Finding(RED, "Chains that never moved", f"{still:,}", text, todo)
    known = {name: row.r_hat for name, row in rows.items() if not math.isnan(row.r_hat)}
    if not known:
        yield Finding(AMBER, "R-hat", "–", "There are too few draws to see whether the chains agree.")
        return
    name, worst = max(known.items(), key=lambda item: item[1])
    apart = disagree(rows[name], post.shape[0])
    level = level_of(apart, apart and worst > RED_R_HAT)
    text = f"largest for {name}; {'larger than for' if apart else 'as for'} chains that agree."
    todo = f"The chains do not agree on {name} yet: run longer, and look for separate chains in the traces."
    yield Finding(level, "R-hat", f"{worst:.3f}", text, "" if level == GREEN else todo)


def _effective_draws(post: Posterior, rows: dict[str, SummaryRow]) -> Finding:
    name, least = min(rows.items(), key=lambda item: -math.inf if math.isnan(item[1].ess) else item[1].ess)
    ess = least.ess
    if math.isnan(ess):
        todo = "Run longer: there are too few different draws to state an error."
        return Finding(RED, "Effective draws", "unknown", f"no error can be stated for {name}.", todo)
    amber, red = ESS if post.effective is None else EFFECTIVE
    sure = sure_effective(ess, "calibration" in post.settings)
    level = level_of(sure < amber, sure < red)
    text = f"of {math.prod(post.shape):,} draws, fewest for {name}"
    if least.sd > 0:
        text += f": the error of its mean is {100 * least.mcse / least.sd:.2g} % of a posterior standard deviation"
    suffices = enough_for(ess) if level == GREEN else ""
    text += f"; {suffices}." if suffices else "."
    todo = ""
    if level != GREEN and post.effective is not None:
        todo = "Raise the budget."
    elif level != GREEN and ess > 0:
        more = float(f"{WANTED_ESS / ess:.2g}")
        times = f"{more:,.0f}" if more >= 10 else f"{more:g}"
        budget = float(f"{post.cost.simulations * WANTED_ESS / ess:.2g}")
        todo = f"For {WANTED_ESS} effective draws, run about {times} times as long ({budget:,.0f} simulations)."
    return Finding(level, "Effective draws", f"{ess:,.0f}", text, todo)


def _acceptance(post: Posterior) -> Iterator[Finding]:
    if math.prod(post.shape) == 0:
        text = f"none of {post.cost.proposals:,} proposals was accepted."
        todo = "Raise eps or the budget: no simulation came close enough to the data."
        yield Finding(RED, "Accepted", "none", text, todo)
    elif not math.isnan(post.acceptance_rate):
        error = "" if math.isnan(post.acceptance_rate_se) else f"± {100 * post.acceptance_rate_se:.2g} %, "
        text = f"{error}of {post.cost.proposals:,} proposals."
        yield Finding(GREEN, "Accepted", f"{100 * post.acceptance_rate:.3g} %", text)


def _calibration(post: Posterior) -> Iterator[Finding]:
    """Whether intervals hold at simulations near the posterior, by the rule of `diagnostics.too_narrow`."""
    found = post.settings.get("calibration")
    if found is None:
        return
    number, covered = int(found["number"]), found["cover_90"]
    if number < FEWEST_PLACED:
        text = f"only {number} simulations near the posterior were available: too few to check the intervals."
        yield Finding(AMBER, "Intervals", "unchecked", text, "Raise the budget.")
        return
    name = min(covered, key=covered.__getitem__)
    text = (
        f"of the 90 % intervals of {name} contain the known value, at {number} simulations near the posterior "
        f"(± {200 * math.sqrt(0.09 / number):.0f} % by chance); other parameters do at least as well."
    )
    spreads = [one for one in found["spread"].values() if one]
    if spreads:
        text += (
            f" Posterior standard deviations are {1 / max(spreads):.2f} to {1 / min(spreads):.2f} times the errors of "
            f"the posterior means there (± {100 / math.sqrt(number / 2):.0f} % by chance)."
        )
    narrow = too_narrow(covered[name], number, len(covered))
    todo = f"The intervals of {name} are too narrow or biased: raise the budget." if narrow else ""
    yield Finding(AMBER if narrow else GREEN, "Intervals", f"{100 * covered[name]:.0f} %", text, todo)


def _summaries(post: Posterior) -> Iterator[Finding]:
    """What learnt summaries lose; how much, only if it is nearly all."""
    if not any(note.startswith(LOST) for note in post.notes):
        return
    little = [note.removeprefix("warning: ") for note in post.notes if note.startswith(LITTLE)]
    text = (
        "the posterior is that given these. It is wider than the exact one by what they lose of the data; the number "
        "of effective draws does not show how much that is."
    )
    text += "".join(f" But {note}." for note in little)
    todo = "Compare summaries of your own that depend on these parameters." if little else ""
    yield Finding(AMBER if little else GREEN, "Summaries", "learnt", text, todo)


def _failures(post: Posterior) -> Finding:
    failed, made = post.cost.failed, post.cost.simulations
    if failed == 0:
        return Finding(GREEN, "Failed simulations", "none", f"of {made:,}.")
    share = failed / max(made, 1)
    text = (
        f"of {made:,} ({100 * share:.2g} %): they count as rejected, so the posterior is conditional on simulations "
        "that do not fail."
    )
    todo = "Look at the failures below; od.replay repeats one in a debugger."
    return Finding(AMBER if share >= MANY_FAILED else GREEN, "Failed simulations", f"{failed:,}", text, todo)


def _tolerance(post: Posterior, positions: Sequence[SliderPosition]) -> Iterator[Finding]:
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
        if before.sd > 0 and row.mcse > 0:
            change = max(abs(row.mean - before.mean) / before.sd, abs(row.sd / before.sd - 1))
            largest = max(largest, change)
            # Both are from the same draws: the error of the smaller set is the larger, and bounds that of the change.
            if change > max(SHIFT, 4 * row.mcse / before.sd):
                changed.append(name)
    level, todo = GREEN, ""
    text = "mean and spread do not change beyond their errors when the tolerance is lowered."
    if changed:
        level, smallest = AMBER, f"{there.eps:.3g}"
        text = (
            f"the answer still depends on the tolerance: at {smallest}, {', '.join(changed)} changed by up to "
            f"{largest:.2g} posterior standard deviations."
        )
        todo = f"Move the slider, or run again at eps = {smallest}: a smaller one is closer to the exact posterior."
    yield Finding(level, "Tolerance ε", f"{now:.3g} → {there.eps:.3g}", text, todo)
