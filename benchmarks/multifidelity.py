"""Simulators in two parts against the expensive simulator alone, with the same sampler, side by side.

    ONEDRAW_FIGURE=figure.png python -m benchmarks multifidelity

Three pairs: tau-leaping beside Gillespie's method for predators and prey, the equations of an epidemic beside its
stochastic model, and an epidemic on a lattice that may be stopped after a quarter of its time. A fourth has a cheap
model that knows nothing. Prices are seconds of the processor, measured here at draws from the prior. What is compared
is what one effective draw costs, in seconds of the processor and in units of the price, pilots included.
"""

import os
import time
from dataclasses import replace
from typing import NamedTuple

import numba
import numpy as np
from scipy import stats

import onedraw as od
from benchmarks.timing import report
from onedraw.model.kernels import Kernel

SEEDS = 2
LEAST_GAIN, MOST_LOSS = 3.0, 1.1
TIMES = np.arange(1.0, 9.0)


# --- predators and prey -------------------------------------------------------------------------------------

PREY, PREDATORS, MOST = 5000, 5000, 1_000_000


@numba.njit
def gillespie(rng, birth, predation, death, times):
    """Counts (times, 2), every event simulated; those after MOST events are as they were then."""
    prey, predators, clock, place = PREY, PREDATORS, 0.0, 0
    seen = np.empty((times.size, 2))
    for _ in range(MOST):
        born, eaten, dead = birth * prey, predation * prey * predators, death * predators
        total = born + eaten + dead
        clock += rng.standard_exponential() / total if total > 0 else np.inf
        while place < times.size and clock > times[place]:
            seen[place, 0], seen[place, 1] = prey, predators
            place += 1
        if place == times.size:
            break
        u = rng.random() * total
        if u < born:
            prey += 1
        elif u < born + eaten:
            prey -= 1
            predators += 1
        else:
            predators -= 1
    for k in range(place, times.size):
        seen[k, 0], seen[k, 1] = prey, predators
    return seen


@numba.njit
def leaping(rng, birth, predation, death, times, steps=10):
    """The same with Poisson numbers of events in steps of 1/10."""
    prey, predators = float(PREY), float(PREDATORS)
    seen = np.empty((times.size, 2))
    for k in range(times.size):
        for _ in range(steps):
            born = rng.poisson(min(birth * prey / steps, 1e6))
            eaten = min(rng.poisson(min(predation * prey * predators / steps, 1e6)), prey + born)
            dead = min(rng.poisson(min(death * predators / steps, 1e6)), predators)
            prey, predators = prey + born - eaten, predators + eaten - dead
        seen[k, 0], seen[k, 1] = prey, predators
    return seen


def logs(counts):
    return np.log1p(counts).ravel()


def predators_and_prey():
    truth = {"birth": 1.0, "predation": 0.0002, "death": 1.0}
    prior = od.Prior(
        birth=stats.uniform(0.5, 1.0), predation=stats.uniform(0.0001, 0.0002), death=stats.uniform(0.5, 1)
    )

    def cheap(rng, birth, predation, death):
        return leaping(rng, birth, predation, death, TIMES)

    def expensive(rng, birth, predation, death):
        return gillespie(rng, birth, predation, death, TIMES)

    data = expensive(np.random.default_rng(1), **truth)
    return Pair("Gillespie, tau-leaping", prior, cheap, expensive, data, logs, od.uniform(0.45), 3000)


# --- an epidemic --------------------------------------------------------------------------------------------

PEOPLE, FIRST_ILL = 20_000, 100


@numba.njit
def epidemic(rng, infection, recovery, times):
    """Ill people at some times, every event simulated."""
    well, ill, clock, place = PEOPLE - FIRST_ILL, FIRST_ILL, 0.0, 0
    seen = np.zeros(times.size)
    while ill > 0 and place < times.size:
        catch, heal = infection * well * ill / PEOPLE, recovery * ill
        clock += rng.standard_exponential() / (catch + heal)
        while place < times.size and clock > times[place]:
            seen[place] = ill
            place += 1
        if rng.random() * (catch + heal) < catch:
            well -= 1
            ill += 1
        else:
            ill -= 1
    return seen


@numba.njit
def equations(infection, recovery, times, steps=20):
    """The same without chance, by Heun's method."""
    well, ill, h = 1.0 - FIRST_ILL / PEOPLE, FIRST_ILL / PEOPLE, 1.0 / steps
    seen = np.empty(times.size)
    for k in range(times.size):
        for _ in range(steps):
            catch, heal = infection * well * ill, recovery * ill
            there_well, there_ill = well - h * catch, ill + h * (catch - heal)
            catch, heal = catch + infection * there_well * there_ill, heal + recovery * there_ill
            well, ill = well - 0.5 * h * catch, ill + 0.5 * h * (catch - heal)
        seen[k] = PEOPLE * ill
    return seen


EPIDEMIC_PRIOR = od.Prior(infection=stats.uniform(0.5, 2.5), recovery=stats.uniform(0.1, 0.9))


def roots(ill):
    return np.sqrt(ill)


def outbreak():
    def cheap(rng, infection, recovery):
        return equations(infection, recovery, TIMES)

    def expensive(rng, infection, recovery):
        return epidemic(rng, infection, recovery, TIMES)

    data = expensive(np.random.default_rng(2), 1.6, 0.5)
    return Pair("epidemic, its equations", EPIDEMIC_PRIOR, cheap, expensive, data, roots, od.uniform(20.0), 8000)


def guesswork():
    """The same epidemic beside a model that knows nothing of it."""
    right = outbreak()

    def cheap(rng, infection, recovery):
        return PEOPLE * rng.random(TIMES.size)

    return right._replace(name="epidemic, guesswork", cheap=cheap)


# --- an epidemic on a lattice, stopped early ----------------------------------------------------------------

SIDE, FIRST, LATER = 64, 10, 30


@numba.njit
def spread(rng, cells, infection, recovery, steps):
    """Ill cells of a lattice after each step; cells are 0 well, 1 ill, 2 recovered, and are changed in place."""
    counts = np.zeros(steps)
    for k in range(steps):
        before = cells.copy()
        for i in range(SIDE):
            for j in range(SIDE):
                if before[i, j] == 1:
                    counts[k] += 1
                    if rng.random() < recovery:
                        cells[i, j] = 2
                elif before[i, j] == 0:
                    ill = 0
                    for di, dj in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                        ill += before[(i + di) % SIDE, (j + dj) % SIDE] == 1
                    if ill and rng.random() < 1 - (1 - infection) ** ill:
                        cells[i, j] = 1
    return counts


def lattice():
    prior = od.Prior(infection=stats.uniform(0.0, 1.0), recovery=stats.uniform(0.0, 0.5))

    def first(rng, infection, recovery):
        cells = np.zeros((SIDE, SIDE), dtype=np.int64)
        cells[::16, ::16] = 1
        return cells, spread(rng, cells, infection, recovery, FIRST)

    def rest(rng, state, infection, recovery):
        cells, counts = state
        return np.concatenate([counts, spread(rng, cells, infection, recovery, LATER)])

    def whole(rng, infection, recovery):
        return rest(rng, first(rng, infection, recovery), infection, recovery)

    data = whole(np.random.default_rng(3), 0.25, 0.15)

    def signal(state):
        return np.linalg.norm(roots(state[1]) - roots(data[:FIRST]))

    found = Pair("lattice, stopped early", prior, first, whole, data, roots, od.uniform(30.0), 6000)
    return found._replace(rest=rest, signal=signal)


# --- comparisons --------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A pair of simulators and what they are compared on."""

    name: str
    prior: od.Prior
    cheap: object
    expensive: object
    data: object
    summary: object
    kernel: Kernel
    simulations: int
    """Of the expensive model alone; the pair has what these cost as its budget."""
    rest: object = None
    signal: object = None

    def simulator(self, price, **more):
        """The simulator in two parts."""
        if self.rest is None:
            return od.multifidelity(self.cheap, self.expensive, price=price, **more)
        return od.stages(self.cheap, self.rest, signal=self.signal, price=price, **more)

    def model(self, simulate):
        return od.Model(self.prior, simulate, observed=self.data, summary=self.summary)


def prices(pair, draws=200, rounds=3):
    """Seconds of the processor of the two parts, at draws from the prior: the best of some rounds."""
    theta = pair.prior.sample(np.random.default_rng(5), draws)
    rows = [pair.prior.named(row) for row in theta]
    simulate, seconds = (pair.cheap, pair.expensive), []
    for part in simulate:
        part(np.random.default_rng(6), **rows[0])
        each = []
        for _ in range(rounds):
            generators = [np.random.default_rng(number) for number in range(draws)]
            began = time.process_time()
            for generator, row in zip(generators, rows, strict=True):
                part(generator, **row)
            each.append((time.process_time() - began) / draws)
        seconds.append(min(each))
    cheap, expensive = seconds
    return cheap, expensive if pair.rest is None else expensive - cheap


class Worth(NamedTuple):
    """What a run has cost, and what it is worth."""

    units: float
    seconds: float
    ess: float
    means: dict[str, tuple[float, float]]


def worth(run, units):
    began = time.process_time()
    post = run()
    seconds, rows = time.process_time() - began, post.summary().rows
    ess = min(row.ess for row in rows.values())
    return Worth(units(post.cost), seconds, ess, {name: (row.mean, row.mcse) for name, row in rows.items()})


def side_by_side(pair, seeds=SEEDS, sampler="rejection"):
    """Both sides for each seed, in turns: lists of Worth of the expensive model alone and of the pair; the prices."""
    price = prices(pair)
    whole = price[1] if pair.rest is None else sum(price)
    budget = pair.simulations * whole
    # A budget is a whole number: prices are in units in which the expensive simulation is 1000.
    unit = 1000 / whole
    alone, both = pair.model(pair.expensive), pair.model(pair.simulator((price[0] * unit, price[1] * unit)))
    found = []
    for seed in range(seeds):
        one = worth(
            lambda seed=seed: call(sampler, alone, pair.kernel, pair.simulations, seed),
            lambda cost: cost.simulations * whole,
        )
        two = worth(
            lambda seed=seed: call(sampler, both, pair.kernel, int(budget * unit), seed),
            lambda cost: cost.simulations * price[0] + cost.expensive * price[1],
        )
        found.append((one, two))
    return found, price


def call(sampler, model, kernel, budget, seed):
    if sampler == "importance":
        return od.importance(model, kernel=kernel, budget=budget, seed=seed)
    return od.rejection(model, kernel, budget=budget, seed=seed)


def gains(found):
    """Cost per effective draw of the expensive model alone over that of the pair: by price, and by the processor."""
    each = [[sum(getattr(one[side], name) for one in found) for name in ("units", "seconds", "ess")] for side in (0, 1)]
    (u1, s1, e1), (u2, s2, e2) = each
    return (u1 / e1) / (u2 / e2), (s1 / e1) / (s2 / e2), e1 / len(found), e2 / len(found)


def agree(found):
    """The largest difference of posterior means between the two sides, in errors."""
    return max(
        abs(one.means[name][0] - two.means[name][0]) / np.hypot(one.means[name][1], two.means[name][1])
        for one, two in found
        for name in one.means
    )


# --- the best probability -----------------------------------------------------------------------------------

MULTIPLES = 2.0 ** np.arange(-4, 5)


def optimum(pair, seeds=4, pilot=4000, simulations=3000):
    """Cost per effective draw at multiples of the best rule, in theory and measured, over the expensive model's."""
    from onedraw.engines.streams import Phase, Rng
    from onedraw.estimators.pairs import draw_pairs, learnt_rule

    cheap, expensive = prices(pair)
    price = (cheap / expensive, 1.0)
    simulator = pair.simulator(price, pilot=pilot, floor=0.01)
    model, theta = pair.model(simulator), pair.prior.sample(np.random.default_rng(7), pilot)
    drawn = draw_pairs(model, Rng(1, Phase.PILOT), theta, None, "raise", certain=True)
    rule, _ = learnt_rule(simulator, pair.kernel, drawn.signal, drawn.cheap, drawn.distances, by_hits=True)
    of_expensive, of_cheap = (np.exp(pair.kernel.log_weight(of)) for of in (drawn.distances, drawn.cheap))
    change, rest = (of_expensive - of_cheap) ** 2, float((of_expensive**2 - (of_expensive - of_cheap) ** 2).mean())
    theory, measured = [], []
    for multiple in MULTIPLES:
        scaled = rule._replace(alpha=np.clip(multiple * rule.alpha, 0.01, 1.0))
        alpha = scaled(drawn.signal)
        theory.append((rest + (change / alpha).mean()) * (price[0] + alpha.mean()) / (of_expensive**2).mean())
        both = pair.model(replace(simulator, continuation=scaled, price=None))
        each = []
        for seed in range(seeds):
            post = od.rejection(both, pair.kernel, budget=simulations, seed=seed)
            spent = price[0] * post.cost.simulations + post.cost.expensive
            # Effective draws of the sum of weights, as in theory: the square of the mean over the second moment.
            second = post.cost.proposals * (post.acceptance_rate_se**2 * post.cost.proposals + post.acceptance_rate**2)
            each.append(spent * second / post.cost.proposals**2 / post.acceptance_rate**2)
        hit = float(of_expensive.mean())
        measured.append([one * hit for one in each])
    return np.array(theory), np.array(measured)


def figure(theory, measured, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    drawn, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    axes.plot(MULTIPLES, theory, color="black", label="theory")
    mean, error = measured.mean(axis=1), measured.std(axis=1, ddof=1) / np.sqrt(measured.shape[1])
    axes.errorbar(MULTIPLES, mean, 2 * error, fmt="o", color="C0", capsize=3, label="measured, ± 2 errors")
    axes.axvline(1.0, color="grey", linestyle=":", label="the learnt rule")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("continuation probability, in multiples of the learnt one")
    axes.set_ylabel("cost per effective draw,\nrelative to the expensive model")
    axes.legend()
    drawn.savefig(path, dpi=150)


def main() -> bool:
    rows = []
    for make in (predators_and_prey, outbreak, lattice, guesswork):
        pair = make()
        found, price = side_by_side(pair)
        by_price, by_clock, alone, both = gains(found)
        useless = make is guesswork
        wanted = f"> {1 / MOST_LOSS:.2f}" if useless else f"> {LEAST_GAIN:g}" if make is predators_and_prey else ""
        reached = by_price > 1 / MOST_LOSS if useless else by_price > LEAST_GAIN if wanted else None
        rows += [
            (f"{pair.name}: gain by price", f"{by_price:.2f}", wanted, reached),
            (
                f"{pair.name}: gain by the processor",
                f"{by_clock:.2f}",
                wanted if useless else "",
                by_clock > 1 / MOST_LOSS if useless else None,
            ),
            (f"{pair.name}: microseconds of the parts", f"{1e6 * price[0]:.0f}, {1e6 * price[1]:.0f}", "", None),
            (f"{pair.name}: effective draws", f"{alone:.0f}, {both:.0f}", "", None),
            (f"{pair.name}: largest difference in errors", f"{agree(found):.1f}", "< 4.5", agree(found) < 4.5),
        ]
    theory, measured = optimum(outbreak())
    at = MULTIPLES[measured.mean(axis=1).argmin()]
    rows.append(("least cost measured at this multiple of the rule", f"{at:g}", "0.5 to 2", 0.5 <= at <= 2))
    print("theory  ", np.round(theory, 3))
    print("measured", np.round(measured.mean(axis=1), 3))
    if "ONEDRAW_FIGURE" in os.environ:
        figure(theory, measured, os.environ["ONEDRAW_FIGURE"])
    return report("Simulators in two parts", rows)
