"""Influenza in a boarding school: R0 and the time in bed from fourteen daily counts, by sequential ABC.

A stochastic SIR model in steps of a quarter of a day: each susceptible boy is infected with probability
1 - exp(-R0/recovery x infected/boys x step), each infected one recovers with probability 1 - exp(-step/recovery).
Counts vary between runs as they would between schools, which a differential equation with added noise ignores.
The model is compared with the daily counts themselves, as square roots, so that no day outweighs the rest.

Data: boys in bed from 22 January to 4 February 1978, of 763: Anonymous (1978), Influenza in a boarding school, British
Medical Journal 1, 587. The BMJ printed a figure; the numbers are those read off it by de Vries and others (2006), A
Course in Mathematical Biology, chapter 9, as in `influenza_england_1978_school` of the R package outbreaks, which also
says that 512 boys were ill at some time.

python examples/boarding_school.py [figure.png] [--quick]
"""

import sys

import numpy as np
from scipy import stats

import onedraw as od

IN_BED = np.array([3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4])
BOYS, ILL = 763, 512
STEPS = 4


def epidemic(rng, r0, recovery, boys=BOYS, first=IN_BED[0], days=IN_BED.size):
    """Infected boys (n, days) from the first day on, and how many were infected at all (n,)."""
    infected = np.full(r0.size, first)
    susceptible = boys - infected
    seen = [infected]
    for _ in range(days - 1):
        for _ in range(STEPS):
            new = rng.binomial(susceptible, -np.expm1(-r0 / recovery * infected / boys / STEPS))
            recovered = rng.binomial(infected, -np.expm1(-1 / recovery / STEPS))
            susceptible, infected = susceptible - new, infected + new - recovered
        seen.append(infected)
    return np.stack(seen, axis=1), boys - susceptible


@od.batched
def simulate(rng, r0, recovery):
    return epidemic(rng, r0, recovery)[0]


model = od.Model(
    prior=od.Prior(r0=stats.uniform(1, 9), recovery=stats.uniform(0.5, 5.5)),
    simulate=simulate,
    observed=IN_BED,
    summary=od.batched(np.sqrt),
)


def draw_figure(post, runs, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    panel = figure.add_subplot(1, 2, 1)
    days = np.arange(22, 22 + IN_BED.size)
    for probability, alpha in ((0.9, 0.2), (0.5, 0.35)):
        band = np.quantile(runs, [0.5 - probability / 2, 0.5 + probability / 2], axis=0)
        panel.fill_between(days, *band, color="#0072b2", alpha=alpha, linewidth=0, label=f"{probability:.0%} of runs")
    panel.plot(days, IN_BED, "o", color="black", markersize=4, label="data")
    panel.set_xticks(days[::3], [f"{day} Jan" if day < 32 else f"{day - 31} Feb" for day in days[::3]])
    panel.set(ylabel="boys in bed", ylim=(0, None))
    panel.legend(frameon=False, fontsize=8.5)
    panel.spines[["top", "right"]].set_visible(False)
    panel = figure.add_subplot(1, 2, 2)
    draws = post.sample(3_000, seed=1)
    panel.plot(draws["r0"], draws["recovery"], ".", color="#0072b2", markersize=3, alpha=0.25)
    panel.set(xlabel="R0", ylabel="days infected")
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(path=None, budget=300_000):
    post = od.smc(model, budget=budget, seed=1)
    print(post)
    print(post.summary())
    draws = post.sample(2_000, seed=1)
    runs, ever = epidemic(np.random.default_rng(1), draws["r0"], draws["recovery"])
    if path is not None:
        draw_figure(post, runs, path)
        print(f"wrote {path}")
    rows = post.summary()
    print(
        f"One boy infected {rows['r0'].mean:.1f} ± {rows['r0'].sd:.1f} others and stayed in bed for "
        f"{rows['recovery'].mean:.2f} ± {rows['recovery'].sd:.2f} days; but such outbreaks reach {np.median(ever):.0f} "
        f"of {BOYS} boys, and {ILL} were ill: the model leaves something out."
    )
    return post, ever


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    paths = [word for word in sys.argv[1:] if word != "--quick"]
    main(*paths[:1], **({"budget": 10_000} if quick else {}))
