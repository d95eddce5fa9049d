"""What is in `algorithms/` is known wherever algorithms are chosen, and in the documents."""

import inspect
import json
import pathlib
import re

import pytest

import jaxminimax as jmm
from benchmarks.auc import runs as auc_runs
from benchmarks.privacy import audit as benchmark
from jaxminimax import algorithms
from jaxminimax.__main__ import main
from jaxminimax.algorithms import ALGORITHMS, described_by, takes

ROOT = pathlib.Path(__file__).parents[2]
# no algorithms of their own
SHARED = {"descent", "planning", "recursion"}
FILES = {path.stem for path in (ROOT / "jaxminimax" / "algorithms").glob("*.py")} - {
    "__init__", *SHARED}
NOISE = ["--effective-noise-multiplier", "50", "--delta", "1e-6", "--iterations", "2"]

every_algorithm = pytest.mark.parametrize("name", sorted(FILES))


def test_every_file_is_registered():
    assert FILES == set(ALGORITHMS) == set(algorithms.__all__)
    assert all(getattr(jmm, name) is module for name, module in ALGORITHMS.items())


@every_algorithm
def test_it_has_what_an_algorithm_has(name):
    module = ALGORITHMS[name]
    assert inspect.isclass(module.Hyper)
    assert {"z", "average", "spent"} <= set(dir(module.State))
    for function in ("mechanism", "init", "update", "example"):
        assert callable(getattr(module, function))
    assert list(inspect.signature(module.example).parameters)[:2] == ["query", "iterations"]
    assert "Source:" in module.__doc__
    assert described_by(module).__module__.startswith("jaxminimax.mechanism")


def options(name):
    """The fewest options of the command line that an algorithm is content with."""
    module = ALGORITHMS[name]
    losses = ["--laplace-noise-multiplier", "90"] if takes(module, "laplace") else []
    match described_by(module):
        case jmm.GroupGradients | jmm.mechanism.GroupSolution:
            return [*losses, "--group-sizes", "40", "30"]
        case jmm.mechanism.TreeSums:
            return losses
    return ["--population", "40", "--sampling", "full"]


@every_algorithm
def test_the_command_line_charges_it_as_it_describes_itself(name, capsys):
    assert main(["epsilon", name, *NOISE, *options(name), "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert stated["algorithm"] == name
    assert 0 < stated["epsilon"] < 2


@every_algorithm
def test_an_attack_or_a_case_of_the_audit_is_for_it(name):
    module = ALGORITHMS[name]
    streams = [attack.algorithm for attack in benchmark.STREAMS()]
    cases = name in benchmark.modules() and [
        case for case in benchmark.CASES if benchmark.hyper_of(module, case) is not None]
    assert bool(cases) != (module in streams)


@every_algorithm
def test_the_example_runs_what_it_describes(name):
    """As many releases as rounds, or whole multiples."""
    module = ALGORITHMS[name]
    if name in benchmark.modules():
        hyper = benchmark.hyper_of(module, benchmark.Case(jmm.Full(), 3))
    else:
        hyper = next(x.hyper for x in benchmark.STREAMS() if x.algorithm is module)
    rounds = hyper.iterations
    assert jmm.mechanism.releases(module.mechanism(hyper)) % rounds == 0


@every_algorithm
def test_the_documents_have_a_row_for_it(name):
    page = (ROOT / "docs/choosing.md").read_text()
    assert len(re.findall(rf"^\|.*`{name}`", page, re.MULTILINE)) >= 2


def test_the_auc_benchmark_runs_what_releases_clipped_sums_of_all_records():
    assert {"sgda", "gda", "extragradient", "optimistic"} <= set(auc_runs.ALGORITHMS)
    assert "recursive_sgda" not in auc_runs.ALGORITHMS
