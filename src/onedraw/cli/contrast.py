"""The `contrast` command: where one pseudo-sample is enough, and where it is not."""

from pathlib import Path

import click

from onedraw.cli.studies import drawn, options


@click.command()
@click.option("--quick", is_flag=True, help="Smaller runs, T = 100 alone in panel 4: about three minutes.")
@options("contrast-output")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, too.")
def contrast(quick: bool, seed: int, out: Path, workers: int | None, as_json: bool) -> None:
    """Efficiency per unit of cost against M: inside ABC, with a shared set-up, and in particle MCMC.

    Writes contrast.json, contrast.svg, contrast.png and index.html, a page with all of it.
    """
    from onedraw.paper.contrast import run
    from onedraw.paper.contrast.shapes import shapes_of
    from onedraw.paper.study.run import duration, usable_cores

    plan = run.Plan(seed=seed, quick=quick)
    workers = workers or usable_cores()
    out.mkdir(parents=True, exist_ok=True)
    click.echo(
        f"{len(run.tasks_of(plan))} points, {workers} process{'es' if workers > 1 else ''}; "
        f"about {'three minutes' if quick else 'twenty minutes'} on two cores.",
        err=as_json,
    )
    try:
        found = run.run_contrast(plan, out, workers=workers)
    except KeyboardInterrupt:
        click.echo("\nInterrupted: nothing is kept.", err=True)
        raise SystemExit(130) from None
    with drawn("contrast.json"):
        from onedraw.paper.contrast import figure, page

        figure.write_figure(found, out)
        written = page.write_page(found, out)
    shapes = shapes_of(found)
    for shape in shapes:
        click.echo(f"{'as theory says' if shape.holds else 'NOT SEEN'}: {shape.statement}; {shape.number}", err=as_json)
    click.echo(f"{found.simulations:,} simulations, {duration(found.wall_seconds)}.\nOpen {written}", err=as_json)
    if as_json:
        click.echo(found.to_json())
    if not all(shape.holds for shape in shapes):
        raise click.ClickException("a line has not the shape that theory says: see the numbers above")
