"""Is there a latent period? Two mechanisms for the influenza in a boarding school, by `od.compare`.

In the SIR model a boy who is infected infects others at once. In the SEIR model he is exposed first, for `latent` days
on average, and so may be some boys on the first day. Both are stochastic, in steps of a quarter of a day, as in
boarding_school.py. The epidemic is described by the square roots of the counts on five days.

Data: boys in bed from 22 January to 4 February 1978, of 763: Anonymous (1978), Influenza in a boarding school, British
Medical Journal 1, 587. The BMJ printed a figure; the numbers are those read off it by de Vries and others (2006), A
Course in Mathematical Biology, chapter 9, as in `influenza_england_1978_school` of the R package outbreaks.

python examples/two_mechanisms.py [figure.png] [--quick]
"""

import sys

import numpy as np
from scipy import stats

import onedraw as od

IN_BED = np.array([3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4])
BOYS, STEPS = 763, 4


def epidemic(rng, r0, recovery, leaving, exposed):
    """Infected boys (n, days); exposed ones become infectious with probability `leaving` in a step."""
    infected = np.full(r0.size, IN_BED[0])
    susceptible = BOYS - infected - exposed
    seen = [infected]
    for _ in range(IN_BED.size - 1):
        for _ in range(STEPS):
            new = rng.binomial(susceptible, -np.expm1(-r0 / recovery * infected / BOYS / STEPS))
            ready = rng.binomial(exposed + new * (leaving == 1), leaving)
            recovered = rng.binomial(infected, -np.expm1(-1 / recovery / STEPS))
            susceptible, exposed, infected = susceptible - new, exposed + new - ready, infected + ready - recovered
        seen.append(infected)
    return np.stack(seen, axis=1)


@od.batched
def sir(rng, r0, recovery):
    return epidemic(rng, r0, recovery, np.ones(r0.size), np.zeros(r0.size, dtype=np.int64))


@od.batched
def seir(rng, r0, recovery, latent, exposed):
    return epidemic(rng, r0, recovery, -np.expm1(-1 / latent / STEPS), exposed.astype(np.int64))


@od.batched
def described(in_bed):
    """Square roots of the counts on five days, so that none outweighs the rest."""
    return np.sqrt(in_bed[:, DAYS])


DAYS = [3, 5, 7, 9, 11]
NAMES = [f"day {day}" for day in DAYS]
R0, RECOVERY = stats.uniform(1, 9), stats.uniform(0.5, 5.5)
MODELS = {
    "SIR": od.Model(od.Prior(r0=R0, recovery=RECOVERY), sir, IN_BED, summary=described, names=NAMES),
    "SEIR": od.Model(
        od.Prior(r0=R0, recovery=RECOVERY, latent=stats.uniform(0.1, 2.4), exposed=stats.randint(0, 21)),
        seir, IN_BED, summary=described, names=NAMES,
    ),
}  # fmt: skip


def draw_figure(found, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    days = np.arange(22, 22 + IN_BED.size)
    for number, (one, colour) in enumerate(zip(found.models, ("#0072b2", "#d55e00"), strict=True)):
        panel = figure.add_subplot(1, 2, number + 1)
        runs = found.posteriors[one.name].predict(1000, seed=1, data=True)
        for probability, alpha in ((0.9, 0.2), (0.5, 0.35)):
            band = np.quantile(runs, [0.5 - probability / 2, 0.5 + probability / 2], axis=0)
            panel.fill_between(days, *band, color=colour, alpha=alpha, linewidth=0, label=f"{probability:.0%} of runs")
        panel.plot(days, IN_BED, "o", color="black", markersize=4, label="data")
        panel.set_xticks(days[::3], [f"{day} Jan" if day < 32 else f"{day - 31} Feb" for day in days[::3]])
        panel.set(title=f"{one.name}: probability {one.probability:.2f}", ylabel="boys in bed", ylim=(0, 420))
        panel.legend(frameon=False, fontsize=8.5)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(path=None, budget=20_000):
    found = od.compare(MODELS, budget=budget, seed=1)
    print(found)
    for name, post in found.posteriors.items():
        print(name, post.summary(), sep="\n")
    if path is not None:
        draw_figure(found, path)
        print(f"wrote {path}")
    print(f"{found.headline}.")
    return found


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    paths = [word for word in sys.argv[1:] if word != "--quick"]
    main(*paths[:1], **({"budget": 2_000} if quick else {}))
