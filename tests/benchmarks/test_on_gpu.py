"""The script for a device: each of its commands is one that exists, and it runs on a CPU too."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest

from benchmarks.papers.table2 import __main__ as table2
from benchmarks.privacy import noise_law
from benchmarks.speed import device, roofline
from benchmarks.speed.throughput import __main__ as throughput
from benchmarks.speed.throughput.cases import Case
from jaxminimax import Poisson
from tests.helpers.lanes import rest_nightly

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "on_gpu.sh"
PARSERS = {"benchmarks.speed.throughput": throughput.parser,
           "benchmarks.speed.device": device.parser,
           "benchmarks.speed.roofline": roofline.parser,
           "benchmarks.privacy.noise_law": noise_law.parser,
           "benchmarks.papers.table2": table2.parser}


def started(folder, *parts, platform="cpu", python=None, **variables):
    """Runs the script with a `python` that writes down how it is called, or with this one."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "python").write_text(python or f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tools / "python").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}",
                   "JAX_PLATFORMS": platform, **variables}
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
    assert {words[0] for words in modules} == set(PARSERS)  # pytest has no files to run here
    for name, *words in modules:
        if name in PARSERS:
            given = PARSERS[name]().parse_args(words)
            assert given.json.parent == tmp_path / "out"
            assert getattr(given, "quick", False) == (
                platform == "cpu" and name != "benchmarks.papers.table2")
            assert getattr(given, "measure", True)


def test_an_unknown_part_is_refused(tmp_path):
    done = started(tmp_path, "speed", python="#!/bin/sh\nexit 0\n")
    assert done.returncode == 2
    assert "no part speed: roofline device linear mlp cnn noise tests deep table2" in done.stderr


@pytest.mark.slow
def test_a_part_that_fails_or_takes_too_long_stops_no_other(tmp_path):
    """And files of tests that have ended are not run again."""
    passed = tmp_path / "out" / "tests" / "noise.test_floats.txt"
    python = ('#!/bin/sh\ncase "$*" in *conftest*) echo noise/test_floats noise/test_sampler;; '
              "*device*) exit 3;; *noise_law*) sleep 9;; *test_floats*) exit 4;; "
              "*test_sampler*) echo 5 passed;; esac\n")
    passed.parent.mkdir(parents=True)
    passed.write_text("7 passed\n")
    done = started(tmp_path, "device", "noise", "tests", python=python, LIMIT="1")
    assert done.returncode == 1
    ends = (tmp_path / "out" / "parts.txt").read_text().splitlines()
    assert [end.rpartition(" after ")[0] for end in ends] == [
        "device: failed with status 3", "noise: stopped, the same command goes on", "tests: done"]
    assert passed.read_text() == "7 passed\n"
    assert passed.with_name("noise.test_sampler.txt").read_text() == "5 passed\n"


# operations of one step before compilation, at most: as many as there were when this was written;
# numbers in buffers of their own count as two branches on a constant, which compilers drop
KINDS = ("loops", "branches", "sorts", "scatters", "64-bit")
CEILINGS = {
    ("linear 22", "replacement"): (4, 8, 0, 0, 0), ("linear 22", "Poisson"): (8, 9, 1, 6, 0),
    ("mlp", "replacement"): (7, 21, 0, 2, 37), ("mlp", "Poisson"): (11, 22, 1, 8, 37),
    ("cnn", "replacement"): (7, 21, 0, 2, 37), ("cnn", "Poisson"): (11, 22, 1, 8, 37),
    ("attention", "replacement"): (8, 17, 0, 2, 37),
    ("attention", "Poisson"): (12, 18, 1, 8, 37)}


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "rows"), rest_nightly([*CEILINGS], 2))
def test_a_step_for_a_gpu_has_few_loops_and_branches(workload, rows):
    """A GPU may ask the host at each of them, and numbers of 64 bits are slow on many."""
    case = Case(workload, 64)
    sampling = Poisson(rate=64 / case.n) if rows == "Poisson" else device.with_replacement(case)
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        counted = device.lowered(case, sampling, "cuda")
    assert counted.pop("calls of other code") == 0  # the host's, which every step would wait for
    most = dict(zip(KINDS, CEILINGS[workload, rows], strict=True))
    assert set(counted) == set(KINDS)
    assert all(counted[kind] <= most[kind] for kind in KINDS), counted


def test_the_page_says_how_many_there_are():
    page = pathlib.Path("docs/performance.md").read_text()
    counts = {name: dict(zip(KINDS, row, strict=True)) for name, row in CEILINGS.items()}

    def of(models, kind):
        return " or ".join(map(str, sorted({counts[x, "replacement"][kind] for x in models})))

    linear, *others = dict.fromkeys(x for x, _ in CEILINGS)
    assert (f"linear model has {of([linear], 'loops')} loops and {of([linear], 'branches')} "
            "branches") in page
    assert (f"the other three have {of(others, 'loops')} loops, {of(others, 'branches')} branches, "
            f"and {of(others, '64-bit')} operations of 64 bits") in page
    for model in (linear, *others):
        more = {kind: counts[model, "Poisson"][kind] - counts[model, "replacement"][kind]
                for kind in KINDS}
        assert (f"adds {more['loops']} loops, {more['branches']} branch, {more['sorts']} sort and "
                f"{more['scatters']} scatters") in page


def test_operations_are_counted_as_often_as_their_function_is_called():
    program = """
  func.func public @main(%arg0) {
    %0 = call @twice(%arg0) : f
    %1 = call @twice(%0) : f
    %2 = "stablehlo.scatter"(%1) : (tensor<f32>) -> tensor<f64>
  }
  func.func private @twice(%arg0) {
    %0:2 = stablehlo.while(%arg0) : tensor<i32>
    %1 = "stablehlo.case"(%0#0) : (tensor<i64>) -> tensor<ui32>
  }
"""
    assert device.operations_in(program) == {
        "loops": 2, "branches": 2, "sorts": 0, "scatters": 1, "calls of other code": 0,
        "64-bit": 1}


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
