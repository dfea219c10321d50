"""The documentation is true: its code runs, its commands exist, its links lead somewhere, and it leaves no name out."""

import importlib.util
import inspect
import re
import subprocess
import sys

import pytest

import onedraw as od
from onedraw import runs
from onedraw.cli import models
from onedraw.engines import children
from onedraw.engines.lifetimes import Guardian
from onedraw.estimators.protocol import Estimator
from onedraw.failures import Failure
from onedraw.model.kernels import Kernel
from onedraw.run.registry import sampler
from tests import pages
from tests.pages import ROOT, Wrong

PAGES = {str(path.relative_to(ROOT)): path for path in pages.pages()}
LONG = (
    "calibration", "choosing", "cli", "did_it_work", "effective_draws", "engines", "examples", "extending", "gallery",
    "hierarchical_models", "migrating", "model_choice", "multifidelity", "pandas_and_arviz", "scaling",
    "several_data_sets", "slow_simulators", "time_series", "tutorial",
)  # fmt: skip
"""Pages whose blocks take more than five seconds: they are run with the slow tests, but for the README."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, and no trace of what a page imports into it or of programs of earlier tests."""
    monkeypatch.setattr(children, "guardian", Guardian())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before, samplers = set(sys.modules), dict(runs.samplers())
    yield tmp_path
    runs.samplers().clear()
    runs.samplers().update(samplers)
    for name in set(sys.modules) - before:
        if name.startswith(models.PREFIX) or str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (path.stem in LONG)) for page, path in PAGES.items()]
)
def test_what_a_page_shows_runs(page, folder):
    pages.run(PAGES[page].read_text())


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_speaks_of_exists(page):
    pages.check_names(PAGES[page].read_text())


@pytest.mark.parametrize("page", PAGES)
def test_links_and_images_lead_somewhere(page):
    for target, heading in pages.links(PAGES[page]):
        there = (PAGES[page].parent / target).resolve() if target else PAGES[page]
        assert there.exists(), f"{target} does not exist"
        assert not heading or heading in pages.headings(there), f"{there.name} has no heading {heading}"


NOT_RUN = {
    "README.md": [
        "parsed: minutes; CI runs them",
        "parsed: it would install the package into the environment of the tests",
    ],
    "docs/accuracy.md": ["parsed: it takes hours"],
    "docs/benchmarks.md": [
        "parsed: they take minutes each",
        "parsed: it would install other packages",
        "parsed: it takes minutes",
        "parsed: it needs a GPU",
    ],
    "docs/contrast.md": ["parsed: minutes"],
    "docs/did_it_work.md": ["parsed: it takes half an hour"],
    "docs/migrating.md": [
        "not ours: pyABC 0.13.0; run by hand",
        "not ours: ELFI 0.8.8; run by hand",
        "not ours: sbi 0.27.0; not run, its names and arguments were compared with its source",
        "not ours: EasyABC, in R; not run, its names and arguments were compared with its manual",
    ],
    "docs/multifidelity.md": ["parsed: it takes minutes"],
    "docs/pandas_and_arviz.md": [
        "not ours: sbi; not run, written as its documentation has it",
        "not ours: BayesFlow 2; not run, its names were compared with its source",
    ],
    "docs/scaling.md": ["parsed: needs Ray", "parsed: needs a SLURM cluster"],
    "docs/study.md": ["parsed: minutes"],
    "docs/tutorial.md": ["parsed: it would install the package into the environment of the tests"],
}
"""Blocks that are looked at but not run, with their reasons: a new one must be added here, where it is seen."""


def test_what_is_not_run_is_listed_here():
    found = {}
    for page, path in PAGES.items():
        reasons = [f"{one.marker}: {one.reason}" for one in pages.blocks(path.read_text()) if one.reason]
        if reasons:
            found[page] = reasons
    assert found == NOT_RUN


# The checks notice what is wrong


def page(*lines):
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (page("```python", "import onedraw as od", "od.uniform(-1)", "```"), "eps must be positive"),
        (page("```python", "x = (", "```"), "SyntaxError"),
        (page("```python", "x = 1", "```", "```python", "y = z", "```"), "line 5: NameError"),
        (page("```pycon", ">>> 1 + 1", "3", "```"), "Expected:"),
        (page("```sh", "onedraw nothing", "```"), "there is no onedraw nothing"),
        (page("```sh", "onedraw new --wrong model.py", "```"), "No such option"),
        (page("```sh", "onedraw show none.db", "```"), "ended with 1"),
        (page("```sh", "make test", "```"), "is not run here"),
        (page("```sh", "rm -rf nothing", "```"), "is not run here"),
        (page("<!-- parsed: long -->", "```sh", "make everything", "```"), "the Makefile has no everything"),
        (page("<!-- parsed: long -->", "```sh", "python -m benchmarks nothing", "```"), "there is no benchmark"),
        (page("<!-- parsed: long -->", "```sh", "onedraw study --slow", "```"), "No such option"),
        (page("<!-- parsed: long -->", "```sh", "pip install 'onedraw[nothing]'", "```"), "there is no extra nothing"),
        (page("<!-- parsed: long -->", "```python", "od.rejection(model, wrong=3)", "```"), "TypeError"),
        (page("<!-- parsed -->", "```sh", "make study", "```"), "is not run here"),
        (page("```", "onedraw study", "```"), "no language is neither run nor marked"),
        (page("```text", "onedraw study", "```"), "commands in a text block"),
        (page("```text", ">>> 1", "```"), "commands in a text block"),
        (page("```ruby", "puts 1", "```"), "a block of ruby"),
        (page("    >>> 1 + 1", "    3"), "fence it"),
        (page("```python", "print(1)", "```", "<!-- output -->", "```text", "2", "```"), "the page shows"),
        (page("<!-- hidden", "x = undefined", "-->"), "NameError"),
    ],
)
def test_a_wrong_page_is_found_out(text, told, folder):
    with pytest.raises(Wrong, match=re.escape(told)):
        pages.run(text)


def test_a_right_page_passes(folder):
    pages.run(
        page(
            "<!-- hidden", "x = 1", "-->", "```python", "print(x)", "```", "<!-- output -->", "```text", "1", "```",
            "```python", "# mine.py", "print(3)", "```", "```sh", "python mine.py  # three", "onedraw new model.py",
            "```", "```pycon", ">>> x", "1", "```", "<!-- parsed: long -->", "```sh", "make study  # two minutes",
            "onedraw study --quick", "```", "<!-- not ours: R -->", "```r", "library(abc)", "```",
        )
    )  # fmt: skip
    assert (folder / "mine.py").read_text() == "# mine.py\nprint(3)\n" and (folder / "model.py").exists()


@pytest.mark.parametrize(
    "text",
    [
        "`od.nothing`", "`post.nothing()`", "`onedraw nothing`", "`onedraw run --nothing`", "`make nothing`",
        "`python -m benchmarks nothing`", "`docs/nothing.md`", "`onedraw.theory.nothing.at_all`", "test_that_is_none",
    ],
)  # fmt: skip
def test_a_wrong_name_is_found_out(text):
    with pytest.raises(Wrong):
        pages.check_names(text)
    pages.check_names("`od.infer`, `post.at(eps)`, `onedraw show run.db [--json]`, `make study`, `tests/pages.py`")


# The reference and the gallery leave nothing out

WITH_MODULE = {"Estimator": Estimator, "Failure": Failure, "Kernel": Kernel, "sampler": sampler}
"""What extenders need, and what users take from a result: in the reference under the names of their modules."""


def test_the_reference_has_every_public_name_once():
    text = "".join(path.read_text() for path in sorted((ROOT / "docs" / "reference").glob("*.md")))
    # What is not at the top level is named with its module.
    named = re.findall(r"^\.\. auto(?:class|function|exception):: (\w+)$", text, flags=re.MULTILINE)
    assert sorted([*named, "plots"]) == sorted(od.__all__)
    assert ".. automodule:: onedraw.report.plots" in text


def test_every_public_name_has_an_example():
    things = {name: getattr(od, name) for name in od.__all__ if name != "plots"}
    things |= {f"plots.{name}": getattr(od.plots, name) for name in od.plots.__all__}
    things |= WITH_MODULE
    assert [name for name, thing in things.items() if ">>>" not in (thing.__doc__ or "")] == []


def test_every_public_method_has_a_docstring():
    missing = []
    for name, thing in {**{name: getattr(od, name) for name in od.__all__}, **WITH_MODULE}.items():
        if inspect.isclass(thing) and thing.__module__.startswith("onedraw"):
            for method, value in vars(thing).items():
                function = getattr(getattr(value, "fget", value), "__func__", getattr(value, "fget", value))
                if not method.startswith("_") and inspect.isfunction(function) and not function.__doc__:
                    missing.append(f"{name}.{method}")
    assert missing == []


def configuration():
    specification = importlib.util.spec_from_file_location("site_configuration", ROOT / "docs" / "conf.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_gallery_has_every_example(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    shown = configuration().gallery(ROOT / "examples", ROOT / "docs" / "img")
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert len(examples) >= 2
    for path in examples:
        assert f"literalinclude}} ../examples/{path.name}" in shown
        assert ((ROOT / "docs" / "img" / f"{path.stem}.png").exists()) == (f"](img/{path.stem}.png)" in shown)


def test_every_page_is_on_the_site():
    trees = {path: re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), re.DOTALL) for path in PAGES.values()}
    listed = {
        (path.parent / f"{line.strip()}.md").resolve()
        for path, found in trees.items()
        for tree in found
        for line in tree.split("\n")
        if line.strip() and not line.startswith(":")
    }
    home = {(ROOT / "README.md").resolve(), (ROOT / "docs" / "index.md").resolve()}
    assert {path.resolve() for path in PAGES.values()} - home == listed


def test_design_lists_every_module():
    design = (ROOT / "docs" / "design.md").read_text()
    missing = [
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "onedraw").glob("*.py")
        if path.name not in ("__main__.py", "arrays.py") and path.name not in design
    ]
    assert missing == []


def test_the_pages_build_without_a_network():
    """No page of ours asks for a script, a font or an image from elsewhere."""
    for path in PAGES.values():
        assert not re.search(r"(?:src|href)=\"https?:|!\[[^\]]*\]\(https?:", path.read_text()), path


def test_the_configuration_needs_no_sphinx():
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'docs')!r}); import conf; print('sphinx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_gallery_of_figures_is_drawn_by_the_build(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = page(
        "# Figures", "## One", "```python", "from matplotlib.figure import Figure", "figure = Figure()", "```",
        "## None", "```python", "x = figure", "```", "## Two", "```python", "figure = Figure()", "```",
    )  # fmt: skip
    folder = tmp_path / "figures" / "page"
    shown = configuration().with_figures(text, folder)
    assert re.findall(r"!\[.*\)", shown) == ["![One](figures/page/figure01.svg)", "![Two](figures/page/figure02.svg)"]
    assert sorted(path.name for path in folder.iterdir()) == ["figure01.svg", "figure02.svg"]


def test_the_gallery_has_every_kind_of_figure():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "gallery.md").read_text(), re.DOTALL)
    assert len([block for block in blocks if re.search(r"^figure = ", block, re.MULTILINE)]) >= 12
    assert {name for name in od.plots.__all__ if not any(f"od.plots.{name}(" in block for block in blocks)} == set()
