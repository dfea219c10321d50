"""The `contrast` command: where one pseudo-sample is enough, and where it is not."""

from pathlib import Path

import click

from onedraw.cli.studies import computed, counted, drawn, options


@click.command(short_help="Show when more than one pseudo-sample pays.")
@click.option("--quick", is_flag=True, help="Smaller runs, T = 100 alone in panel 4: about three minutes.")
@options("contrast-output")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, too.")
def contrast(quick: bool, seed: int, out: Path, workers: int | None, as_json: bool) -> None:
    """Efficiency per unit of cost against M: inside ABC, with a shared set-up, and in particle MCMC.

    Writes contrast.json, contrast.svg, contrast.png and index.html, a page with all of it. The same command continues
    an interrupted contrast.
    """
    from onedraw.paper.contrast import run, shapes
    from onedraw.paper.tasks import usable_cores
    from onedraw.report.pages import write_whole
    from onedraw.run.progress import clock

    plan = run.ContrastPlan(seed=seed, quick=quick)
    workers = workers or usable_cores()
    click.echo(
        f"{len(run.tasks_of(plan))} points, {counted(workers)}; about {'three' if quick else 'twenty'} minutes on two "
        "cores.",
        err=as_json,
    )
    with computed(out):
        found = run.run_contrast(plan, out, workers=workers)
    numbers = shapes.to_json(found)
    write_whole(out / "contrast.json", numbers + "\n")
    with drawn("contrast.json"):
        from onedraw.paper.contrast import figure, page
        from onedraw.paper.page import write_figures, write_page

        panels = figure.panels_of(found)
        write_figures(panels, out)
        written = write_page(panels, page.content_of(found), out)
    seen = shapes.shapes_of(found)
    for shape in seen:
        click.echo(f"{'as theory says' if shape.holds else 'NOT SEEN'}: {shape.statement}; {shape.number}", err=as_json)
    click.echo(f"{found.simulations:,} simulations, {clock(found.wall_seconds)}.\nOpen {written}", err=as_json)
    if as_json:
        click.echo(numbers)
    if not all(shape.holds for shape in seen):
        raise click.ClickException("a line does not have the shape that theory says: see the numbers above")
