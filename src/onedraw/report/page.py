"""The report of a run: one HTML file that needs no network, for deciding whether to use its numbers.

Everything on it is computed here. The small script on the page only moves between tolerances that were computed
beforehand, each of them `post.at(eps)`. Names and tracebacks are escaped by the template; figures are images, in which
no script runs; a content security policy forbids everything but the page's own style and script.
"""

import base64
import hashlib
import inspect
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import file_name, whole_number
from onedraw.model import kernels
from onedraw.model.model import Model
from onedraw.report import plots
from onedraw.report.binning import MarginalHistogram, marginals_of
from onedraw.report.pages import filled, image_of, write_page
from onedraw.report.tolerances import SliderPosition, positions_of
from onedraw.report.verdict import Verdict, judge
from onedraw.results.certificate import certificate
from onedraw.results.export import affordable
from onedraw.results.misfit import FEWEST, Misfit, misfit_of
from onedraw.results.plain import stated
from onedraw.results.posterior import Posterior
from onedraw.results.summary import SummaryRow
from onedraw.run.fingerprint import fingerprint
from onedraw.run.progress import clock, number
from onedraw.run.saving import changed_parts, same_python, versions
from onedraw.run.specification import model_parts
from onedraw.run.store import Store
from onedraw.runs import samplers

WIDTH, HEIGHT, FOOT = 320, 132, 26
"""A marginal's drawing, and the part of its height that holds the axis."""
MOST_TRACED = 8
MODEL_PARTS = ("prior", "model.simulate", "model.summary", "observed")
"""The parts in the fingerprint of a model; a distance that has learnt its scale differs from the one given."""

LEDGER = {
    "simulations": "pseudo-samples drawn, including pilot and starts",
    "failed": "of these, simulations that raised an error or returned non-finite numbers",
    "setups": "calls of a staged simulator's prepare",
    "skipped": "pseudo-samples that early rejection or the prior made unnecessary",
    "proposals": "parameter values proposed",
    "reused": "simulations of earlier runs, given as a bank; they do not count as simulations of this run",
    "expensive": "second parts of simulations in two parts",
    "surplus": "simulations whose results were not used (unfinished when the run had enough, or lost with a worker)",
}
NOT_WRITTEN = ("model", "kernel", "estimator", "store", "proposal", "eps")
"""Arguments that are written otherwise, or not at all, in the call that reproduces a run."""
COLUMNS = (
    ("mean", "mean"),
    ("sd", "standard deviation"),
    ("90 % low", "lower end of the shortest interval with 90 % of the posterior"),
    ("90 % high", "its upper end"),
    ("error", "Monte Carlo standard error of the mean"),
    ("ESS", "effective number of draws"),
)


class Source(NamedTuple):
    """What a run's file holds besides its draws."""

    name: str
    specification: Mapping[str, Any]
    sessions: Sequence[Mapping[str, Any]]


class Written(NamedTuple):
    """A report that was written."""

    path: Path
    verdict: Verdict


def source_of(path: str | os.PathLike[str]) -> Source:
    """Read it from the file."""
    with Store(path) as store:
        return Source(Path(path).name, store.meta("specification") or {}, store.meta("sessions") or [])


def write_report(
    post: Posterior,
    path: str | os.PathLike[str],
    *,
    predictive: int | None = None,
    checks: Mapping[str, Callable[[Any], Any]] | None = None,
    source: Source | None = None,
    model: Model | None = None,
) -> Written:
    """Write the report of a run as one HTML file (see `Posterior.report`); returns its path and the verdict on it.

    If `post` comes from a file, `source` is what that holds besides its draws, and `model` the run's model, for the
    prior and the predictive simulations. An existing report is replaced in one step.
    """
    place = file_name("path", path)
    if predictive is not None:
        predictive = whole_number("predictive", predictive, "the number of predictive simulations", least=0)
    if model is not None:
        if set(model.prior.labels) != set(post.columns):
            raise ValueError(
                f"the model has the parameters {', '.join(model.prior.labels)}, the run {', '.join(post.columns)}: "
                "give the model of the run"
            )
        if source is not None:
            model = model.limited(source.specification.get("arguments", {}).get("timeout"))
            _refuse_another(model, source)
        post = replace(post, model=model)
    content = content_of(post, predictive, source, checks)
    return Written(write_page(place, render(content)), content["verdict"])


def _refuse_another(model: Model, source: Source) -> None:
    """The prior or predictive simulations of another model would mislead next to this posterior."""
    now = _parts(model)
    before = {key: value for key, value in source.specification.get("parts", {}).items() if key in now}
    changed = changed_parts(before, now, code=same_python(_versions(source), versions())) if before else []
    if changed:
        raise ValueError(f"{source.name} was made with another model: {'; '.join(changed)}. Give the model of the run")


def render(content: Mapping[str, Any]) -> str:
    """The page as text."""
    return filled(Path(__file__).parent, content)


def content_of(
    post: Posterior,
    predictive: int | None = None,
    source: Source | None = None,
    checks: Mapping[str, Callable[[Any], Any]] | None = None,
) -> dict[str, Any]:
    """Everything the template shows."""
    from markupsafe import Markup

    script = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
    there = math.prod(post.shape) > 0
    marginals = marginals_of(post) if there else {}
    try:
        positions, fixed = (positions_of(post, marginals) if there else []), ""
    except ValueError as error:
        positions, fixed = [], f"At the tolerance of the run only: {error}"
        if post.settings.get("eps") is None:
            fixed = "This estimate has no tolerance"
    misfit = _misfit(post, _predicted(post, predictive), checks) if there else None
    verdict = judge(post, positions, misfit)
    now = next((i for i, one in enumerate(positions) if one.eps == post.settings.get("eps")), 0)
    shown = positions or ([_as_it_is(post, marginals)] if there else [])
    drawings = _drawings(marginals, shown)
    return {
        "post": post,
        "title": f"{post.settings.get('algorithm', 'run')} of {', '.join(post.names)}",
        "verdict": verdict,
        "words": {"green": "usable", "amber": "with care", "red": "not yet"},
        "boxes": _boxes(post, verdict),
        "there": there,
        "positions": [f"{one.eps:.6g}" for one in positions],
        "exact": repr(positions[now].eps) if positions else "",
        "now": now,
        "fixed": fixed,
        "effective": f"{shown[now].effective:,.0f}" if positions else "",
        "cells": [_cells(row) for row in shown[now].rows.values()] if shown else [],
        "columns": COLUMNS,
        "drawings": drawings,
        "has_prior": any(one["priors"] for one in drawings),
        "width": WIDTH,
        "height": HEIGHT,
        "foot": FOOT,
        # The only text that is not escaped: our own script, and JSON without any "<".
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": Markup(_data(positions, drawings)),
        "figures": _figures(post, misfit) if there else [],
        "chains": _chains(post) if there else [],
        "certificate": _certificate(post),
        "ledger": _ledger(post),
        "settings": stated(post.settings),
        "source": source,
        "versions": _versions(source),
        "prints": _prints(post, source),
        "call": call_of(post, source),
    }


def _cells(row: SummaryRow) -> list[str]:
    return [_number(value, ".4g") for value in row[:5]] + [_number(row.ess, ".0f")]


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)


def _as_it_is(post: Posterior, marginals: Mapping[str, MarginalHistogram]) -> SliderPosition:
    """The posterior as it is, if there is no other tolerance to show."""
    density = {name: one.density for name, one in marginals.items()}
    return SliderPosition(math.nan, math.nan, post.summary().rows, density)


def _boxes(post: Posterior, verdict: Verdict) -> list[tuple[str, str]]:
    chains, draws = post.shape
    eps = post.settings.get("eps")
    boxes = [(f"{chains * draws:,}", "draws" if chains == 1 else f"draws, {chains:,} chains of {draws:,}")]
    found = {one.name: one.value for one in verdict.findings}
    labels = {"Effective draws": "effective draws (smallest)", "R-hat": "R-hat (largest)"}
    boxes += [(found[name], label) for name, label in labels.items() if name in found]
    if isinstance(eps, int | float):
        kernel = post.settings.get("kernel")
        boxes.append((f"{eps:.4g}", "tolerance ε" if kernel is None else f"tolerance ε, {kernel} kernel"))
    boxes.append((f"{post.cost.simulations:,}", "simulations"))
    return boxes


def _drawings(marginals: Mapping[str, MarginalHistogram], positions: Sequence[SliderPosition]) -> list[dict[str, Any]]:
    """Each marginal as paths of an SVG drawing, one for each position."""
    drawn = []
    floor = HEIGHT - FOOT
    for name, one in marginals.items():
        low, high = float(one.edges[0]), float(one.edges[-1])

        def across(value: float, low: float = low, high: float = high) -> float:
            return round(min(max((value - low) / (high - low), 0.0), 1.0) * WIDTH, 1)

        def path(density: Any, top: float, edges: Any = one.edges) -> str:
            heights = [round(floor - 4 - (floor - 8) * min(float(value) / top, 1.0), 1) for value in density]
            parts = [f"M0 {floor - 4}"]
            for height, edge in zip(heights, edges[1:], strict=True):
                parts.append(f"V{height:g}H{across(float(edge)):g}")
            return "".join(parts) + f"V{floor - 4}"

        rows = [there.rows[name] for there in positions]
        ends = [[row.hdi_low, row.hdi_high, row.mean] for row in rows]
        bars = [[0.0] * 3 if any(map(math.isnan, three)) else [across(end) for end in three] for three in ends]
        # Each position fills its drawing: at a common scale, a posterior that narrows would begin as a flat line.
        highest = 0.0 if one.prior is None else float(one.prior.max())
        own = [max(float(there.density[name].max()), 1e-300) for there in positions]
        tops = [1.03 * max(top, min(highest, 2 * top)) for top in own]
        drawn.append(
            {
                "name": name,
                "paths": [path(there.density[name], top) for there, top in zip(positions, tops, strict=True)],
                "bars": bars,
                "priors": [] if one.prior is None else [path(one.prior, top) for top in tops],
                "ticks": _ticks(low, high, across),
            }
        )
    return drawn


def _ticks(low: float, high: float, across: Any) -> list[tuple[float, str, str]]:
    """Ticks of the axis: place, text, and how it is anchored."""
    step = 10.0 ** math.floor(math.log10((high - low) / 3)) if high > low else 1.0
    step *= next((many for many in (1, 2, 5, 10) if (high - low) / (many * step) <= 5), 10)
    found = []
    for tick in (math.ceil(low / step) * step + i * step for i in range(7)):
        if low <= tick <= high:
            place = across(tick)
            anchor = "start" if place < 14 else "end" if place > WIDTH - 14 else "middle"
            found.append((place, f"{round(tick / step) * step:.6g}", anchor))
    return found


def _data(positions: Sequence[SliderPosition], drawn: Sequence[Mapping[str, Any]]) -> str:
    """What the script moves between, as JSON that is safe inside a script element."""
    data = {
        "eps": [f"{one.eps:.6g}" for one in positions],
        "exact": [repr(one.eps) for one in positions],
        "effective": [f"{one.effective:,.0f}" for one in positions],
        "cells": [[_cells(row) for row in one.rows.values()] for one in positions],
        **{part: [one[part] for one in drawn] if positions else [] for part in ("paths", "priors", "bars")},
    }
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _misfit(post: Posterior, count: int, checks: Mapping[str, Callable[[Any], Any]] | None) -> Misfit | None:
    """The data among `count` new simulations at posterior draws; None if there are too few."""
    return misfit_of(post, count, 0, checks, None) if count >= FEWEST else None


def _figures(post: Posterior, misfit: Misfit | None) -> list[dict[str, str]]:
    """Figures that do not depend on the slider: name, image, words."""
    wanted: list[tuple[str, str, Any]] = []
    if len(post.columns) > 1:
        words = "Stronger shades are higher densities; correlations are above the diagonal."
        words += "" if len(post.columns) <= plots.MOST_PAIRS else f" The first {plots.MOST_PAIRS} parameters."
        wanted.append(("Parameters in pairs", words, lambda: plots.pairs(post)))
    if not post.independent and post.weights is None and post.shape[1] > 1:
        names = _least_mixed(post)
        words = "Chains that agree overlap. A chain that does not move is a flat line, and a peak in the bottom panel."
        words += "" if len(names) == len(post.columns) else f" The {len(names)} parameters that mix least."
        wanted.append(("Chains, step by step", words, lambda: plots.traces(post, names)))
    if plots.path_of(post)[1]:
        words = "The tolerance against the number of simulations used so far."
        if post.settings.get("algorithm") == "infer":
            words = (
                "The distance that contains a fixed number of the nearest simulations, as their number grows. The "
                "neighbourhood that the draws come from is chosen by its held-out score, and may be wider."
            )
        wanted.append(("Tolerance path", words, lambda: plots.path(post)))
    if misfit is not None and misfit.rows is not None and misfit.observed is not None:
        rows, observed, labels = misfit.rows, misfit.observed, list(misfit.labels)
        words = (
            f"{len(rows)} new simulations at posterior draws, compared with the data. A diamond far from its line "
            "means that the model does not reproduce that summary. Summaries may also fail to agree with each other: "
            "see the finding on misfit."
        )
        wanted.append(("Posterior predictive check", words, lambda: plots.predictive_figure(rows, observed, labels)))
    return [{"name": name, "words": words, **_drawn(draw)} for name, words, draw in wanted]


def _drawn(draw: Callable[[], Any]) -> dict[str, str]:
    """A figure as an image with its largest width, or why it could not be drawn."""
    try:
        figure = draw()
    except ValueError as error:
        return {"image": "", "width": "", "wrong": str(error)}
    return {"image": image_of(figure), "width": f"{figure.get_figwidth() * 8:.1f}rem", "wrong": ""}


def _least_mixed(post: Posterior) -> list[str]:
    rows = post.summary().rows
    worst = sorted(rows, key=lambda name: -math.inf if math.isnan(rows[name].r_hat) else -rows[name].r_hat)
    return [name for name in post.columns if name in worst[:MOST_TRACED]]


def _predicted(post: Posterior, predictive: int | None) -> int:
    return 0 if post.model is None else affordable(post, predictive)


def _chains(post: Posterior) -> list[tuple[str, str, str]]:
    """R-hat and ESS of the chains themselves, by parameter."""
    if post.independent or post.weights is not None:
        return []
    rows = post.summary().rows.items()
    return [(name, _number(row.r_hat, ".3f"), _number(row.ess, ",.0f")) for name, row in rows]


def _certificate(post: Posterior) -> dict[str, Any]:
    """What the run says about other numbers of pseudo-samples, or why it says nothing."""
    if post.model is None and post.kernel is not None and post.settings.get("algorithm") == "pseudo_marginal":
        return {"wrong": "its file holds no functions, and a certificate needs the model (--model)"}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = certificate(post)
            return {"text": str(found), **_drawn(lambda: plots.efficiency(found))}
    except ValueError as error:
        return {"wrong": str(error)}


def _ledger(post: Posterior) -> list[tuple[str, str, str]]:
    cost = post.cost
    spent = {key: getattr(cost, key) for key in LEDGER}
    lines = [
        (key, f"{count:,}", LEDGER[key]) for key, count in spent.items() if count or key in ("simulations", "failed")
    ]
    lines.append(("time", clock(cost.seconds) if cost.seconds >= 1 else f"{cost.seconds:.2g} s", "of all sessions"))
    if cost.seconds > 0:
        lines.append(("speed", f"{number(cost.simulations / cost.seconds)} /s", "simulations per second"))
    if math.prod(post.shape):
        least = min(row.ess for row in post.summary().rows.values())
        if least > 0:
            words = "simulations per effective draw, for the parameter with the fewest effective draws"
            lines.append(("per draw", number(cost.simulations / least), words))
    return lines


def _versions(source: Source | None) -> dict[str, str]:
    """Of the run's last session if there is a file; otherwise of this process."""
    if source is not None and source.sessions:
        return {str(key): str(value) for key, value in source.sessions[-1].get("versions", {}).items()}
    return versions()


def _prints(post: Posterior, source: Source | None) -> dict[str, str]:
    """One fingerprint of the model, and one of each part that is known."""
    parts: Mapping[str, Any] = {} if post.model is None else _parts(post.model)
    if source is not None:
        parts = source.specification.get("parts", {})
    of_model = {key: value for key, value in parts.items() if key.startswith(MODEL_PARTS)}
    if not of_model:
        return {}
    return {"model": _digest(of_model), **{key: _digest(value) for key, value in parts.items()}}


def _parts(model: Model) -> dict[str, Any]:
    return {"prior": fingerprint(model.prior), **model_parts(model)}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def call_of(post: Posterior, source: Source | None = None) -> str:
    """The call that reproduces this run, with `model` as it was.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> print(call_of(od.rejection(model, od.uniform(0.5), draws=20, seed=1).at(0.25)))
    post = od.rejection(model, od.uniform(0.5), draws=20, seed=1)
    post = post.at(0.25)
    """
    algorithm = str(post.settings.get("algorithm"))
    if algorithm not in samplers():
        return ""
    written: dict[str, Any] = {**post.settings, "seed": post.seed}
    if source is not None:
        written |= {key: value for key, value in source.specification.get("arguments", {}).items() if key != "eps"}
    run_eps = post.settings.get("run_eps")
    eps = post.settings.get("eps") if run_eps is None else run_eps
    parameters = inspect.signature(samplers()[algorithm].function).parameters
    given = ["model"]
    name = str(written.get("kernel"))
    if "kernel" in parameters:
        known = getattr(kernels, name, None) is not None
        family = f"od.{name}" if known else f"{name if name.isidentifier() else 'kernel'}  # your own"
        at_eps = f"{family}({eps!r})" if known else family
        given.append(f"kernel={family}" if "eps" in parameters else at_eps)
    for key in [key for key in parameters if key not in NOT_WRITTEN]:
        value = written.get(key)
        if isinstance(value, bool | int | float | str) and value != parameters[key].default:
            given.append(f"{key}={value!r}")
    call = f"post = od.{algorithm}({', '.join(given)})"
    return call if run_eps is None else f"{call}\npost = post.at({post.settings['eps']!r})"
