"""Files of runs that were changed on purpose, with valid checksums: what a reader must survive."""

import copy
import json
import math
import sqlite3
import zlib

import numpy as np

VALUES = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, -(10**30), 1.5, math.nan, math.inf, "", "x", "1e999", "nan", "\x1b[2J",
    [], [1], [[]], {}, {"a": 1}, [None] * 8, [10**30] * 7, [1.5] * 7, ["a"] * 7,
)  # fmt: skip


def crc(*parts):
    return zlib.crc32(":".join(map(str, parts)).encode(errors="surrogatepass"))


def places(value, path=()):
    """Every place in nested lists and tables, the first eight of each list."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:8]) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def changed(value, rng):
    """Something removed, renamed, or replaced by another value."""
    value = copy.deepcopy(value)
    spots = list(places(value))
    if not spots:
        return rng.choice(VALUES)
    *way, key = rng.choice(spots)
    parent = value
    for step in way:
        parent = parent[step]
    fate = rng.random()
    if fate < 0.2:
        del parent[key]
    elif fate < 0.3 and isinstance(parent, dict):
        parent["extra"] = parent.pop(key)
    else:
        parent[key] = rng.choice(VALUES)
    return value


def _bytes(described):
    return math.prod(described[2]) * np.dtype(described[1]).itemsize


def _other_arrays(header, body, rng):
    """An array less, or one of another shape."""
    number = rng.randrange(len(header["arrays"]))
    one = header["arrays"][number]
    if rng.random() < 0.5:
        start = sum(map(_bytes, header["arrays"][:number]))
        del header["arrays"][number]
        return body[:start] + body[start + _bytes(one) :]
    total = math.prod(one[2])
    one[2] = rng.choice([[total], [total, 1], [1, total], [1, 1, total], one[2][::-1]])
    return body


def mutate(path, rng):
    """Change one thing in a run's file, and every checksum that belongs to it."""
    connection = sqlite3.connect(path)
    if rng.random() < 0.3:
        key = rng.choice(["specification", "specification", "specification", "sessions", "records"])
        (text,) = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        text = json.dumps(changed(json.loads(text), rng))
        connection.execute("UPDATE meta SET value = ?, crc = ? WHERE key = ?", (text, crc(key, text), key))
    else:
        names = [name for (name,) in connection.execute("SELECT DISTINCT name FROM record ORDER BY name")]
        rows = connection.execute(
            "SELECT sequence, name, header, body FROM record WHERE name = ? ORDER BY sequence", (rng.choice(names),)
        ).fetchall()
        sequence, name, text, body = rng.choice(rows)
        header, fate = json.loads(text), rng.random()
        if fate < 0.6:
            header = changed(header, rng)
        elif fate < 0.75 and header["arrays"]:
            body = _other_arrays(header, body, rng)
        elif fate < 0.9:
            name = rng.choice([*names, "finished", "result", "x", "", "+"])
        else:
            body = rng.choice([b"\x00", b"\xff", b"\x7f"]) * len(body)
        text = json.dumps(header)
        connection.execute(
            "UPDATE record SET name = ?, header = ?, header_crc = ?, body = ?, body_crc = ? WHERE sequence = ?",
            (name, text, crc(sequence, name, text), body, zlib.crc32(body), sequence),
        )
    connection.commit()
    connection.close()
