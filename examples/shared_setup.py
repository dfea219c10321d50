"""The Hurst exponent of the Nile: a Gaussian process whose set-up is paid once a parameter value, so that M > 1 pays.

Yearly flows are taken as fractional Gaussian noise, y = mean + sigma x, whose sums over n years spread like n^hurst:
hurst = 0.5 for years without memory, more for long runs of wet and of dry years. Hurst (1951, Trans. Am. Soc. Civ. Eng.
116, 770) found this in the Nile, Mandelbrot and Van Ness (1968, SIAM Review 10, 422) gave the model. The summaries are
the power of cycles of 25 years and more, and of 7 to 20 years, over that of faster ones.

To simulate takes a Cholesky factor of a 100 x 100 matrix for each hurst, and then each series is nearly free:
`od.staged`. In simulations one pseudo-sample a step is best; in seconds it is not, and `od.advise` says how many.
The likelihood is known here, and its posterior is in the figure: the summaries know a little less.

Data: flow at Aswan, 1871 to 1970, in 10^8 cubic metres: Cobb (1978), Biometrika 65, 243, table 1; `Nile` in R.

python examples/shared_setup.py [figure.png] [--quick]
"""

import sys

import numpy as np
from scipy import integrate, linalg, stats

import onedraw as od

FLOW = np.array([
    1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960, 1180, 799, 958, 1140,
    1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694, 940, 833, 701, 916, 692, 1020, 1050, 969,
    831, 726, 456, 824, 702, 1120, 1100, 832, 764, 821, 768, 845, 864, 862, 698, 845, 744, 796, 1040, 759,
    781, 865, 845, 944, 984, 897, 822, 1010, 771, 676, 649, 846, 812, 742, 801, 1040, 860, 874, 848, 890,
    744, 749, 838, 1050, 918, 986, 797, 923, 975, 815, 1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740,
])  # fmt: skip
CYCLES = (4, 15)
prior = od.Prior(hurst=stats.uniform(0.01, 0.98))


def correlation(hurst, n=FLOW.size):
    """Correlation matrix of n years of fractional Gaussian noise."""
    lag = np.arange(n)
    return linalg.toeplitz((abs(lag - 1) ** (2 * hurst) - 2 * lag ** (2 * hurst) + (lag + 1) ** (2 * hurst)) / 2)


def prepare(hurst):
    return linalg.cholesky(correlation(hurst), lower=True)


def draw(rng, root, m):
    return rng.standard_normal((m, len(root))) @ root.T


@od.batched
def slow_power(y):
    """Log power of slow and of middling cycles, over that of fast ones: level and scale cancel."""
    power = abs(np.fft.rfft(y, axis=1)[:, 1:]) ** 2
    slow, middling, fast = (np.log(band.mean(axis=1)) for band in np.split(power, CYCLES, axis=1))
    return np.stack([slow - fast, middling - fast], axis=1)


model = od.Model(prior, od.staged(prepare, draw), observed=FLOW, summary=slow_power)


def exact_posterior(points=200):
    """A grid of hurst, and the posterior of all data, with the usual flat priors of the mean and of log sigma."""
    grid = np.linspace(0.011, 0.989, points)
    log_density = np.empty(points)
    for row, hurst in enumerate(grid):
        factor = linalg.cho_factor(correlation(hurst), lower=True)
        ones, flow = (linalg.cho_solve(factor, v) for v in (np.ones(FLOW.size), FLOW.astype(float)))
        square = FLOW @ flow - (ones @ FLOW) ** 2 / ones.sum()
        log_density[row] = (
            -np.log(np.diag(factor[0])).sum() - (np.log(ones.sum()) + (FLOW.size - 1) * np.log(square)) / 2
        )
    density = np.exp(log_density - log_density.max())
    return grid, density / integrate.trapezoid(density, grid)


def draw_figure(posts, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    panel = figure.add_subplot(1, 3, 1)
    panel.plot(np.arange(1871, 1971), FLOW, color="0.25", linewidth=1)
    panel.set(xlabel="year", ylabel="flow (10$^8$ m$^3$)", ylim=(0, None), xticks=[1880, 1920, 1960])
    panel = figure.add_subplot(1, 3, 2)
    grid, density = exact_posterior()
    draws = np.concatenate([post.draws["hurst"].ravel() for post in posts.values()])
    panel.hist(draws, np.linspace(0.5, 1, 26), density=True, color="#0072b2", alpha=0.35, label="ABC")
    panel.plot(grid, density, color="black", linewidth=1.5, label="likelihood of all data")
    panel.set(xlabel="Hurst exponent", xlim=(0.5, 1), yticks=[], ylim=(0, 1.35 * density.max()))
    panel.spines["left"].set_visible(False)
    panel.legend(frameon=False, fontsize=8.5, loc="upper left")
    panel = figure.add_subplot(1, 3, 3)
    rows = [post.efficiency()["hurst"] for post in posts.values()]
    value = np.array([row.ess_per_second for row in rows])
    bars = [[row.kappa.value / row.kappa.high for row in rows], [row.kappa.value / row.kappa.low for row in rows]]
    panel.errorbar(list(posts), value, abs(np.array(bars) - 1) * value, fmt="o", color="#d55e00", capsize=2)
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(posts), [str(m) for m in posts])
    panel.set(xlabel="series at each exponent, M", ylabel="effective draws a second", ylim=(0, None))
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(path=None, draws=800, pseudo_samples=(1, 4, 16, 64), advice=60_000):
    kernel = od.uniform(0.4)
    posts = {
        m: od.pseudo_marginal(model, kernel, draws=draws, chains=16, pseudo_samples=m, seed=1) for m in pseudo_samples
    }
    for m, post in posts.items():
        print(f"M = {m}: {post.cost.setups:,} set-ups, {post.cost.simulations:,} series, {post.cost.seconds:.1f} s")
        print(post.efficiency())
    if advice:
        print(od.advise(model, kernel, budget=advice, seed=1))
    if path is not None:
        draw_figure(posts, path)
        print(f"wrote {path}")
    rate = {m: post.efficiency()["hurst"].ess_per_second for m, post in posts.items()}
    most = max(pseudo_samples, key=lambda m: np.nan_to_num(rate[m]))
    low, high = np.quantile(posts[most].draws["hurst"], [0.05, 0.95])
    print(
        f"The Nile has a long memory, with a Hurst exponent between {low:.2f} and {high:.2f} (90 %); {most} series at "
        f"each exponent gave {rate[most] / rate[1]:.1f} times as many effective draws a second as one."
    )
    return posts


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    paths = [word for word in sys.argv[1:] if word != "--quick"]
    main(*paths[:1], **({"draws": 250, "pseudo_samples": (1, 16), "advice": 0} if quick else {}))
