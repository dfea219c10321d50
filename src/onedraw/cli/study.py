"""The `study` command: the paper's simulation study, simulated, exact and compared point by point."""

from pathlib import Path
from typing import Literal

import click

from onedraw.cli.counts import WholeNumber
from onedraw.cli.studies import computed, counted, drawn, options


@click.command(short_help="Reproduce the simulation study of the paper.")
@click.option(
    "--figure",
    "figure",
    type=click.Choice(["1L", "1R", "2L", "2R", "all"]),
    default="all",
    show_default=True,
    help="One panel of the paper's figures, or all.",
)
@click.option("--iterations", type=WholeNumber(), help="Steps per point.  [default: 5,000,000]")
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
