"""What is compiled quickly for tests, and what as for users."""

import pathlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.base import checks, programs
from jaxminimax.releases import sums
from tests import conftest


class Item:
    """A test with one mark."""

    def __init__(self, name, *args):
        self.name, self.args = name, args

    def iter_markers(self, name):
        assert name == "optimised"
        yield pytest.mark.optimised(*self.args).mark


def test_a_mark_holds_for_the_parameters_that_it_names_or_for_all():
    assert conftest.optimised(Item("test_all"))
    assert conftest.optimised(Item("test_some[full-ghost]", "ghost", "vmap"))
    assert not conftest.optimised(Item("test_ghost[full-microbatch]", "ghost", "vmap"))


@pytest.mark.parametrize("name", [
    "gradients/test_clipping", "gradients/test_ghost", "mechanism/test_joint",
    "mechanism/test_sampling", "noise/test_floats", "noise/test_sampler", "releases/test_groups",
    "releases/test_sums"])
def test_the_door_and_what_it_rests_on_are_compiled_as_for_users_too(name):
    text = (pathlib.Path(__file__).parent / f"{name}.py").read_text()
    assert "@pytest.mark.optimised" in text


def test_options_are_changed_while_that_is_wanted_and_those_of_a_program_stay():
    effort = conftest.Effort()
    options = effort.options(lambda env_options_overrides: env_options_overrides)
    own = {"xla_backend_optimization_level": 3}
    assert (options(), options(env_options_overrides=own)) == ({}, own)
    effort.quick = True
    assert options() == conftest.QUICK
    assert options(env_options_overrides=own) == conftest.QUICK | own


def test_a_program_on_disk_is_found_by_those_that_compile_it_alike(monkeypatch):
    """The options of the effort are a part of its name."""
    from jax._src import cache_key, compiler

    program = jax.jit(lambda x: x + 1).lower(jnp.zeros(2)).compiler_ir()
    devices, names = np.array(jax.devices()[:1]), []
    for quick in (False, True, True):
        monkeypatch.setattr(conftest.EFFORT, "quick", quick)
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        names.append(cache_key.get(program, devices, options, devices[0].client))
    assert names[0] != names[1] == names[2]


def test_a_program_appears_in_one_piece(tmp_path):
    folder = types.SimpleNamespace(path=tmp_path)
    for program in (b"first", b"second"):  # one name, one program
        conftest.put_whole(folder, "name", program)
    assert [(x.name, x.read_bytes()) for x in tmp_path.iterdir()] == [("name-cache", b"first")]


def test_nothing_runs_that_was_compiled_the_other_way(monkeypatch):
    """What was compiled is forgotten at every change, and then only."""
    cleared, effort = [], conftest.Effort()
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(effort.quick))
    for quick in (False, False, True, True, False):
        effort.set(quick)
    assert cleared == [False, True]


# --- the library's own options ---

ROWS = jmm.Problem(lambda z, x: Saddle(x, ()))
# each leaves IEEE 754's arithmetic as it is: less work for LLVM, another generator, one piece
EXACT = {"xla_backend_optimization_level", "xla_cpu_use_fusion_emitters",
         "xla_cpu_parallel_codegen_split_count"}


def test_the_library_compiles_with_listed_options_alone():
    """None of them reorders sums or treats NaN as a number that there is not."""
    assert set(programs.BRIEF) == EXACT
    assert programs._options() in (programs.BRIEF, None)
    named = {}
    for path in sorted(pathlib.Path(programs.__file__).parents[1].rglob("*.py")):
        words = re.findall(r"xla_(?!metadata)[a-z_]+|compiler_options|env_options|XLA_FLAGS",
                           path.read_text(encoding="utf-8"))
        named |= {path.name: set(words)} if words else {}
    assert named.pop("programs.py") - {"compiler_options", "xla_"} == EXACT
    # what is refused, and what a run is compared by
    assert set(named) <= {"checks.py", "fingerprint.py"}
    assert named["checks.py"] == {*checks._FAST, "XLA_FLAGS"}
    assert not EXACT & set(checks._FAST)


@pytest.mark.parametrize("brief", [True, False])
@pytest.mark.parametrize("hostile", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_no_number_counts_as_absent_under_these_options(brief, hostile):
    """In the very program that releases a table's statistics; to the bit, with equal noise."""
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=5)
    rows = np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)
    absent, wrong = rows.copy(), rows.copy()
    absent[3], wrong[3, 0] = 0, hostile
    with programs.briefly(brief):
        made = [np.asarray(sums._compiled(
            jax.random.key(0), jmm.Repeat(query=query, times=1), np.int32(0), ROWS,
            Saddle(np.zeros(2, np.float32), ()), x).w) for x in (absent, wrong, rows)]
    assert np.isfinite(made[0]).all()
    np.testing.assert_array_equal(made[0], made[1])
    assert not np.array_equal(made[0], made[2])
