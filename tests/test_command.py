"""Simulators that are programs of their own."""

import json
import os
import stat
import sys
import time

import numpy as np
import psutil
import pytest
from scipy import stats

import onedraw as od
from onedraw.engines.children import TimedOut
from onedraw.model import external
from onedraw.model.external import CommandFailed

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
        ("17", lambda said: int(said) + 1, 18),
    ],
)
def test_what_is_printed_is_read(printed, parse, expected):
    value = python(f"print({printed!r})", parse=parse)(rng())
    assert np.asarray(value).tolist() == expected


def test_named_columns_and_objects_are_dicts():
    columns = python("print('a, b\\n1,2\\n3,4')", parse="csv")(rng())
    assert {name: values.tolist() for name, values in columns.items()} == {"a": [1.0, 3.0], "b": [2.0, 4.0]}
    parts = python('print(\'{"a": [1, 2], "b": 3}\')')(rng())
    assert parts["a"].tolist() == [1.0, 2.0] and parts["b"] == 3.0


def test_failures_keep_status_and_standard_error():
    with pytest.raises(CommandFailed, match=r"ended with status 3: no such rate"):
        python("import sys; print('no such rate', file=sys.stderr); sys.exit(3)")(rng())
    with pytest.raises(CommandFailed, match=r"was killed by SIGKILL and said nothing"):
        python("import os; os.kill(os.getpid(), 9)")(rng())
    with pytest.raises(CommandFailed, match=r"cannot be read as json .*'hello"):
        python("print('hello')")(rng())
    with pytest.raises(CommandFailed, match=r"wrote no file at \{output\}"):
        python("pass", "{output}")(rng())
    model = od.Model(od.Prior(mu=stats.norm()), od.command(["/no/such/program", "{mu}"]), 1.0)
    with pytest.raises(od.SimulationError, match=r"all of the first .*No such file.*/no/such/program"):
        od.rejection(model, od.uniform(1.0), draws=3, seed=1)


def test_a_program_that_hangs_is_killed_with_all_it_started():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(61.25)'])"
    began = time.perf_counter()
    with pytest.raises(TimedOut, match=r"not finished after timeout = 0\.7 s"):
        python(code, timeout=0.7)(rng())
    assert time.perf_counter() - began < 10
    time.sleep(0.1)
    alive = [one for one in psutil.process_iter(["cmdline"]) if "61.25" in " ".join(one.info["cmdline"] or [])]
    assert not [one for one in alive if one.pid != os.getpid()]


def test_a_samplers_timeout_is_that_of_the_program():
    code = "import sys, time; mu = float(sys.argv[1]); time.sleep(60 * (mu > 1)); print(mu)"
    model = od.Model(od.Prior(mu=stats.norm()), python(code, "{mu}"), 0.5)
    post = od.rejection(model, od.uniform(0.5), budget=12, seed=1, timeout=2.0)
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


WAITS = "import time; time.sleep(61.75)"


def left_behind():
    return [one for one in psutil.process_iter(["cmdline"]) if "61.75" in " ".join(one.info["cmdline"] or [])]


@pytest.mark.parametrize("timeout", [None, 20.0])
def test_a_program_is_not_waited_for_longer_than_it_runs(timeout):
    """What it has started may hold its output open; it ends with the program."""
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAITS!r}]); print(4.5)"
    began = time.perf_counter()
    assert python(code, timeout=timeout)(rng()) == 4.5
    assert time.perf_counter() - began < 8
    time.sleep(0.1)
    assert not left_behind()


def test_a_program_that_closes_its_output_and_goes_on_is_killed_in_time():
    code = "import os, time; print(1.0, flush=True); os.close(1); os.close(2); time.sleep(61.75)"
    began = time.perf_counter()
    with pytest.raises(TimedOut, match=r"not finished after timeout = 0\.7 s"):
        python(code, timeout=0.7)(rng())
    assert time.perf_counter() - began < 8 and not left_behind()


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
