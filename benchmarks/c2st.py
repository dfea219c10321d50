"""Classifier two-sample test: how well a classifier tells two samples apart, 0.5 (not at all) to 1 (always).

The network is that of the published benchmark: samples scaled by the reference, two hidden
layers of 10 units a parameter, five-fold cross-validated accuracy. Its training can stop early and then flatters a
sample, so boosted trees score the same samples beside it. Both sides must have equal sizes.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

FOLDS = 5


def classifiers(dim: int, seed: int = 1) -> dict[str, Callable[[], Any]]:
    """The two classifiers, made when they are needed."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.neural_network import MLPClassifier
    except ImportError as error:
        raise SystemExit("this benchmark scores with scikit-learn: pip install 'onedraw[bench]'") from error
    width = 10 * dim
    return {
        "network": lambda: MLPClassifier(hidden_layer_sizes=(width, width), max_iter=10_000, random_state=seed),
        "trees": lambda: HistGradientBoostingClassifier(random_state=seed),
    }


def points_of(reference: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """Both samples (n, dim) one after the other, scaled by the reference."""
    if reference.shape != sample.shape:
        raise ValueError(f"both samples must have one shape, got {reference.shape} and {sample.shape}")
    points = (np.concatenate([reference, sample]) - reference.mean(axis=0)) / reference.std(axis=0, ddof=1)
    return points.astype(np.float32)


def folds_of(number: int, seed: int) -> np.ndarray:
    """Which fold each of a number of points is tested in."""
    return np.random.default_rng(seed).permutation(number) % FOLDS


def c2st(reference: np.ndarray, sample: np.ndarray, kind: str = "trees", seed: int = 1) -> float:
    """Cross-validated accuracy of one of the classifiers on two samples (n, dim)."""
    points = points_of(reference, sample)
    make = classifiers(reference.shape[1], seed)[kind]
    label, fold = np.repeat([0, 1], len(reference)), folds_of(len(points), seed)
    right = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in range(FOLDS):
            test = fold == part
            right += float(make().fit(points[~test], label[~test]).score(points[test], label[test]))
    return right / FOLDS
