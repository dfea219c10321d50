"""Moments of long series, and what summaries learnt from them recover of a hidden state."""

import dataclasses

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import toeplitz

import onedraw as od
from onedraw.report.verdict import judge
from onedraw.results.assessment import FROM_MOMENTS
from onedraw.results.diagnostics import LITTLE, LOST
from onedraw.results.learned_summary import _regressed, learn_near
from onedraw.results.series_moments import BAND, LAGS, LEAST_SIZE, moments_of

WIDTH = 30
"""Moments of one series."""


def of(series):
    """Of one series, by name."""
    moments = moments_of(series[None], [series.shape])._replace(units=(2.0,))
    (found,) = moments.of(series[None])
    names = [
        "mean by unit",
        "mean by spread",
        "log spread",
        *(f"value {k}" for k in range(LAGS + 1)),
        *(f"partial {k}" for k in range(2, LAGS + 1)),
        "open",
    ]
    for one in ("size", "log"):
        names += [f"mean {one}", f"spread {one}", *(f"{one} {k}" for k in range(LAGS + 1))]
    names += ["cube", "later squared", "before squared", "fourth"]
    return dict(zip(names, found, strict=True))


class TestMoments:
    series = np.random.default_rng(1).gamma(2.0, 1.0, size=60)
    found = of(series)
    u = (series - series.mean()) / series.std()

    def test_level_and_size(self):
        assert self.found["mean by unit"] == pytest.approx(np.arcsinh(self.series.mean() / 2.0))
        assert self.found["mean by spread"] == pytest.approx(np.arcsinh(self.series.mean() / self.series.std()))
        assert self.found["log spread"] == pytest.approx(np.log(self.series.std()))
        sizes = np.abs(self.u)
        for name, one in (("size", sizes), ("log", np.log(sizes + LEAST_SIZE))):
            assert self.found[f"mean {name}"] == pytest.approx(one.mean())
            assert self.found[f"spread {name}"] == pytest.approx(np.log(one.std()))

    def test_autocorrelations(self):
        """Sums over pairs, divided by the length of the series: far lags have fewer pairs, and count less."""
        for name, one in (("value", self.u), ("size", np.abs(self.u)), ("log", np.log(np.abs(self.u) + LEAST_SIZE))):
            z = one - one.mean()
            right = [sum(z[t + k] * z[t] for t in range(60 - k)) / sum(z**2) for k in range(1, BAND + 1)]
            got = [self.found[f"{name} {k}"] for k in range(LAGS + 1)]
            assert got == pytest.approx([*right[:LAGS], np.mean(right[LAGS:])])

    def test_partial_autocorrelations(self):
        """By regressions with the same autocorrelations."""
        z = self.u
        r = [sum(z[t + k] * z[t] for t in range(60 - k)) / 60 for k in range(BAND + 1)]
        slopes = [np.linalg.solve(toeplitz(r[:k]), r[1 : k + 1]) for k in range(1, BAND + 1)]
        assert [self.found[f"partial {k}"] for k in range(2, LAGS + 1)] == pytest.approx(
            [s[-1] for s in slopes[1:LAGS]]
        )
        assert self.found["open"] == pytest.approx(np.log(1.0 - slopes[-1] @ r[1:]))

    def test_shape_and_direction(self):
        later, before = self.u[1:], self.u[:-1]
        assert self.found["cube"] == pytest.approx(np.arcsinh(np.mean(self.u**3)))
        assert self.found["later squared"] == pytest.approx(np.arcsinh(np.mean(later**2 * before)))
        assert self.found["before squared"] == pytest.approx(np.arcsinh(np.mean(later * before**2)))
        assert self.found["fourth"] == pytest.approx(np.log1p(np.mean(self.u**4)))

    def test_backwards_only_the_direction_changes(self):
        back = of(self.series[::-1])
        assert back.pop("later squared") == pytest.approx(self.found["before squared"])
        back.pop("before squared")
        assert back == pytest.approx({name: self.found[name] for name in back})

    def test_constant_series_and_outliers_are_finite(self):
        rows = np.stack([np.zeros(50), np.full(50, 3.0), np.eye(50)[7] * 1e30])
        assert np.isfinite(moments_of(rows, [(50,)]).of(rows)).all()


def test_which_columns_are_series():
    rows = np.random.default_rng(2).normal(size=(5, 41 + 3 + 2 * 50 + 40))
    found = moments_of(rows, [(41,), (), (2,), (50, 2), (40,)])
    assert [one.tolist() for one in found.places] == [
        list(range(41)), list(range(44, 144, 2)), list(range(45, 144, 2))
    ]  # fmt: skip
    assert found.others.tolist() == [41, 42, 43, *range(144, 184)]
    assert found.of(rows).shape == (5, found.width) == (5, 3 * WIDTH + 43)
    assert found.of(rows)[:, 3 * WIDTH :].tolist() == rows[:, found.others].tolist()
    # In units of the usual standard deviation.
    assert found.units[0] == pytest.approx(np.median(rows[:, :41].std(axis=1)))
    assert moments_of(rows[:, :40], [(40,)]) is None and moments_of(np.ones((2, 410)), [(41, 10)]) is None


def test_the_first_description_unless_another_is_better():
    rng = np.random.default_rng(3)
    theta = rng.standard_normal((600, 1))
    noisy, clear = (theta + error * rng.standard_normal((600, 3)) for error in (1.0, 0.3))
    every = np.ones(600, dtype=bool)
    assert [learn_near(theta, one, every, every)[0] for one in ([noisy, clear], [clear, noisy])] == [1, 0]
    assert learn_near(theta, [noisy, noisy.copy()], every, every)[0] == 0
    # Nothing is learnt from the first.
    assert learn_near(theta, [rng.standard_normal((600, 3)), clear], every, every)[0] == 1


def hidden(rng, stays, gap, length=80):
    """Noise around one of two levels, between which a hidden state changes; (n, length)."""
    state, found = rng.random(len(stays)) < 0.5, []
    for _ in range(length):
        found.append(gap * state + rng.standard_normal(len(stays)))
        state ^= rng.random(len(stays)) > stays
    return np.column_stack(found)


def log_likelihood(series, stays, gap):
    """By the forward algorithm, at many parameters."""
    found, of_high = np.zeros(len(stays)), np.full(len(stays), 0.5)
    for y in series:
        low, high = (1.0 - of_high) * np.exp(-0.5 * y**2), of_high * np.exp(-0.5 * (y - gap) ** 2)
        found += np.log(low + high)
        of_high = (high * stays + low * (1.0 - stays)) / (low + high)
    return found


HIDDEN = od.Prior(stays=stats.uniform(0.5, 0.48), gap=stats.uniform(0.5, 3.5))


def test_a_hidden_state_is_seen_in_moments():
    """No single value, and no square of one, shows how long the state lasts."""
    (observed,) = hidden(np.random.default_rng(6), stays=np.array([0.9]), gap=np.array([2.5]))
    post = od.infer(od.Model(HIDDEN, od.batched(hidden), observed), budget=800, seed=1, draws=2000)
    stays, gap = (one.ravel() for one in np.meshgrid(np.linspace(0.5, 0.98, 121), np.linspace(0.5, 4.0, 121)))
    share = log_likelihood(observed, stays, gap)
    share = np.exp(share - share.max())
    share /= share.sum()
    for name, values in (("stays", stays), ("gap", gap)):
        mean = share @ values
        sd = np.sqrt(share @ np.square(values - mean))
        row = post.summary()[name]
        assert abs(row.mean - mean) < 1.0 * sd and 0.7 * sd < row.sd < 2.0 * sd
    assert post.settings["summary"] == FROM_MOMENTS
    assert "on moments of the series" in str(post.summary()) and "od.particle_filter" in str(post.summary())
    assert LITTLE not in str(post.notes)
    (finding,) = (one for one in judge(post).findings if one.name == "Summaries")
    assert finding.level == "green" and "wider than the exact one" in finding.text
    assert not [one for one in judge(post).findings if one.name == "Note"]


def test_parameters_of_which_learnt_summaries_say_nothing():
    """A finding of its own, and no other."""
    rng = np.random.default_rng(6)
    design = rng.standard_normal(60)

    @od.batched
    def simulate(rng, seen, unseen):
        return seen[:, None] * design + rng.standard_normal((len(seen), 60))

    prior = od.Prior(seen=stats.norm(0, 1), unseen=stats.uniform(0, 1))
    post = od.infer(od.Model(prior, simulate, 0.5 * design + rng.standard_normal(60)), budget=500, seed=1, draws=1000)
    assert any(note.startswith(LOST) for note in post.notes) and post.settings["summary"] != FROM_MOMENTS
    (note,) = (note for note in post.notes if note.startswith(LITTLE))
    assert note.startswith(f"{LITTLE} unseen: its posterior is")
    findings = judge(post).findings
    (finding,) = (one for one in findings if one.name == "Summaries")
    assert finding.level == "amber" and "unseen" in finding.text and "own" in finding.todo
    assert not [one for one in findings if one.name == "Note"]
    without = dataclasses.replace(post, notes=tuple(one for one in post.notes if one != note))
    assert [one.level for one in judge(without).findings if one.name == "Summaries"] == ["green"]


@pytest.mark.parametrize("number", [1, 0])
def test_a_parameter_that_is_not_seen_is_not_predicted(number):
    """Without a simulation the mean of the others is a little lower if its parameter is high."""
    rng = np.random.default_rng(8)
    theta = rng.standard_normal((600, 5))
    all_seen = theta + rng.standard_normal((600, 5))
    one_seen = theta[:, :1] + rng.standard_normal((600, 3))
    every, described = np.ones(600, dtype=bool), [one_seen, all_seen]
    assert learn_near(theta, described if number else described[::-1], every, every)[0] == number


def test_no_fit_through_all_simulations_seems_to_predict_them():
    """With squares there are more columns than simulations; none of them says anything."""
    rng = np.random.default_rng(7)
    theta, rows = rng.standard_normal((60, 1)), rng.standard_normal((60, 50))
    left_out = _regressed(theta, rows, np.ones(60), "squares")[1]
    assert np.square(left_out).mean() > 0.9 * theta.var()
    clear = theta + 0.5 * rng.standard_normal((60, 3))
    number, learnt = learn_near(theta, [rows, clear], np.ones(60, dtype=bool), np.ones(60, dtype=bool))
    assert number == 1 and learnt.terms == "linear"
