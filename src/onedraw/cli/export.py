"""Commands that write a file: the report of a run, its draws for other programs, and a first model."""

import csv
import io
from pathlib import Path
from typing import Any

import click

from onedraw.cli.models import named
from onedraw.cli.options import WholeNumber
from onedraw.cli.replacing import BESIDE
from onedraw.cli.text import as_json, opened
from onedraw.report.pages import is_database, replacing
from onedraw.results.plain import printable

FIRST_MODEL = '''"""A model for onedraw. Change the four parts below, then:

    onedraw run {name} --budget 1000
    onedraw report {stem}.db --model {name}
"""

import numpy as np
from scipy import stats

import onedraw as od

# 1. The observed data: numbers, an array, or a dict of arrays.
#    Read yours from a file: np.loadtxt("data.txt")
observed = np.array([2.9, 0.4, 1.7, 3.8, -0.6, 2.2, 1.1, 5.0, 0.9, 2.4])

# 2. The prior of each parameter: any distribution of scipy.stats.
#    uniform(a, b) covers a to a + b. A condition between parameters: where=lambda mu, sigma: sigma < mu
prior = od.Prior(
    mu=stats.norm(0, 5),
    sigma=stats.uniform(0.1, 6),
)


# 3. The simulator: one data set at these parameters, in the form of `observed`.
#    Take every random number from rng; then the same seed gives the same run.
def simulate(rng, mu, sigma):
    return rng.normal(mu, sigma, size=observed.size)


# 4. Summary statistics: a few numbers, with names, that capture what matters in a data set. Without a summary the data
#    themselves are compared.
def summary(data):
    return {"mean": data.mean(), "sd": data.std()}


model = od.Model(prior, simulate, observed, summary=summary)
'''


@click.command(short_help="Write the report of a run: its results, and whether to trust them.")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("-o", "--out", type=click.Path(dir_okay=False), help="The page.  [default: FILE with .html]")
@click.option("--model", metavar="MODELFILE[:NAME]", help="For the prior, and simulations to compare with the data.")
@click.option("--predictive", type=WholeNumber(0), help="The number of these simulations.")
@click.option("--eps", type=click.FloatRange(min=0, min_open=True), help="Start at this smaller tolerance.")
@click.option("--json", "json_wanted", is_flag=True, help="Print the path of the page and the verdict as JSON.")
def report(
    file: str, out: str | None, model: str | None, predictive: int | None, eps: float | None, json_wanted: bool
) -> None:
    """Write the report of the run in FILE: one page that opens offline, with a verdict at its top.

    `checks` in MODELFILE, a dict of functions of one data set that give one number, are compared with the data too.
    """
    import onedraw as od

    if predictive and model is None:
        raise click.UsageError("--predictive simulates, and the file holds no functions: give --model too")
    value, module = (None, None) if model is None else named(model, od.Model)
    path, verdict = write_page(file, module, value, out, predictive, eps)
    if json_wanted:
        written = {"path": path, "bytes": path.stat().st_size, "verdict": verdict.level}
        click.echo(as_json({**written, **{name: getattr(verdict, name) for name in ("headline", "findings", "todo")}}))
    else:
        click.echo(printable(f"{verdict.headline} Open {path}"))


def write_page(
    file: str,
    module: Any,
    model: Any,
    out: str | None = None,
    predictive: int | None = None,
    eps: float | None = None,
) -> Any:
    """Write the report of the run in a file, with the model and the `checks` of the model file."""
    from onedraw.report.page import source_of, write_report

    post = opened(file)
    if eps is not None:
        post = post.at(eps)
    target = Path(out) if out else Path(file).with_suffix(".html")
    _refuse_same(file, target)
    return write_report(
        post, target, predictive=predictive, checks=getattr(module, "checks", None), source=source_of(file), model=model
    )


@click.command(short_help="Write the draws of a run for ArviZ (.nc) or as a table (.csv).")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("-o", "--out", type=click.Path(dir_okay=False), help="The new file.  [default: FILE with .nc or .csv]")
@click.option("--csv", "as_csv", is_flag=True, help="A table with one line per draw, instead of a DataTree file.")
@click.option("--model", metavar="MODELFILE[:NAME]", help="To put the observed data into the file too.")
@click.option("--eps", type=click.FloatRange(min=0, min_open=True), help="Draws at this smaller tolerance.")
@click.option("--weighted", is_flag=True, help="All draws with their weights, instead of draws of equal weight.")
@click.option("--json", "json_wanted", is_flag=True, help="Print what was written as JSON.")
def export(
    file: str, out: str | None, as_csv: bool, model: str | None, eps: float | None, weighted: bool, json_wanted: bool
) -> None:
    """Write the draws of the run in FILE as a NetCDF file for ArviZ or as a table.

    Weighted draws, and draws that outnumber their effective sample size, are resampled to that many draws of equal
    weight.
    """
    from dataclasses import replace

    import onedraw as od
    from onedraw.results.export import for_export

    post = opened(file)
    if model is not None:
        post = replace(post, model=named(model, od.Model)[0])
    if eps is not None:
        post = post.at(eps)
    post = for_export(post, weighted, None, None)
    as_csv = as_csv or (out is not None and Path(out).suffix == ".csv")
    target = Path(out) if out else Path(file).with_suffix(".csv" if as_csv else ".nc")
    _refuse_same(file, target)
    try:
        with replacing(target) as fresh:
            if as_csv:
                fresh.write_text(table(post), encoding="utf-8", newline="")
            else:
                write_datatree(post, fresh)
    except OSError as error:
        raise click.ClickException(f"{target} cannot be written: {error.strerror or error}") from error
    chains, draws = post.shape
    if json_wanted:
        found = {"path": target, "bytes": target.stat().st_size, "chains": chains, "draws": draws}
        click.echo(as_json({**found, "parameters": tuple(post.columns), "weighted": post.weights is not None}))
    else:
        click.echo(printable(f"{target} holds {chains:,} x {draws:,} draws of {', '.join(post.names)}"))


def write_datatree(post: Any, path: Path) -> None:
    """The draws as a NetCDF file in ArviZ's groups."""
    wrong = [name for name in post.names if "/" in name or not name.isprintable() or name in ("chain", "draw")]
    if wrong:
        raise click.ClickException(f"a NetCDF file cannot name a parameter {wrong[0]!r}: use --csv")
    try:
        tree = post.to_datatree(weighted=True, predictive=0)
        tree.to_netcdf(path, engine="h5netcdf")
    except ImportError as error:
        raise click.ClickException(
            "this needs xarray and h5netcdf: pip install 'onedraw[arviz]'; or use --csv"
        ) from error


COLUMNS = ("chain", "draw", "weight", "distance")
"""Columns of a table that are no parameters."""


def table(post: Any) -> str:
    """The draws as CSV text: chain, draw, parameters, weight and distance if there are any.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> print(table(od.rejection(model, od.uniform(0.5), draws=20, seed=1)).splitlines()[0])
    chain,draw,theta,distance
    """
    import numpy as np

    chains, draws = post.shape
    columns: dict[str, Any] = {
        "chain": np.repeat(np.arange(chains), draws).tolist(),
        "draw": np.tile(np.arange(draws), chains).tolist(),
    }
    for name, values in post.columns.items():
        columns[f"parameter {name}" if name in COLUMNS else name] = values.reshape(-1).tolist()
    if post.weights is not None:
        columns["weight"] = post.weights.reshape(-1).tolist()
    if post.distances is not None:
        flat = post.distances.reshape(chains * draws, -1)
        single = flat.shape[1] == 1
        columns |= {"distance" if single else f"distance {i}": flat[:, i].tolist() for i in range(flat.shape[1])}
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    # repr is the shortest text that reads back as the same number.
    writer.writerows(map(repr, row) for row in zip(*columns.values(), strict=True))
    return buffer.getvalue()


@click.command(short_help="Write a commented model to start from.")
@click.argument("file", type=click.Path(dir_okay=False), default="model.py")
def new(file: str) -> None:
    """Write a commented model to start from into FILE (model.py); an existing file is never overwritten."""
    path = Path(file)
    if path.suffix != ".py":
        raise click.ClickException(f"{path} is not the name of a Python file: it must end with .py")
    try:
        with path.open("x", encoding="utf-8", newline="\n") as handle:
            handle.write(FIRST_MODEL.replace("{name}", path.name).replace("{stem}", path.stem))
    except FileExistsError as error:
        raise click.ClickException(f"{path} already exists: give another name") from error
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror or error}") from error
    click.echo(f"{path} is a model to start from. Change its four parts, then: onedraw run {path} --budget 1000")


def _refuse_same(file: str, target: Path) -> None:
    """No output takes the place of the run that it comes from, of what lies beside that, or of another run."""
    refuse_own(file, target)
    if is_database(target):
        raise click.ClickException(f"{target} is a database, perhaps another run: give another name with -o")


def refuse_own(file: str, target: Path) -> None:
    """No output takes the place of the run that it comes from, or of what lies beside that."""
    run = Path(file).resolve()
    own = {run.with_name(run.name + end) for end in BESIDE}
    if target.resolve() in own or (target.exists() and target.samefile(run)):
        raise click.ClickException(f"{target} is the run itself: give another name with -o")
