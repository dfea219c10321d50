"""The command `onedraw compare`."""

from pathlib import Path
from typing import Any

import click

from onedraw.cli.models import named, split
from onedraw.cli.options import COUNT, how_to_run, store_option, where_to_work
from onedraw.cli.run import cluster, file_beside, interruptible, plain_warnings
from onedraw.cli.text import as_json
from onedraw.results.plain import printable


@click.command(short_help="Say which of several models is the most probable.")
@click.argument("models", nargs=-1, required=True, metavar="[LABEL=]MODELFILE[:NAME]...")
@click.option("--budget", type=COUNT, required=True, help="The largest number of simulations of all models together.")
@click.option("--draws", type=COUNT, help="Draws of each model's posterior.  [default: 5000]")
@click.option("--prior", multiple=True, metavar="LABEL=NUMBER", help="Prior probability of a model; equal by default.")
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False), default="models.html", show_default=True, help="The page."
)
@store_option
@how_to_run
@where_to_work
def compare(
    models: tuple[str, ...],
    prior: tuple[str, ...],
    out: str,
    store: str | None,
    dask: str | None,
    json_wanted: bool,
    **options: Any,
) -> None:
    """Compute the posterior probabilities of two or more models of the same data, and write a page about them.

    A model is labelled by the name of its file, or by its NAME if files repeat; LABEL=MODELFILE sets another label.
    The same command, given again, continues where the file ends. The exit status is 0 whatever the answer, 130 after
    Ctrl-C, 143 after SIGTERM, and 1 after an error.
    """
    import onedraw as od

    page = Path(out)
    file = file_beside(page, store)
    given = {key: one for key, one in options.items() if one is not None}
    files = labelled(models)
    if prior:
        given["prior"] = numbers(prior, list(files))
    values = {label: named(one, od.Model)[0] for label, one in files.items()}
    with plain_warnings(), cluster(dask) as there, interruptible(file):
        found = od.compare(values, store=file, **given, **there)
    found.report(page)
    if json_wanted:
        rows = {one.name: one._asdict() for one in found.models}
        told = {
            "best": found.best, "level": found.level, "headline": found.headline, "findings": found.findings,
            "advice": found.advice, "models": rows, "route": found.route, "notes": found.notes, "cost": found.cost,
            "trial": [one._asdict() for one in found.trial], "seed": found.seed, "path": page, "file": file,
        }  # fmt: skip
        click.echo(as_json(told))
        return
    click.echo(printable(found.summary()))
    click.echo(f"\nOpen {page}. The results are saved in {file}", err=True)


def labelled(models: tuple[str, ...]) -> dict[str, str]:
    """Model files by label; a UsageError if two have the same.

    >>> labelled(("a.py", "slow=b.py:other"))
    {'a': 'a.py', 'slow': 'b.py:other'}
    >>> labelled(("m.py:one", "m.py:two"))
    {'one': 'm.py:one', 'two': 'm.py:two'}
    """
    given = [label.partition("=") if "=" in label else ("", "", label) for label in models]
    paths = [split(file)[0] for _, _, file in given]
    same = len(set(paths)) < len(paths)
    found: dict[str, str] = {}
    for (label, _, file), path in zip(given, paths, strict=True):
        name = label or (split(file)[1] if same else path.stem)
        if name in found:
            raise click.UsageError(
                f"two models would be called {name!r}: give one of them another label, as in other={file}"
            )
        found[name] = file
    return found


def numbers(prior: tuple[str, ...], labels: list[str]) -> dict[str, float]:
    """Prior probabilities by label, one for each.

    >>> numbers(("a=0.3", "b=0.7"), ["a", "b"])
    {'a': 0.3, 'b': 0.7}
    """
    found: dict[str, float] = {}
    for one in prior:
        label, equals, value = one.rpartition("=")
        try:
            found[label] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise click.UsageError(f"--prior {one} must be LABEL=NUMBER, as in --prior density=0.3")
    for label in found:
        if label not in labels:
            raise click.UsageError(
                f"--prior {label}={found[label]:g}: there is no model {label!r} among {', '.join(labels)}"
            )
    missing = [label for label in labels if label not in found]
    if missing:
        raise click.UsageError(f"--prior is missing for {', '.join(missing)}: give it for every model, or for none")
    return found
