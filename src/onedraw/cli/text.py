"""What the commands say of a run, for people and for programs."""

import json
import math
from typing import Any

import click

from onedraw.cli.models import without_ours


def opened(file: str) -> Any:
    """The Posterior in a file."""
    import onedraw as od

    try:
        return od.open(file)
    except od.StoreError as error:
        raise click.ClickException(str(error)) from error


def text(post: Any, failures: bool = False) -> str:
    """A run in lines."""
    hidden = ("algorithm", "path")
    settings = {key: short(value) for key, value in post.settings.items() if value is not None and key not in hidden}
    cost = ", ".join(
        f"{value:,.1f} s" if name == "seconds" else f"{value:,} {name}" for name, value in post.cost._asdict().items()
    )
    lines = [
        f"{post.settings['algorithm']}: {post.status.message}",
        "settings: " + ", ".join(f"{key} = {value}" for key, value in settings.items()) + f", seed = {post.seed}",
        f"cost: {cost}",
        f"acceptance rate: {post.acceptance_rate:.4g} ± {post.acceptance_rate_se:.2g}",
    ]
    if math.prod(post.shape):
        lines += ["", str(post.summary())]
    else:
        lines += list(post.notes)
    if failures:
        lines.append(f"\n{len(post.failures)} of {post.cost.failed:,} failures are kept")
        for number, one in enumerate(post.failures):
            where = f"chain {one.chain}, step {one.step}, pseudo-sample {one.pseudo_sample}"
            lines += [f"\n[{number}] {one}", f"    {where}; again with od.replay(..., failure={number}, model=...)"]
            lines += [f"    {line}" for line in without_ours(one.traceback).splitlines()]
    return "\n".join(lines)


def short(value: Any) -> Any:
    """A setting with its numbers in six figures."""
    if isinstance(value, dict):
        return {key: short(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [short(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def described(post: Any, failures: bool = False) -> dict[str, Any]:
    """The same for programs."""
    found: dict[str, Any] = {
        "algorithm": post.settings["algorithm"],
        "status": {"reason": post.status.reason, "message": post.status.message, "complete": post.status.complete},
        "settings": plain(dict(post.settings)),
        "seed": post.seed,
        "cost": post.cost._asdict(),
        "shape": list(post.shape),
        "acceptance_rate": plain(post.acceptance_rate),
        "acceptance_rate_se": plain(post.acceptance_rate_se),
        "notes": list(post.notes),
    }
    if math.prod(post.shape):
        rows = post.summary().rows
        found["summary"] = {name: plain(row._asdict()) for name, row in rows.items()}
    if failures:
        found["failures"] = [one._asdict() for one in post.failures]
    return found


def plain(value: Any) -> Any:
    """A value as JSON has it: no NaN, no infinity, no arrays."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def as_json(value: Any, indent: int | None = 2) -> str:
    """JSON text."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)
