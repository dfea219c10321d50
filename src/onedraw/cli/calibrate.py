"""The command `onedraw calibrate`."""

import sys
from pathlib import Path
from typing import Any

import click

from onedraw.cli.counts import WholeNumber
from onedraw.cli.models import split
from onedraw.cli.run import COUNT, EXIT, asked_for, cluster, how_to_run, plain_warnings, what_to_run, where_to_work
from onedraw.cli.text import as_json
from onedraw.results.plain import printable

OPTIONS = ("budget", "seed", "on_error", "timeout", "engine", "workers", "max_seconds", "segment", "progress")
"""Options of the whole; all others are arguments of the method."""


@click.command(short_help="Try the analysis of a model on data sets whose parameters are known.")
@click.argument("model", metavar="MODELFILE[:NAME]")
@click.option(
    "--budget", type=COUNT, help="The largest number of simulations of each analysis (of all together, with --shared)."
)
@click.option("--data-sets", type=WholeNumber(20), default=200, show_default=True, help="Data sets to analyse.")
@click.option("--shared", is_flag=True, help="Analyse all data sets with the same simulations (rejection, infer).")
@click.option("-o", "--out", type=click.Path(dir_okay=False), help="The page.  [default: MODELFILE_calibration.html]")
@click.option(
    "--store", type=click.Path(dir_okay=False), help="The file of the run.  [default: like the page, with .db]"
)
@what_to_run
@how_to_run
@where_to_work
def calibrate(
    model: str,
    data_sets: int,
    shared: bool,
    out: str | None,
    store: str | None,
    dask: str | None,
    json_wanted: bool,
    **options: Any,
) -> None:
    """Draw data sets from the prior, analyse each as `onedraw run` would, and say whether the posteriors are right.

    The same command, given again, continues where the file ends, and a larger --data-sets adds data sets. The exit
    status is 0 whatever the verdict, 130 after Ctrl-C, 143 after SIGTERM, and 1 after an error.
    """
    import onedraw as od

    value, _, method, given = asked_for(model, **options)
    page = Path(out or f"{split(model)[0].stem}_calibration.html")
    file = Path(store) if store else page.with_suffix(".db")
    if file == page:
        raise click.UsageError(f"the page and the file would both be {page}: give -o a name that ends with .html")
    arguments = {key: one for key, one in given.items() if key not in OPTIONS}
    whole = {key: one for key, one in given.items() if key in OPTIONS}
    with plain_warnings(), cluster(dask) as client:
        if client is not None:
            whole["executor"] = client
        try:
            found = od.calibrate(
                value, method, data_sets=data_sets, arguments=arguments, shared=shared, store=file, **whole
            )
        except KeyboardInterrupt as stopped:
            click.echo(f"\nThe run so far is saved in {file}. To continue, give the same command again", err=True)
            sys.exit(EXIT.get(str(stopped), 130))
    found.report(page)
    if json_wanted:
        numbers = {
            "level": found.level, "headline": found.headline, "findings": found.findings, "advice": found.advice,
            "data_sets": len(found.picked), "cost": found.cost, "seed": found.seed, "notes": found.notes,
            "rows": {one.name: {**one._asdict(), "p": one.p, "level": one.level} for one in found.rows},
            "path": page, "file": file,
        }  # fmt: skip
        click.echo(as_json(numbers))
        return
    click.echo(printable(found.summary()))
    click.echo(f"\nOpen {page}. The results are saved in {file}", err=True)
