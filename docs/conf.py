"""The site of the documentation: `make docs` builds it with Sphinx into build/docs.

Formulas are written in plain characters, so that every page can be read offline, on the site and in an editor.
"""

import ast
import contextlib
import io
import logging
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

project = "onedraw"
author = "the onedraw developers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]

myst_heading_anchors = 3

default_role = "code"  # `name` in a docstring is code, as in Markdown
autodoc_typehints = "none"  # a signature with all its types fills half a screen; the text says what is wanted
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
add_module_names = False
smartquotes = False  # a prime is a prime: theta' is not theta’

html_theme = "furo"
html_title = "onedraw"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False

WITH_FIGURES = ("gallery", "time_series")
"""Pages whose figures are drawn by the build."""


def gallery(examples: Path, images: Path) -> str:
    """The page of the examples, in Markdown: for each file its first words, its figure where there is one, its code."""
    parts = []
    for path in sorted(examples.glob("*.py"), key=lambda path: (path.stem != "quickstart", path.stem)):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        title, _, rest = text.partition("\n\n")
        name = path.stem.replace("_", " ").capitalize()
        parts.append(f"## {name}\n\n{title.strip()}\n\n{_prose(rest)}")
        if (images / f"{path.stem}.png").exists():
            parts.append(f"![{name}]({images.name}/{path.stem}.png)")
        relative = f"../{examples.name}/{path.name}"
        code = f"```{{literalinclude}} {relative}\n:language: python\n```"
        parts.append(f"<details><summary>examples/{path.name}</summary>\n\n{code}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def _prose(text: str) -> str:
    """The rest of an example's docstring, with the command that runs it as code."""
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    return "\n\n".join(f"    {part}" if part.startswith("python ") else part for part in paragraphs)


def with_figures(text: str, folder: Path) -> str:
    """A page whose blocks of Python were run, each followed by the figure that it leaves in `figure`.

    What a block prints is on the page already.
    """
    from onedraw.report.style import save

    names: dict[str, Any] = {}
    folder.mkdir(parents=True, exist_ok=True)

    def run(block: re.Match[str]) -> str:
        before = names.get("figure")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block[1], "<page>", "exec"), names)
        if names.get("figure") is before:
            return block[0]
        number = 1 + len(list(folder.glob("*.svg")))
        title = re.findall(r"^##? (.+)$", text[: block.start()], re.MULTILINE)[-1]
        (path,) = save(names["figure"], folder / f"figure{number:02d}.svg")
        return f"{block[0]}\n\n![{title}]({path.relative_to(folder.parent.parent)})\n"

    logging.disable(logging.INFO)  # Sphinx would print what libraries log
    try:
        with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
            return re.sub(r"```python\n(.*?)```", run, text, flags=re.DOTALL)
    finally:
        logging.disable(logging.NOTSET)


def _add_figures(app: Any, name: str, source: list[str]) -> None:
    if name == "examples":
        source[0] += "\n" + gallery(ROOT / "examples", ROOT / "docs" / "img")
    if name in WITH_FIGURES:
        folder = ROOT / "docs" / "figures" / name
        shutil.rmtree(folder, ignore_errors=True)
        source[0] = with_figures(source[0], folder)


def _tidied(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """A field of a tuple without words of its own is shown by its name alone."""
    if lines[:1] and lines[0].startswith("Alias for field number"):
        lines.clear()


def _name_parameters(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Our "Parameters" are a list of definitions already: only the heading and the names need markup."""
    if "Parameters" not in lines or lines[lines.index("Parameters") + 1 :][:1] != ["-" * 10]:
        return
    top = lines.index("Parameters")
    lines[top : top + 2] = ["**Parameters**", ""]
    for place in range(top + 2, len(lines)):
        if not lines[place].strip():
            break
        if not lines[place].startswith(" "):
            lines[place] = ", ".join(f"``{one}``" for one in lines[place].split(", "))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _add_figures)
    app.connect("autodoc-process-docstring", _tidied)
    app.connect("autodoc-process-docstring", _name_parameters)
