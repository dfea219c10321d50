"""The `study` command: the paper's simulation study, simulated, exact and compared point by point."""

from pathlib import Path
from typing import Literal

import click

from onedraw.cli.studies import drawn, options


@click.command()
@click.option(
    "--figure",
    "figure",
    type=click.Choice(["1L", "1R", "2L", "2R", "all"]),
    default="all",
    show_default=True,
    help="One panel of the paper's figures, or all.",
)
@click.option("--iterations", type=click.IntRange(min=1), help="Steps a point.  [default: 5,000,000]")
@click.option("--quick", is_flag=True, help="A tenth of the steps: done in a minute or two.")
@click.option("--kernel", type=click.Choice(["uniform", "gaussian"]), default="uniform", show_default=True)
@options("study-output", " Finished points found there are used again.")
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
    kernel: str,
    seed: int,
    out: Path,
    engine: Literal["numpy", "numba", "jax"],
    workers: int | None,
) -> None:
    """Reproduce the paper's simulation study and check every point against its exact value.

    Writes study.csv, figure1 to figure3 (.svg, .png) and index.html, a page with all of it. An interrupted study goes
    on where it was when the command is given again.
    """
    if quick and iterations is not None:
        raise click.UsageError("give --quick or --iterations, not both: --quick is a number of iterations")
    from onedraw.paper.study import run, settings
    from onedraw.paper.study.claims import claims_of

    try:
        plan = run.Plan(
            iterations=iterations or (run.QUICK_ITERATIONS if quick else settings.ITERATIONS),
            kernel="gaussian" if kernel == "gaussian" else "uniform",
            seed=seed,
            figures=settings.FIGURES if figure == "all" else (figure,),
            engine=engine,
        )
        workers = workers or run.default_workers(engine)
        out.mkdir(parents=True, exist_ok=True)
        done = run.read_checkpoint(out / run.CHECKPOINT, plan)
        tasks = run.point_tasks(plan)
        missing = sum(task.key not in done for task in tasks)
        click.echo(
            f"{len(tasks)} points of {plan.iterations:,} iterations, {plan.kernel} kernel, {workers} "
            f"process{'es' if workers > 1 else ''}."
        )
        if missing < len(tasks):
            click.echo(f"{len(tasks) - missing} of them are finished in {out / run.CHECKPOINT}.")
        if missing and engine != "jax":
            click.echo(f"This will take about {run.duration(run.forecast_seconds(plan, workers, done))}.")
        results = run.run_study(plan, out, workers=workers)
    except run.StudyError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted. Finished points are kept in {out}: the same command goes on from there.", err=True)
        raise SystemExit(130) from None

    with drawn("study.csv"):
        from onedraw.paper.study import figures, page

        figures.write_figures(results, out)
        written = page.write_page(results, out)
    agreed = run.agreement(results.outcomes)
    claims = claims_of(results)
    reproduced = sum(claim.reproduced for claim in claims)
    click.echo(
        f"\n{agreed.points} simulated values against exact ones: {agreed.within_2} within 2 standard errors, "
        f"{agreed.within_4} within 4.\n"
        f"Chi-squared {agreed.chi_squared:.1f} on {agreed.points} degrees of freedom "
        f"(a larger one has probability {agreed.p_above:.2g}).\n"
        f"{reproduced} of {len(claims)} claims of the paper's text reproduced; not: "
        f"{'; '.join(claim.short for claim in claims if not claim.reproduced) or 'none'}.\n"
        f"{results.simulations:,} simulations, {run.duration(results.core_seconds)} of one core, "
        f"{run.duration(results.wall_seconds)} now.\n"
        f"Open {written}"
    )
    if not agreed.fine:
        raise click.ClickException("simulated and exact values do not agree: the sampler or the exact value is wrong")
