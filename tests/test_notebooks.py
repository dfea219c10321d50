"""What a notebook shows: small tables in the page's own colours, figures, and progress that leaves nothing behind."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw import markup
from onedraw.cost import Cost

pytestmark = pytest.mark.usefixtures("brief")

ROOT = Path(__file__).parent.parent


class Reader(HTMLParser):
    """The elements of a piece of HTML, which must be closed in order, and its text."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], ""

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.seen.append((tag, dict(attributes)))

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


def read(html):
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def model():
    prior = od.Prior(mu=stats.norm(0, 1), nu=stats.norm(0, 1))
    return od.Model(prior, od.batched(lambda rng, mu, nu: rng.normal(mu + nu, 1.0)), observed=2.0)


@pytest.fixture(scope="module")
def post(model):
    return od.pseudo_marginal(model, od.uniform(1.0), draws=100, chains=64, seed=1)


@pytest.fixture(scope="module")
def things(post, model):
    return {
        "posterior": post,
        "summary": post.summary(),
        "cost": post.cost,
        "advice": od.advise(model, od.uniform(1.0), budget=40_000, seed=1),
        "curve": post.over([1.0, 0.5]),
        "efficiency": post.efficiency(),
        "infer": od.infer(model, budget=300, seed=1),
        "nothing": od.rejection(model, od.uniform(1e-12), budget=10, seed=1),
    }


KINDS = ("posterior", "summary", "cost", "advice", "curve", "efficiency", "infer", "nothing")


@pytest.mark.parametrize("kind", KINDS)
def test_html_is_small_quiet_and_in_the_colours_of_the_page(kind, things):
    html = things[kind]._repr_html_()
    reader = read(html)
    assert len(html) < 30_000
    assert {tag for tag, _ in reader.seen} <= {
        "div", "span", "b", "table", "caption", "tr", "th", "td", "svg", "line", "circle",
    }  # fmt: skip
    # No colour of its own, in words, numbers or functions: it is seen on white and on black.
    colours = re.findall(r"(?:color|fill|stroke|background):?=?\"?([\w#(]+)", html)
    assert set(colours) <= {"inherit", "none", "currentColor"}
    assert "nan" not in reader.text.split()


def test_a_summary_shows_its_numbers_and_intervals(post):
    summary = post.summary()
    reader = read(summary._repr_html_())
    for name, row in summary.rows.items():
        assert f"{name} {row.mean:.4g} {row.sd:.4g} {row.hdi_low:.4g}" in re.sub(r"\s+", " ", reader.text)
    drawn = [one["aria-label"] for tag, one in reader.seen if tag == "svg"]
    assert drawn == [f"{row.mean:.4g}, {row.hdi_low:.4g} to {row.hdi_high:.4g}" for row in summary.rows.values()]


def ends(drawing):
    seen = read(drawing).seen
    interval, point = seen[2][1], seen[3][1]
    return float(interval["x1"]), float(point["cx"]), float(interval["x2"])


def test_bars_are_on_one_scale_if_they_can_be_seen_on_it():
    one, other = map(ends, markup.bars([markup.Span(0, 1, 2), markup.Span(2, 3, 4)]))
    assert one == pytest.approx((3, 34, 65)) and other == pytest.approx((65, 96, 127))
    small, large = map(ends, markup.bars([markup.Span(0, 0.001, 0.002), markup.Span(0, 500, 1000)]))
    assert small == pytest.approx(large, abs=0.2) and large[2] - large[0] > 60
    assert markup.bars([markup.Span(math.nan, 1, 2), markup.Span(1, 1, 1)]) == ["", ""]


def test_names_cannot_become_markup(post):
    bad = "<img src=x onerror=alert(1)>\"'&"
    hostile = replace(post, draws={bad: post.draws["mu"]}, model=None, notes=("<script>",))
    for html in (hostile._repr_html_(), hostile.summary()._repr_html_()):
        reader = read(html)
        assert bad in reader.text and "<script>" in reader.text
        assert not {"img", "script"} & {tag for tag, _ in reader.seen}


def test_warnings_stand_out():
    assert "font-weight:600" in markup.lines(["warning: too few"]) and "font-weight" not in markup.lines(["fine"])


def test_cost_leaves_out_what_is_zero():
    reader = read(Cost(simulations=1500, seconds=2.5)._repr_html_())
    assert reader.text.split() == ["spent", "simulations", "1,500", "seconds", "2.5"]


def test_a_figure_is_an_image_in_a_notebook(post):
    figure = post.plot()
    data, size = figure._repr_png_()
    assert data.startswith(b"\x89PNG")
    from io import BytesIO

    from matplotlib.image import imread

    assert imread(BytesIO(data)).shape[:2] == pytest.approx((2 * size["height"], 2 * size["width"]), abs=2)


@pytest.mark.slow
def test_the_notebook_of_the_examples_runs(monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "the notebook is kept without its outputs"
    # A run that lasts long enough to show how far it is, and leaves nothing of that behind.
    slow = nbformat.v4.new_code_cell(
        "import time\n"
        "def slow(rng, p, q):\n    time.sleep(0.004)\n    return rng.binomial(20, [p, q])\n"
        "od.rejection(od.Model(prior, slow, [14, 9]), od.uniform(6), budget=500, seed=1);"
    )
    notebook.cells.append(slow)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [[output.get("data", {}) for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]
    assert "Posterior of p, q" in shown[1][-1]["text/html"] and "image/png" in shown[3][-1]
    assert [one["text/plain"] for one in shown[-1]] == [""]
    assert not any(output.output_type == "stream" for cell in notebook.cells for output in cell.get("outputs", []))


def test_tables_of_numbers_are_read_from_left_to_right():
    html = markup.table([["", "mean"], ["a", "nan"], ["b", "2"]])
    assert read(html).text.split() == ["mean", "a", "–", "b", "2"]
    assert np.all([tag in ("table", "tr", "th", "td") for tag, _ in read(html).seen])
