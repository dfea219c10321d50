"""The network's C2ST for many samples at once, in JAX: python -m benchmarks.network FOLDER.

FOLDER is what `python -m benchmarks.accuracy --by --keep FOLDER` has left: a file for each task, budget and
observation. The networks of all five folds of all pairs of samples of a shape are trained side by side, which takes a
GPU seconds where one after the other takes hours. Training is that of scikit-learn's MLPClassifier, whose scores are
the published ones: Adam with its usual constants, batches of 200, a small penalty of the weights, and an end when ten
epochs in a row have not lowered the training loss by 1e-4 (benchmarks/c2st.py has the original).
"""

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.c2st import FOLDS, folds_of, points_of

BATCH, RATE, PENALTY = 200, 1e-3, 1e-4
FIRST, SECOND, SMALL = 0.9, 0.999, 1e-8
"""Decays of Adam's two moments, and what keeps its divisor from zero."""
PATIENCE, TOLERANCE, EPOCHS = 10, 1e-4, 10_000


class Training(NamedTuple):
    """One network while it is trained."""

    weights: Any
    moments: Any
    squares: Any
    steps: Any
    best: Any
    """The lowest training loss of an epoch so far."""
    waited: Any
    """Epochs in a row without a lower one."""
    done: Any


def start(key: Any, dim: int) -> Training:
    """A new network, with the usual range of its first weights."""
    sizes = dim, 10 * dim, 10 * dim, 1
    weights = []
    for number, (into, out) in enumerate(pairwise(sizes)):
        bound = (6.0 / (into + out)) ** 0.5
        one, other = jax.random.split(jax.random.fold_in(key, number))
        weights.append(
            (
                jax.random.uniform(one, (into, out), minval=-bound, maxval=bound),
                jax.random.uniform(other, (out,), minval=-bound, maxval=bound),
            )
        )
    zero = jax.tree.map(jnp.zeros_like, weights)
    return Training(weights, zero, zero, 0, jnp.inf, 0, False)


def logits(weights: Any, points: Any) -> Any:
    """Log odds that points (n, dim) belong to the second sample."""
    for slope, level in weights[:-1]:
        points = jax.nn.relu(points @ slope + level)
    return (points @ weights[-1][0] + weights[-1][1])[:, 0]


def loss(weights: Any, points: Any, label: Any) -> Any:
    """Mean log loss with its penalty."""
    odds = logits(weights, points)
    size = sum(jnp.sum(slope**2) for slope, _ in weights)
    return jnp.mean(jax.nn.softplus(odds) - label * odds) + 0.5 * PENALTY * size / len(points)


def epoch(state: Training, key: Any, points: Any, label: Any) -> Training:
    """The network after all batches in random order; unchanged if its training is over."""

    def batch(carry: Training, rows: Any) -> tuple[Training, Any]:
        value, slope = jax.value_and_grad(loss)(carry.weights, points[rows], label[rows])
        steps = carry.steps + 1
        moments = jax.tree.map(lambda old, new: FIRST * old + (1 - FIRST) * new, carry.moments, slope)
        squares = jax.tree.map(lambda old, new: SECOND * old + (1 - SECOND) * new**2, carry.squares, slope)
        rate = RATE * jnp.sqrt(1 - SECOND**steps) / (1 - FIRST**steps)
        weights = jax.tree.map(
            lambda old, m, v: old - rate * m / (jnp.sqrt(v) + SMALL), carry.weights, moments, squares
        )
        return carry._replace(weights=weights, moments=moments, squares=squares, steps=steps), value

    order = jax.random.permutation(key, len(points)).reshape(-1, BATCH)
    trained, losses = lax.scan(batch, state, order)
    value = losses.mean()
    waited = jnp.where(value > state.best - TOLERANCE, state.waited + 1, 0)
    trained = trained._replace(best=jnp.minimum(state.best, value), waited=waited, done=waited > PATIENCE)
    return jax.tree.map(lambda old, new: jnp.where(state.done, old, new), state, trained)


@partial(jax.jit, static_argnames=("epochs",))
def some_epochs(state: Training, keys: Any, points: Any, label: Any, epochs: int) -> Training:
    """Several epochs of networks side by side."""

    done = state.steps.max()
    """Steps so far of those still in training, which name the random order of the next epochs."""

    def one(number: Any, carry: Training) -> Training:
        orders = jax.vmap(lambda key: jax.random.fold_in(key, done + number))(keys)
        return jax.vmap(epoch)(carry, orders, points, label)

    return lax.fori_loop(0, epochs, one, state)


def scores(pairs: Sequence[tuple[np.ndarray, np.ndarray]], seed: int = 1) -> np.ndarray:
    """The score of each pair (reference, sample), all of one shape (n, dim)."""
    n, dim = pairs[0][0].shape
    label, fold = np.repeat([0, 1], n), folds_of(2 * n, seed)
    # Folds of equal size, a whole number of batches: the few points that are left over are not used in training.
    kept = min(int((fold != part).sum()) for part in range(FOLDS)) // BATCH * BATCH
    if not kept:
        raise ValueError(f"samples of {n} draws leave less than one batch of {BATCH} to train with")
    sets = [points_of(*pair) for pair in pairs]
    trained_on = [np.flatnonzero(fold != part)[:kept] for part in range(FOLDS)]
    points = jnp.asarray(np.stack([one[rows] for one in sets for rows in trained_on]))
    labels = jnp.asarray(np.stack([label[rows] for _ in sets for rows in trained_on]), jnp.float32)
    keys = jax.random.split(jax.random.key(seed), len(points))
    state = jax.vmap(partial(start, dim=dim))(keys)
    for _ in range(0, EPOCHS, 10):
        state = some_epochs(state, keys, points, labels, 10)
        if bool(state.done.all()):
            break
    right = []
    for place, one in enumerate(sets):
        for part in range(FOLDS):
            weights = jax.tree.map(lambda leaf, at=place * FOLDS + part: leaf[at], state.weights)
            test = fold == part
            right.append(np.mean((np.asarray(logits(weights, jnp.asarray(one[test]))) > 0) == label[test]))
    return np.reshape(right, (len(sets), FOLDS)).mean(axis=1)


def kept_draws(folder: Path) -> Iterator[tuple[str, int, int, np.ndarray, np.ndarray]]:
    """Task, budget, observation, reference and sample of each file."""
    for path in sorted(folder.glob("*.npz")):
        name, budget, observation = path.stem.rsplit("-", 2)
        with np.load(path) as archive:
            yield name, int(budget), int(observation), archive["reference"], archive["infer"]


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        raise SystemExit("give the folder of draws: python -m benchmarks.network FOLDER")
    groups: dict[tuple[str, int], list[tuple[int, np.ndarray, np.ndarray]]] = {}
    for name, budget, observation, reference, sample in kept_draws(Path(arguments[0])):
        groups.setdefault((name, budget), []).append((observation, reference, sample))
    for (name, budget), some in groups.items():
        found = scores([(reference, sample) for _, reference, sample in some])
        each = {str(observation): round(float(one), 4) for (observation, _, _), one in zip(some, found, strict=True)}
        print(
            json.dumps({"task": name, "budget": budget, "mean": float(found.mean()), "observations": each}), flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
