"""The commands `verify` and `advise`. What they need is imported when they run."""

import sys
from pathlib import Path

import click

from onedraw.cli.models import named
from onedraw.cli.options import COUNT, POSITIVE, SEED, WholeNumber
from onedraw.results.plain import printable


@click.command(short_help="Check the theory, and every sampler against it.")
@click.option("--trials", type=COUNT, default=2000, show_default=True, help="Random problems.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print everything, instances included, as JSON.")
@click.option(
    "--rerun",
    "stored",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Check every statement again on an instance that was saved.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("onedraw-verify-failure.json"),
    show_default=True,
    help="Where a failing instance is written.",
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    type=click.Choice(["plain", "batched", "staged", "compiled", "jax"]),
    help="Simulators that the samplers are run with; may be repeated.  [default: all that are installed]",
)
def verify(trials: int, seed: int, as_json: bool, stored: Path | None, save: Path, engines: tuple[str, ...]) -> None:
    """Check every statement of the theory on random finite problems, exactly, and run every sampler against them.

    The samplers run on a model with a handful of outcomes, and their moves are compared with exact transition
    matrices. Exits with 1 if anything fails; the first failing instance of a statement is saved, for --rerun.
    """
    import json

    from onedraw.paper import verification as checks

    if stored is None:
        try:
            table = checks.verify(trials, seed, engines=engines or None)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    else:
        try:
            table = checks.rerun(stored.read_text(encoding="utf-8"))
        except (ValueError, AttributeError) as error:
            raise click.UsageError(f"{stored} is not a saved instance: {error}") from error
    click.echo(table.to_json() if as_json else str(table))
    if table.ok:
        return
    failure = next((row.failures[0] for row in table.rows if row.failures), None)
    if stored is None and failure is not None:
        save.write_text(json.dumps(failure), encoding="utf-8")
        click.echo(f"The first failing instance is in {save}: onedraw verify --rerun {save}", err=True)
    sys.exit(1)


@click.command(short_help="Measure how many pseudo-samples pay for a model.")
@click.argument("file")
@click.option("--eps", type=POSITIVE, help="The tolerance of a model.")
@click.option("--kernel", type=click.Choice(["uniform", "gaussian"]), default="uniform", show_default=True)
@click.option("--budget", type=COUNT, help="The largest number of simulations.  [default: chosen for the simulator]")
@click.option("--processors", type=COUNT, default=1, show_default=True)
@click.option("--max-pseudo-samples", type=WholeNumber(2), default=64, show_default=True)
@click.option("--start", multiple=True, metavar="NAME=NUMBER", help="Starting points for the chains of an estimator.")
@click.option("--seed", type=SEED, help="[default: drawn and printed]")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def advise(
    file: str,
    eps: float | None,
    kernel: str,
    budget: int | None,
    processors: int,
    max_pseudo_samples: int,
    start: tuple[str, ...],
    seed: int | None,
    as_json: bool,
) -> None:
    """How many pseudo-samples to draw at each theta, measured on the model that FILE defines.

    FILE is a Python file that defines `model`, or FILE:name for another name. An estimator such as a particle filter
    may take its place, with --start instead of --eps. The question is then how many particles.
    """
    import onedraw
    from onedraw.tuning.advise import advise as measure

    model, _ = named(file)
    if not isinstance(model, onedraw.Model):
        if not hasattr(model, "log_estimate"):
            raise click.ClickException(f"{file} is a {type(model).__name__}, not an od.Model or an estimator")
        if not start:
            raise click.UsageError(f"an estimator needs --start for each of {', '.join(model.prior.names)}")
        advice = measure(estimator=model, start=_points(start), budget=budget, seed=seed)
    elif eps is None:
        raise click.UsageError("a model needs --eps: --eps is the tolerance")
    else:
        chosen = getattr(onedraw, kernel)(eps)
        advice = measure(
            model, chosen, budget=budget, seed=seed, processors=processors, max_pseudo_samples=max_pseudo_samples
        )
    click.echo(advice.to_json() if as_json else printable(advice))


def _points(start: tuple[str, ...]) -> dict[str, float]:
    """Starting points from NAME=NUMBER."""
    try:
        return {name: float(number) for name, number in (one.split("=") for one in start)}
    except ValueError:
        raise click.UsageError(f"--start must be name=number, got {' '.join(start)!r}") from None
