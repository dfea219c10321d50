"""What the commands `study` and `contrast` share: their options, and what they say where the page cannot be made."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click


def options(out: str, kept: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Seed, folder (with this default) and workers; `kept` says what of an earlier run is used."""

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option("--workers", type=click.IntRange(min=1), help="Processes.  [default: one a core]"),
            click.option(
                "--out",
                type=click.Path(file_okay=False, path_type=Path),
                default=Path(out),
                show_default=True,
                help=f"Folder of the results.{kept}",
            ),
            click.option("--seed", type=click.IntRange(min=0, max=2**63 - 1), default=1, show_default=True),
        ):
            command = option(command)
        return command

    return added


@contextmanager
def drawn(written: str) -> Iterator[None]:
    """Figures and page are made in here; where a library is missing, say what there is without them."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(
            f"{written} is written; the rest needs matplotlib and jinja2 ({error}): pip install 'onedraw[report]'"
        ) from error
