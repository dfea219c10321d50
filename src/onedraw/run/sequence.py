"""The course of sequential ABC: rounds of chains that are left open, and what is decided meanwhile.

A round of steps is answered when the first half of the blocks of chains, by number, is done; workers are then at the
others. What is next is decided on the states that are known: where all chains have been, but for the last steps of the
second half. The first half goes on at once. The second half follows when its own steps are known: within a stage it
goes on from where it is, and at a new tolerance its chains begin at particles drawn from all that were visited. So no
simulation is left out, and who waits for whom depends on numbers alone.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.estimators.abc_average import AbcAverage
from onedraw.run.blocks import Block, cut
from onedraw.run.plan import Gathered, Outcome, Plan, Round, both
from onedraw.run.population import (
    ParticleBlock,
    Population,
    Schedule,
    States,
    begun,
    block_size,
    first_population,
    lead_of,
    moved,
    picked,
    relearned,
    result_of,
    stage_ended,
)

Task = Callable[[AbcAverage, int], Callable[[ParticleBlock], Outcome]]
"""From an estimator and a seed: the pure task of all rounds."""
Make = Callable[[Block], ParticleBlock]
Later = Callable[[Outcome | None], Make]
"""From what the round before had still to do when it was answered."""


class Course(NamedTuple):
    """How far a run is: what is known, and what is on its way if the last round was left open."""

    seen: Population
    """What decisions rest on: of the round that was left open it has the first chains."""
    taken: Callable[[Outcome], Population] | None = None
    """The population with the outcome of that round, of its first chains or of all; None if nothing is on its way."""
    part: Outcome | None = None
    """The outcome of its first chains."""
    follow: Callable[[Population], Population] = lambda whole: whole
    """What was decided meanwhile: a tolerance, at which the first chains have begun."""

    def whole(self, late: Outcome | None) -> Population:
        """With what was on its way."""
        if self.taken is None or self.part is None:
            return self.seen
        assert late is not None
        return self.follow(self.taken(both(self.part, late)))

    def stopped(self, late: Outcome | None) -> Population:
        """The same where time or a signal has ended it: without the last chains unless all of them came home."""
        if self.part is None or late is None:
            return self.seen
        name = "last.theta" if "last.theta" in self.part.arrays else "theta"
        known = len(self.part.arrays[name]) + len(late.arrays.get(name, ()))
        return self.whole(late) if known == self.seen.schedule.chains else self.seen


def round_of(
    task: Task, estimator: AbcAverage, schedule: Schedule, note: str, make: Make, later: Later | None = None,
    shown: Any = None,
) -> Round:  # fmt: skip
    """A round of all chains, in blocks.

    With `later` it is answered when the first chains are done, if there are others. How blocks of these are made may
    follow from what the round before has still to do.
    """
    chains, size = schedule.chains, block_size(estimator.model, schedule.chains)
    lead = chains if later is None else lead_of(estimator.model, chains)

    def rest(gathered: Gathered, late: Outcome | None) -> Iterator[ParticleBlock]:
        assert later is not None
        return map(later(late), cut(chains, size, max(lead, gathered.done)))

    return Round(
        task(estimator, schedule.seed),
        lambda gathered: map(make, cut(lead, size, gathered.done)),
        note=lambda gathered: note,
        shown=shown,
        prefix=None if lead == chains else lead,
        rest=None if lead == chains else rest,
    )


def in_blocks(now: Population, steps: int, states: States, root: Array | None = None) -> Make:
    """Blocks of chains that take some steps from their states, or simulate there once."""

    def make(block: Block) -> ParticleBlock:
        rows = slice(block.first, block.first + block.size)
        some = {name: np.asfortranarray(part[rows]) for name, part in states.items()}
        return ParticleBlock(*block, now.step, steps, now.eps, some, root)

    return make


def drawn(task: Task, estimator: AbcAverage, schedule: Schedule, spent: float) -> Plan[Course]:
    """Particles from the prior."""

    def make(block: Block) -> ParticleBlock:
        return ParticleBlock(*block)

    request = round_of(task, estimator, schedule, "prior", make, lambda late: make)
    outcome = yield request
    return known(partial(first_population, schedule, estimator, spent), outcome, request)


def stepped(task: Task, course: Course, steps: int) -> Plan[Course]:
    """All chains take some steps: the first at once, the others when it is known where they are."""
    now = course.seen

    def make(whole: Population) -> Make:
        assert whole.chains is not None
        return in_blocks(now, steps, whole.chains.states, whole.chains.root)

    request = round_of(
        task, now.estimator, now.schedule, f"eps {now.eps:.3g}", make(now), lambda late: make(course.whole(late)),
        partial(result_of, now, "unfinished"),
    )  # fmt: skip
    outcome = yield request
    return known(partial(moved, course.whole(outcome.before), steps), outcome, request)


def known(taken: Callable[[Outcome], Population], outcome: Outcome, request: Round) -> Course:
    """What a round has shown."""
    return Course(taken(outcome)) if request.prefix is None else Course(taken(outcome), taken, outcome)


def closed(task: Task, course: Course) -> Plan[Course]:
    """With what was on its way: a round of nothing waits for it."""
    if course.taken is None:
        return course
    outcome = yield Round(task(course.seen.estimator, course.seen.schedule.seed), lambda gathered: (), made=True)
    return Course(course.whole(outcome.before))


def relearning(task: Task, now: Population, least: float) -> Plan[Population]:
    """With the distance learned again, from one simulation at each of as many particles as there are chains."""
    states = {"theta": now.particles.theta[picked(now, now.resampled, 1, now.schedule.chains)]}
    shown = partial(result_of, now, "unfinished")
    outcome = yield round_of(task, now.estimator, now.schedule, "distance", in_blocks(now, 0, states), shown=shown)
    return relearned(now, outcome, least)


def entered(course: Course, now: Population, eps: float) -> Course:
    """Chains of the next stage; the last of them begin when what is on its way is known."""
    fresh = begun(now, eps)
    if course.taken is None:
        return Course(fresh)

    def follow(whole: Population) -> Population:
        return begun(whole if whole.chains is None else stage_ended(whole, sure=True), eps, fresh.chains)

    return course._replace(seen=fresh, follow=follow)
