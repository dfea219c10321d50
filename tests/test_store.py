"""The file of a run: its form, what happens to it when things go wrong, and that it never runs anyone's code."""

import contextlib
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

import onedraw as od
from onedraw.cli.main import main
from onedraw.failures import NoAnswer
from onedraw.run import store as store_module
from onedraw.run.record import LostFile
from onedraw.run.result import Result
from onedraw.run.saving import recorded_seed
from onedraw.run.store import Store, StoreError
from tests.mutations import mutate
from tests.stored_run import (
    CHAINS,
    FILES,
    KERNEL,
    RUNS,
    SEQUENTIAL,
    Child,
    Test,
    in_child,
    model,
    run,
    told,
    uses,
    wait_for_writer,
)
from tests.test_resume import ROOT, needs_fork

JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


@pytest.fixture(autouse=True)
def undisturbed():
    Test.pause, Test.stop_at, Test.calls = 0.0, 0, 0
    yield
    Test.stop_at = 0


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file of a few records, which is only copied."""
    path, Test.stop_at = tmp_path_factory.mktemp("written") / "run.db", 0
    run("pseudo_marginal", path, segment=1e-9)
    return path


@pytest.fixture
def file(written, tmp_path):
    """A copy of a file of a few records."""
    return shutil.copy(written, tmp_path / "run.db")


ONE_OF_EACH_KIND = [
    name if name in ("rejection", "pseudo_marginal", "smc") else pytest.param(name, marks=pytest.mark.slow)
    for name in RUNS
]
"""Rejection, chains and a sampler in stages; the slow tests have the others."""
HOSTILE = [
    "a'; DROP TABLE record; --",
    "<img src=x onerror=alert(1)>",
    "\x1b]0;title\x07\x1b[2J\u202e",
    "../../up",
    "%s{0}\n",
]


def crc(*parts):
    return zlib.crc32(":".join(map(str, parts)).encode())


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory, brief):
    """A file of each kind, by name."""
    folder, Test.stop_at = tmp_path_factory.mktemp("whole"), 0
    for name, make in FILES.items():
        make(folder / f"{name}.db", segment=1e-3)
    return {name: folder / f"{name}.db" for name in FILES}


class TestRecords:
    def test_arrays_come_back_as_they_were(self, tmp_path):
        arrays = {
            "float": np.array([[1.5, -np.inf, np.nan]]),
            "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            "whole": np.arange(-3, 3),
            "empty": np.empty((0, 4)),
            "nothing": np.empty((2, 0)),
            "bool": np.array([True, False]),
            "big": np.arange(3, dtype=">f8"),
            "number": np.array(2.5),
            "strided": np.arange(12.0).reshape(3, 4)[:, ::2],
        }
        with Store(tmp_path / "a.db", write=True) as store:
            store.set_meta({"x": [1, "two", None]})
            store.put(("first", {"a": 0.1, "b": [1, 2], "c": None, "d": -0.0}, arrays), ("second", {}, {}))
        with Store(tmp_path / "a.db") as store:
            assert store.meta("x") == [1, "two", None] and store.meta("y") is None
            first, second = store.records()
            assert store.last("first").sequence == 1 and store.last().name == "second"
        assert first.scalars == {"a": 0.1, "b": [1, 2], "c": None, "d": -0.0} and second.arrays == {}
        for name, array in arrays.items():
            back = first.arrays[name]
            assert back.dtype == array.dtype.newbyteorder("<") and back.shape == array.shape
            assert np.array_equal(back, array, equal_nan=back.dtype.kind == "f")
        assert first.arrays["columns"].flags.f_contiguous and not first.arrays["columns"].flags.c_contiguous

    def test_records_come_back_in_order(self, tmp_path):
        with Store(tmp_path / "a.db", write=True) as store:
            store.set_meta({})
            for number in range(20):
                store.put((f"name {number % 2}", {"number": number}, {}))
        with Store(tmp_path / "a.db") as store:
            assert [one.scalars["number"] for one in store.records("name 1")] == list(range(1, 20, 2))
            assert [one.sequence for one in store.records()] == list(range(1, 21))

    @pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
    def test_records_too_large_for_a_row_take_several(self, tmp_path, monkeypatch, name):
        monkeypatch.setattr(store_module, "LARGEST_BODY", 300)
        path = tmp_path / "run.db"
        Test.stop_at = 300
        run(name, path, segment=1e-9)
        right = run(name)
        assert told(od.resume(path, model, segment=1e-9)) == told(right) == told(od.load(path))
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT max(length(body)) FROM record").fetchone() == (300,)
        assert connection.execute("SELECT count(*) FROM record WHERE name = '+'").fetchone()[0] > 3
        # A record whose last row is lost is no record.
        (last,) = connection.execute("SELECT max(sequence) FROM record WHERE name = '+'").fetchone()
        with connection:
            connection.execute("UPDATE record SET body = zeroblob(300) WHERE sequence = ?", (last,))
        connection.close()
        with pytest.raises(StoreError, match=r"checksum of record \d+"):
            od.load(path)
        with pytest.warns(UserWarning, match="damaged records are removed"):
            assert told(od.resume(path, model, force=True)) == told(right)
        if name == "rejection":
            again = od.reuse(path, kernel=KERNEL)
            assert np.array_equal(again.draws["a"][:, :900], right.draws["a"])

    def test_objects_are_not_stored(self, tmp_path):
        with Store(tmp_path / "a.db", write=True) as store:
            store.set_meta({})
            with pytest.raises(TypeError, match="object"):
                store.put(("a", {}, {"x": np.array([object()])}))
            assert store.count() == 0


@pytest.mark.parametrize("name", ["weights", "groups"])
def test_weights_and_groups_that_fit_no_draws_are_refused(name):
    """As a file may hold them whose checksums are right."""
    result = Result(np.zeros((1, 6, 2)), None, "finished", "6 draws", **{name: np.ones((1, 6))})
    scalars, arrays = result.packed()
    assert Result.unpacked(scalars, arrays).theta.shape == (1, 6, 2)
    with pytest.raises(ValueError, match=rf"{name} of shape \(1, 5\)"):
        Result.unpacked(scalars, {**arrays, name: np.ones((1, 5))})


@pytest.mark.parametrize("shape", [(3, 4), (3, 7), (3,), (3, 0)])
def test_refits_that_fit_no_draws_are_refused(shape):
    """Of 6 draws, every second has 3 of them; no stride has 4."""
    result = Result(np.zeros((1, 6, 2)), None, "finished", "6 draws", refits=np.ones((2, 3)))
    scalars, arrays = result.packed()
    assert Result.unpacked(scalars, arrays).refits.shape == (2, 3)
    with pytest.raises(ValueError, match=rf"refits of shape {re.escape(str(shape))} are none of 6 draws"):
        Result.unpacked(scalars, {**arrays, "refits": np.ones(shape)})


class TestDamage:
    def good_before(self, path):
        with Store(path) as store:
            return [record.sequence for record in store.records()]

    def test_a_flipped_byte_in_a_blob(self, file):
        connection = sqlite3.connect(file)
        last = connection.execute("SELECT max(sequence) FROM record WHERE name = 'run.segment'").fetchone()[0]
        body = bytearray(connection.execute("SELECT body FROM record WHERE sequence = ?", (last,)).fetchone()[0])
        body[len(body) // 2] ^= 1
        with connection:
            connection.execute("UPDATE record SET body = ? WHERE sequence = ?", (bytes(body), last))
        connection.close()
        words = rf"checksum of record {last}, 'run.segment', does not fit.*good up to record {last - 1} of \d+ \("
        with pytest.raises(StoreError, match=words):
            od.load(file)
        with pytest.raises(StoreError, match=words):
            od.resume(file, model)
        # With force, what cannot be read is computed again, and the result is the same.
        with pytest.warns(UserWarning, match="damaged records are removed and computed again"):
            again = od.resume(file, model, force=True)
        assert told(again) == told(run("pseudo_marginal"))

    @pytest.mark.parametrize("table", ["record", "meta"])
    def test_a_flipped_byte_in_text(self, file, table):
        connection = sqlite3.connect(file)
        with connection:
            if table == "record":
                connection.execute("UPDATE record SET header = replace(header, 'notes', 'nates') WHERE name = 'ready'")
            else:
                connection.execute("UPDATE meta SET value = replace(value, '5', '6') WHERE key = 'specification'")
        connection.close()
        with pytest.raises(StoreError, match="checksum of"):
            od.load(file)

    @pytest.mark.parametrize("table", ["record", "meta"])
    def test_text_that_is_not_utf_8(self, file, table):
        connection, column = sqlite3.connect(file), "header" if table == "record" else "value"
        with connection:
            connection.execute(f"UPDATE {table} SET {column} = CAST(CAST({column} AS BLOB) || x'ff' AS TEXT)")
        connection.close()
        with pytest.raises(StoreError, match=r"(?i)UTF-8"):
            od.load(file)

    def test_a_lost_record(self, file):
        connection = sqlite3.connect(file)
        with connection:
            connection.execute("DELETE FROM record WHERE sequence = 4")
        connection.close()
        with pytest.raises(StoreError, match=r"record 4 is missing.*good up to record 3"):
            od.load(file)

    def test_a_lost_end(self, file):
        connection = sqlite3.connect(file)
        with connection:
            connection.execute("DELETE FROM record WHERE sequence > 6")
        connection.close()
        with pytest.raises(StoreError, match=r"should hold \d+ records.*good up to record 6"):
            od.load(file)

    def test_every_cut_is_one_clear_error(self, file, tmp_path):
        whole = file.read_bytes()
        for part in range(1, 20):
            cut = tmp_path / "cut.db"
            cut.write_bytes(whole[: len(whole) * part // 20])
            with pytest.raises(StoreError, match=r"cut\.db"):
                od.load(cut)
            with pytest.raises(StoreError, match=r"cut\.db"):
                od.resume(cut, model)

    def test_a_cut_says_up_to_where_the_file_is_good(self, file, tmp_path):
        cut = tmp_path / "cut.db"
        cut.write_bytes(file.read_bytes()[:-20_000])
        with pytest.raises(StoreError, match=r"good up to record \d+ of \d+ \("):
            od.load(cut)

    def first_leaf(self, path):
        """Where the page with the first records ends: the first child of the root of their table, which is page 4."""
        page = store_module.PAGE
        root = path.read_bytes()[3 * page : 4 * page]
        assert root[0] == 5, "the records fill one page"
        cell = int.from_bytes(root[12:14])
        return page * int.from_bytes(root[cell : cell + 4])

    @pytest.mark.parametrize("part", [0.05, 0.5, 0.9])
    def test_force_mends_a_cut_file(self, file, part):
        """What is said to be good is used, and the rest computed again."""
        right, kept = told(od.load(file)), self.first_leaf(file)
        with file.open("r+b") as handle:
            handle.truncate(kept + int(part * (file.stat().st_size - kept)))
        with pytest.raises(StoreError, match=r"good up to record \d+ of \d+ \(") as told_:
            od.load(file)
        good = int(str(told_.value).partition("good up to record ")[2].split()[0])
        with pytest.warns(UserWarning, match="cut short: .* damaged records are removed and computed again"):
            again = od.resume(file, model, force=True)
        assert told(again) == right and told(od.load(file)) == right
        with Store(file) as store:
            assert good >= 2 and store.count() > good
        assert [one.name for one in file.parent.iterdir()] == ["run.db"]

    def test_force_leaves_a_whole_file_as_it_is(self, file):
        assert store_module.mend(file) is None

    def test_every_damaged_page_is_found_or_does_not_matter(self, file, tmp_path):
        """Noise in any page: a clear error, or (where the page is unused) the same posterior."""
        whole, right, rng = file.read_bytes(), told(od.load(file)), np.random.default_rng(1)
        errors = 0
        for page in range(len(whole) // 4096):
            noisy = bytearray(whole)
            noisy[page * 4096 + 64 : page * 4096 + 512] = rng.bytes(448)
            damaged = tmp_path / "damaged.db"
            damaged.write_bytes(noisy)
            try:
                read = od.load(damaged)
            except StoreError:
                errors += 1
            else:
                assert told(read) == right
        assert errors >= 5, f"{errors} of {len(whole) // 4096} pages"

    @pytest.mark.parametrize("content", [b"", b"not a database at all" * 100, b"SQLite format 3\0" + bytes(4000)])
    def test_other_files(self, content, tmp_path):
        path = tmp_path / "other.db"
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"other\.db"):
            od.load(path)
        if content:
            with pytest.raises(StoreError, match=r"other\.db"):
                run("rejection", path)
            assert path.read_bytes() == content
        else:
            assert run("rejection", path).status.complete

    def test_another_programs_database_is_left_alone(self, tmp_path):
        path = tmp_path / "other.db"
        connection = sqlite3.connect(path)
        with connection:
            connection.execute("CREATE TABLE precious (x)")
        connection.close()
        before = path.read_bytes()
        for use in (od.load, lambda path: run("rejection", path)):
            with pytest.raises(StoreError, match="not a run of onedraw"):
                use(path)
        assert path.read_bytes() == before

    def test_a_file_of_the_future(self, file):
        connection = sqlite3.connect(file)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        with pytest.raises(StoreError, match=r"format 99.*update onedraw"):
            od.load(file)


class TestHostileFiles:
    """A file that someone else made: everything in it may be a lie, checksums included."""

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(Path(tempfile.gettempdir()) / "onedraw-was-here"),))

    def rewrite(self, path, name, header, body):
        connection = sqlite3.connect(path)
        (last,) = connection.execute("SELECT max(sequence) FROM record WHERE name = ?", (name,)).fetchone()
        with connection:
            connection.execute(
                "UPDATE record SET header = ?, body = ?, header_crc = ?, body_crc = ? WHERE sequence = ?",
                (header, body, crc(last, name, header), zlib.crc32(body), last),
            )
        connection.close()

    @pytest.mark.parametrize(
        "arrays",
        [
            [["theta", "|O", [1], "C"]],
            [["theta", "O", [1], "C"]],
            [["theta", "|V8", [1], "C"]],
            [["theta", "<M8[s]", [1], "C"]],
            [["theta", "<f8", [2**62, 2**62], "C"]],
            [["theta", "<f8", [-1], "C"]],
            [["theta", "<f8", [1.0], "C"]],
            [["theta", "<f8", [True], "C"]],
            [["theta", "<f8,<f8", [1], "C"]],
            [["theta", "<f8", [1], "K"]],
            [["theta"]],
            "theta",
            {"theta": 1},
            [],
        ],
    )
    def test_no_code_is_run_and_the_error_is_clear(self, file, arrays):
        body = pickle.dumps(self.Bomb())
        self.rewrite(file, "run.segment", json.dumps({"scalars": {}, "arrays": arrays}), body)
        with pytest.raises(StoreError):
            od.load(file)
        assert not (Path(tempfile.gettempdir()) / "onedraw-was-here").exists()

    @pytest.mark.parametrize(
        "header",
        [
            "[" * 100_000,
            "{}",
            "null",
            '{"scalars": 3, "arrays": []}',
            '{"scalars": {"cost": "__import__(\'os\')"}, "arrays": []}',
            pickle.dumps(Bomb(), 0).decode("latin1"),
        ],
    )
    def test_headers_that_lie(self, file, header):
        self.rewrite(file, "run.segment", header, b"")
        with pytest.raises(StoreError):
            od.load(file)
        with pytest.raises((StoreError, ValueError, KeyError, TypeError)):
            od.resume(file, model)

    @pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
    def test_names_that_lie_stay_text(self, tmp_path, name):
        """Names with SQL, HTML, terminal escapes and paths in a crafted file, through all that shows or writes them."""

        simple = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta), observed=2.0)
        file = tmp_path / "run.db"
        od.rejection(simple, od.uniform(1.0), draws=30, seed=1, store=file)
        connection = sqlite3.connect(file)
        written = json.loads(connection.execute("SELECT value FROM meta WHERE key = 'specification'").fetchone()[0])
        text = json.dumps({**written, "arguments": {**written["arguments"], "parameters": [name]}})
        with connection:
            given = text, crc("specification", text)
            connection.execute("UPDATE meta SET value = ?, crc = ? WHERE key = 'specification'", given)
        connection.close()
        for command in (
            "show",
            "show --json",
            "watch --once",
            "report --out out.html",
            "export --csv --out out.csv",
            "export --out out.nc",
        ):
            first, *rest = command.split()
            rest = [str(tmp_path / word) if "." in word else word for word in rest]
            found = CliRunner().invoke(main, [first, str(file), *rest])
            assert found.exception is None or isinstance(found.exception, SystemExit), command
            assert not set("\x1b\x07\u202e") & set(found.output), command
        page = tmp_path / "out.html"
        assert not page.exists() or "<img src=x" not in page.read_text()
        assert {one.name for one in tmp_path.iterdir()} <= {"run.db", "run.db.lock", "out.html", "out.csv", "out.nc"}
        with contextlib.suppress(StoreError):
            assert od.load(file).names == (name,)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("algorithm", "os.system"),
            ("arguments", 3),
            ("facts", {}),
            ("arguments", {"kernel": "__import__", "eps": -1}),
        ],
    )
    def test_specifications_that_lie(self, file, key, value):
        connection = sqlite3.connect(file)
        written = json.loads(connection.execute("SELECT value FROM meta WHERE key = 'specification'").fetchone()[0])
        text = json.dumps({**written, key: value})
        with connection:
            connection.execute(
                "UPDATE meta SET value = ?, crc = ? WHERE key = 'specification'",
                (text, crc("specification", text)),
            )
        connection.close()
        with pytest.raises(StoreError):
            od.load(file)
        with pytest.raises(StoreError):
            od.resume(file, model)

    @pytest.mark.parametrize(
        "numbers", [range(40), pytest.param(range(40, 2040), marks=pytest.mark.slow)], ids=["some", "many"]
    )
    def test_changes_with_valid_checksums(self, tmp_path, whole_files, numbers):
        """Whatever was changed and is done with the file: a StoreError, or a result; and no other file is written."""
        before = {name: file.read_bytes() for name, file in whole_files.items()}
        folder, refused = tmp_path / "work", 0
        for number in numbers:
            rng = random.Random(number)
            name = rng.choice(list(whole_files))
            path = folder / "changed.db"
            for use in ("load", rng.choice(list(uses(name, path))[1:])):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                shutil.copy(whole_files[name], path)
                mutate(path, random.Random(number))
                refused += not self.used(uses(name, path)[use], f"{use} of {name}, change {number}")
                assert {one.name for one in folder.iterdir()} <= {"changed.db", "changed.db.lock"}
        assert {one.name for one in tmp_path.iterdir()} == {"work"}
        assert before == {name: file.read_bytes() for name, file in whole_files.items()}
        assert refused > len(numbers) // 2

    def used(self, use, what):
        """Whether a file can be used, within a minute; no error but a StoreError, or one that names the remedy."""
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                use()
            except StoreError:
                return False
            except (NoAnswer, TimeoutError, od.SimulationError):
                pass  # these say what to change
            except Exception as error:
                raise AssertionError(f"{what}: {error!r}") from error
        assert time.perf_counter() - began < 60, what
        return True

    def test_the_source_never_unpickles(self):
        # Between a run and its own workers, objects travel pickled. No file is ever read that way, but for the folder
        # of a job array, by which a run and its workers speak (docs/security.md).
        apart = {"pool.py", "children.py", "shard_files.py", "shard_work.py"}
        for source in (one for one in (ROOT / "src" / "onedraw").rglob("*.py") if one.name not in apart):
            text = source.read_text()
            assert "import pickle" not in text and "allow_pickle=True" not in text and "eval(" not in text, source


def named_journal(path, victim):
    """A journal that SQLite would play, and that names `victim` as the second journal, to be deleted then."""
    content = bytearray(path.read_bytes()) if path.exists() and path.stat().st_size else bytearray(16_384)
    page = int.from_bytes(content[16:18], "big") or 4096
    pages = len(content) // page
    first = bytes(content[:page])
    salt = 7
    check = salt
    for i in range(page - 200, 0, -200):
        check = (check + first[i]) & 0xFFFFFFFF
    header = JOURNAL_MAGIC + struct.pack(">IIIII", 1, salt, pages, 512, page)
    body = struct.pack(">I", 1) + first + struct.pack(">I", check)
    name = str(victim).encode()
    tail = struct.pack(">I", 0x40000000 // page + 1) + name + struct.pack(">II", len(name), sum(name)) + JOURNAL_MAGIC
    journal = path.with_name(path.name + "-journal")
    journal.write_bytes(header.ljust(512, b"\0") + body + tail)
    return journal


def contents(folder):
    return {one: one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


USES = {
    "load": lambda path: od.load(path),
    "resume": lambda path: od.resume(path, model),
    "the same call": lambda path: run("pseudo_marginal", path),
    "recorded seed": lambda path: recorded_seed(path, None),
    "show": lambda path: command("show", path),
    "report": lambda path: command("report", path, "-o", path.with_name("page.html")),
    "export": lambda path: command("export", path, "--csv", "-o", path.with_name("table.csv")),
    "watch": lambda path: command("watch", path, "--once"),
}


class TestNothingElseIsTouched:
    """Opening a run of a stranger neither changes nor deletes a file, whatever lies beside it."""

    def test_the_journal_would_delete_what_it_names(self, file, tmp_path):
        """The crafted journal is one that SQLite itself believes."""
        victim = tmp_path / "victim.txt"
        victim.write_text("precious")
        named_journal(file, victim)
        connection = sqlite3.connect(file)
        connection.execute("SELECT count(*) FROM record").fetchone()
        connection.close()
        assert not victim.exists()

    @pytest.mark.parametrize("use", USES)
    def test_a_journal_that_names_a_file(self, file, tmp_path, use):
        (tmp_path / "victim.txt").write_text("precious")
        journal = named_journal(file, tmp_path / "victim.txt")
        before = contents(tmp_path)
        with pytest.raises(StoreError, match=journal.name):
            USES[use](file)
        assert contents(tmp_path) == before

    @pytest.mark.parametrize("use", ["resume", "the same call", "watch"])
    def test_a_lock_whose_journal_names_a_file(self, file, tmp_path, use):
        (tmp_path / "victim.txt").write_text("precious")
        lock = file.with_name(file.name + ".lock")
        connection = sqlite3.connect(lock)
        connection.execute(store_module.HOLDER)
        connection.commit()
        connection.close()
        journal = named_journal(lock, tmp_path / "victim.txt")
        before = contents(tmp_path)
        if use == "watch":
            USES[use](file)
        else:
            with pytest.raises(StoreError, match=journal.name):
                USES[use](file)
        assert contents(tmp_path) == before

    @pytest.mark.parametrize("name", ["run.db-journal", "run.db-wal", "run.db.lock", "run.db.lock-journal"])
    @pytest.mark.parametrize("kind", ["symbolic", "hard", "pipe"])
    def test_links_and_pipes_in_place_of_its_files(self, file, tmp_path, name, kind):
        victim = tmp_path / "victim.txt"
        victim.write_text("precious")
        make = {"symbolic": os.symlink, "hard": os.link, "pipe": lambda _, link: os.mkfifo(link)}[kind]
        make(victim, tmp_path / name)
        before = contents(tmp_path)
        for use in ("load", "resume"):
            if use == "load" and "lock" in name:
                od.load(file)
                continue
            with pytest.raises(StoreError, match=name):
                USES[use](file)
        assert contents(tmp_path) == before

    def test_a_write_ahead_log_is_not_begun(self, file, tmp_path):
        content = bytearray(file.read_bytes())
        content[18:20] = b"\2\2"
        file.write_bytes(content)
        before = contents(tmp_path)
        for use in ("load", "resume"):
            with pytest.raises(StoreError, match="another kind of journal"):
                USES[use](file)
            assert contents(tmp_path) == before

    @needs_fork
    def test_a_commit_left_half_written_is_undone_in_a_copy(self, file, tmp_path):
        """A reader sees the file as it was before; only a writer mends the file itself."""
        right = told(od.load(file))

        def die():
            with Store(file, write=True) as store:
                connection = store._connect()
                connection.execute("PRAGMA cache_size = 1")
                connection.execute("BEGIN IMMEDIATE")
                for sequence in range(1, 8):
                    connection.execute("UPDATE record SET body = zeroblob(9000) WHERE sequence = ?", (sequence,))
                    connection.execute("INSERT INTO record VALUES (?, '', '', 0, 0, zeroblob(50000))", (90 + sequence,))
                os.kill(os.getpid(), signal.SIGKILL)

        assert Child(die).wait() == -signal.SIGKILL
        assert file.with_name("run.db-journal").read_bytes()[:8] == JOURNAL_MAGIC
        before = contents(tmp_path)
        assert told(od.load(file)) == right
        assert contents(tmp_path) == before
        assert told(od.resume(file, model)) == right and not file.with_name("run.db-journal").exists()

    @pytest.mark.parametrize(
        "statement",
        [
            "CREATE TRIGGER t AFTER INSERT ON record BEGIN DELETE FROM record; END",
            "CREATE VIEW v AS SELECT * FROM record",
            "CREATE INDEX i ON record (name)",
            "CREATE TABLE more (x)",
            "ALTER TABLE record ADD COLUMN x BLOB GENERATED ALWAYS AS (zeroblob(900000000))",
            "ALTER TABLE meta ADD COLUMN x",
        ],
    )
    def test_tables_that_are_not_ours(self, file, statement):
        connection = sqlite3.connect(file)
        connection.execute(statement)
        connection.close()
        before = file.read_bytes()
        for use in ("load", "resume", "the same call"):
            with pytest.raises(StoreError, match="not a run of onedraw"):
                USES[use](file)
        assert file.read_bytes() == before

    def test_a_view_in_place_of_a_table(self, file):
        connection = sqlite3.connect(file)
        connection.executescript(
            "ALTER TABLE record RENAME TO other;"
            "CREATE VIEW record AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT * FROM n;"
        )
        connection.close()
        with pytest.raises(StoreError, match="not a run of onedraw"):
            od.load(file)


def command(*arguments):
    """A command of the command line; its error as a StoreError."""
    done = CliRunner().invoke(main, [str(one) for one in arguments])
    if done.exit_code:
        raise StoreError(done.output)


class TestWriters:
    @needs_fork
    def test_a_second_writer_is_refused_and_told_who_writes(self, tmp_path):
        path = tmp_path / "run.db"
        child = in_child("rejection", path, pause=0.02)
        try:
            wait_for_writer(path)
            with pytest.raises(StoreError, match=rf"being written by process {child.pid} on .* since"):
                run("rejection", path)
            with pytest.raises(StoreError, match="being written by"):
                od.resume(path, model)
            assert od.load(path).status.reason == "unfinished"
        finally:
            child.send(signal.SIGKILL)
            child.wait()
        # The lock ended with the process that held it.
        assert run("rejection", path).status.complete

    def test_two_writers_in_one_process(self, tmp_path):
        with Store(tmp_path / "a.db", write=True) as store:
            store.set_meta({})
            with pytest.raises(StoreError, match=f"process {os.getpid()}"):
                Store(tmp_path / "a.db", write=True)
        Store(tmp_path / "a.db", write=True).close()
        assert [path.name for path in tmp_path.iterdir()] == ["a.db"]

    def replaced(self, path, at, act):
        """A run during which something happens to its file; its Posterior and its warnings."""

        class World:
            calls = 0

        def simulate(rng, theta):
            World.calls += 1
            if World.calls == at:
                act()
            return rng.normal(theta, 1.0)

        slow = od.Model(od.Prior(theta=stats.norm()), simulate, 1.0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            post = od.rejection(slow, od.uniform(0.5), budget=600, seed=1, store=path, segment=1e-9)
        return post, [str(one.message) for one in caught], od.rejection(slow, od.uniform(0.5), budget=600, seed=1)

    @pytest.mark.parametrize("lock", [False, True])
    def test_an_old_run_does_not_write_into_a_new_file(self, tmp_path, lock):
        path, other = tmp_path / "run.db", tmp_path / "other.db"
        far = od.Model(od.Prior(theta=stats.norm(100, 1)), lambda rng, theta: rng.normal(theta), 100.0)
        right = told(od.rejection(far, od.uniform(0.5), budget=300, seed=2, store=other))

        def act():
            path.unlink()
            if lock:
                path.with_name("run.db.lock").unlink()
            os.replace(other, path)

        post, texts, undisturbed = self.replaced(path, 300, act)
        assert len(texts) == 1 and "run.db was replaced by another file" in texts[0]
        assert "continues in memory" in texts[0] and "safe" not in texts[0]
        assert told(post) == told(undisturbed) and told(od.load(path)) == right
        assert sorted(one.name for one in tmp_path.iterdir()) == ["run.db"]

    def test_a_deleted_file_is_not_called_safe(self, tmp_path):
        path = tmp_path / "run.db"
        post, texts, undisturbed = self.replaced(path, 300, path.unlink)
        assert len(texts) == 1 and "run.db was deleted or moved" in texts[0] and "safe" not in texts[0]
        assert told(post) == told(undisturbed) and list(tmp_path.iterdir()) == []

    def test_another_session_of_the_same_file_ends_the_first(self, tmp_path):
        """Somebody removes the lock of a run that goes on, and continues it."""
        first = Store(tmp_path / "a.db", write=True)
        first.set_meta({})
        first.put(("one", {}, {}))
        (tmp_path / "a.db.lock").unlink()
        with Store(tmp_path / "a.db", write=True) as second:
            second.set_meta({})
            second.put(("two", {}, {}))
            with pytest.raises(LostFile, match="continued by another process"):
                first.put(("three", {}, {}))
            # Nor does the first take the lock of the second away.
            first.close()
            assert (tmp_path / "a.db.lock").exists()
            assert [one.name for one in second.records()] == ["one", "two"]

    @pytest.mark.parametrize("kind", ["file", "folder", "hard"])
    def test_another_name_does_not_get_round_the_lock(self, tmp_path, kind):
        (tmp_path / "real").mkdir()
        path = tmp_path / "real" / "a.db"
        with Store(path, write=True) as store:
            store.set_meta({})
            link = tmp_path / "link.db"
            if kind == "file":
                link.symlink_to(path)
            elif kind == "folder":
                (tmp_path / "link").symlink_to(tmp_path / "real")
                link = tmp_path / "link" / "a.db"
            else:
                link.hardlink_to(path)
            with pytest.raises(StoreError, match="hard links" if kind == "hard" else f"process {os.getpid()}"):
                Store(link, write=True)
            assert kind == "hard" or f"process {os.getpid()}" in store_module.writer(link)
            with Store(link) as reader:
                assert reader.count() == 0

    def test_many_who_want_to_write_at_once(self, tmp_path):
        """Of threads that try again and again, no two are ever writers at the same time."""
        holding, most, taken = [], [], []

        def worker():
            for _ in range(15):
                try:
                    store = Store(tmp_path / "a.db", write=True)
                except StoreError:
                    continue
                holding.append(1)
                most.append(len(holding))
                time.sleep(0.002)
                holding.pop()
                taken.append(1)
                store.close()

        threads = [threading.Thread(target=worker) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) > 5 and max(most) == 1

    def test_a_lock_that_is_removed_while_it_is_opened_is_asked_for_again(self, tmp_path, monkeypatch):
        """Two runs begin as a third one ends: SQLite calls the removed file read-only."""
        connected, opened = store_module._connected, []

        def released(place, mode, patience):
            connection = connected(place, mode, patience)
            if mode == "rwc":
                # As SQLite does at the first statement, before the holder removes the file.
                connection.execute("PRAGMA user_version").fetchone()
                opened.append(place)
                if len(opened) == 1:
                    place.unlink()
            return connection

        monkeypatch.setattr(store_module, "_connected", released)
        lock = store_module.Lock(tmp_path / "run.db")
        assert len(opened) == 2 and lock.path.exists()
        lock.release()

    @needs_fork
    def test_a_run_can_be_read_while_it_goes_on(self, tmp_path):
        path = tmp_path / "run.db"
        child = in_child("wilkinson", path, pause=0.003)
        shapes = []
        try:
            while child.poll() is None:
                if path.exists() and path.stat().st_size:
                    try:
                        post = od.load(path)
                    except StoreError:
                        assert not shapes  # the tables are not there yet
                        continue
                    shapes.append((post.shape[1], post.status.reason))
                time.sleep(0.02)
        finally:
            child.wait()
        draws = [count for count, _ in shapes]
        assert draws == sorted(draws) and len(set(draws)) > 5
        assert all(reason == "unfinished" for count, reason in shapes if count < CHAINS["draws"])
        final = told(run("wilkinson"))
        assert told(od.load(path)) == final

    def test_a_reader_that_does_not_let_go(self, tmp_path, monkeypatch):
        """A run goes on in memory while someone holds the file, and saves once he lets go."""
        path = tmp_path / "run.db"
        monkeypatch.setattr(store_module, "WRITE_PATIENCE", 0.01)
        Test.stop_at = 300
        run("rejection", path)
        reader = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM record").fetchone()
        timer = threading.Timer(0.4, reader.close)
        Test.pause = 0.0005
        timer.start()
        # The session's first entry waits for the reader too: it has nowhere else to go.
        with pytest.raises(StoreError, match="locked by another process"):
            od.resume(path, model, segment=0.05)
        timer.join()
        assert told(od.resume(path, model)) == told(run("rejection"))


def as_nobody(script, path):
    """What a script prints that is run with a path, by a user who may not read everything, as root may."""
    first = "import os, sys\nfrom tests.stored_run import model, run, od\nif os.getuid() == 0: os.setuid(65534)\n"
    command = [sys.executable, "-c", first + script, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestPlaces:
    def test_a_missing_directory(self, tmp_path):
        with pytest.raises(StoreError, match=r"the directory .* does not exist: make it first"):
            run("rejection", tmp_path / "nowhere" / "run.db")
        assert Test.calls == 0
        with pytest.raises(StoreError, match="is a directory"):
            run("rejection", tmp_path)
        with pytest.raises(StoreError, match="does not exist: there is no run to read"):
            od.load(tmp_path / "run.db")

    def test_a_relative_name_with_odd_characters(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        run("rejection", "a b?c#d%20.db")
        assert od.load("a b?c#d%20.db").status.complete and (tmp_path / "a b?c#d%20.db").exists()

    def test_a_name_that_looks_like_an_address(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        run("rejection", "file:x.db")
        run("rejection", "file:x.db?mode=memory")
        assert od.load("file:x.db").status.complete
        assert sorted(one.name for one in tmp_path.iterdir()) == ["file:x.db", "file:x.db?mode=memory"]

    @pytest.mark.parametrize("name", ["x" * 300, "x" * 250, "x" * 243, "/".join(["x" * 100] * 6), "a\0b"])
    def test_names_that_no_file_can_have(self, tmp_path, name):
        path = tmp_path / name
        if "\0" not in name and path.parent != tmp_path:
            path.parent.mkdir(parents=True)
        for seed in (1, None):
            with pytest.raises(StoreError, match=r"too long|null"):
                run("rejection", path, seed=seed)
        with pytest.raises(StoreError):
            od.load(path)
        assert Test.calls == 0

    def test_the_longest_name(self, tmp_path):
        path = tmp_path / ("x" * 242)
        run("rejection", path)
        assert od.load(path).status.complete

    @needs_fork
    def test_a_folder_that_cannot_be_read(self):
        folder = Path(tempfile.mkdtemp())
        try:
            path = folder / "in" / "run.db"
            path.parent.mkdir()
            run("rejection", path)
            path.parent.chmod(0o000)
            folder.chmod(0o755)
            said = as_nobody(
                "uses = [od.load, lambda path: od.resume(path, model), lambda path: run('rejection', path)]\n"
                "for use in [*uses, lambda path: run('rejection', path, seed=None)]:\n"
                "    try: use(sys.argv[1])\n"
                "    except od.StoreError as error: print(error)\n",
                path,
            )
            assert said.count("cannot be opened: Permission denied") == 4
        finally:
            path.parent.chmod(0o755)
            shutil.rmtree(folder)

    @pytest.mark.parametrize("out", ["run.db", "sub/../run.db", "link.db", "hard.db", "run.db-journal", "other.db"])
    @pytest.mark.parametrize("what", [["report"], ["export", "--csv"], ["export"]])
    def test_no_output_replaces_a_run(self, file, tmp_path, monkeypatch, out, what):
        monkeypatch.chdir(tmp_path)
        Path("sub").mkdir()
        Path("link.db").symlink_to("run.db")
        Path("hard.db").hardlink_to("run.db")
        shutil.copy("run.db", "other.db")
        before = contents(tmp_path)
        with pytest.raises(StoreError, match=r"is the run itself|perhaps another run"):
            command(*what, "run.db", "-o", out)
        assert contents(tmp_path) == before

    def test_the_posterior_does_not_replace_its_run_with_its_report(self, file):
        before = file.read_bytes()
        with pytest.raises(OSError, match="it is a database"):
            od.load(file).report(file)
        assert file.read_bytes() == before

    def test_a_run_may_have_any_ending(self, tmp_path):
        path = tmp_path / "table.csv.part"
        run("rejection", path)
        before = path.read_bytes()
        command("export", path, "-o", tmp_path / "table.csv")
        assert path.read_bytes() == before and (tmp_path / "table.csv").read_text().startswith("chain,draw")

    @needs_fork
    def test_a_read_only_file_and_folder(self):
        """Read by someone who may not write: it opens, and is refused for writing. Root may always write."""
        folder = Path(tempfile.mkdtemp())
        try:
            folder.chmod(0o755)
            path = folder / "run.db"
            run("rejection", path)
            path.chmod(0o444)
            folder.chmod(0o555)
            said = as_nobody(
                "assert od.load(sys.argv[1]).status.complete\n"
                "for name in ('run.db', 'new.db'):\n"
                "    try: run('rejection', os.path.join(os.path.dirname(sys.argv[1]), name))\n"
                "    except od.StoreError as error: print(error)\n",
                path,
            )
            assert "run.db is read-only: make it writable" in said
            assert "new.db cannot be locked for writing" in said
        finally:
            folder.chmod(0o755)
            shutil.rmtree(folder)


@needs_fork
class TestFullDisk:
    """A limit on the size of files stands for a full disk; it is lifted in time, or not."""

    def limited(self, path, lift_at):
        class World:
            calls = 0

        def simulate(rng, theta):
            World.calls += 1
            if World.calls == 2000:
                resource.setrlimit(resource.RLIMIT_FSIZE, (45_000, -1))
            if World.calls == lift_at:
                resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
            return rng.normal(theta, 1.0, size=4)

        wide = od.Model(od.Prior(theta=stats.norm()), simulate, np.zeros(4))

        def whole(**more):
            return od.rejection(wide, od.uniform(2.0), budget=9000, seed=1, **more)

        def work():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                post = whole(store=path, segment=0.01)
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
            saved = od.load(path)
            same = told(post) == told(whole())
            again = told(od.resume(path, wide)) == told(post)
            texts = [str(one.message) for one in caught]
            result = [texts, same, again, saved.status.reason, saved.shape[1], post.shape[1]]
            path.with_suffix(".json").write_text(json.dumps(result))

        assert Child(work).wait() == 0
        return json.loads(path.with_suffix(".json").read_text())

    @pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_FSIZE)[1] != -1, reason="files are limited already")
    def test_room_is_made_in_time(self, tmp_path):
        texts, same, again, reason, saved, kept = self.limited(tmp_path / "run.db", 6000)
        assert len(texts) == 1 and "could not be written" in texts[0] and "continues in memory" in texts[0]
        assert same and again and reason == "budget" and saved == kept

    @pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_FSIZE)[1] != -1, reason="files are limited already")
    def test_no_room_is_made(self, tmp_path):
        texts, same, again, reason, saved, kept = self.limited(tmp_path / "run.db", 10**9)
        assert len(texts) == 2 and "records are lost when this process ends" in texts[1]
        assert same and again and reason == "unfinished" and 0 < saved < kept


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("fault", ["raises", "nan", "shape"])
def test_simulations_that_fail_midway_are_kept_with_the_run(name, fault, tmp_path):
    def simulate(rng, theta):
        value = theta + rng.normal()
        if theta > 1.2:
            if fault == "raises":
                raise RuntimeError("beyond the model")
            return np.nan if fault == "nan" else np.zeros(3)
        return value

    picky = od.Model(od.Prior(theta=stats.norm()), simulate, 1.0)
    sampler, arguments = RUNS[name]
    given = arguments if name in SEQUENTIAL else {**arguments, "draws": 40, "kernel": od.uniform(0.8)}
    path = tmp_path / "run.db"
    post = sampler(picky, **given, store=path, segment=1e-9)
    assert post.cost.failed > 5
    read = od.load(path)
    assert read.failures == post.failures and told(read) == told(post)
    if fault == "nan":
        assert np.isnan(od.replay(path, model=picky))
    else:
        with pytest.raises(RuntimeError if fault == "raises" else ValueError):
            od.replay(path, model=picky)
    with pytest.raises(od.SimulationError):
        sampler(picky, **given, store=tmp_path / "raise.db", on_error="raise")
    assert (
        od.load(tmp_path / "raise.db").status.reason == "unfinished" if os.path.exists(tmp_path / "raise.db") else True
    )


def test_an_opened_posterior_can_do_what_needs_no_model(tmp_path):
    path = tmp_path / "run.db"
    post, read = run("rejection", path), od.load(path)
    assert read.model is None and read.kernel == post.kernel
    assert np.array_equal(read.at(1.0).weights, post.at(1.0).weights)
    assert np.array_equal(read.sample(5, seed=1)["a"], post.sample(5, seed=1)["a"])
    assert read.draws["k"].dtype == np.int64
    with pytest.raises(ValueError, match="holds no functions"):
        read.predict(3)
    for name, values in read.draws.items():
        assert not values.flags.writeable, name


def test_the_file_is_not_much_larger_than_its_arrays(tmp_path):
    path = tmp_path / "run.db"
    batch = od.Model(od.Prior(theta=stats.norm()), od.batched(lambda rng, theta: rng.normal(theta)), 2.0)
    post = od.pseudo_marginal(batch, od.uniform(0.5), draws=300, chains=512, seed=1, store=path)
    assert path.stat().st_size < 1.1 * (post.draws["theta"].nbytes + post.distances.nbytes)
