"""Pages: a template filled with what it shows, and files that are written whole or not at all."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def filled(folder: Path, content: Mapping[str, Any]) -> str:
    """The page of a folder's template, page.html.j2; everything in it is escaped that is not marked as safe."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(content)


def write_whole(path: Path, text: str) -> Path:
    """Write a file so that a crash leaves either the old one or the new one; returns its path."""
    if is_database(path):
        raise FileExistsError(errno.EEXIST, "it is a database, perhaps a run: give another name")
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="\n")
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file to be written, which then takes the place of `path` in one step."""
    # In a folder of its own, since a file of any name may lie beside it.
    with tempfile.TemporaryDirectory(prefix=".onedraw-", dir=path.absolute().parent) as folder:
        fresh = Path(folder) / "new"
        yield fresh
        os.replace(fresh, path)


def is_database(path: Path) -> bool:
    """Whether a file is one of SQLite's, as runs are."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"
