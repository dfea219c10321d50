"""Pages: a template filled with what it shows, and files that are written whole or not at all."""

import base64
import contextlib
import errno
import io
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onedraw.report.style import styled


def filled(folder: Path, content: Mapping[str, Any], template: str = "page.html.j2") -> str:
    """The page of a folder's template; everything in it is escaped that is not marked as safe."""
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("a report needs jinja2 and matplotlib: pip install 'onedraw[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(content)


def image_of(figure: Any) -> str:
    """A figure as an SVG image in a data URL, the same for the same figure."""
    buffer = io.BytesIO()
    with styled({"svg.hashsalt": "onedraw"}), warnings.catch_warnings():
        # A name may hold letters that the font lacks; the tables show them all.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", dpi=150, facecolor="none", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def write_whole(path: Path, text: str) -> Path:
    """Write a file so that a crash leaves either the old one or the new one; returns its path."""
    if is_database(path):
        raise FileExistsError(errno.EEXIST, "it is a database, perhaps a run: give another name")
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="\n")
    return path


def write_page(path: Path, text: str) -> Path:
    """Write a page as one file (`write_whole`); an error names the file."""
    try:
        return write_whole(path, text)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from error


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
