"""What the commands `study` and `contrast` share: options, what an interrupt says, and what a missing library says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from onedraw.cli.counts import WholeNumber


def options(out: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Seed, folder (with this default) and workers."""

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option("--workers", type=WholeNumber(), help="Processes.  [default: one per core]"),
            click.option(
                "--out",
                type=click.Path(file_okay=False, path_type=Path),
                default=Path(out),
                show_default=True,
                help="Folder of the results. Finished points found there are used again.",
            ),
            click.option("--seed", type=click.IntRange(min=0, max=2**63 - 1), default=1, show_default=True),
        ):
            command = option(command)
        return command

    return added


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
