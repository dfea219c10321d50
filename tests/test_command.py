"""Simulators that are programs of their own."""

import json
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import psutil
import pytest
from scipy import stats

import onedraw as od
from onedraw.cli.models import named
from onedraw.engines.children import TimedOut, family_of_run
from onedraw.model import external
from onedraw.model.external import CommandFailed
from onedraw.run.fingerprint import fingerprint
from tests.deadlines import wait_until

PROGRAM = """
import json, os, random, sys, time
words = sys.argv[1:]
mu, sigma, seed = float(words[0]), float(words[1]), int(words[2])
draw = random.Random(seed)
print(json.dumps([draw.gauss(mu, sigma) for _ in range(5)]))
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "simulator.py"
    path.write_text(f"#!{sys.executable}\n{PROGRAM}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def python(code, *words, **more):
    code = code.replace("{", "{{").replace("}", "}}")
    return od.command([sys.executable, "-c", code, *words], **more)


def processes(word):
    return [one for one in psutil.process_iter(["cmdline"]) if word in " ".join(one.info["cmdline"] or [])]


@pytest.fixture
def long_time():
    """A minute and a little, which no other test on this machine waits for."""
    return f"60.{uuid4().int % 10**12:012}"


def rng(seed=1):
    return np.random.default_rng(seed)


def test_a_posterior_from_a_program(program):
    def model():
        prior = od.Prior(mu=stats.norm(0, 2), sigma=stats.uniform(0.5, 2))
        simulate = od.command([program, "{mu}", "{sigma}", "{seed}"])
        return od.Model(prior, simulate, [1.0, 2.0, 1.5, 0.5, 1.2], summary=lambda y: [y.mean(), y.std()])

    alone = od.rejection(model(), od.uniform(1.5), budget=40, seed=1)
    assert alone.cost.failed == 0 and alone.shape[1] > 2
    again = od.rejection(model(), od.uniform(1.5), budget=40, seed=1, workers=2)
    assert np.array_equal(alone.draws["mu"], again.draws["mu"])
    assert np.array_equal(alone.distances, again.distances)


def test_values_arrive_with_all_their_digits_and_the_seed_is_of_the_stream():
    say = python("import sys, json; print(json.dumps(sys.argv[1:]))", "{x}", "{n}", "{seed}", "{{x}}", parse=json.loads)
    x, n, seed, braces = say(rng(), x=np.float64(0.1) + 0.2, n=np.int64(7))
    assert float(x) == 0.1 + 0.2 and n == "7" and braces == "{x}"
    assert int(seed) == int(rng().integers(2**31)) != int(say(rng(2), x=0.0, n=1)[2])


def test_doubled_braces_stand_for_themselves_also_around_the_names_of_files():
    say = python("import sys, json; print(json.dumps(sys.argv[1:]))", "{{output}}", "{{input}}", parse=json.loads)
    assert say(rng()) == ["{output}", "{input}"]
    with pytest.raises(ValueError, match="does not use the parameter mu"):
        od.Model(od.Prior(mu=stats.norm()), od.command(["a", "{{input}}"]), 1.0)
    od.command(["a", "{{output}}"], persistent=True)


def test_no_value_is_read_by_a_shell(tmp_path):
    target = tmp_path / "made"
    words = python("import sys; print(len(sys.argv))", f"; touch {target}", "$(id)", "{mu}")
    assert words(rng(), mu=1.0) == 4
    assert not target.exists()


def test_environment_input_and_output_files():
    code = """
import json, os, sys
import numpy as np
given = json.load(open(sys.argv[1]))
assert os.environ["MU"] == repr(given["mu"]) and set(given) == {"mu", "k", "seed"}
np.save(open(sys.argv[2], "wb"), np.array([given["mu"], given["k"]]))
"""
    simulate = python(code, "{input}", "{output}", parse="npy", environment={"MU": "{mu}"})
    assert simulate(rng(), mu=0.25, k=3).tolist() == [0.25, 3.0]


@pytest.mark.parametrize(
    ("printed", "parse", "expected"),
    [
        ("1.5", "json", 1.5),
        ("[1, 2]", "json", [1, 2]),
        ("1,2\n3,4\n", "csv", [[1.0, 2.0], [3.0, 4.0]]),
        ("1\n2\n3\n", "csv", [1.0, 2.0, 3.0]),
        ("1,2,3\n", "csv", [1.0, 2.0, 3.0]),
        ("1.5  2 -3e1", "csv", [1.5, 2.0, -30.0]),
        (" 1 2\n 3 4\n", "csv", [[1.0, 2.0], [3.0, 4.0]]),
        ("17", lambda said: int(said) + 1, 18),
    ],
)
def test_what_is_printed_is_read(printed, parse, expected):
    value = python(f"print({printed!r})", parse=parse)(rng())
    assert np.asarray(value).tolist() == expected


def test_named_columns_and_objects_are_dicts():
    for text in ("a, b\\n1,2\\n3,4", "a b\\n1 2\\n3 4", '"a","b"\\n1,2\\n3,4'):
        columns = python(f"print('{text}')", parse="csv")(rng())
        assert {name: values.tolist() for name, values in columns.items()} == {"a": [1.0, 3.0], "b": [2.0, 4.0]}
    parts = python('print(\'{"a": [1, 2], "b": 3}\')')(rng())
    assert parts["a"].tolist() == [1.0, 2.0] and parts["b"] == 3.0


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        ("sys.stderr.write('no such rate'); sys.exit(3)", [], r"ended with status 3: no such rate$"),
        ("print('no such rate'); sys.exit(3)", [], r"ended with status 3: on standard output: no such rate$"),
        (
            "print('bad'); sys.stderr.write('worse'); sys.exit(3)", [],
            r"ended with status 3: worse; on standard output: bad$",
        ),
        ("import os; os.kill(os.getpid(), 9)", [], r"was killed by SIGKILL and said nothing$"),
        ("print('hello')", [], r"cannot be read as json .*'hello.*'$"),
        (
            "print('hello'); sys.stderr.write('a reason')", [],
            r"cannot be read as json .*'hello.*; on standard error: a reason$",
        ),
        ("pass", ["{output}"], r"wrote no file at \{output\}$"),
        ("print('instead')", ["{output}"], r"wrote no file at \{output\}: on standard output: instead$"),
    ],
)  # fmt: skip
def test_failures_keep_the_status_and_what_was_said(code, words, message):
    """Many programs write their errors to standard output."""
    with pytest.raises(CommandFailed, match=message):
        python(f"import sys; {code}", *words)(rng())


def test_a_program_that_hangs_is_killed_and_what_it_said_is_kept():
    with pytest.raises(TimedOut, match=r"timeout = 0\.7 s, and killed: on standard output: at step 3$"):
        # A shell, since to start Python may take that long.
        od.command(["sh", "-c", "echo at step 3; exec sleep 60"], timeout=0.7)(rng())


def test_a_program_that_is_not_there_ends_the_run():
    model = od.Model(od.Prior(mu=stats.norm()), od.command(["/no/such/program", "{mu}"]), 1.0)
    with pytest.raises(od.SimulationError, match=r"all of the first .*No such file.*/no/such/program"):
        od.rejection(model, od.uniform(1.0), draws=3, seed=1)


def test_a_program_that_hangs_is_killed_with_all_it_started(long_time):
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep({long_time})'])"
    began = time.perf_counter()
    with pytest.raises(TimedOut, match=r"not finished after timeout = 0\.7 s"):
        python(code, timeout=0.7)(rng())
    assert time.perf_counter() - began < 10
    wait_until(lambda: not processes(long_time))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_program_that_hangs_is_killed_with_sessions_that_it_started(long_time):
    code = """
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep({1})'],
                 start_new_session=True)
time.sleep(60 * {0})
print(1)
"""
    with pytest.raises(TimedOut):
        python(code.format(1, long_time), timeout=0.7)(rng())
    wait_until(lambda: not processes(long_time))
    # One that ends by itself is not looked after so closely: what it left behind ends with the run.
    model = od.Model(od.Prior(mu=stats.norm()), python(code.format(0, long_time), unused="allow"), 0.5)
    od.rejection(model, od.uniform(5.0), budget=2, seed=1)
    wait_until(lambda: not processes(long_time))


def test_a_samplers_timeout_is_that_of_the_program():
    code = "import sys, time; mu = float(sys.argv[1]); time.sleep(60 * (mu > 1)); print(mu)"
    model = od.Model(od.Prior(mu=stats.norm()), python(code, "{mu}"), 0.5)
    post = od.rejection(model, od.uniform(0.5), budget=12, seed=2, timeout=2.0)
    assert post.cost.failed >= 1 and post.failures[0].theta["mu"] > 1
    assert "conditional on finishing in time" in str(post.notes)


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        ("./simulator {mu}", {}, "arguments must be a list"),
        ([], {}, "arguments must be a list"),
        (["a", 3], {}, "must all be text"),
        (["a", "{mu"], {}, "braces that do not match"),
        (["a"], {"parse": "xml"}, "parse must be 'json', 'csv', 'npy' or a function"),
        (["a"], {"timeout": -1}, "timeout must be positive, got -1"),
    ],
)
def test_wrong_commands_are_refused(arguments, more, message):
    with pytest.raises(ValueError, match=message):
        od.command(arguments, **more)


def test_a_name_that_the_prior_has_not_is_refused():
    with pytest.raises(ValueError, match=r"the command names \{sigma\}, and the prior has mu"):
        od.Model(od.Prior(mu=stats.norm()), od.command(["a", "{mu}", "{sigma}"]), 1.0)


@pytest.mark.parametrize("timeout", [None, 20.0])
def test_a_program_is_not_waited_for_longer_than_it_runs(timeout, long_time):
    """What it has started may hold its output open; it ends with the program."""
    waits = f"import time; time.sleep({long_time})"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {waits!r}]); print(4.5)"
    began = time.perf_counter()
    assert python(code, timeout=timeout)(rng()) == 4.5
    assert time.perf_counter() - began < 8
    wait_until(lambda: not processes(long_time))


def test_a_program_that_closes_its_output_and_goes_on_is_killed_in_time(long_time):
    code = f"import os, time; print(1.0, flush=True); os.close(1); os.close(2); time.sleep({long_time})"
    began = time.perf_counter()
    with pytest.raises(TimedOut, match=r"not finished after timeout = 0\.7 s"):
        python(code, timeout=0.7)(rng())
    assert time.perf_counter() - began < 8
    wait_until(lambda: not processes(long_time))


def test_output_without_end_is_a_failure(monkeypatch):
    monkeypatch.setattr(external, "MOST", 2 * 2**20)
    code = "import sys\nprint('trouble', file=sys.stderr, flush=True)\nwhile True: sys.stdout.write('7' * 65536)"
    with pytest.raises(CommandFailed, match=r"wrote more than 2 MiB to standard output.*It said: trouble"):
        python(code)(rng())
    with pytest.raises(CommandFailed, match=r"wrote more than 2 MiB to \{output\}"):
        python("import sys; open(sys.argv[1], 'w').write('7' * 2**22)", "{output}")(rng())
    with pytest.raises(CommandFailed, match=r"status 3: 7*the end$"):
        python("import sys; sys.stderr.write('7' * 2**22 + 'the end'); sys.exit(3)")(rng())
    assert python("import sys; sys.stderr.write('7' * 2**22); print(1.5)")(rng()) == 1.5


# What a program is given


def test_a_parameter_that_the_program_does_not_get_is_an_error():
    prior = od.Prior(mu=stats.norm(), sigma=stats.uniform(0, 1))
    with pytest.raises(ValueError, match=r"does not use the parameter sigma: write \{sigma\} among its arguments"):
        od.Model(prior, od.command(["a", "{mu}", "{seed}"]), 1.0)
    for made in (
        od.command(["a", "{mu}"], unused="allow"),
        od.command(["a", "{input}"]),
        od.command(["a", "{mu}"], environment={"SIGMA": "{sigma}"}),
        od.command(["a"], persistent=True),
    ):
        od.Model(prior, made, 1.0)


@pytest.mark.parametrize("folder", ["", "inner"])
def test_paths_are_relative_to_the_model_file(tmp_path, monkeypatch, folder):
    place = tmp_path / "models" / folder
    place.mkdir(parents=True)
    (place / "shift.txt").write_text("10")
    path = place / "beside"
    path.write_text(f"#!{sys.executable}\nimport sys; print(float(sys.argv[1]) + float(open('shift.txt').read()))\n")
    path.chmod(0o755)
    given = f'], folder="{folder}"' if folder else "]"
    text = f"""
import onedraw as od
from scipy import stats
model = od.Model(od.Prior(mu=stats.norm()), od.command(["./beside", "{{mu}}"{given}), 1.0)
"""
    (tmp_path / "models" / "model.py").write_text(text)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    model, _ = named("../models/model.py")
    assert model.simulate(rng(), mu=1.5) == 11.5
    post = od.rejection(model, od.uniform(50.0), budget=4, seed=1, workers=2)
    assert post.shape == (1, 4)
    # The folder is no part of what the model is: a run goes on where its model file has been moved.
    moved = tmp_path / "moved"
    (tmp_path / "models").rename(moved)
    again, _ = named("../moved/model.py")
    assert fingerprint(again.simulate) == fingerprint(model.simulate)


def test_a_program_beside_the_model_needs_its_path(tmp_path, monkeypatch):
    (tmp_path / "simulator").write_text("")
    simulate = od.command(["simulator"], folder=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"for the program beside the model, write \./simulator"):
        simulate(rng())


# Programs that are started once

LOOP = """
import json, os, random, sys, time
for line in sys.stdin:
    given = json.loads(line)
    draw = random.Random(given["seed"])
    mu = given["mu"]
    BODY
    print(json.dumps([draw.gauss(mu, 1) for _ in range(5)]), flush=True)
"""


def loop(body="pass", **more):
    return python(LOOP.replace("BODY", body), persistent=True, **more)


def test_a_persistent_program_gives_a_posterior():
    """The same bytes in one process, in two, and with time limits; one process for each worker, which ends."""

    def model():
        simulate = loop("mark = 6173")
        return od.Model(
            od.Prior(mu=stats.norm(0, 2)), simulate, [1.0, 2.0, 1.5, 0.5, 1.2], summary=lambda y: [y.mean()]
        )

    alone = od.rejection(model(), od.uniform(1.5), budget=200, seed=1)
    assert alone.cost.failed == 0 and alone.shape[1] > 20
    assert not processes("mark = 6173")
    for more in ({"workers": 2}, {"timeout": 30.0}):
        again = od.rejection(model(), od.uniform(1.5), budget=200, seed=1, **more)
        assert again.draws["mu"].tobytes() == alone.draws["mu"].tobytes()


def test_a_persistent_program_is_started_once():
    say = loop("print(json.dumps(os.getpid()), flush=True); continue")
    with family_of_run():
        assert len({say(rng(seed), mu=0.0) for seed in range(5)}) == 1
        other = loop("print(json.dumps(os.getpid()), flush=True); continue  # another")
        assert other(rng(), mu=0.0) != say(rng(), mu=0.0)
        found = []
        thread = threading.Thread(target=lambda: found.append(say(rng(), mu=0.0)))
        thread.start()
        thread.join()
        assert found[0] != say(rng(), mu=0.0)


def test_a_persistent_program_that_dies_is_started_again():
    """Each death is a failed simulation with what it said, if it dies in a new process too; the others are the same."""
    body = "if mu > 0.5: print('too large', file=sys.stderr); sys.exit(4)"
    model = od.Model(od.Prior(mu=stats.norm()), loop(body), np.zeros(5))
    post = od.rejection(model, od.uniform(50.0), budget=40, seed=1)
    kept = od.rejection(od.Model(model.prior, loop(), np.zeros(5)), od.uniform(50.0), budget=40, seed=1)
    assert post.cost.failed == int((kept.draws["mu"] > 0.5).sum()) > 0
    assert post.draws["mu"].tobytes() == kept.draws["mu"][kept.draws["mu"] <= 0.5].tobytes()
    assert "ended with status 4 and gave no answer: too large" in post.failures[0].message
    # One that dies of its age, and not of the question, is no failed simulation.
    aged = loop("count = globals().get('count', 0) + 1\n    if count > 3: sys.exit(5)")
    post = od.rejection(od.Model(model.prior, aged, np.zeros(5)), od.uniform(50.0), budget=12, seed=1)
    assert post.cost.failed == 0 and post.draws["mu"].tobytes() == kept.draws["mu"][:, :12].tobytes()


def test_a_persistent_program_may_answer_with_an_error():
    with family_of_run(), pytest.raises(CommandFailed, match=r"answered with an error: no such rate$"):
        loop("print(json.dumps({'error': 'no such rate'}), flush=True); continue")(rng(), mu=0.0)
    with family_of_run(), pytest.raises(CommandFailed, match=r"cannot be read as json .*'hello"):
        loop("print('hello', flush=True); continue")(rng(), mu=0.0)


def test_a_persistent_program_that_hangs_is_killed_and_started_again():
    simulate = loop("if mu > 1: time.sleep(60)", timeout=0.5)
    with family_of_run():
        assert len(simulate(rng(), mu=0.0)) == 5
        began = time.perf_counter()
        with pytest.raises(TimedOut, match=r"gave no answer in timeout = 0\.5 s, and was killed"):
            simulate(rng(), mu=2.0)
        assert time.perf_counter() - began < 10
        assert simulate(rng(), mu=0.0).tolist() == loop()(rng(), mu=0.0).tolist()


def test_the_start_of_a_persistent_program_is_not_counted_against_a_simulation(monkeypatch):
    late = "import time; time.sleep(1.5)\n" + LOOP.replace("BODY", "if mu > 1: time.sleep(60)")
    simulate = python(late, persistent=True, timeout=0.5)
    with family_of_run():
        assert len(simulate(rng(), mu=0.0)) == 5
    monkeypatch.setattr(external, "STARTING", 0.2)
    with family_of_run(), pytest.raises(TimedOut):
        simulate(rng(), mu=0.0)


def test_answers_never_belong_to_another_question():
    twice = loop(r"print('3.0\n4.0', flush=True); continue")
    with family_of_run():
        assert twice(rng(), mu=0.0) == 3.0
        time.sleep(0.1)
        with pytest.raises(CommandFailed, match=r"wrote a line that it was not asked for, '4\.0'"):
            twice(rng(), mu=0.0)


def test_lines_without_end_are_not_kept():
    """A program that goes on writing between two questions is ended, and memory does not grow meanwhile."""
    code = """
import sys
sys.stdin.readline()
while True:
    sys.stdout.write("1\\n" * 100_000)
"""
    simulate = python(code, persistent=True, unused="allow", timeout=20.0)
    with family_of_run():
        assert simulate(rng(), mu=1.0) == 1
        before, give_up = psutil.Process().memory_info().rss, time.monotonic() + 2
        while time.monotonic() < give_up:
            time.sleep(0.1)
        assert psutil.Process().memory_info().rss - before < 20e6
        with pytest.raises(CommandFailed, match="not asked for"):
            simulate(rng(), mu=1.0)


def test_an_idle_persistent_program_ends(monkeypatch, long_time):
    monkeypatch.setattr(external, "IDLE_SECONDS", 0.3)
    simulate = loop(f"mark = {long_time}")
    first = simulate(rng(), mu=0.0)
    wait_until(lambda: not processes(long_time))
    assert simulate(rng(), mu=0.0).tolist() == first.tolist()


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        (["a", "{mu}"], {}, r"name \{mu\}, and a persistent program is started before any simulation"),
        (["a", "{output}"], {}, r"name \{output\}"),
        (["a"], {"parse": "csv"}, r"parse = 'csv' is not for persistent programs"),
        (["a"], {"persistent": 1}, "persistent must be True or False, got 1"),
        (["a"], {"unused": "yes"}, "unused must be one of 'error', 'allow', got 'yes'"),
    ],
)
def test_wrong_persistent_commands_are_refused(arguments, more, message):
    with pytest.raises(ValueError, match=message):
        od.command(arguments, **{"persistent": True, **more})


PROGRAMS = Path(__file__).parent.parent / "examples" / "programs"
RUNS = {"loop.R": "Rscript", "loop.jl": "julia", "loop.c": "cc", "loop.sh": "sh"}


@pytest.mark.parametrize("name", RUNS)
def test_the_templates_simulate(name, tmp_path):
    """The same seed, the same data; another, others; means and spreads as asked for, within six standard errors."""
    if shutil.which(RUNS[name]) is None:
        pytest.skip(f"{RUNS[name]} is not installed")
    arguments = [RUNS[name], PROGRAMS / name]
    if name == "loop.c":
        subprocess.run(["cc", "-O2", "-o", tmp_path / "loop", PROGRAMS / name, "-lm"], check=True)
        arguments = [tmp_path / "loop"]
    simulate = od.command(arguments, persistent=True)
    with family_of_run():
        one, same, other = (simulate(rng(seed), mu=1.25e-3, sigma=2.0) for seed in (1, 1, 2))
        many = np.array([simulate(rng(seed), mu=-30.0, sigma=0.5) for seed in range(100)])
    assert one.shape == (20,) and one.tobytes() == same.tobytes() != other.tobytes()
    assert abs(many.mean() + 30) < 6 * 0.5 / np.sqrt(many.size)
    assert abs(many.std() - 0.5) < 6 * 0.5 / np.sqrt(2 * many.size)


def test_every_template_is_listed_and_tested():
    files = {path.name for path in PROGRAMS.iterdir()} - {"README.md"}
    assert files == set(RUNS) and all(f"]({name})" in (PROGRAMS / "README.md").read_text() for name in RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("language", ["python", "R"])
def test_a_persistent_program_is_fifty_times_as_fast(language, tmp_path):
    """A simulation of a millisecond in a program that starts slowly: the least of several times."""
    if language == "R":
        if shutil.which("Rscript") is None:
            pytest.skip("Rscript is not installed")
        work = "simulate <- function(mu, sigma) { Sys.sleep(0.001); rnorm(20, mu, sigma) }"
        text = re.sub(r"^simulate <- .*$", work, (PROGRAMS / "loop.R").read_text(), flags=re.MULTILINE)
        (tmp_path / "loop.R").write_text(text)
        arguments = ["Rscript", tmp_path / "loop.R"]
    else:
        text = "import scipy.stats\n" + LOOP.replace("BODY", "time.sleep(0.001)")
        arguments = [sys.executable, "-c", text.replace("{", "{{").replace("}", "}}")]
    simulate = od.command(arguments, persistent=True)

    def seconds(calls):
        began = time.perf_counter()
        for seed in range(calls):
            simulate(rng(seed), mu=0.0, sigma=1.0)
        return (time.perf_counter() - began) / calls

    start, each = [], []
    for _ in range(3):
        with family_of_run():
            start.append(seconds(1))
            each += [seconds(50), seconds(50)]
    assert min(start) >= 50 * min(each), (start, each)


def test_what_a_dataclass_of_the_user_leaves_out_of_comparisons_still_counts():
    """Only a command's folder is no part of what it is."""

    @dataclass(frozen=True)
    class Simulator:
        data: object = field(compare=False)

        def __call__(self, rng, mu):
            return mu

    assert fingerprint(Simulator(np.zeros(3))) != fingerprint(Simulator(np.ones(3)))
    made = od.command(["a", "{mu}"])
    assert (
        fingerprint(made) == fingerprint(replace(made, beside="/elsewhere")) != fingerprint(replace(made, folder="b"))
    )


def test_a_slow_simulation_is_too_slow_in_a_new_process_as_well():
    """Otherwise which simulations fail would depend on which of them a worker began with."""
    simulate = loop("time.sleep(1.2)", timeout=0.6)
    with family_of_run(), pytest.raises(TimedOut, match=r"gave no answer in timeout = 0\.6 s"):
        simulate(rng(), mu=0.0)
