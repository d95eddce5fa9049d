"""The script for a device: each of its commands is one that exists, and it runs on a CPU too."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from benchmarks.privacy import noise_law
from benchmarks.published.table2 import __main__ as table2
from benchmarks.speed import device
from benchmarks.speed.throughput import __main__ as throughput

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "on_gpu.sh"
PARSERS = {"benchmarks.speed.throughput": throughput.parser,
           "benchmarks.speed.device": device.parser,
           "benchmarks.privacy.noise_law": noise_law.parser,
           "benchmarks.published.table2": table2.parser}


def started(folder, *parts, platform, python=None):
    """Runs the script with a `python` that writes down how it is called, or with this one."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "python").write_text(python or f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tools / "python").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}",
                   "JAX_PLATFORMS": platform}
    return subprocess.run([str(SCRIPT), str(folder / "out"), *parts], env=environment, text=True,
                          capture_output=True, check=False, cwd=folder)


@pytest.mark.parametrize("platform", ["cpu", ""])
def test_every_command_of_the_script_is_understood(tmp_path, platform):
    calls = tmp_path / "calls"
    done = started(tmp_path, platform=platform, python=(
        f'#!/bin/sh\nfor a in "$@"; do printf "%s\\037" "$a"; done >> "{calls}"\n'
        f'echo >> "{calls}"\n'))
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip("\x1f").split("\x1f") for line in calls.read_text().splitlines()]
    modules = [words[1:] for words in lines if words[0] == "-m"]
    assert {words[0] for words in modules} == {"pytest", *PARSERS}
    for name, *words in modules:
        if name in PARSERS:
            given = PARSERS[name]().parse_args(words)
            assert given.json.parent == tmp_path / "out"
            assert getattr(given, "quick", False) == (
                platform == "cpu" and name != "benchmarks.published.table2")


def test_an_unknown_part_is_refused(tmp_path):
    done = started(tmp_path, "speed", platform="cpu", python="#!/bin/sh\nexit 0\n")
    assert done.returncode == 2
    assert "tests, throughput, device, noise or table2" in done.stderr


def test_a_kernel_is_charged_for_itself_alone():
    events = [("loop", 0.0, 10.0), ("a", 1.0, 3.0), ("b", 2.0, 1.0), ("a", 5.0, 4.0),
              ("c", 10.0, 2.0)]
    assert device.own_times(events) == {"loop": 3.0, "a": 6.0, "b": 1.0, "c": 2.0}


@pytest.mark.nightly
def test_the_script_measures_a_cpu(tmp_path):
    done = started(tmp_path, "device", platform="cpu")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "device.json").read_text())
    assert record["environment"]["backend"] == "cpu"
    for row in record["rows"]:
        assert row["microseconds"] > 0
        assert 0 < row["of_product_rate"] < 1.5
        assert 0 < sum(h["share"] for h in row["hottest"]) <= 1 + 1e-9
