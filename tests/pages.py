"""The pages of the documentation as programs: every block of code and every command in them, run or checked.

A page is run from top to bottom in a folder of its own, in one namespace:

- `python` blocks are executed; one whose first line is `# name.py` is written to that file instead;
- `pycon` blocks are doctests (blanks and `...` are lenient);
- `sh` blocks: each `onedraw` and `python` command is run where it stands;
- `text` blocks are drawings, or, with `<!-- output -->` before them, what the block before has printed; with
  `<!-- output, about -->` the numbers may differ by a third.

A comment on the line before a block changes this, and always says why: `<!-- parsed: reason -->` checks that commands,
options, names and arguments exist, without running them; `<!-- not ours: reason -->` checks that Python is Python, and
nothing more. `<!-- hidden` up to `-->` holds Python that a page needs and a reader does not. Nothing else is let pass.
"""

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import click
from click.testing import CliRunner

import onedraw as od
from onedraw.cli.main import main

ROOT = Path(__file__).parent.parent
LENIENT = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
SPHINX = {"{eval-rst}", "{toctree}", "{include}", "{literalinclude}"}
COMMAND = re.compile(r"(onedraw|make|python|pip|mpiexec|ONEDRAW_\w+=\S+|PARTICLES_\w+=\S+) ")


class Block(NamedTuple):
    """One piece of a page that is run."""

    line: int
    language: str
    text: str
    marker: str
    """"", "output", "output, about", "parsed", "not ours" or "hidden"."""
    reason: str = ""


class Wrong(AssertionError):
    """What is wrong with a page, and where."""


def pages() -> list[Path]:
    """All pages of the documentation, the README first."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    """The blocks of a page, hidden ones included. Code that no block holds is refused."""
    found, lines, place = [], text.split("\n"), 0
    while place < len(lines):
        line = lines[place]
        if line.startswith("<!-- hidden"):
            end = next(i for i in range(place, len(lines)) if lines[i].startswith("-->"))
            found.append(Block(place + 2, "python", "\n".join(lines[place + 1 : end]), "hidden"))
            place = end
        elif match := re.match(r"( *)```(\S*)", line):
            indent = len(match[1])
            end = next(i for i in range(place + 1, len(lines)) if lines[i].strip() == "```")
            body = "\n".join(one[indent:] for one in lines[place + 1 : end])
            before = next((one for one in reversed(lines[:place]) if one.strip()), "")
            marker, reason = _marker(before)
            found.append(Block(place + 2, match[2], body, marker, reason))
            place = end
        elif line.startswith("    ") and (">>>" in line or COMMAND.match(line.strip()) or "import " in line):
            raise Wrong(f"line {place + 1}: code in an indented block is not run; fence it: {line.strip()}")
        place += 1
    return found


def _marker(line: str) -> tuple[str, str]:
    if line.strip() in ("<!-- output -->", "<!-- output, about -->"):
        return line.strip()[5:-4], ""
    match = re.fullmatch(r"<!-- (parsed|not ours): (.+) -->", line.strip())
    return (match[1], match[2]) if match else ("", "")


def run(text: str) -> None:
    """Run a page in the working folder; Wrong where something in it is."""
    names: dict[str, object] = {"__name__": "__page__"}
    printed = ""
    for block in blocks(text):
        try:
            printed = _run_block(block, names, printed)
        except Wrong as error:
            raise Wrong(f"line {block.line}: {error}") from error
        except Exception as error:
            raise Wrong(f"line {block.line}: {type(error).__name__}: {error}\n{block.text}") from error


def _run_block(block: Block, names: dict[str, object], printed: str) -> str:
    """Run one block; what it printed."""
    language, text = block.language, block.text
    if block.marker in ("parsed", "not ours"):
        _parse(block)
    elif language == "python":
        name = re.match(r"# (\w+\.py)\n", text)
        if name:
            compile(text, name[1], "exec")
            Path(name[1]).write_text(text + "\n")
            importlib.invalidate_caches()
        else:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, f"<block at line {block.line}>", "exec"), names)
            return out.getvalue()
    elif language == "pycon":
        _doctest(block, names)
    elif language == "sh":
        return "".join(run_command(command) for command in commands(text))
    elif language == "text":
        if block.marker:
            exact = doctest.OutputChecker().check_output(text.strip() + "\n", printed.strip() + "\n", LENIENT)
            if not (exact or (block.marker == "output, about" and _about(text, printed))):
                raise Wrong(f"the page shows\n{text}\nand what came out is\n{printed}")
        elif any(COMMAND.match(line) or ">>>" in line for line in text.split("\n")):
            raise Wrong("commands in a text block are not run: say sh")
    elif language not in SPHINX:
        raise Wrong(f"a block of {language or 'no language'} is neither run nor marked: see tests/pages.py")
    return printed


def _about(text: str, printed: str) -> bool:
    """Whether the words are those printed, and the numbers within a third of them."""
    number = r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
    parts = re.split(rf"({number}|\.\.\.|\s+)", text.strip())
    pattern = "".join(
        ".*?" if part == "..." else rf"({number})" if re.fullmatch(number, part) else
        r"\s+" if part.isspace() else re.escape(part)
        for part in parts
    )  # fmt: skip
    match = re.search(pattern, printed, flags=re.DOTALL)
    shown = [part for part in parts if re.fullmatch(number, part)]
    if match is None:
        return False
    pairs = zip(shown, match.groups(), strict=True)
    values = [(float(one.replace(",", "")), float(other.replace(",", ""))) for one, other in pairs]
    return all(abs(one - other) <= abs(one) / 3 for one, other in values)


def _doctest(block: Block, names: dict[str, object]) -> None:
    test = doctest.DocTestParser().get_doctest(block.text + "\n", names, f"line {block.line}", None, 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=LENIENT)
    runner.run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    if runner.failures:
        raise Wrong("".join(said))


def _parse(block: Block) -> None:
    """What can be said of a block without running it."""
    if block.language == "sh":
        for command in commands(block.text):
            check_command(command)
    elif block.language == "python":
        tree = ast.parse(block.text)
        if block.marker == "parsed":
            _check_calls(tree)
    elif block.marker != "not ours":
        raise Wrong(f"a block of {block.language or 'no language'} cannot be parsed")


def _check_calls(tree: ast.AST) -> None:
    """Every call of od.name has arguments that this name takes."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            owner = call.func.value
            if isinstance(owner, ast.Name) and owner.id == "od":
                function = getattr(od, call.func.attr)
                keywords = {key.arg: None for key in call.keywords if key.arg}
                inspect.signature(function).bind_partial(*call.args, **keywords)


def commands(text: str) -> list[str]:
    """The commands of a block, without comments, lines put together that end with a backslash."""
    lines = [re.sub(r"(^|\s+)#.*", "", line).strip() for line in text.replace("\\\n", " ").split("\n")]
    return [line for line in lines if line]


def run_command(command: str) -> str:
    """Run one command in the working folder; its standard output."""
    words = shlex.split(command)
    if words[0] == "onedraw":
        check_command(command)
        result = CliRunner().invoke(main, words[1:])
        if result.exit_code:
            raise Wrong(f"{command} ended with {result.exit_code}: {result.output}") from result.exception
        return result.stdout
    script = next((path for path in (Path(words[1]), ROOT / words[1]) if path.is_file()), None) if words[1:] else None
    if words[0] == "python" and script is not None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        call = [sys.executable, str(script), *words[2:]]
        done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise Wrong(f"{command} ended with {done.returncode}: {done.stderr}")
        return done.stdout
    raise Wrong(f"{command} is not run here: mark the block with <!-- parsed: reason -->")


def check_command(command: str) -> None:
    """A command that is printed exists, with its options; [--json] is left out, and ... stands for something."""
    words = shlex.split(re.sub(r"…|\.\.\.", "1", re.sub(r"\[[^\]]*\]", "", command)))
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    program, rest = words[0], words[1:]
    if program == "onedraw":
        _check_onedraw(rest, command)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        for target in (word for word in rest if "=" not in word):
            if target not in targets:
                raise Wrong(f"{command}: the Makefile has no {target}")
    elif program == "python":
        _check_python(rest, command)
    elif program == "pip":
        # Brackets are extras here.
        extras = re.findall(r"(?:onedraw|\.)\[([\w,]+)\]", command)
        known = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
        for extra in ",".join(extras).split(","):
            if extra and not re.search(rf"^{extra} = ", known, flags=re.MULTILINE):
                raise Wrong(f"{command}: there is no extra {extra}")
    elif program != "mpiexec":
        raise Wrong(f"{command}: {program} is not one of our commands")


def _check_onedraw(words: list[str], command: str) -> None:
    name = words[0] if words and not words[0].startswith("-") else None
    if name is None:
        return
    found = main.commands.get(name)
    if found is None:
        raise Wrong(f"{command}: there is no onedraw {name}")
    context = click.Context(found, info_name=name)
    try:
        found.make_parser(context).parse_args(list(words[1:]))
    except click.UsageError as error:
        raise Wrong(f"{command}: {error.format_message()}") from error


def _check_python(words: list[str], command: str) -> None:
    if words[:1] == ["-m"]:
        package, _, rest = words[1].partition(".")
        if package == "onedraw" and not rest:
            _check_onedraw(words[2:], command)
        elif package == "benchmarks":
            # Options, and what belongs to them, follow the name.
            for name in [rest] if rest else takewhile(lambda word: not word.startswith("-"), words[2:]):
                place = ROOT / "benchmarks" / name
                if not place.with_suffix(".py").is_file() and not (place / "__init__.py").is_file():
                    raise Wrong(f"{command}: there is no benchmark {name}")
        elif package == "pip":
            check_command(shlex.join(["pip", *words[2:]]))
        elif package not in ("mpi4py", "venv", "pytest"):
            raise Wrong(f"{command}: there is no module {words[1]}")
    elif words and not (ROOT / words[0]).is_file():
        raise Wrong(f"{command}: there is no file {words[0]}")


def inline(text: str) -> list[str]:
    """The code within sentences."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^    .*$", "", prose, flags=re.MULTILINE)
    return re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", prose)


def check_names(text: str) -> None:
    """Names, commands and files that sentences speak of exist."""
    for code in inline(text):
        code = " ".join(code.split())
        for name in re.findall(r"\bod\.(\w+)", code):
            if not hasattr(od, name):
                raise Wrong(f"`{code}`: there is no od.{name}")
        for name in re.findall(r"\bpost\.(\w+)", code):
            if not hasattr(od.Posterior, name) and name not in od.Posterior.__dataclass_fields__:
                raise Wrong(f"`{code}`: a Posterior has no {name}")
        if COMMAND.match(code) and not code.startswith("python -m onedraw."):
            check_command(code)
        for file in re.findall(r"(?:^|\s)((?:docs|src|tests|examples|benchmarks)/[\w./-]+\.\w+)", code):
            if not (ROOT / file).exists():
                raise Wrong(f"`{code}`: there is no {file}")
        for module in re.findall(r"\b(onedraw(?:\.[a-z_]+)+)", code):
            parts = module.split(".")
            base = ROOT / "src" / Path(*parts)
            above = base.parent
            if not (base.is_dir() or base.with_suffix(".py").is_file() or above.with_suffix(".py").is_file()):
                raise Wrong(f"`{code}`: there is no {module}")
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    for name in re.findall(r"\btest_\w+\b(?!\.py)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)):
        if f"def {name}(" not in tests and not (ROOT / "tests" / f"{name}.py").is_file():
            raise Wrong(f"there is no test {name}")


def links(path: Path) -> list[tuple[str, str]]:
    """Links and images of a page to other files of the project, with the heading they point to."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [tuple(one.partition("#")[::2]) for one in found if not re.match(r"\w+:", one)]  # type: ignore[misc]


def headings(path: Path) -> set[str]:
    """The anchors of a page's headings, as the site and code hosts make them."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
