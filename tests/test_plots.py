"""Figures: that they show the numbers they are given, where and under which names they are asked for.

What is compared are the data of the artists, not the bytes of images.
"""

import inspect
import io
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import onedraw as od
from onedraw.cost import Cost
from onedraw.report import binning, chain_plots, panels, plots
from onedraw.results.posterior import Posterior, Status

pytestmark = pytest.mark.usefixtures("brief")

DAYS = np.arange(8)


@od.batched
def simulate(rng, mu, nu):
    return np.column_stack([rng.normal(mu, 1.0), rng.normal(nu, 0.5)])


@pytest.fixture(scope="module")
def model():
    return od.Model(od.Prior(mu=stats.norm(0, 1), nu=stats.norm(0, 1)), simulate, observed=[1.0, 0.2])


@pytest.fixture(scope="module")
def accepted(model):
    return od.rejection(model, od.uniform(1.0), draws=3000, seed=1)


@pytest.fixture(scope="module")
def chains(model):
    return od.pseudo_marginal(model, od.uniform(1.0), draws=300, chains=4, seed=1)


@pytest.fixture(scope="module")
def smc(model):
    return od.smc(model, budget=5_000, seed=1)


@pytest.fixture(scope="module")
def inferred(model):
    return od.infer(model, budget=500, seed=1, coverage=20)


@pytest.fixture(scope="module")
def course():
    def grow(rng, rate):
        return rng.poisson(20 * np.exp(rate * DAYS))

    return od.rejection(
        od.Model(od.Prior(rate=stats.uniform(0, 0.5)), grow, grow(np.random.default_rng(1), 0.2),
                 summary=lambda counts: np.log1p(counts[[3, 7]])),
        od.uniform(0.6), draws=150, seed=1,
    )  # fmt: skip


def posterior(**draws):
    """A Posterior of given draws and nothing else."""
    arrays = {name: np.asarray(values) for name, values in draws.items()}
    settings = {"algorithm": "pseudo_marginal"}
    return Posterior(arrays, None, None, math.nan, math.nan, Cost(), Status("finished", "finished"), 1, settings)


# What all functions share


def test_every_function_takes_the_same_four_arguments():
    assert len(plots.__all__) >= 15
    for name in plots.__all__:
        if name != "save":
            taken = inspect.signature(getattr(plots, name)).parameters
            assert {"ax", "truth", "parameters", "names"} <= taken.keys(), name
            assert all(taken[one].default is None for one in ("ax", "truth", "parameters", "names")), name


@pytest.fixture(scope="module")
def drawn(accepted, chains, smc, inferred, course):
    """How to draw each kind of figure with one panel, the name of what it shows, and a value to mark."""
    ranks = {"mu": np.linspace(0.005, 0.995, 100)}
    curve = accepted.over([1.0, 0.5, 0.25])
    advice = od.advise(chains.model, od.uniform(1.0), budget=40_000, seed=1)
    best, first = inferred.alternatives[0]["estimate"], "observed[0]"
    return {
        "marginals": (lambda **more: plots.marginals(accepted, "mu", **more), "mu", 1.5),
        "intervals": (lambda **more: plots.intervals(accepted, "mu", **more), "mu", 1.5),
        "corner": (lambda **more: plots.corner(accepted, "mu", **more), "mu", 1.5),
        "pairs": (lambda **more: plots.pairs(accepted, "mu", **more), "mu", 1.5),
        "ranks": (lambda **more: plots.ranks(chains, "mu", **more), "mu", 1.5),
        "predictive": (lambda **more: plots.predictive(accepted, 30, parameters=first, **more), first, 1.5),
        "predictive_band": (lambda **more: plots.predictive_band(course, n=20, **more), "observed", 20.0 + DAYS),
        "path": (lambda **more: plots.path(smc, "tolerance", **more), "tolerance", 0.3),
        "tolerances": (lambda **more: plots.tolerances(curve, "mu", **more), "mu", 1.5),
        "alternatives": (lambda **more: plots.alternatives(inferred, best, **more), best, 0.1),
        "coverage": (lambda **more: plots.coverage(ranks, **more), "mu", 0.8125),
        "rank_histogram": (lambda **more: plots.rank_histogram(ranks, **more), "mu", 0.8),
        "efficiency": (lambda **more: plots.efficiency(advice, parameters="mu", **more), "mu", 1.2),
    }  # fmt: skip


KINDS = (
    "marginals", "intervals", "corner", "pairs", "ranks", "predictive", "predictive_band", "path", "tolerances",
    "alternatives", "coverage", "rank_histogram", "efficiency",
)  # fmt: skip


def texts(figure):
    """Every text that a figure shows."""
    figure.canvas.draw()
    found = []
    for axes in figure.axes:
        found += [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()]
        found += [one.get_text() for one in (*axes.get_yticklabels(), *axes.texts)]
        legend = axes.get_legend()
        found += [one.get_text() for one in (legend.get_texts() if legend else ())]
    return [*found, *(one.get_text() for legend in figure.legends for one in legend.get_texts())]


def numbers(axes):
    """All coordinates of the lines of a panel."""
    return np.concatenate([[], *(line.get_xydata().reshape(-1) for line in axes.lines)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_panel_is_drawn_where_it_is_asked_for(kind, drawn):
    draw, _, _ = drawn[kind]
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert draw(ax=right) is figure
    assert not left.lines and not left.patches and (right.lines or right.patches)
    assert draw(ax=[left]) is figure and (left.lines or left.patches)
    whole = Figure(figsize=(3, 2))
    assert draw(ax=whole) is whole and len(whole.axes) == 1
    part = Figure().subfigures(1, 2)[0]
    assert draw(ax=part) is part
    with pytest.raises(ValueError, match="ax must be one matplotlib Axes or a Figure, got 2"):
        draw(ax=[left, right])


@pytest.mark.parametrize("kind", KINDS)
def test_names_stand_where_the_parameters_would(kind, drawn):
    draw, name, _ = drawn[kind]
    shown = texts(draw(names={name: r"$\phi^2$"}))
    assert any(r"$\phi^2$" in text for text in shown), shown
    assert any(r"$\phi^2$" in text for text in texts(draw(names=[r"$\phi^2$"])))
    if name != "observed" and kind != "path":
        assert any(name.split()[0] in text for text in texts(draw()))
    with pytest.raises(ValueError, match="names has 'xi', which is not among"):
        draw(names={"xi": "x"})
    with pytest.raises(ValueError, match="names has 2 values for"):
        draw(names=["x", "y"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_is_marked(kind, drawn, accepted, chains):
    draw, name, value = drawn[kind]
    shown = draw(truth={name: value}).axes[0]
    marks = numbers(shown)[~np.isin(numbers(shown), numbers(draw().axes[0]))]
    if kind == "ranks":
        value = np.mean(chains.draws["mu"] < value)
    if kind == "predictive":
        rows, _, labels = plots.predicted(accepted, 30)
        column = rows[:, labels.index(name)]
        value = (value - np.median(column)) / column.std()
    assert np.isin(np.round(np.ravel(value), 12), np.round(marks, 12)).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "predictive_band"])
def test_a_truth_that_cannot_be_meant_is_refused(kind, drawn):
    draw, name, _ = drawn[kind]
    with pytest.raises(ValueError, match="truth has 'xi', which is not among"):
        draw(truth={"xi": 1.0})
    with pytest.raises(ValueError, match="truth has 2 values for"):
        draw(truth=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"truth of .* must be a number, got 'a'"):
        draw(truth={name: "a"})


def test_several_panels_need_as_many_axes(accepted):
    figure = Figure()
    grid = figure.subplots(2, 2)
    plots.corner(accepted, ax=grid)
    assert grid[1, 0].collections and not grid[0, 1].collections
    with pytest.raises(ValueError, match="ax must be 2 matplotlib Axes, one for each panel, or a Figure, got 1"):
        plots.marginals(accepted, ax=grid[0, 0])
    with pytest.raises(ValueError, match="ax must be one matplotlib Axes or a Figure"):
        plots.intervals(accepted, ax=3)


def test_parameters_are_drawn_in_the_order_asked_for(accepted):
    titles = [axes.get_title(loc="left") for axes in plots.marginals(accepted, ["nu", "mu"]).axes]
    assert titles == ["nu", "mu"]


def test_dollars_in_a_models_own_names_are_no_mathematics(accepted):
    plain = posterior(**{"$a_": accepted.draws["mu"], "b": accepted.draws["nu"]})
    for draw in (plots.marginals, plots.corner, plots.pairs, plots.intervals):
        draw(plain).savefig(io.BytesIO())


def test_figures_can_be_asked_for_by_name(accepted, chains, smc, inferred, course):
    for post, what in (
        (accepted, "intervals"), (accepted, "corner"), (chains, "ranks"), (course, "predictive_band"),
        (smc, "path"), (inferred, "coverage"), (inferred, "alternatives"),
    ):  # fmt: skip
        assert isinstance(post.plot(what), Figure)


# Each kind of figure


def inside(contours, points, level):
    """The share of points within the contour of a level."""
    return contours.get_paths()[level].contains_points(points).mean()


def test_contours_hold_their_share_of_the_posterior():
    rng = np.random.default_rng(1)
    draws = rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 20_000)
    figure = plots.corner(posterior(a=draws[None, :, 0], b=draws[None, :, 1]))
    lines = figure.axes[2].collections[-1]
    assert lines.get_paths()[0].vertices[:, 0].max() > 1.5
    shares = [inside(lines, draws, level) for level in (0, 1)]
    assert shares == pytest.approx([0.9, 0.5], abs=1e-3)
    # The narrow axis of the ellipse is that of the posterior: sqrt(-2 log(1 - 0.9) (1 - 0.8)), widened by the kernel.
    narrow = np.abs(lines.get_paths()[0].vertices @ [1, -1]).max() / np.sqrt(2)
    assert narrow == pytest.approx(math.sqrt(-2 * math.log(0.1) * 0.2), rel=0.08)


def test_contours_follow_the_weights():
    """Normal draws with the weights exp(a) are normal around 1."""
    draws = np.random.default_rng(1).normal(size=(20_000, 2))
    weights = np.exp(draws[:, 0]) / np.exp(draws[:, 0]).sum()
    given = replace(posterior(a=draws[None, :, 0], b=draws[None, :, 1]), weights=weights[None])
    lines = plots.corner(given).axes[2].collections[-1]
    shares = [weights[path.contains_points(draws)].sum() for path in lines.get_paths()]
    assert shares == pytest.approx([0.9, 0.5], abs=1e-3)
    assert lines.get_paths()[1].vertices.mean(axis=0) == pytest.approx([1.0, 0.0], abs=0.1)


def test_a_grid_of_densities_is_that_of_a_normal():
    """At the middle of the normal the smoothed density is 1/(2 pi (1 + h^2)), h the width of the kernel."""
    rng = np.random.default_rng(3)
    grid = binning.density_grid(*rng.normal(size=(2, 50_000)))
    cell = (grid.across[1] - grid.across[0]) * (grid.up[1] - grid.up[0])
    at = grid.density[np.abs(grid.up).argmin(), np.abs(grid.across).argmin()] / grid.density.sum() / cell
    assert at == pytest.approx(1 / (2 * np.pi * (1 + 50_000 ** (-1 / 3))), rel=0.05)


def test_several_posteriors_are_drawn_over_each_other(accepted, chains):
    both = {"rejection": accepted, "at 0.5": accepted.at(0.5), "chains": chains}
    figure = plots.marginals(both, truth={"mu": 1.0})
    assert [text for text in texts(figure) if text in both] == list(both)
    outlines = [patch for patch in figure.axes[0].patches if not patch.get_fill()]
    assert len(outlines) == 4
    assert np.array_equal(outlines[2].get_data().values, binning.marginals_of(accepted.at(0.5))["mu"].density)
    styles = {(str(one.get_edgecolor()), str(one.get_linestyle())) for one in outlines}
    assert len(styles) == 4
    corner = plots.corner(both)
    assert len(corner.axes[2].collections) == 9
    rows = plots.intervals(both).axes[0]
    means = [line.get_xdata().tolist() for line in rows.lines]
    assert means == [[one.summary()[name].mean for name in ("mu", "nu")] for one in both.values()]
    with pytest.raises(ValueError, match="have no parameter in common"):
        plots.marginals({"a": accepted, "b": posterior(xi=np.zeros((1, 3)))})
    with pytest.raises(ValueError, match="a dict of posteriors by label"):
        plots.marginals({"a": 3})


def test_six_runs_have_six_kinds_of_lines(accepted):
    legend = plots.corner({f"run {k}": accepted for k in range(6)}).axes[1].get_legend()
    styles = {(line.get_color(), str(line._dash_pattern)) for line in legend.get_lines()}
    assert len(styles) == 6


def test_intervals_are_those_of_the_summary(accepted):
    thick, thin = plots.intervals(accepted).axes[0].collections
    for held, one in ((0.5, thick), (0.9, thin)):
        rows = accepted.summary(held)
        ends = [segment[:, 0].tolist() for segment in one.get_segments()]
        assert ends == [[rows[name].hdi_low, rows[name].hdi_high] for name in ("mu", "nu")]


def test_ranks_of_chains_that_agree_are_flat_and_of_one_that_does_not_are_not():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(4, 1000))
    values[3] += 2.0
    counted = chain_plots.rank_counts(values, 10)
    assert counted.sum(axis=1).tolist() == [1000] * 4
    assert counted[3, 0] < 10 < 300 < counted[3, -1]
    axes = plots.ranks(posterior(mu=values), bins=10).axes[0]
    tops = [patch.get_data().values - patch.get_data().baseline for patch in axes.patches]
    assert np.allclose(tops[0], 0.42 * np.minimum(counted[0] / 100, 2.2))
    many = chain_plots.rank_counts(rng.normal(size=(64, 50)), 10)
    assert many.shape == (8, 10) and many.sum() == 64 * 50


def test_ranks_are_of_chains(accepted):
    with pytest.raises(ValueError, match="ranks are of chains"):
        plots.ranks(accepted)


def test_a_band_holds_the_simulated_data_and_not_their_summaries(course):
    predicted = course.predict(40, seed=3, data=True)
    assert predicted.shape == (40, 8) and course.predict(40, seed=3).shape == (40, 2)
    assert np.allclose(np.log1p(predicted[:, [3, 7]]), course.predict(40, seed=3))
    axes = plots.predictive_band(course, time=DAYS / 7, n=40, seed=3).axes[0]
    outer, inner = (one.get_paths()[0].vertices for one in axes.collections)
    for held, edge in ((0.9, outer), (0.5, inner)):
        low, high = np.quantile(predicted, [0.5 - held / 2, 0.5 + held / 2], axis=0)
        assert np.isin(np.concatenate([low, high]), edge[:, 1]).all()
    median, data = axes.lines
    assert np.array_equal(median.get_ydata(), np.median(predicted, axis=0))
    assert np.array_equal(data.get_xydata(), np.column_stack([DAYS / 7, course.model.observed]))


@pytest.mark.parametrize("form", ["columns", "rows", "dict"])
def test_data_with_several_series_have_a_panel_for_each(form):
    def move(rng, rate):
        prey, predators = rng.poisson(9 * rate, 6), rng.poisson(3 * rate, 6)
        if form == "dict":
            return {"prey": prey, "predators": predators, "start": 3.0}
        return np.stack([prey, predators], axis=1 if form == "columns" else 0)

    data = move(np.random.default_rng(1), 1.0)
    post = od.rejection(od.Model(od.Prior(rate=stats.uniform(0.5, 1)), move, data), od.uniform(99), draws=20, seed=1)
    keys = ["prey", "predators"] if form == "dict" else ["observed[0]", "observed[1]"]
    figure = plots.predictive_band(post, time=np.arange(6), n=10, truth={keys[1]: np.full(6, 3.0)})
    assert [axes.get_ylabel() for axes in figure.axes] == keys
    second = data["predators"] if form == "dict" else data[:, 1] if form == "columns" else data[1]
    assert np.array_equal(figure.axes[1].lines[-1].get_ydata(), second)
    assert figure.axes[1].lines[1].get_ydata().tolist() == [3.0] * 6
    one = plots.predictive_band(post, time=np.arange(6), n=10, parameters=keys[1], truth=np.ones(6))
    assert len(one.axes) == 1
    with pytest.raises(ValueError, match="no axis of the data has 5 times"):
        plots.predictive_band(post, time=np.arange(5), n=10)
    with pytest.raises(ValueError, match=r"the series has 6 times"):
        plots.predictive_band(post, time=np.arange(6), n=10, truth={keys[0]: [1.0]})
    with pytest.raises(ValueError, match="truth must be a dict of arrays for"):
        plots.predictive_band(post, time=np.arange(6), n=10, truth=np.ones(6))


def test_failed_simulations_are_left_out_of_a_band():
    def fails(rng, a):
        if rng.uniform() < 0.3:
            raise RuntimeError("no")
        return rng.normal(a, 1.0, 4)

    post = od.rejection(od.Model(od.Prior(a=stats.norm()), fails, np.zeros(4)), od.uniform(9), draws=30, seed=1)
    good = np.count_nonzero(~np.isnan(post.predict(30, seed=1, data=True)[:, 0]))
    assert 0 < good < 30
    assert f"90 % of {good} simulations" in texts(plots.predictive_band(post, n=30, seed=1))


def test_coverage_of_ranks_is_counted():
    ranks = {"exact": (np.arange(100) + 0.5) / 100, "narrow": np.r_[np.full(50, 0.01), np.full(50, 0.99)]}
    axes = plots.coverage(ranks).axes[0]
    exact, narrow = (line.get_xydata() for line in axes.lines[1:])
    assert np.abs(exact[:, 0] - exact[:, 1]).max() < 0.02
    assert narrow[narrow[:, 0] < 0.97, 1].max() == 0 and narrow[-1, 1] == 1
    # The band at a level is that of a binomial.
    band = axes.collections[0].get_paths()[0].vertices
    assert np.isin(stats.binom.ppf([0.025, 0.975], 100, 0.5) / 100, band[np.isclose(band[:, 0], 0.5), 1]).all()


def test_every_parameter_has_a_curve_of_its_coverage():
    ranks = {f"theta{k}": (np.arange(50) + 0.5) / 50 for k in range(8)}
    axes = plots.coverage(ranks).axes[0]
    assert [line.get_label() for line in axes.lines[1:]] == list(ranks)


def test_every_function_has_its_measured_gains(chains):
    advice = od.advise(chains.model, od.uniform(1.0), budget=40_000, seed=1)
    answer = advice.simulations
    gains = tuple(
        gain._replace(each={f"f{k}": gain.each["mu"] for k in range(8)}) for gain in answer.gains if gain.each
    )
    axes = plots.efficiency(replace(advice, simulations=replace(answer, gains=gains))).axes[0]
    assert len(axes.containers) == 8
    for bars in axes.containers:
        shown = bars.lines[0].get_xydata().tolist()
        assert shown == [[gain.pseudo_samples, gain.each["f0"].value] for gain in gains]
        ends = np.array([segment[:, 1] for segment in bars.lines[2][0].get_segments()])
        assert np.allclose(ends, [[gain.each["f0"].low, gain.each["f0"].high] for gain in gains])


def test_coverage_of_a_run_is_what_it_measured(inferred):
    measured = inferred.settings["coverage"]
    lines = plots.coverage(inferred).axes[0].lines[1:]
    for line, name in zip(lines, measured["held"], strict=True):
        assert line.get_xydata().tolist() == [
            [a, b] for a, b in zip(measured["levels"], measured["held"][name], strict=True)
        ]


def test_mistakes_about_ranks_are_named(accepted):
    with pytest.raises(ValueError, match="coverage was not measured in this run"):
        plots.coverage(accepted)
    with pytest.raises(ValueError, match="ranks of mu must lie between 0 and 1"):
        plots.rank_histogram({"mu": [3, 4]})
    with pytest.raises(ValueError, match=r"found must be .* ranks as arrays by parameter"):
        plots.rank_histogram([0.1, 0.2])


def test_a_rank_histogram_counts():
    axes = plots.rank_histogram({"mu": [0.05, 0.15, 0.15, 0.95]}, bins=10).axes[0]
    assert axes.patches[0].get_data().values.tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 0, 1]


def test_alternatives_are_those_of_the_run(inferred):
    axes = plots.alternatives(inferred).axes[0]
    shown = [container.lines[0].get_xdata()[0] for container in axes.containers]
    assert shown == [one["behind"] for one in inferred.alternatives]
    bars = [container.lines[2][0].get_segments()[0][:, 0] for container in axes.containers]
    assert [round((high - low) / 4, 9) for low, high in bars] == [round(one["se"], 9) for one in inferred.alternatives]
    labels = [one.get_text().replace("\n", " ") for one in axes.get_yticklabels()]
    assert labels[0] == f"chosen: {inferred.method}" or labels[0].startswith("chosen: ")


def test_alternatives_are_of_infer(accepted):
    with pytest.raises(ValueError, match=r"only od\.infer tries several estimates: this run is one of rejection"):
        plots.alternatives(accepted)


def test_tolerances_are_those_of_the_curve(accepted):
    curve = accepted.over([1.0, 0.5, 0.25])
    line = plots.tolerances(curve).axes[1].lines[0]
    assert line.get_xydata().tolist() == [[one.eps, one.mean] for one in curve["nu"]]
    with pytest.raises(ValueError, match=r"curve must be the result of post\.over"):
        plots.tolerances(accepted)


def test_paths_of_several_runs(smc, model):
    other = od.importance(model, budget=3000, seed=1)
    figure = plots.path({"smc": smc, "importance": other})
    lines = figure.axes[0].lines
    assert [line.get_ydata().tolist() for line in lines] == [plots.path_of(one)[1] for one in (smc, other)]
    assert len(plots.path(smc, parameters="acceptance").axes) == 1


# Files


def test_figures_are_written_as_svg_pdf_and_png(accepted, tmp_path):
    from matplotlib.image import imread

    figure, twin = (plots.marginals(accepted, names=[r"$\mu$", r"$\nu$"]) for _ in range(2))
    names = ("a.svg", "a.pdf", "a.png")
    first = plots.save(figure, *(tmp_path / name for name in names), dpi=100)
    again = plots.save(twin, *(str(tmp_path / f"b{name}") for name in names), dpi=100)
    assert [one.read_bytes() for one in first] == [one.read_bytes() for one in again]
    assert first[0].read_text().lstrip().startswith("<?xml") and first[1].read_bytes().startswith(b"%PDF")
    image = imread(first[2])
    wide, high = figure.get_size_inches()
    assert image.shape[:2] == (int(high * 100), int(wide * 100))
    # White paper, blue posteriors.
    assert image[0, 0, :3].tolist() == [1, 1, 1] and (np.ptp(image[..., :3], axis=2) > 0.3).any()
    for wrong in ("figure.tiff", "figure"):
        with pytest.raises(ValueError, match=r"paths must end in \.svg, \.pdf or \.png"):
            plots.save(figure, tmp_path / wrong)
    with pytest.raises(ValueError, match=r"paths must end in \.svg"):
        plots.save(figure)


def test_known_values_are_marked_in_a_colour_of_their_own():
    assert panels.TRUTH["color"] not in {colour for colour, _ in panels.LINES}
