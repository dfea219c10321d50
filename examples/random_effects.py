"""A random-effects model by importance sampling: an unbiased likelihood that is neither ABC nor a particle filter.

Twelve clinics treat 20 patients each; the log odds of recovery in clinic j are mu + tau z_j with z_j ~ N(0, 1). The
data are simulated with mu = 0.5 and tau = 0.8. The likelihood is a product over clinics of an integral over z_j; each
integral is estimated by the mean over N draws of z from a normal near its peak, weighted, so that the product is
unbiased for every N, and Algorithm 2 has the exact posterior as its target.

python examples/random_effects.py [figure.png]
"""

import sys
from pathlib import Path

import numpy as np
from scipy import integrate, special, stats

import onedraw as od

PATIENTS = 20
MU, TAU = 0.5, 0.8
truth = np.random.default_rng(12)
RECOVERED = truth.binomial(PATIENTS, special.expit(MU + TAU * truth.standard_normal(12)))
prior = od.Prior(mu=stats.norm(0, 2), tau=stats.expon(0, 1))


def log_binomial(recovered, log_odds):
    """Log probability of so many of PATIENTS recovering, up to a constant."""
    return recovered * log_odds - PATIENTS * np.logaddexp(0.0, log_odds)


def importance_sampling(draws):
    """An estimator with `draws` draws for each clinic, from normals of about the right place and width."""
    share = (RECOVERED + 0.5) / (PATIENTS + 1)
    log_odds, variance = special.logit(share), 1 / (PATIENTS * share * (1 - share))

    def log_estimate(rng, theta):
        mu, tau = (column[:, None, None] for column in theta.T)
        # The peak of each clinic's integrand by one normal approximation, in units of z; wider, to be safe.
        precision = 1 + tau**2 / variance[:, None]
        centre = tau * (log_odds[:, None] - mu) / variance[:, None] / precision
        width = 1.3 / np.sqrt(precision)
        e = rng.standard_normal((len(theta), RECOVERED.size, draws))
        z = centre + width * e
        log_weight = log_binomial(RECOVERED[:, None], mu + tau * z) - 0.5 * z**2 + 0.5 * e**2 + np.log(width)
        return (special.logsumexp(log_weight, axis=2) - np.log(draws)).sum(axis=1)

    return od.unbiased(log_estimate, prior, simulations=draws * RECOVERED.size)


def exact_log_likelihood(mu, tau, points=32):
    """The same likelihood by Gauss-Hermite quadrature in each clinic, for arrays of mu and tau."""
    z, weight = np.polynomial.hermite_e.hermegauss(points)
    log_odds = np.asarray(mu)[..., None, None] + np.asarray(tau)[..., None, None] * z
    log_terms = log_binomial(RECOVERED[:, None], log_odds) + np.log(weight / np.sqrt(2 * np.pi))
    return special.logsumexp(log_terms, axis=-1).sum(axis=-1)


def exact_posterior(points=80):
    """Grids of mu and tau, and the exact posterior density on them."""
    mu, tau = np.linspace(-1.5, 2.5, points), np.linspace(1e-3, 3.0, points)
    log_density = exact_log_likelihood(*np.meshgrid(mu, tau, indexing="ij"))
    log_density += stats.norm.logpdf(mu, 0, 2)[:, None] - tau[None, :]
    density = np.exp(log_density - log_density.max())
    density /= integrate.trapezoid(integrate.trapezoid(density, tau, axis=1), mu)
    return mu, tau, density


def run(budget, draws=6, seed=1, **more):
    """Algorithm 2 from points around the data's own log odds, at the same cost for any number of draws."""
    rng = np.random.default_rng(seed)
    start = {"mu": rng.normal(0.5, 0.3, 64), "tau": rng.uniform(0.4, 1.2, 64)}
    walk = od.random_walk([0.45**2, 0.4**2])
    return od.pseudo_marginal(
        estimator=importance_sampling(draws), start=start, proposal=walk, budget=budget, seed=seed, **more
    )


def after_burn_in(post):
    """Draws without the first quarter: chains start near the posterior, not in it."""
    return {name: values[:, values.shape[1] // 4 :] for name, values in post.draws.items()}


def draw_figure(kept, path):
    """The posterior by importance sampling beside the exact one."""
    from matplotlib.figure import Figure

    mu, tau, density = exact_posterior()
    exact = {
        "mu": (mu, integrate.trapezoid(density, tau, axis=1)),
        "tau": (tau, integrate.trapezoid(density, mu, axis=0)),
    }
    figure = Figure(figsize=(8, 3), layout="constrained")
    for place, (name, (grid, curve)) in enumerate(exact.items()):
        panel = figure.add_subplot(1, 2, place + 1)
        panel.hist(kept[name].ravel(), bins=60, density=True, color="0.8", label="Algorithm 2")
        panel.plot(grid, curve, color="black", linewidth=1.5, label="quadrature")
        panel.axvline({"mu": MU, "tau": TAU}[name], color="#d55e00", linestyle="--", label="truth")
        panel.set_xlabel({"mu": "mean log odds mu", "tau": "spread of clinics tau"}[name])
        panel.set_yticks([])
        panel.spines[["left", "top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main(path=None, budget=12_000_000):
    post = run(budget)
    print(post)
    kept = after_burn_in(post)
    if path is not None:
        draw_figure(kept, Path(path))
        print(f"wrote {path}")
    tau = kept["tau"]
    print(
        f"Clinics differ: their log odds spread by {tau.mean():.2f} (90 % between {np.quantile(tau, 0.05):.2f} and "
        f"{np.quantile(tau, 0.95):.2f}), around a mean of {kept['mu'].mean():.2f}."
    )
    return post


if __name__ == "__main__":
    main(*sys.argv[1:2])
