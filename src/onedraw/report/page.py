"""The report of a run: one HTML file that needs no network, for whoever has to decide whether to use its numbers.

Everything on it is computed here. The little script on the page only moves between positions of the tolerance that
were computed beforehand, each of them `post.at(eps)`. Names and tracebacks are escaped by the template; figures are
images, in which no script runs; a content security policy forbids everything but the page's own style and script.
"""

import base64
import hashlib
import inspect
import io
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import whole_number
from onedraw.model import kernels
from onedraw.model.model import Model
from onedraw.report import plots
from onedraw.report.binning import Marginal, marginals_of
from onedraw.report.pages import filled, write_whole
from onedraw.report.tolerances import Position, positions_of
from onedraw.report.verdict import Verdict, judge
from onedraw.results.certificate import certificate
from onedraw.results.posterior import Posterior
from onedraw.results.summary import Row
from onedraw.run.fingerprint import fingerprint
from onedraw.run.progress import clock, number
from onedraw.run.saving import changed_parts, versions
from onedraw.run.specification import model_parts
from onedraw.run.store import Store

WIDTH, HEIGHT, FOOT = 320, 132, 26
"""A marginal's drawing, and the part of its height that holds the axis."""
MOST_TRACED = 8
PREDICTED, FEWEST_PREDICTED = 200, 20
PREDICT_SECONDS = 20.0
"""How long the report may simulate, judged by what a simulation has cost in the run."""
MODEL_PARTS = ("prior", "model.simulate", "model.summary", "observed")
"""What the fingerprint of a model is made of; a distance that has learnt its scale is not what was given."""

LEDGER = {
    "simulations": "pseudo-samples drawn, those of pilot and starts among them",
    "failed": "of these, simulations that raised or gave no finite numbers",
    "setups": "calls of a staged simulator's prepare",
    "skipped": "pseudo-samples that early rejection or the prior made unnecessary",
    "proposals": "parameter values proposed",
    "surplus": "simulations whose results were not used (work in flight when enough was there, or lost workers)",
}


class Source(NamedTuple):
    """What a run's file knows beside its draws."""

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
    source: Source | None = None,
    model: Model | None = None,
) -> Written:
    """Write the report of a run as one HTML file; returns its path and the verdict on it.

    Parameters
    ----------
    path
        The file to write; one that is there is replaced, in one step.
    predictive
        New simulations at posterior draws, to be compared with the data; 0 for none. By default 200, or as many as
        take 20 seconds.
    source
        What the run's file knows beside its draws.
    model
        The run's model, where `post` comes from a file and has none: for the prior and the predictive simulations.
    """
    if predictive is not None:
        predictive = whole_number("predictive", predictive, "the number of predictive simulations", least=0)
    if model is not None:
        if set(model.prior.names) != set(post.names):
            raise ValueError(
                f"the model has the parameters {', '.join(model.prior.names)}, the run {', '.join(post.names)}: give "
                "the model of the run"
            )
        if source is not None:
            _refuse_another(model, source)
        post = replace(post, model=model)
    path = Path(path)
    content = content_of(post, predictive, source)
    text = render(content)
    try:
        write_whole(path, text)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from error
    return Written(path, content["verdict"])


def _refuse_another(model: Model, source: Source) -> None:
    """A prior or predictive simulations of another model beside this posterior would mislead."""
    now = {"prior": fingerprint(model.prior), **model_parts(model)}
    before = {key: value for key, value in source.specification.get("parts", {}).items() if key in now}
    same_python = _versions(source).get("python", "").split(".")[:2] == versions()["python"].split(".")[:2]
    changed = changed_parts(before, now, code=same_python) if before else []
    if changed:
        raise ValueError(f"{source.name} was made with another model: {'; '.join(changed)}. Give the model of the run")


def render(content: Mapping[str, Any]) -> str:
    """The page as text."""
    try:
        return filled(Path(__file__).parent, content)
    except ImportError as error:
        raise ImportError("a report needs jinja2 and matplotlib: pip install 'onedraw[report]'") from error


def content_of(post: Posterior, predictive: int | None = None, source: Source | None = None) -> dict[str, Any]:
    """Everything the template shows."""
    from markupsafe import Markup

    script = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
    there = math.prod(post.shape) > 0
    marginals = marginals_of(post) if there else {}
    try:
        positions, fixed = (positions_of(post, marginals) if there else []), ""
    except ValueError as error:
        positions, fixed = [], str(error)
    verdict = judge(post, positions)
    now = next((i for i, one in enumerate(positions) if one.eps == post.settings.get("eps")), 0)
    shown = positions or ([_as_it_is(post, marginals)] if there else [])
    drawn = _drawings(marginals, shown)
    return {
        "title": f"{post.settings.get('algorithm', 'run')} of {', '.join(post.names)}",
        "verdict": verdict,
        "words": {"good": "usable", "care": "with care", "bad": "not yet"},
        "boxes": _boxes(post, verdict),
        "names": list(post.names),
        "there": there,
        "positions": [f"{one.eps:.6g}" for one in positions],
        "exact": repr(positions[now].eps) if positions else "",
        "now": now,
        "fixed": fixed,
        "worth": f"{shown[now].worth:,.0f}" if positions else "",
        "cells": [_cells(row) for row in shown[now].rows.values()] if shown else [],
        "columns": COLUMNS,
        "drawings": [
            {
                **one,
                "path": one["paths"][now],
                "prior": (one["priors"] or [""] * (now + 1))[now],
                "bar": one["bars"][now],
            }
            for one in drawn
        ],
        "has_prior": any(one["priors"] for one in drawn),
        "width": WIDTH,
        "height": HEIGHT,
        "foot": FOOT,
        # The only text that is not escaped: our own script, and JSON in which no "<" is left.
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": Markup(_data(positions, drawn)),
        "figures": _figures(post, predictive) if there else [],
        "chains": _chains(post) if there else [],
        "certificate": _certificate(post),
        "ledger": _ledger(post),
        "failures": [
            {"what": f"{one.message}, at {_at(one.theta)}", "traceback": one.traceback, "number": i}
            for i, one in enumerate(post.failures)
        ],
        "failed": f"{post.cost.failed:,}",
        "settings": {key: _brief(value) for key, value in post.settings.items() if value is not None},
        "seed": post.seed,
        "status": post.status.message,
        "notes": list(post.notes),
        "sessions": _sessions(source),
        "versions": _versions(source),
        "prints": _prints(post, source),
        "call": call_of(post, source),
        "file": None if source is None else source.name,
    }


COLUMNS = (
    ("mean", "mean"),
    ("sd", "standard deviation"),
    ("90 % low", "lower end of the shortest interval with 90 % of the posterior"),
    ("90 % high", "its upper end"),
    ("error", "Monte Carlo standard error of the mean"),
    ("ESS", "effective number of draws"),
)


def _cells(row: Row) -> list[str]:
    return [_number(value) for value in row[:5]] + ["–" if math.isnan(row.ess) else f"{row.ess:.0f}"]


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"


def _as_it_is(post: Posterior, marginals: Mapping[str, Marginal]) -> Position:
    """The posterior's own numbers, where there is no other tolerance to show."""
    density = {name: one.density for name, one in marginals.items()}
    return Position(math.nan, math.nan, post.summary().rows, density)


def _boxes(post: Posterior, verdict: Verdict) -> list[tuple[str, str]]:
    chains, draws = post.shape
    eps = post.settings.get("eps")
    boxes = [(f"{chains * draws:,}", "draws" if chains == 1 else f"draws, {chains:,} chains of {draws:,}")]
    found = {one.name: one.value for one in verdict.findings}
    boxes += [(found[name], label) for name, label in (("Effective draws", "effective draws, at the least"),
                                                      ("R-hat", "R-hat, at the most")) if name in found]  # fmt: skip
    if isinstance(eps, int | float):
        kernel = post.settings.get("kernel")
        boxes.append((f"{eps:.4g}", "tolerance ε" if kernel is None else f"tolerance ε, {kernel} kernel"))
    boxes.append((f"{post.cost.simulations:,}", "simulations"))
    return boxes


def _drawings(marginals: Mapping[str, Marginal], positions: Sequence[Position]) -> list[dict[str, Any]]:
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

        bars = []
        for there in positions:
            row = there.rows[name]
            ends = [row.hdi_low, row.hdi_high, row.mean]
            bars.append([0.0, 0.0, 0.0] if any(map(math.isnan, ends)) else [across(end) for end in ends])
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
    """Places of the axis: across, text, and how it is set."""
    step = 10.0 ** math.floor(math.log10((high - low) / 3)) if high > low else 1.0
    step *= next((many for many in (1, 2, 5, 10) if (high - low) / (many * step) <= 5), 10)
    ticks = [math.ceil(low / step) * step + i * step for i in range(7)]
    found = []
    for tick in ticks:
        if low <= tick <= high:
            place = across(tick)
            anchor = "start" if place < 14 else "end" if place > WIDTH - 14 else "middle"
            found.append((place, f"{round(tick / step) * step:.6g}", anchor))
    return found


def _data(positions: Sequence[Position], drawn: Sequence[Mapping[str, Any]]) -> str:
    """What the script moves between, as JSON that is safe inside a script element."""
    data = {
        "eps": [f"{one.eps:.6g}" for one in positions],
        "exact": [repr(one.eps) for one in positions],
        "worth": [f"{one.worth:,.0f}" for one in positions],
        "cells": [[_cells(row) for row in one.rows.values()] for one in positions],
        "paths": [one["paths"] for one in drawn] if positions else [],
        "priors": [one["priors"] for one in drawn] if positions else [],
        "bars": [one["bars"] for one in drawn] if positions else [],
    }
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _figures(post: Posterior, predictive: int | None) -> list[dict[str, str]]:
    """Figures that do not depend on the slider: name, image, words."""
    wanted: list[tuple[str, str, Any]] = []
    if len(post.names) > 1:
        some = "" if len(post.names) <= plots.MOST_PAIRS else f" The first {plots.MOST_PAIRS} parameters."
        words = "Darker is more; above the diagonal, correlations." + some
        wanted.append(("Parameters in pairs", words, lambda: plots.pairs(post)))
    if not post.independent and post.weights is None and post.shape[1] > 1:
        names = _least_mixed(post)
        some = "" if len(names) == len(post.names) else f" The {len(names)} parameters that mix least."
        words = "Chains that agree overlap; a chain that stands still is a flat line, and a peak at the bottom." + some
        wanted.append(("Chains, step by step", words, lambda: plots.traces(post, names)))
    if plots.path_of(post)[1]:
        words = "How the tolerance fell while simulations were spent."
        if post.settings.get("algorithm") == "infer":
            words = (
                "The distance within which a fixed number of the nearest simulations lay, as more were made. The "
                "region that the draws come from is chosen by trial, and may be wider."
            )
        wanted.append(("Tolerance path", words, lambda: plots.path(post)))
    count = _predicted(post, predictive)
    if count:
        words = (
            f"{count} new simulations at draws of the posterior, beside the data. A diamond far from its line says "
            "that the model cannot make such data."
        )
        wanted.append(("Would the model make such data?", words, lambda: plots.predictive(post, count)))
    found = []
    for name, words, draw in wanted:
        try:
            figure = draw()
            image, width, wrong = _image(figure), _width(figure), ""
        except ValueError as error:
            image, width, wrong = "", "", str(error)
        found.append({"name": name, "words": words, "image": image, "width": width, "wrong": wrong})
    return found


def _least_mixed(post: Posterior) -> list[str]:
    rows = post.summary().rows
    worst = sorted(rows, key=lambda name: -math.inf if math.isnan(rows[name].r_hat) else -rows[name].r_hat)
    return [name for name in post.names if name in worst[:MOST_TRACED]]


def _predicted(post: Posterior, predictive: int | None) -> int:
    if post.model is None or predictive == 0:
        return 0
    if predictive is not None:
        return predictive
    each = post.cost.seconds / max(post.cost.simulations, 1)
    count = int(min(PREDICTED, PREDICT_SECONDS / max(each, 1e-9)))
    return count if count >= FEWEST_PREDICTED else 0


def _image(figure: Any) -> str:
    """A figure as the address of an SVG image."""
    buffer = io.BytesIO()
    with plots._styled(), warnings.catch_warnings():
        # A name may hold letters that the font has not; the tables have them all.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", dpi=150, metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def _width(figure: Any) -> str:
    """How wide a figure is shown at the most."""
    return f"{figure.get_figwidth() * 6.6:.1f}rem"


def _chains(post: Posterior) -> list[tuple[str, str, str]]:
    """R-hat and ESS of the chains themselves, by parameter."""
    if post.independent or post.weights is not None:
        return []
    return [
        (name, "–" if math.isnan(row.r_hat) else f"{row.r_hat:.3f}", "–" if math.isnan(row.ess) else f"{row.ess:,.0f}")
        for name, row in post.summary().rows.items()
    ]


def _certificate(post: Posterior) -> dict[str, Any]:
    """What the run says about other numbers of pseudo-samples, or why it says nothing."""
    if post.model is None and post.kernel is not None and post.settings.get("algorithm") == "pseudo_marginal":
        return {"text": "", "image": "", "wrong": "its file holds no functions, and one needs the model (--model)"}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = certificate(post)
            figure = plots.efficiency(found)
            return {"text": str(found), "image": _image(figure), "width": _width(figure), "wrong": ""}
    except ValueError as error:
        return {"text": "", "image": "", "wrong": str(error)}


def _ledger(post: Posterior) -> list[tuple[str, str, str]]:
    cost = post.cost
    lines = [(key, f"{getattr(cost, key):,}", words) for key, words in LEDGER.items()]
    lines.append(("time", clock(cost.seconds) if cost.seconds >= 1 else f"{cost.seconds:.2g} s", "of all sessions"))
    if cost.seconds > 0:
        lines.append(("speed", f"{number(cost.simulations / cost.seconds)} /s", "simulations a second"))
    if math.prod(post.shape):
        least = min(row.ess for row in post.summary().rows.values())
        if least > 0:
            words = "simulations for one effective draw of the parameter that has fewest"
            lines.append(("price", number(cost.simulations / least), words))
    return lines


def _brief(value: Any) -> str:
    text = json.dumps(_rounded(value)) if isinstance(value, dict | list | tuple) else str(value)
    return text if len(text) <= 400 else text[:399] + "…"


def _at(theta: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value:.4g}" for name, value in theta.items())


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _sessions(source: Source | None) -> list[str]:
    if source is None:
        return []
    return [
        f"{one.get('began', '?')}{' (forced: ' + '; '.join(one['forced']) + ')' if one.get('forced') else ''}"
        for one in source.sessions
    ]


def _versions(source: Source | None) -> dict[str, str]:
    """Of the run's last session where there is a file; otherwise of this process."""
    if source is not None and source.sessions:
        return {str(key): str(value) for key, value in source.sessions[-1].get("versions", {}).items()}
    return versions()


def _prints(post: Posterior, source: Source | None) -> dict[str, str]:
    """One fingerprint of the model, and one of each part that is known."""
    parts: Mapping[str, Any] = {}
    if source is not None:
        parts = source.specification.get("parts", {})
    elif post.model is not None:
        parts = {"prior": fingerprint(post.model.prior), **model_parts(post.model)}
    of_model = {key: value for key, value in parts.items() if key.startswith(MODEL_PARTS)}
    if not of_model:
        return {}
    return {"model": _digest(of_model), **{key: _digest(value) for key, value in parts.items()}}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def call_of(post: Posterior, source: Source | None = None) -> str:
    """The call that makes this run again, with `model` as it was.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> print(call_of(od.rejection(model, od.uniform(0.5), draws=20, seed=1).at(0.25)))
    post = od.rejection(model, od.uniform(0.5), draws=20, seed=1)
    post = post.at(0.25)
    """
    import onedraw as od

    algorithm = str(post.settings.get("algorithm"))
    sampler = getattr(od, algorithm, None)
    if sampler is None:
        return ""
    written: dict[str, Any] = {**post.settings, "seed": post.seed}
    if source is not None:
        written |= {key: value for key, value in source.specification.get("arguments", {}).items() if key != "eps"}
    run_eps = post.settings.get("run_eps")
    eps = post.settings.get("eps") if run_eps is None else run_eps
    parameters = inspect.signature(sampler).parameters
    given = ["model"]
    name = str(written.get("kernel"))
    if "kernel" in parameters:
        known = getattr(kernels, name, None) is not None
        own = f"{name if name.isidentifier() else 'kernel'}  # your own"
        family = f"od.{name}" if known else own
        if "eps" in parameters:
            given.append(f"kernel={family}")
        else:
            given.append(f"{family}({eps!r})" if known else own)
    for key, one in parameters.items():
        value = written.get(key)
        if key in ("model", "kernel", "estimator", "store", "proposal", "eps") or value is None or value == one.default:
            continue
        if isinstance(value, bool | int | float | str):
            given.append(f"{key}={value!r}")
    call = f"post = od.{algorithm}({', '.join(given)})"
    return call if run_eps is None else f"{call}\npost = post.at({post.settings['eps']!r})"
