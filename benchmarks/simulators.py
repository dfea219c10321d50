"""Simulators that other packages run as well: `rng` and columns of parameters in, rows of summaries out.

What is here imports nothing of onedraw, so that the interpreter of another package can import it too.
"""

import numpy as np

STEPS = 40
"""Steps of the Ricker map."""
AVERAGES = np.exp(-0.5 * ((np.linspace(0, 1, 20)[:, None] - np.linspace(0, 1, 12)) / 0.08) ** 2)
NOISE = 0.5
PRIORS = {
    "template": {"mu": ("norm", 0, 5), "sigma": ("uniform", 0.1, 6)},
    "ricker": {"r": ("uniform", 0.5, 2), "capacity": ("lognorm", 0.5, 0, 100.0), "sigma": ("lognorm", 0.5, 0, 0.3)},
    "twelve": {f"t{j}": ("norm", 0, 1) if j < 6 else ("lognorm", 0.5, 0, 1) for j in range(12)},
}
"""Priors: for each parameter a distribution of scipy.stats, with its arguments."""
OBSERVED = {
    "template": [1.98, 1.5708596],
    "ricker": [1.537, -1.457, -1.13, 4.637, 3.703],
    "twelve": [
        0.1, 1.2, 0.9, -0.4, -1.9, -1.1, 0.3, 1.5, 2.2, 1.0, 0.2, -0.8, -0.3, 0.9, 1.6, 1.9, 0.6, -0.5, -1.0, 0.2,
    ],
}  # fmt: skip


def template(rng, mu, sigma):
    data = rng.normal(mu[:, None], sigma[:, None], size=(len(mu), 10))
    return np.column_stack([data.mean(axis=1), data.std(axis=1)])


def ricker(rng, r, capacity, sigma):
    log_n, sizes, growths = np.full(len(r), np.log(50.0)), [], []
    for _ in range(STEPS):
        n = np.exp(log_n)
        growth = r * (1 - n / capacity) + sigma * rng.standard_normal(len(r))
        log_n = log_n + growth
        sizes.append(n)
        growths.append(growth)
    n, growth = np.column_stack(sizes), np.column_stack(growths)
    centred = n - n.mean(axis=1, keepdims=True)
    slope = (centred * growth).sum(axis=1) / (centred**2).sum(axis=1)
    intercept = growth.mean(axis=1) - slope * n.mean(axis=1)
    rest = growth - intercept[:, None] - slope[:, None] * n
    return np.column_stack(
        [intercept, 100 * slope, np.log(rest.std(axis=1)), np.log(n.mean(axis=1)), np.log(n.std(axis=1))]
    )


def normal_form(theta):
    return np.column_stack([theta[:, :6], 2 * np.log(theta[:, 6:])])


def twelve(rng, **theta):
    means = normal_form(np.column_stack(list(theta.values()))) @ AVERAGES.T
    return means + NOISE * rng.standard_normal(means.shape)


SIMULATORS = {"template": template, "ricker": ricker, "twelve": twelve}
