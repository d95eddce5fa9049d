"""No state and no charge of `golden.json` moves; see `golden`."""

import subprocess
import sys

import jax
import pytest

from tests import golden

# a sum, a stream and groups; then every kind of a release, and of what a state remembers
QUICK = ("sgda/poisson", "ftrl/tree", "group_sgd/poisson")
SLOW = ("sgda/full", "sgda/fixed", "sgda/bands", "sgda/joint", "sgda/adaptive", "sgda/random",
        "extragradient", "ftrl/correlated", "group_oco", "group_sgd/full", "balanced_groups",
        "active_groups", "proximal", "phased_erm")


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")  # of certificates
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow if name in SLOW
                 else pytest.mark.nightly)
    for name in golden.CASES])
def test_states_and_charges_are_as_they_were(name):
    with jax.enable_x64(False):  # as the command that wrote the file
        state = golden.run(name)
    assert not golden.differs(golden.numbers(state), name)


@pytest.mark.nightly
def test_states_of_two_devices_are_as_they_were():
    done = subprocess.run([sys.executable, "-m", "tests.golden", "--mesh"], check=False,
                          capture_output=True, text=True, cwd=golden.FILE.parents[1])
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_number_is_seen():
    name = golden.QUICK[0]
    values = golden.KNOWN[name]["numbers"]
    assert not golden.differs(values, name)
    assert golden.differs([1.001 * x for x in values], name)
