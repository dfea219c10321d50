"""The command `check`: one simulation of a model, and what the prior expects beside the data."""

from typing import Any

import click

from onedraw.cli.models import named
from onedraw.cli.options import COUNT, POSITIVE, SEED, json_option
from onedraw.cli.text import as_json, concerns, fitted, takes
from onedraw.failures import in_words
from onedraw.results.plain import printable

SHOWN = 20
"""Numbers of the data that are shown; if there are more, those that the simulations reach least."""
SECONDS = 10.0
ENOUGH = 50
"""Simulations from which on an observed number that none of them reaches is worth a word."""


@click.command(short_help="Try a model: one simulation, and the prior predictive beside the data.")
@click.argument("model", metavar="MODELFILE[:NAME]")
@click.option(
    "--budget",
    type=COUNT,
    default=1000,
    show_default=True,
    help="Estimate how long this many simulations take.",
)
@click.option("--simulations", type=COUNT, default=200, show_default=True, help="Simulations from the prior.")
@click.option(
    "--max-seconds",
    type=POSITIVE,
    default=SECONDS,
    show_default=True,
    help="Stop after this time.",
)
@click.option("--timeout", type=POSITIVE, help="Time limit of one simulation, in seconds.")
@click.option("--seed", type=SEED, default=1, show_default=True)
@json_option
def check(
    model: str, budget: int, simulations: int, max_seconds: float, timeout: float | None, seed: int, json_wanted: bool
) -> None:
    """Try the model that MODELFILE defines (`model`, or NAME), without saving anything.

    One simulation shows whether the simulator returns data in the form of those observed, whether they are finite,
    whether the same random stream gives the same data, and how long it takes. Further simulations, at draws from the
    prior, show whether the prior predicts data like those observed.
    """
    import onedraw as od
    from onedraw.tuning.first_look import first_look

    value, _ = named(model, od.Model)
    look = first_look(value, simulations, seed, timeout, max_seconds)
    click.echo(as_json(look) if json_wanted else fitted(printable(described(value, look, budget))))


def described(model: Any, look: Any, budget: int) -> str:
    """A first look in lines."""
    first, cost = look.first, look.cost
    found = f"failed, {first.failed}" if first.failed else _fine(model)
    lines = [
        f"{model!r}",
        f"First simulation, at {in_words(first.theta)}: {found}",
        *concerns(first._replace(failed="")),
    ]
    if first.same:
        source = "" if first.used_rng else "; it draws nothing from rng"
        lines.append(f"The same random stream gives the same data{source}.")
    lines += [takes(look.seconds, budget), ""]
    failed = f", {cost.failed:,} failed" if cost.failed else ""
    lines.append(f"Prior predictive: {cost.simulations:,} simulations at draws from the prior{failed}")
    if cost.failed and look.failures:
        lines.append(f"The first failed {look.failures[0]}")
    return "\n".join([*lines, *_table(look.beside, cost.simulations - cost.failed)])


def _fine(model: Any) -> str:
    count = model.observed_row.size
    words = ("number", "numbers") if model.summary is None else ("summary", "summaries")
    return f"{count} finite {words[count > 1]}, in the form of the data"


def _table(beside: Any, made: int) -> list[str]:
    from onedraw.results.summary import table
    from onedraw.tuning.first_look import LEVELS

    if not beside:
        return []
    far = sorted(beside, key=lambda one: min(one.below, 1 - one.below))
    shown = [one for one in beside if one in far[:SHOWN]]
    head = ["", "observed", *(f"{100 * level:g} %" for level in LEVELS), "below"]
    rows = [
        [one.label, *(f"{number:.4g}" for number in (one.observed, *one.quantiles)), f"{100 * one.below:.0f} %"]
        for one in shown
    ]
    lines = [table([head, *rows])]
    if len(shown) < len(beside):
        lines.append(f"These are the {len(shown)} of {len(beside)} numbers furthest out among the simulations.")
    if made < ENOUGH:
        return [
            *lines,
            f"{made} simulations are too few to judge: give a larger --max-seconds or --simulations.",
        ]
    outside = [one for one in beside if one.outside]
    if not outside:
        return [*lines, "Every observed number lies within the range of the simulations."]
    names = ", ".join(one.label for one in outside[:5]) + (", ..." if len(outside) > 5 else "")
    return [
        *lines,
        f"The data lie beyond all {made:,} simulations in {names}. Either the prior is too narrow or the model cannot "
        "produce such data: look at the prior, the simulator and the units of the data.",
    ]
