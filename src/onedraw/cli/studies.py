"""The commands `study`, the paper's simulation study compared with exact values point by point, and `contrast`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import click

from onedraw.cli.options import COUNT, SEED, added


def options(out: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Seed, folder (with this default) and workers."""
    return added(
        (
            click.option("--seed", type=SEED, default=1, show_default=True),
            click.option(
                "--out",
                type=click.Path(file_okay=False, path_type=Path),
                default=Path(out),
                show_default=True,
                help="Folder of the results. Finished points found there are used again.",
            ),
            click.option("--workers", type=COUNT, help="Processes.  [default: one per core]"),
        )
    )


@contextmanager
def computed(out: Path) -> Iterator[None]:
    """Points are computed in here; errors and interrupts become messages."""
    from onedraw.paper.tasks import StudyError

    try:
        yield
    except StudyError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo(
            f"\nInterrupted. Finished points are kept in {out}: the same command continues from there.", err=True
        )
        raise SystemExit(130) from None


@contextmanager
def drawn(written: str) -> Iterator[None]:
    """Figures and page are made in here; if a library is missing, say what there is without them."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(
            f"{written} is written; the rest needs matplotlib and jinja2 ({error}): pip install 'onedraw[report]'"
        ) from error


def counted(workers: int) -> str:
    """A number of processes in words."""
    return f"{workers} process{'es' if workers > 1 else ''}"


@click.command(short_help="Reproduce the simulation study of the paper.")
@click.option(
    "--figure",
    "figure",
    type=click.Choice(["1L", "1R", "2L", "2R", "all"]),
    default="all",
    show_default=True,
    help="One panel of the paper's figures, or all.",
)
@click.option("--iterations", type=COUNT, help="Steps per point.  [default: 5,000,000]")
@click.option("--quick", is_flag=True, help="A tenth of the steps: done in a minute or two.")
@click.option("--kernel", type=click.Choice(["uniform", "gaussian"]), default="uniform", show_default=True)
@options("study-output")
@click.option(
    "--engine",
    type=click.Choice(["numpy", "numba", "jax"]),
    default="numpy",
    show_default=True,
    help="What runs the chains; numba and jax are extras.",
)
def study(
    figure: str,
    iterations: int | None,
    quick: bool,
    kernel: Literal["uniform", "gaussian"],
    seed: int,
    out: Path,
    engine: Literal["numpy", "numba", "jax"],
    workers: int | None,
) -> None:
    """Reproduce the paper's simulation study and check every point against its exact value.

    Writes study.csv, figure1 to figure3 (.svg, .png) and index.html, a page with all of it. The same command continues
    an interrupted study.
    """
    if quick and iterations is not None:
        raise click.UsageError("give --quick or --iterations, not both: --quick is a number of iterations")
    from onedraw.paper.study import run, settings
    from onedraw.paper.study.claims import claims_of
    from onedraw.paper.tasks import CHECKPOINT, finished
    from onedraw.run.progress import clock

    with computed(out):
        plan = run.StudyPlan(
            iterations=iterations or (run.QUICK_ITERATIONS if quick else settings.ITERATIONS),
            kernel=kernel,
            seed=seed,
            figures=settings.FIGURES if figure == "all" else (figure,),
            engine=engine,
        )
        workers = workers or run.default_workers(engine)
        tasks = run.point_tasks(plan)
        done = finished(out, plan.identity(), tasks)
        click.echo(f"{len(tasks)} points of {plan.iterations:,} iterations, {plan.kernel} kernel, {counted(workers)}.")
        if done:
            click.echo(f"{len(done)} of them are finished in {out / CHECKPOINT}.")
        if len(done) < len(tasks) and engine != "jax":
            click.echo(f"This will take about {clock(run.forecast_seconds(plan, workers, done))}.")
        results = run.run_study(plan, out, workers=workers)

    with drawn("study.csv"):
        from onedraw.paper.page import write_figures, write_page
        from onedraw.paper.study import figures, page

        panels = figures.panels_of(results)
        write_figures(panels, out)
        written = write_page(panels, page.content_of(results), out)
    agreed = run.agreement(results.outcomes)
    claims = claims_of(results)
    reproduced = sum(claim.holds for claim in claims)
    click.echo(
        f"\n{agreed.points} simulated values against exact ones: {agreed.within_2} within 2 standard errors, "
        f"{agreed.within_4} within 4.\n"
        f"Chi-squared {agreed.chi_squared:.1f} on {agreed.points} degrees of freedom "
        f"(a larger one has probability {agreed.p_above:.2g}).\n"
        f"{reproduced} of {len(claims)} claims of the paper's text reproduced; not: "
        f"{'; '.join(claim.short for claim in claims if not claim.holds) or 'none'}.\n"
        f"{results.simulations:,} simulations, {clock(results.core_seconds)} of one core, "
        f"{clock(results.wall_seconds)} now.\n"
        f"Open {written}"
    )
    if not agreed.fine:
        raise click.ClickException("simulated and exact values do not agree: the sampler or the exact value is wrong")


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
