"""Summaries that follow from others, as a variance beside a standard deviation, or a total beside its parts.

Given the others, such a summary has no density and says nothing. A law fitted to it would count the others again.
"""

import numpy as np

from onedraw.engines.arrays import Array

MOST_COLUMNS = 150
"""Linear terms, squares and products up to which products are tried."""
PER_COLUMN = 3
"""Simulations for each of these terms."""
LEAST_OWN = 1e-8
"""Share of its variance that a summary has of its own at least."""
FAR = 5.0
"""Distance from the median, in usual distances, from which simulations are left out: in the few with extreme values,
summaries look as if they followed from each other."""


def redundant(rows: Array) -> Array:
    """Which summaries (n, s) follow from others: a monotone function of one, or linear in them, or in their products.

    Of two that follow from each other, the first stays.

    >>> a, b = np.random.default_rng(1).normal(size=(2, 60))
    >>> redundant(np.column_stack([a, b, np.exp(a), a + b, a * b, a + b**3])).tolist()
    [False, False, True, True, True, False]
    """
    found = _monotone(rows)
    if rows.shape[1] < 2:
        return found
    usual = rows - np.median(rows, axis=0)
    width = np.median(np.abs(usual), axis=0)
    usual /= np.where(width > 0, width, np.maximum(usual.std(axis=0), 1e-300))
    near = usual[np.abs(usual).max(axis=1) <= FAR]
    for k in range(rows.shape[1] - 1, -1, -1):
        others = np.flatnonzero(~found)
        others = others[others != k]
        if not found[k] and len(others):
            found[k] = _determined(near[:, k], near[:, others])
    return found


def _monotone(rows: Array) -> Array:
    """Which columns have the order of one before them, or its reverse."""
    seen: set[bytes] = set()
    found = np.zeros(rows.shape[1], dtype=bool)
    for k, column in enumerate(rows.T):
        _, place = np.unique(column, return_inverse=True)
        found[k] = place.tobytes() in seen
        seen |= {place.tobytes(), (place.max() - place).tobytes()}
    return found


def _determined(values: Array, others: Array) -> bool:
    """Whether values (n,) are a combination of others (n, s), their squares, and their products if these are few."""
    s = others.shape[1]
    first, second = np.triu_indices(s) if 1 + s + s * (s + 1) // 2 <= MOST_COLUMNS else (np.arange(s),) * 2
    number = PER_COLUMN * (1 + s + len(first))
    if len(values) < number:
        first, second, number = first[:0], second[:0], PER_COLUMN * (1 + s)
    if len(values) < number:
        return False
    some = slice(None, None, len(values) // number)
    y, x = values[some], others[some]
    terms = np.column_stack([np.ones(len(x)), x, x[:, first] * x[:, second]])
    root, _ = np.linalg.qr(terms / np.sqrt(np.mean(np.square(terms), axis=0) + 1e-300))
    away = y - root @ (root.T @ y)
    return bool(np.square(away).sum() <= LEAST_OWN * np.square(y - y.mean()).sum())
