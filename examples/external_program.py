"""A simulator that is a program of its own: chains of measles cases in awk, through `od.command`.

An imported case infects a Poisson number of others with mean r, each of these likewise, until a chain ends. The program
reads r, the number of chains and a seed from its command line and prints cases in all, and chains with more than one
case, as JSON. It fails if an outbreak grows too large (status 3, and a line on standard error), and it can hang.
Failures are counted, with what the program wrote; a program that hangs is killed after `timeout`. A run ends with an
error only if every simulation fails.

The total number of cases is sufficient for r, and its distribution is known (Borel and Tanner): n chains have t
cases with probability n/t times the Poisson probability of t - n at r t. So the exact posterior is known for
every tolerance.

Data: measles in the United States, 1997 to 1999: 338 cases in 165 chains, of which 43 had more than one case: Gay, De
Serres, Farrington, Redd and Papania (2004), J. Infect. Dis. 189 (Suppl. 1), S36 (numbers from the abstract).

python examples/external_program.py [figure.png] [--quick]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy import stats

import onedraw as od

CASES, CHAINS, SPREAD = 338, 165, 43
PROGRAM = r"""
function poisson(mean,    limit, product, count) {
    limit = exp(-mean); product = rand()
    for (count = 0; product > limit; count++) product *= rand()
    return count
}
BEGIN {
    srand(seed); rand()
    if (hang) while (1) hang++
    for (i = 0; i < chains; i++) {
        size = 0
        for (waiting = 1; waiting > 0; waiting += poisson(r) - 1)
            if (++size > 20000) { print "outbreak out of hand at r = " r > "/dev/stderr"; exit 3 }
        total += size; spread += size > 1
    }
    printf "{\"cases\": %d, \"spread\": %d}\n", total, spread
}
"""


def command(folder, timeout=10.0, hang=0):
    """The program, written to a folder, as a simulator."""
    path = Path(folder, "chains.awk")
    path.write_text(PROGRAM)
    words = ["-v", "r={r}", "-v", f"chains={CHAINS}", "-v", "seed={seed}", "-v", f"hang={hang}", "-f", path]
    return od.command(["awk", *words], timeout=timeout)


def model_of(simulate, highest=1.2):
    """Above r = 1 some outbreaks never end: the prior goes a little beyond."""
    return od.Model(
        prior=od.Prior(r=stats.uniform(0, highest)),
        simulate=simulate,
        observed={"cases": CASES, "spread": SPREAD},
        distance=lambda simulated, observed: abs(simulated["cases"] - observed["cases"]),
    )


def exact_posterior(eps=0.0, points=1200):
    """A grid of r, and the exact posterior density on it given a total at most eps from the one seen."""
    r = (np.arange(points) + 0.5) * 1.2 / points
    totals = np.arange(max(CHAINS, int(np.ceil(CASES - eps))), int(CASES + eps) + 1)[:, None]
    chance = (CHAINS / totals * stats.poisson.pmf(totals - CHAINS, r * totals)).sum(axis=0)
    return r, chance / (chance.sum() * (r[1] - r[0]))


def draw_figure(post, predicted, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    panel = figure.add_subplot(1, 2, 1)
    r, density = exact_posterior()
    panel.hist(post.draws["r"].ravel(), np.linspace(0.35, 0.7, 29), weights=post.weights.ravel(), density=True,
               color="#0072b2", alpha=0.35, label=f"sequential ABC, eps = {post.settings['eps']:g}")  # fmt: skip
    panel.plot(r, density, color="black", linewidth=1.5, label="exact, eps = 0")
    panel.set(xlabel="cases infected by a case, r", xlim=(0.35, 0.7), yticks=[], ylim=(0, 1.3 * density.max()))
    panel.legend(frameon=False, fontsize=8.5, loc="upper right")
    panel = figure.add_subplot(1, 2, 2)
    panel.hist(predicted, np.arange(30.5, 101.5, 2), color="#0072b2", alpha=0.35, label="simulated")
    panel.axvline(SPREAD, color="#d55e00", linestyle=(0, (4, 2)), label="seen")
    panel.set(xlabel="chains with more than one case", yticks=[])
    panel.legend(frameon=False, fontsize=8.5, loc="upper right")
    for panel in figure.axes:
        panel.spines[["left", "top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(path=None, budget=4_000, workers=None):
    with tempfile.TemporaryDirectory() as folder:
        try:
            od.rejection(model_of(command(folder, timeout=0.2, hang=1)), od.uniform(0.5), budget=2, seed=1)
        except od.SimulationError as error:
            print("A program that hangs:", str(error).splitlines()[0])
        post = od.smc(model_of(command(folder)), budget=budget, seed=1, workers=workers)
        print(post)
        print(post.summary())
        predicted = post.predict(200, seed=1)["spread"]
    if path is not None:
        draw_figure(post, predicted, path)
        print(f"wrote {path}")
    row, (r, density) = post.summary()["r"], exact_posterior()
    print(
        f"A case infected {row.mean:.3f} ± {row.sd:.3f} others ({np.average(r, weights=density):.3f} exactly); but "
        f"such chains go beyond one case {np.mean(predicted):.0f} times of {CHAINS}, and did {SPREAD} times: a few "
        "cases infect many, and most nobody."
    )
    return post, predicted


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    paths = [word for word in sys.argv[1:] if word != "--quick"]
    main(*paths[:1], **({"budget": 800} if quick else {}))
