"""Options that several commands take, each declared once, and counts, which may be written 10000, 10,000 or 1e4."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import click

PLAIN = re.compile(r"\d+|\d{1,3}(,\d{3})+|\d+(_\d+)+")
"""Digits, in groups or not."""
SCIENTIFIC = re.compile(r"\d+(\.\d*)?[eE]\+?\d{1,2}")


def number_of(text: str) -> int | None:
    """The whole number that a text stands for; None if it is none.

    >>> [number_of(text) for text in ("10000", "10,000", "10_000", "1e4", "2.5e3")]
    [10000, 10000, 10000, 10000, 2500]
    >>> [number_of(text) for text in ("1,5", "1.5", "2.55e1", "-3", "many")]
    [None, None, None, None, None]
    """
    text = text.strip()
    if PLAIN.fullmatch(text):
        return int(text.replace(",", "").replace("_", ""))
    if SCIENTIFIC.fullmatch(text):
        value = Decimal(text)
        return int(value) if value == value.to_integral_value() else None
    return None


class WholeNumber(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A whole number of at least `least`."""

    name = "count"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or click's error."""
        number = value if isinstance(value, int) else number_of(str(value))
        if number is None or number < self.least:
            self.fail(
                f"{value!r} is not a whole number of at least {self.least}: write it as 10000, 10,000 or 1e4",
                param,
                ctx,
            )
        return number


KERNELS = ("uniform", "gaussian", "epanechnikov", "triangular", "laplace")
SEED = click.IntRange(min=0, max=2**63 - 1)
COUNT = WholeNumber()
POSITIVE = click.FloatRange(min=0, min_open=True)


def added(options: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds options to a command, in this order."""

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


json_option = click.option("--json", "json_wanted", is_flag=True, help="Print one JSON object instead of text.")
max_seconds_option = click.option("--max-seconds", type=POSITIVE, help="Stop after this time.")
progress_option = click.option(
    "--progress/--no-progress", default=None, help="Show progress.  [default: in terminals and logs]"
)
budget_option = click.option("--budget", type=COUNT, help="The largest number of simulations.")
store_option = click.option(
    "--store", type=click.Path(dir_okay=False), help="The file of the run.  [default: like the page, with .db]"
)
what_to_run = added(
    (
        click.option("--draws", type=COUNT, help="Posterior draws (of each chain)."),
        click.option("--eps", type=POSITIVE, help="The tolerance."),
        click.option("--kernel", type=click.Choice(KERNELS), help="[default: uniform]"),
        click.option(
            "--algorithm",
            help="infer, rejection, pseudo_marginal, wilkinson, r_hit, smc, importance, or one that MODELFILE "
            "registers.  [default: infer; rejection if a tolerance is given]",
        ),
        click.option("--chains", type=COUNT, help="Number of chains."),
        click.option("--thin", type=COUNT, help="Keep every Nth step."),
        click.option("--pseudo-samples", type=COUNT, help="M, the simulations at one parameter value.  [default: 1]"),
        click.option("--hits", type=COUNT, help="Hits per estimate (r_hit only)."),
        click.option("--particles", type=COUNT, help="Number of particles (smc only)."),
    )
)
"""Options that say which sampler is run and how; `run` and `calibrate` share them."""
how_to_run = added(
    (
        click.option("--seed", type=SEED, help="[default: drawn and recorded]"),
        click.option(
            "--on-error",
            type=click.Choice(["reject", "raise"]),
            help="Count a failed simulation as rejected, or stop.  [default: reject]",
        ),
        click.option("--timeout", type=POSITIVE, help="Time limit of one simulation, in seconds."),
        click.option(
            "--engine",
            type=click.Choice(["numpy", "numba", "jax", "jax:float32", "jax:float64"]),
            help="The engine that runs the simulations.  [default: the one that the simulator is written for]",
        ),
    )
)
"""Options that a run's numbers depend on."""
where_to_work = added(
    (
        click.option("--workers", type=COUNT, help="Simulate in N processes on this machine."),
        click.option("--dask", metavar="ADDRESS", help="Simulate on the Dask cluster with this scheduler."),
        max_seconds_option,
        click.option("--segment", type=POSITIVE, default=30.0, show_default=True, help="Seconds between saves."),
        progress_option,
        json_option,
    )
)
"""Options of one session."""
bank_option = click.option(
    "--bank",
    multiple=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Use the simulations of this earlier run too (infer only). May be repeated.",
)
used_and_kept = added(
    (
        click.option(
            "--coverage",
            type=COUNT,
            help="Check intervals at this many simulations near the data (infer only).",
        ),
        bank_option,
        click.option(
            "--keep", type=click.Choice(["draws", "distances", "summaries", "all"]), help="What to keep besides draws."
        ),
    )
)
"""Options of `run` and `plan` alone."""
