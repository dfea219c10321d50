"""How `infer` divides a budget: the pilot, stages that grow, a last look, and the check."""

PILOT, PILOT_GROWTH, LARGE_PILOT_GROWTH = 200, 0.7, 0.85
"""Pilot simulations at a budget of 1000, and the power of the budget with which they grow: up to LARGE, and beyond."""
FEWEST_PILOT = 20
GROWTH, LARGE_GROWTH = 0.5, 0.3
"""Simulations of a stage, as a share of all before it, up to a budget of LARGE; and the power of the budget with which
that grows beyond, up to twice as much."""
LARGE = 3000
"""The budget beyond which stages are fewer and larger: they have simulations enough, and many workers share them."""
LAST, LOOK = 0.35, 0.15
"""A rest of the budget below the first share of what was done is no stage of its own. The second is the share of the
budget that is left for a last look at where the posterior seems to be."""
CHECK_SHARE, CHECK_MOST = 50, 100
"""One simulation in this many, up to a limit, is a replicate at a posterior draw."""
CHECK_FROM = 1000
"""The budget from which a part is spent on the check."""


def next_size(budget: int, done: int) -> int:
    """Simulations of the next stage, when this much of the budget is done.

    >>> sizes, done = [], 0
    >>> while done < 1000:
    ...     sizes.append(next_size(1000, done)); done += sizes[-1]
    >>> sizes
    [200, 100, 150, 400, 150]
    """
    left, large = budget - done, max(budget / LARGE, 1.0)
    if done == 0:
        pilot = PILOT * (min(budget, LARGE) / 1000) ** PILOT_GROWTH * large**LARGE_PILOT_GROWTH
        return min(budget, max(FEWEST_PILOT, round(pilot)))
    growth = GROWTH * min(large**LARGE_GROWTH, 2.0)
    size, look = max(1, round(growth * done)), round(LOOK * budget)
    if left <= look:
        return left
    rest = left - look
    return rest if rest - size < LAST * (done + size) else size


def check_size(budget: int) -> int:
    """Replicates that a budget pays for.

    >>> check_size(999), check_size(1000), check_size(10**6)
    (0, 20, 100)
    """
    return min(CHECK_MOST, budget // CHECK_SHARE) if budget >= CHECK_FROM else 0
