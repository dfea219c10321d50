"""The study's page: figures, claims, tables and how it was computed, in one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onedraw.paper.study.claims import claims_of
from onedraw.paper.study.efficiency import parallel_cost
from onedraw.paper.study.figures import inline_panels
from onedraw.paper.study.run import Outcome, Study, agreement, duration, machine
from onedraw.paper.study.settings import FIGURES
from onedraw.report.pages import filled, write_whole

TITLES = {
    "1L": "Figure 1, left: acceptance rate per pseudo-sample",
    "1R": "Figure 1, right: eps for 0.4 % accepted per unit of cost",
    "2L": "Figure 2, left: eps by y_obs, discount 8",
    "2R": "Figure 2, right: eps by sigma_y, discount 8",
}

CAPTIONS = {
    "figure1": "Left: acceptance rate per pseudo-sample for ε = 0.5² (black) to 0.5⁶ (light grey). Right: the ε at "
    "which 0.4 % of proposals are accepted per unit of cost, when pseudo-samples after the first cost 1/δ, for δ = 1 "
    "(black) to 16 (light grey).",
    "figure2": "The ε of Figure 1, right, with δ = 8, each line divided by its value at M = 1. Left: y_obs = 2 (light "
    "grey) to 8 (black). Right: σ_y = 0.01 (black) to 2 (light grey).",
    "figure3": "Exact asymptotic variance times the cost of a step: the cost of a unit of accuracy, over that of M = "
    "1. Dashed: the least that the certificate allows, from the autocorrelation time of M = 1 alone (docs/theory.md, "
    "5). On M processors: (a) one chain that draws its M pseudo-samples side by side, (b) M chains with one each.",
}


def parallel_remark(study: Study) -> str:
    """How the two layouts compare, from the exact variances."""
    ratios = []
    for curve in study.curves:
        one_chain, many_chains = parallel_cost(curve)
        ratios += [one / many for one, many in zip(one_chain[1:], many_chains[1:], strict=True)]
    return f" For M > 1, (a) takes {min(ratios):.3f} to {max(ratios):.1f} times as long as (b)."


def row_of(one: Outcome) -> dict[str, Any]:
    """A line of a table, as text."""
    return {
        "series": one.series,
        "pseudo_samples": one.pseudo_samples,
        "simulated": f"{one.simulated:.5g}",
        "std_error": f"{one.std_error:.2g}",
        "exact": f"{one.exact:.6g}",
        "z": f"{one.z:+.2f}",
        "far": abs(one.z) > 2,
    }


def content_of(study: Study) -> dict[str, Any]:
    """Everything the template shows."""
    from markupsafe import Markup

    agreed = agreement(study.outcomes)
    claims = claims_of(study)
    panels = inline_panels(study)
    return {
        "plan": study.plan,
        "agreement": agreed,
        "p_above": f"{agreed.p_above:.2g}",
        "worst_z": f"{agreed.worst.z:+.2f}",
        "claims": claims,
        "reproduced": sum(claim.reproduced for claim in claims),
        # The only text that is not escaped: drawings that matplotlib made from numbers and our own labels.
        "figures": [
            {
                "name": name,
                "caption": CAPTIONS[name] + (parallel_remark(study) if name == "figure3" else ""),
                "panels": [Markup(panel) for panel in drawn],
            }
            for name, drawn in panels.items()
        ],
        "tables": [
            {"title": TITLES[figure], "rows": [row_of(one) for one in study.outcomes if one.figure == figure]}
            for figure in FIGURES
            if figure in study.plan.figures
        ],
        "matched": [
            {
                "eps": f"{one.eps:g}",
                "gaussian_eps": f"{one.gaussian_eps:.5g}",
                "pseudo_samples": one.pseudo_samples,
                "uniform": f"{one.uniform:.5g}",
                "gaussian": f"{one.gaussian:.5g}",
                "difference": f"{100 * (one.gaussian / one.uniform - 1):+.2f} %",
                "simulated": f"{one.simulated:.5g} ± {one.std_error:.1g}",
            }
            for one in study.matched
        ],
        "machine": machine(),
        "simulations": f"{study.simulations:,}",
        "core_time": duration(study.core_seconds),
        "wall_time": duration(study.wall_seconds),
        "workers": study.workers,
        "picked_up": study.picked_up,
    }


def render(study: Study) -> str:
    """The page as text."""
    return filled(Path(__file__).parent, content_of(study))


def write_page(study: Study, out: Path) -> Path:
    """Write index.html; returns its path."""
    return write_whole(out / "index.html", render(study))
