"""Draws for other programs: equally weighted draws, tables for pandas, and DataTrees for ArviZ.

Other programs treat draws as independent and equally weighted. So weighted draws, and more draws than there are
simulations behind them, are exported as equally weighted draws, as many as the effective number of draws.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from onedraw.arguments import optional_whole_number, seed_or_fresh, true_or_false, whole_number
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.weights import effective, systematic
from onedraw.model.model import Model
from onedraw.results.monte_carlo_error import MANY
from onedraw.results.posterior import Posterior, flattened, points

STATISTICS: tuple[str | float, ...] = ("mean", "sd", 0.05, 0.25, 0.5, 0.75, 0.95)
"""What a DataTree carries with its Monte Carlo error; numbers are quantiles."""
PRIOR_DRAWS = 1_000
PREDICTED, FEWEST_PREDICTED = 200, 20
PREDICT_SECONDS = 20.0
"""How long predictive simulations may take that nobody asked for, by the time of a simulation in the run."""
OPTIMISM = 1.5
"""How much larger the effective number of draws may be that ArviZ sees in many short chains than it is."""
AXES = ("chain", "draw")


def resampled(post: Posterior, draws: int | None = None, seed: int | None = None) -> Posterior:
    """Independent draws of equal weight (see `Posterior.resample`)."""
    worth = worth_of(post)
    size = max(1, int(worth)) if draws is None else whole_number("draws", draws, "the number of draws")
    weights = np.full(math.prod(post.shape), 1.0) if post.weights is None else post.weights.reshape(-1)
    rng = Rng(seed_or_fresh(post.seed if seed is None else seed), Phase.RESAMPLE, 2).bulk(Purpose.MOVE)
    order = neighbours_in_order(points(post.columns), size)
    # At equal distances along neighbours: each draw stands for its own part of the posterior. They are dealt out to two
    # halves, which ArviZ compares: by chance alone they could differ as those of a chain do that has not converged.
    pick = order[systematic(weights[order], size, rng.random())]
    pick = np.concatenate([rng.permutation(pick[::2]), rng.permutation(pick[1::2])])
    distances = post.distances
    if distances is not None:
        distances = distances.reshape(len(weights), *distances.shape[2:])[pick][None]
    return replace(
        post,
        draws={name: flattened(values)[pick][None] for name, values in post.draws.items()},
        weights=None,
        run_weights=None,
        groups=None,
        refits=None,
        distances=distances,
        kernel=None,
        kept=None,
        bank=None,
        independent=True,
        effective=worth if size > worth else None,
        notes=(*post.notes, f"{size:,} draws of equal weight, from {math.prod(post.shape):,} ({worth:,.0f} effective)"),
    )


def worth_of(post: Posterior) -> float:
    """The effective number of draws: of the parameter that has the fewest."""
    if math.prod(post.shape) == 0:
        raise ValueError("there are no draws to export: nothing was accepted")
    found = [row.ess for row in post.summary().rows.values() if row.ess > 0]
    most = float(math.prod(post.shape)) if post.weights is None else effective(post.weights.reshape(-1))
    return min([*found, most])


def neighbours_in_order(theta: Array, parts: int) -> Array:
    """An order of rows (n, dim) in which each of about `parts` stretches lies together, in every direction.

    >>> neighbours_in_order(np.array([[3.0], [1.0], [2.0], [0.0]]), 4).tolist()
    [3, 1, 2, 0]
    """
    spread = theta.std(axis=0)
    scaled = theta / np.where(spread > 0, spread, 1.0)
    order, middles = _halved(scaled, max(1, len(theta) // (4 * parts)))
    done, open_parts, last = [], [(0, len(theta))], np.zeros(theta.shape[1])
    while open_parts:
        start, stop = open_parts.pop()
        both = middles.get((start, stop))
        if both is None:
            done.append(order[start:stop])
            last = scaled[order[stop - 1]]
            continue
        half = start + (stop - start) // 2
        halves = [(half, stop), (start, half)]
        # The half that is nearer to where the order has come to is next: a stretch across a border lies together too.
        lower, upper = np.square(both - last).sum(axis=1).tolist()
        open_parts += halves if not done or lower <= upper else halves[::-1]
    return np.concatenate(done)


def _halved(rows: Array, smallest: int) -> tuple[Array, dict[tuple[int, int], Array]]:
    """An order of rows (n, dim), halved along their widest direction, and the halves again, until they are small.

    With the middles (2, dim) of the halves of each part, which is named by where it begins and ends in that order.
    """
    order, middles = np.arange(len(rows)), dict[tuple[int, int], Array]()
    start, stop = np.array([0]), np.array([len(rows)])
    while (wide := stop - start > smallest).any():
        start, stop = start[wide], stop[wide]
        sizes = stop - start
        top = np.cumsum(sizes) - sizes
        part = np.repeat(np.arange(len(sizes)), sizes)
        place = np.arange(len(part)) + (start - top)[part]
        given = rows[order[place]]
        widest = (np.maximum.reduceat(given, top) - np.minimum.reduceat(given, top)).argmax(axis=1)
        along = np.lexsort((given[np.arange(len(part)), widest[part]], part))
        order[place] = order[place[along]]
        half = sizes // 2
        sums = np.add.reduceat(given[along], np.column_stack([top, top + half]).reshape(-1))
        means = sums.reshape(len(sizes), 2, -1) / np.column_stack([half, sizes - half])[:, :, None]
        middles.update(zip(zip(start.tolist(), stop.tolist(), strict=True), means, strict=True))
        start, stop = np.concatenate([start, start + half]), np.concatenate([start + half, stop])
    return order, middles


def for_export(post: Posterior, weighted: bool, draws: int | None, seed: int | None) -> Posterior:
    """The draws as other programs may take them; as they are if `weighted`, or if that is the truth already."""
    draws = optional_whole_number("draws", draws, "the number of draws")
    if true_or_false("weighted", weighted):
        if draws is not None:
            raise ValueError(
                "draws = is the number of draws of equal weight: weighted=True gives all draws as they are"
            )
        worth_of(post)
        return post
    plain = post.weights is None and post.effective is None
    if draws is None and plain and (post.independent or not _too_short(post)):
        worth_of(post)
        return post
    return resampled(post, draws, seed)


def _too_short(post: Posterior) -> bool:
    """Whether there are many chains, so short that ArviZ, which looks within chains, sees too many effective draws."""
    if post.shape[0] < MANY:
        return False
    from arviz_stats.base import array_stats

    rows = post.summary().rows
    seen = {name: float(array_stats.ess(np.asarray(values, dtype=float), chain_axis=0, draw_axis=1, method="mean"))
            for name, values in post.columns.items()}  # fmt: skip
    return any(seen[name] > OPTIMISM * rows[name].ess for name in rows)


def dataframe(post: Posterior, weighted: bool, draws: int | None, seed: int | None) -> Any:
    """A pandas DataFrame (see `Posterior.to_dataframe`)."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_dataframe needs pandas: pip install pandas") from error
    found = for_export(post, weighted, draws, seed)
    columns: dict[str, Any] = {name: values.reshape(-1) for name, values in found.columns.items()}
    if found.weights is not None:
        columns["weight" if "weight" not in columns else "weight of the draw"] = found.weights.reshape(-1)
    index = pandas.MultiIndex.from_product([range(count) for count in found.shape], names=AXES)
    frame = pandas.DataFrame(columns, index=index)
    frame.attrs["effective_draws"] = worth_of(post)
    return frame


def datatree(post: Posterior, weighted: bool, draws: int | None, predictive: int | None, seed: int | None) -> Any:
    """An xarray DataTree (see `Posterior.to_datatree`)."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError("to_datatree needs xarray: pip install 'onedraw[arviz]'") from error
    axes = {name: tuple(f"{name}_dim_{i}" for i in range(values.ndim - 2)) for name, values in post.draws.items()}
    taken = [name for name in post.names if name in (*AXES, "statistic", "quantity", *sum(axes.values(), ()))]
    if taken:
        raise ValueError(
            f"a DataTree has an axis {taken[0]!r}, so that no parameter can have this name in it: use post.draws, "
            "or name the parameter otherwise"
        )
    sizes = {axis: np.arange(size) for name in post.names
             for axis, size in zip(axes[name], post.draws[name].shape[2:], strict=True)}  # fmt: skip
    found = for_export(post, weighted, draws, seed)
    kept = {"weight": found.weights, "group": found.groups, "distance": found.distances}
    stats = {name: ((*AXES, "pseudo_sample")[: one.ndim], one) for name, one in kept.items() if one is not None}
    groups = {
        "posterior": xarray.Dataset(
            {k: ((*AXES, *axes[k]), v) for k, v in found.draws.items()},
            {**_places(found.shape), **sizes},
            _told(post),
        ),
        "sample_stats": xarray.Dataset(stats, _places(found.shape)),
        "monte_carlo_error": xarray.Dataset(
            {name: ((*axes[name], "statistic", "quantity"), _errors(post, name)) for name in post.names},
            {"statistic": [str(of) for of in STATISTICS], "quantity": ["value", "mcse", "ess"], **sizes},
        ),
    }
    if post.model is not None:
        before = post.model.prior.columns(prior_draws(post.model, post.seed, PRIOR_DRAWS))
        groups["prior"] = xarray.Dataset(
            {k: ((*AXES, *axes[k]), v[None]) for k, v in before.items()}, {**_places((1, PRIOR_DRAWS)), **sizes}
        )
        observed = post.model.recipe.layout.restore(post.model.observed_row)
        groups["observed_data"] = xarray.Dataset(_data_parts(observed, ()))
        count = affordable(post, predictive)
        if count:
            parts = _data_parts(post.predict(count, seed=seed), ("draw",))
            with_chain = {name: (("chain", *axes), values[None]) for name, (axes, values) in parts.items()}
            groups["posterior_predictive"] = xarray.Dataset(with_chain, _places((1, count)))
    return xarray.DataTree.from_dict(groups)


def prior_draws(model: Model, seed: int, number: int) -> Array:
    """Draws from the prior (number, dim), to be shown beside a posterior."""
    return model.prior.sample(Rng(seed, Phase.PREDICT, 1).bulk(Purpose.PRIOR), number)


def affordable(post: Posterior, predictive: int | None) -> int:
    """Predictive simulations to make: as many as asked for, otherwise as many as take a few seconds, 0 if too few."""
    if predictive is not None:
        return whole_number("predictive", predictive, "the number of predictive simulations", least=0)
    if post.model is None or (post.weights is not None and post.weights.min(initial=0.0) < 0):
        # By negative weights no draws can be picked to simulate at.
        return 0
    each = post.cost.seconds / max(post.cost.simulations, 1)
    count = int(min(PREDICTED, PREDICT_SECONDS / max(each, 1e-9)))
    return count if count >= FEWEST_PREDICTED else 0


def _places(shape: tuple[int, int]) -> dict[str, Array]:
    return {axis: np.arange(count) for axis, count in zip(AXES, shape, strict=True)}


def _told(post: Posterior) -> dict[str, Any]:
    """What the posterior says of itself, as attributes."""
    return {
        "inference_library": "onedraw",
        "seed": str(post.seed),
        "status": post.status.message,
        "acceptance_rate": post.acceptance_rate,
        "effective_draws": worth_of(post),
        **{f"cost_{name}": value for name, value in post.cost._asdict().items()},
        **{f"setting_{name}": str(value) for name, value in post.settings.items()},
    }


def _errors(post: Posterior, name: str) -> Array:
    """Value, mcse and ess of each statistic of a parameter, (*shape, statistics, 3)."""
    entries = [label for label in post.columns if label == name or label.startswith(f"{name}[")]
    found = [[post.estimate(label, of)[:3] for of in STATISTICS] for label in entries]
    return np.array(found).reshape(*post.draws[name].shape[2:], len(STATISTICS), 3)


def _data_parts(data: Any, first: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], Array]]:
    """Data by part, each with the names of its axes."""
    parts = data if isinstance(data, dict) else {"observed": data}
    return {
        str(key): ((*first, *(f"{key}_{i}" for i in range(np.ndim(part) - len(first)))), np.asarray(part))
        for key, part in parts.items()
    }
