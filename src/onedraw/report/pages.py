"""Pages: a template filled with what it shows, and files that are written whole or not at all."""

import os
from collections.abc import Mapping
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
    fresh = path.with_name(path.name + ".part")
    try:
        fresh.write_text(text, encoding="utf-8", newline="\n")
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    return path
