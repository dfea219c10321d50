"""The study's page: figures, claims, tables and how it was computed."""

from __future__ import annotations

from typing import Any

from onedraw.paper.study.claims import claims_of
from onedraw.paper.study.efficiency import parallel_cost
from onedraw.paper.study.run import StudyResults, agreement
from onedraw.paper.study.settings import FIGURES
from onedraw.paper.tasks import machine
from onedraw.run.progress import clock

TITLES = {
    "1L": "Figure 1, left: acceptance rate per pseudo-sample",
    "1R": "Figure 1, right: eps for 0.4 % accepted per unit of cost",
    "2L": "Figure 2, left: eps by y_obs, discount 8",
    "2R": "Figure 2, right: eps by sigma_y, discount 8",
}
MARKS = " Lines: exact. Points: simulated, with bars of two standard errors."
FIGURE_1 = (
    "Left: acceptance rate per pseudo-sample for ε = 0.5² (black) to 0.5⁶ (light grey). Right: the ε at which 0.4 % of "
    "proposals are accepted per unit of cost, when pseudo-samples after the first cost 1/δ, for δ = 1 (black) to 16 "
    "(light grey)."
)
FIGURE_2 = (
    "The ε of Figure 1, right, with δ = 8, each line divided by its value at M = 1. Left: y_obs = 2 (light grey) to 8 "
    "(black). Right: σ_y = 0.01 (black) to 2 (light grey)."
)
FIGURE_3 = (
    "Exact asymptotic variance times the cost of a step: the cost of a unit of accuracy, over that of M = 1. Dashed: "
    "the least that the certificate allows, from the autocorrelation time of M = 1 alone (docs/theory.md, 5). On M "
    "processors: (a) one chain that draws its M pseudo-samples side by side, (b) M chains with one each."
)
METHOD = (
    "Acceptance rates come from many chains of Algorithm 2 side by side, started exactly by rejection; each ε comes "
    "from a search that ends with a long verifying run and states its error. With the prior as proposal the exact rate "
    "is a sum over the laws of two hit counts, one quadrature in θ for the uniform kernel; the Gaussian kernel’s is a "
    "Fourier transform on a fine lattice. Exact ε are roots of exact rates."
)


def parallel_remark(study: StudyResults) -> str:
    """How the two layouts compare, from the exact variances."""
    costs = [parallel_cost(curve) for curve in study.curves]
    ratios = [ratio for one_chain, many_chains in costs for ratio in (one_chain / many_chains)[1:]]
    return f" For M > 1, (a) takes {min(ratios):.3f} to {max(ratios):.1f} times as long as (b)."


def points_table(study: StudyResults, figure: str) -> dict[str, Any]:
    """All points of a figure, those far from their exact value in bold."""
    here = [one for one in study.outcomes if one.figure == figure]
    return {
        "title": TITLES[figure],
        "columns": ("line", "M", "simulated", "std. error", "exact", "z"),
        "rows": [
            (one.series, one.pseudo_samples, f"{one.simulated:.5g}", f"{one.std_error:.2g}", f"{one.exact:.6g}",
             f"{one.z:+.2f}")
            for one in here
        ],
        "bold": [index for index, one in enumerate(here) if abs(one.z) > 2],
    }  # fmt: skip


def kernels_table(study: StudyResults) -> dict[str, Any]:
    """The comparison of the two kernels."""
    return {
        "title": "Acceptance rate per pseudo-sample, exact and simulated",
        "columns": ("ε, uniform", "ε, Gaussian", "M", "uniform", "Gaussian", "difference", "Gaussian, simulated"),
        "rows": [
            (f"{one.eps:g}", f"{one.gaussian_eps:.5g}", one.pseudo_samples, f"{one.uniform:.5g}",
             f"{one.gaussian:.5g}", f"{100 * (one.gaussian / one.uniform - 1):+.2f} %",
             f"{one.simulated:.5g} ± {one.std_error:.1g}")
            for one in study.matched
        ],
        "bold": (),
    }  # fmt: skip


def sections_of(study: StudyResults) -> list[dict[str, Any]]:
    """The tables."""
    matched = {
        "heading": "Uniform and Gaussian kernel",
        "text": "The Gaussian’s ε is chosen to give the uniform kernel’s acceptance rate at M = 1.",
        "tables": [kernels_table(study)],
    }
    every = {
        "heading": "All points",
        "text": "Also in study.csv. z is the distance from the exact value in standard errors; those beyond 2 are set "
        "in bold (1 in 22 should be). The ε of Figure 2 are not divided by their value at M = 1 here.",
        "tables": [points_table(study, figure) for figure in FIGURES if figure in study.plan.figures],
    }
    return [matched, every] if study.matched else [every]


def content_of(study: StudyResults) -> dict[str, Any]:
    """Everything the page shows."""
    plan, claims, agreed = study.plan, claims_of(study), agreement(study.outcomes)
    core_time = clock(study.core_seconds)
    resumed = f", which found {study.picked_up} points finished" if study.picked_up else ""
    return {
        "title": "One pseudo-sample: the study, simulated and exact",
        "heading": "One pseudo-sample: the paper’s study, simulated and exact",
        "intro": "Bornn, Pillai, Smith and Woodard ask how many pseudo-samples M an ABC chain should draw at each "
        "proposal. Their example has a standard normal parameter θ, one observation y from N(θ, σ_y²), and proposals "
        f"from the prior. Here every point of their figures is simulated with {plan.iterations:,} steps ({plan.kernel} "
        f"kernel, seed {plan.seed}), and set beside its exact value, computed without Monte Carlo.",
        "boxes": [
            (
                f"{agreed.within_4} of {agreed.points}",
                f"values within 4 standard errors of the exact ones ({agreed.within_2} within 2; the farthest is "
                f"{agreed.worst.z:+.2f})",
            ),
            (
                f"χ² = {agreed.chi_squared:.1f}",
                f"on {agreed.points} degrees of freedom; a larger one has probability {agreed.p_above:.2g}",
            ),
            (f"{sum(claim.holds for claim in claims)} of {len(claims)}", "claims of the text reproduced"),
            (core_time, f"of one core for {study.simulations:,} simulations"),
        ],
        "captions": {
            "figure1": ("Figure 1", FIGURE_1 + MARKS),
            "figure2": ("Figure 2", FIGURE_2 + MARKS),
            "figure3": ("Figure 3, beyond the paper", FIGURE_3 + parallel_remark(study)),
        },
        "question": "What the text says, and what came out",
        "claims": claims,
        "verdicts": ("reproduced", "not reproduced"),
        "sections": sections_of(study),
        "method": METHOD,
        "facts": {
            **machine(),
            "processes": study.workers,
            "time": f"{core_time} of one core in all; {clock(study.wall_seconds)} on the clock in the last "
            f"session{resumed}",
        },
    }
