"""The scripts of examples/clusters bring a planned run to its end, with stand-ins for the commands of the queues."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import onedraw as od
from onedraw.cli.main import main
from tests.stored_run import told

SCRIPTS = Path(__file__).parent.parent / "examples" / "clusters"
MODEL = """
from scipy import stats
import onedraw as od

model = od.Model(od.Prior(a=stats.norm(0, 1)), lambda rng, a: rng.normal(a, 1.0), 2.0, distance=od.scaled(pilot=32))
"""
OPTIONS = ("--budget", "80", "--eps", "1", "--seed", "1")
SBATCH = """#!/bin/bash
# Runs what is submitted at once; the second job of the first array is lost.
wrap="" range=""
while [ $# -gt 0 ]; do
    case $1 in
        --array=*) range=${1#--array=1-} ;;
        --wrap) shift; wrap=$1 ;;
    esac
    shift
done
echo "${range:-step}" >> submitted
for k in $(seq "${range:-1}"); do
    if [ "$k" = 2 ] && [ ! -e lost ]; then touch lost; continue; fi
    SLURM_ARRAY_TASK_ID=$k bash -c "$wrap" >> log 2>&1 || echo "status $?" >> log
done
echo 17
"""
QSUB = """#!/bin/bash
range=""
while [ $# -gt 0 ]; do
    case $1 in -t|-J) shift; range=${1#1-} ;; esac
    shift
done
cat > "job.$$"
echo "${range:-step}" >> submitted
for k in $(seq "${range:-1}"); do
    if [ "$k" = 2 ] && [ ! -e lost ]; then touch lost; continue; fi
    PBS_O_WORKDIR=$PWD SGE_TASK_ID=$k PBS_ARRAY_INDEX=$k bash "job.$$" >> log 2>&1 || echo "status $?" >> log
done
echo "17.1-2:1"
"""


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_shell(script):
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["local.sh", "slurm.sh", "sge.sh", "pbs.sh"])
def test_scripts_bring_a_run_to_its_end(script, tmp_path, monkeypatch):
    """Also if a job is lost: the next array does what it has left."""
    (tmp_path / "model.py").write_text(MODEL)
    for name, text in (("sbatch", SBATCH), ("qsub", QSUB)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["run", "model.py", *OPTIONS, "--out", "alone.db"]).exit_code == 0
    planned = CliRunner().invoke(main, ["plan", "model.py", *OPTIONS, "--shards", "2", "--out", "run"])
    assert planned.exit_code == 0 and "waits for 2 of 2 shards" in planned.output
    settings = {**os.environ, "ONEDRAW": f"{sys.executable} -m onedraw", "ONEDRAW_WAIT": "0.1"}
    settings["PATH"] = f"{tmp_path}:{settings['PATH']}"
    command = ["bash", str(SCRIPTS / script), "run", "2"]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert told(od.load(tmp_path / "run" / "run.db"))[:3] == told(od.load(tmp_path / "alone.db"))[:3]
    if script != "local.sh":
        # The pilot, of which a job is lost; what is left of it; and the run.
        assert (tmp_path / "submitted").read_text().split() == ["2", "step"] * 3
