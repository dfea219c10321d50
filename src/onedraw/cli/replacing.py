"""When the file of an earlier run makes way for a new one: if it holds nothing of use, or with --overwrite."""

import math
from pathlib import Path

import click

from onedraw.cost import Cost
from onedraw.run.record import OtherRun

BESIDE = ("", "-journal", ".lock", ".lock-journal")
"""Ends of the names of a run's file and of those that belong to it."""


def make_way(file: str, overwrite: bool) -> None:
    """Remove a file whose simulations have all failed; with `overwrite`, any run's file."""
    if overwrite and Path(file).exists():
        remove(file)
    elif all_failed(file):
        remove(file)
        click.echo(f"All simulations in {file} had failed: it is replaced.", err=True)


def replace_if_empty(file: str, error: OtherRun) -> None:
    """Remove a file that holds another run, if that has ended without a draw; otherwise the error, with the remedy."""
    if not without_draws(file):
        raise click.ClickException(
            f"{error.what}. Give --out another name, or --overwrite to replace the run; onedraw resume --force "
            "continues a run although its model has changed"
        ) from error
    remove(file)
    click.echo(f"{file} held a run without draws: it is replaced.", err=True)


def all_failed(file: str) -> bool:
    """Whether a file holds a run all of whose simulations have failed."""
    import onedraw as od
    from onedraw.run.store import Store

    try:
        with Store(file) as store:
            last = store.last()
        # A whole run is read only if its last record speaks of failures alone.
        if last is None or "cost" not in last.scalars or Cost(*last.scalars["cost"]).failed == 0:
            return False
        cost = od.load(file).cost
    except od.StoreError:
        return False
    return cost.failed == cost.simulations


def without_draws(file: str) -> bool:
    """Whether a file holds a run that came to its end without a draw, and kept no simulations."""
    import onedraw as od
    from onedraw.run.store import Store

    try:
        post = od.load(file)
        with Store(file) as store:
            keep = store.meta("specification")["arguments"].get("keep")
    except od.StoreError:
        return False
    return post.status.complete and math.prod(post.shape) == 0 and keep != "all"


def remove(file: str) -> None:
    """Remove a run's file with what belongs to it; not one that is no run, or that is being written."""
    from onedraw.run.store import is_run, writer

    place = Path(file).resolve()
    if not is_run(place):
        raise click.ClickException(f"{file} is not a run of onedraw, and stays as it is: give --out another name")
    busy = writer(place)
    if busy is not None:
        raise click.ClickException(f"{file} is being written by {busy}: wait for it, or give --out another name")
    try:
        for end in BESIDE:
            place.with_name(place.name + end).unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be removed: {error.strerror or error}") from error
