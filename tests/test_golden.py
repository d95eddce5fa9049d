"""No state and no charge of `golden.json` moves; see `golden`."""

import subprocess
import sys

import jax
import pytest

from tests import golden


@pytest.mark.parametrize("name", golden.QUICK)
def test_states_and_charges_are_as_they_were(name):
    with jax.enable_x64(False):  # as the command that wrote the file
        state = golden.run(name)
    assert not golden.differs(golden.numbers(state), name)


@pytest.mark.slow
def test_all_others_too_and_on_two_devices():
    done = subprocess.run([sys.executable, golden.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_number_is_seen():
    name = golden.QUICK[0]
    values = golden.KNOWN[name]["numbers"]
    assert not golden.differs(values, name)
    assert golden.differs([1.001 * x for x in values], name)
