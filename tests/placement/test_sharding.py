"""On any number of devices and processes: the same run, the same epsilon, and one noise.

A process has one number of devices, so the work is done in `mesh_worker`: started as one process of
8 forced devices and as two of 2 devices; every night also as another of 8, as four processes, the
last of which is killed, as two for all that processes do, and as one that goes on from what these
have saved and has planted bugs.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from benchmarks.privacy.mutants import between

WORKER = pathlib.Path(__file__).parents[1] / "helpers/mesh_worker.py"
ROUNDING = 1e-14  # float64 numbers near 1
GRID = 1e-5  # blocks are made of other rows, and each is rounded to the grid

SLOW, NIGHTLY = pytest.mark.slow, pytest.mark.nightly  # a worker runs for a minute
SAMPLINGS = ("full", "poisson")
OTHERS = ("fixed", "narrow", "replacement", "disjoint")  # every night


def start(*arguments):
    return subprocess.Popen([sys.executable, "-W", "error", str(WORKER), *map(str, arguments)],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def results(workers):
    """What the workers found; none may fail."""
    try:
        stated = [worker.communicate(timeout=900)[0] for worker, _ in workers]
    finally:
        for worker, _ in workers:
            worker.kill()
    for (worker, _), words in zip(workers, stated, strict=True):
        assert worker.returncode == 0, words[-3000:]
    return [json.loads(out.read_text()) for _, out in workers]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    """What four processes found until the last was killed, and the folder of what they saved."""
    folder, port = tmp_path_factory.mktemp("four"), free_port()
    outs = [folder / f"{number}.json" for number in range(4)]
    workers = [start("process", out, number, port, 4) for number, out in enumerate(outs)]
    try:
        stated = workers[3].communicate(timeout=900)[0]
        assert workers[3].returncode == -signal.SIGKILL, stated[-3000:]
    finally:
        for worker in workers:  # which wait for the one that is gone
            worker.kill()
            worker.communicate()
    return folder, [json.loads(out.read_text()) for out in outs]


@pytest.fixture(scope="module")
def processes(lost, tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("processes"), free_port()
    shutil.copytree(lost[0] / "killed", folder / "killed")
    outs = [folder / f"{number}.json" for number in range(2)]
    return results([(start("process", out, number, port, 2), out)
                    for number, out in enumerate(outs)])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """One run of two processes."""
    folder, port = tmp_path_factory.mktemp("pair"), free_port()
    outs = [folder / f"{number}.json" for number in range(2)]
    return results([(start("pair", out, number, port, 2), out)
                    for number, out in enumerate(outs)])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("devices") / "found.json"
    return results([(start("devices", out), out)])[0]


@pytest.fixture(scope="module")
def further(tmp_path_factory):
    """What one process of 8 devices found of other samplings, algorithms, meshes and solutions."""
    out = tmp_path_factory.mktemp("further") / "found.json"
    return results([(start("further", out), out)])[0]


@pytest.fixture(scope="module")
def planted(lost, processes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    shutil.copytree(lost[0] / "killed", folder / "killed")
    shutil.copytree(tmp_path_factory.getbasetemp() / "processes0" / "half", folder / "half")
    return results([(start("planted", folder / "found.json"), folder / "found.json")])[0]


def test_rows_of_two_shards_lie_in_orders_of_their_own():
    """One order for all would tell how many rows of the sample are in the shards before."""
    found = between.slots_of_shards()
    assert len(set(found)) == len(found) == 6
    assert {"".join(sorted(one)) for one in found} == {"123456"}


@SLOW
def test_a_run_is_the_same_on_many_devices_and_costs_the_same(found):
    same_run(found, 8)


@NIGHTLY
def test_a_run_is_the_same_on_a_mesh_of_one_device_and_costs_the_same(further):
    same_run(further, 1)


def same_run(found, count):
    """With noise to the grid, and without to the last digits."""
    assert found[f"run {count}"] < GRID
    assert found[f"silent run {count}"] < ROUNDING
    assert found[f"statement {count}"]
    one, many = found[f"epsilon {count}"]
    assert one == many > 0


@SLOW
@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_sampling_reads_the_same_rows(found, name):
    """With noise, and without, where nothing but the sample decides."""
    same_rows(found, name)


@NIGHTLY
@pytest.mark.parametrize("name", OTHERS)
def test_every_other_sampling_reads_the_same_rows(further, name):
    same_rows(further, name)


def same_rows(found, name):
    assert found[f"equal {name}"] < GRID
    assert found[f"silent {name}"] < ROUNDING
    # what one device refuses, eight do: a sample that does not fit, one release too many
    refused = found[f"refused {name}"]
    assert refused[-1]
    assert any(refused[:-1]) == (name == "narrow")
    assert not all(refused)


@SLOW
def test_a_shard_takes_as_many_passes_as_its_sample_needs(found):
    assert found["passes poisson"] < GRID
    assert found["bug one pass"] > 0.01


@NIGHTLY
def test_a_saved_state_goes_on_on_other_devices(further):
    assert further["resumed"] < GRID
    assert further["resumed statement"]
    assert further["scanned"] < GRID


@NIGHTLY
@pytest.mark.parametrize("name", ["extragradient", "recursive_sgda"])
def test_algorithms_of_several_releases_or_parts_are_the_same(further, name):
    assert further[f"algorithm {name}"] < GRID
    assert further[f"algorithm statement {name}"]


@NIGHTLY
def test_an_operator_that_draws_has_the_keys_of_its_rows_on_every_mesh(further):
    assert max(further[f"drawn {how}"] for how in ("full", "in passes")) < GRID
    assert further["bug keys of places"] > 1e-3


@NIGHTLY
def test_every_shard_puts_its_rows_into_slots_in_an_order_of_its_own(further):
    """In one order for all, where the others lie would tell whether a record is before them."""
    np.testing.assert_array_equal(further["slots"], np.tile(np.arange(1, 27), (7, 1)))
    assert further["same slots"] < 0.4


@NIGHTLY
@pytest.mark.parametrize("how", ["everywhere", "backwards"])
def test_rows_that_are_on_the_devices_already_count_once_each(further, how):
    assert further[f"placed {how}"] < GRID


@NIGHTLY
def test_rows_have_the_same_fingerprint_wherever_they_are(further, processes):
    assert [here["marks"] for here in (further, *processes)] == [1, 1, 1]


@NIGHTLY
def test_a_second_axis_holds_copies_or_parameters(further):
    assert further["two axes"] < GRID
    assert further["parameters spread"] < GRID
    assert further["still spread"]
    assert "axis 'data'" in further["refused parameters over data"]


@SLOW
def test_a_record_is_clipped_once_in_whatever_shard_it_is(found):
    """203 equal records add up to 203 clip norms, and swapping one moves that by two."""
    np.testing.assert_allclose(found["all"], 203, rtol=1e-12)
    np.testing.assert_allclose(found["moved"], 2, rtol=1e-9)
    assert found["moved unclipped"] > 1e3


@SLOW
def test_the_noise_is_the_described_one_and_not_every_devices(found):
    assert max(abs(x - 1) for x in found["noise scale"]) < 0.04  # 3000 numbers: 3 deviations


@SLOW
def test_a_device_may_have_several_shards(found):
    assert found["cut"] < ROUNDING


@SLOW
def test_a_player_of_many_leaves_is_summed_in_shards_as_on_one_device(found):
    assert found["many leaves"] < GRID


@NIGHTLY
def test_noise_that_is_not_the_described_one_shows(planted):
    assert planted["bug half of the noise"] > 0.4
    assert planted["bug noise of every device"] > 1
    assert planted["groups bug noise of every device"] > 1


@NIGHTLY
@pytest.mark.parametrize("bug", ["no sum", "sum of sums", "padding counts", "a shard twice"])
def test_what_goes_wrong_in_the_sum_shows(planted, bug):
    assert planted[f"bug {bug}"] > 1e-3


@SLOW
def test_what_does_not_run_on_a_mesh_is_refused(found):
    assert len(found["hosts"]) == 3  # with a mesh, with shards, with both
    for stated in found["hosts"]:
        assert "HostData are for one device" in stated
        assert "give the arrays themselves" in stated
    for words, stated in found["refused"].items():
        assert words in stated


@NIGHTLY
def test_a_release_moves_the_parameters_once_and_nothing_else(further):
    """And the arithmetic of a device falls with its rows."""
    for made, size in zip(further["collectives"], further["size"], strict=True):
        assert {kind for kind, _ in made} == {"all-reduce"}
        # integers of 32 bits, where the point is float64; float sums in a branch without noise
        assert sum(moved for _, moved in made) == size // 2
    flops, rows = further["share"]
    assert 0.6 * rows < flops < 1.02 * rows  # every device draws the sample and the noise
    assert rows > 2  # not 4: each has room for a sample that falls unevenly
    assert all(gathered == at_once for gathered, at_once in further["gathered"])


# --- groups, certified solutions, single records ---


@SLOW
def test_releases_of_groups_are_the_same_on_any_number_of_devices(found):
    """Of all groups, of one, of a sample of it, and of losses; with noise, and without."""
    for name in ("all 2", "all 8", "by weight", "full", "poisson", "losses"):
        assert found[f"groups {name} 1.0"] < GRID
        assert found[f"groups {name} 0.0"] < ROUNDING
    for name in ("full", "poisson"):
        assert found[f"groups refused {name}"] == [False, False, False, True]


@SLOW
def test_a_record_of_a_group_is_clipped_once_in_whatever_shard_it_is(found):
    """9 equal records add up to 9 clip norms; swapping one moves that by two, and losses by two."""
    np.testing.assert_allclose(found["groups all clips"], 9, rtol=1e-12)
    np.testing.assert_allclose(found["groups moved"], 2, rtol=1e-5)


@NIGHTLY
@pytest.mark.parametrize("bug", ["group's mask", "shards' mask"])
def test_rows_that_are_no_records_show_if_they_count(planted, bug):
    assert planted[f"groups bug {bug}"] > 0.1


@SLOW
def test_the_noise_on_groups_is_the_described_one_and_not_every_devices(found):
    assert abs(found["groups noise scale"] - 1) < 0.04  # 3000 numbers: 3 deviations


@NIGHTLY
def test_solutions_on_a_mesh_are_certified_and_those_of_one_device(further):
    assert further["certified"]
    assert further["silent points"] < ROUNDING
    assert further["points"] < GRID
    assert further["unsolved"] == 0  # all NaN: what is not certified is not released


@NIGHTLY
@pytest.mark.parametrize("bug", ["sum of one shard", "other rows", "padding counts"])
def test_what_goes_wrong_with_the_rows_of_a_solution_shows(planted, bug):
    assert planted[f"points bug {bug}"] > 1e-3


@SLOW
def test_single_records_are_those_of_one_device_bit_for_bit(found):
    assert found["singly"] < GRID  # what is released of them
    assert found["records"] == 0
    assert found["bits"]  # -0 and all, of every kind of number
    assert found["beyond"] == [False, False, False]


@NIGHTLY
def test_a_run_over_groups_goes_on_on_other_devices_and_costs_the_same(further):
    assert further["groups run"] < GRID
    assert further["groups statement"]
    assert further["groups marks"] == 1
    assert "by_group" in further["groups ungrouped"]


@NIGHTLY
def test_two_processes_feed_their_own_rows_of_every_group(further, processes):
    one, other = processes
    assert one["groups bytes"] == other["groups bytes"]
    for mine in processes:
        assert mine["groups epsilon"] == further["groups epsilon"] > 0
        assert mine["groups mark"]
        for name in ("groups state", "phase"):
            np.testing.assert_allclose(np.hstack(mine[name]), np.hstack(further[name]), atol=GRID)


# --- two processes ---


@SLOW
def test_two_processes_feed_their_own_rows_and_end_alike(found, pair):
    one, other = pair
    assert sorted(one["rows"] + other["rows"]) == list(range(203))
    assert not set(one["rows"]) & set(other["rows"])
    assert one["bytes"] == other["bytes"] == found["bits 8"]  # other noise would give the sum away
    for mine in pair:
        assert mine["equal"] < GRID
        assert mine["statement"]
        assert mine["epsilon"] == found["epsilon 8"][0]


@NIGHTLY
def test_two_processes_go_on_from_what_both_saved(processes):
    for mine in processes:
        assert mine["equal handed"] < GRID
        assert mine["saved"] == 0
    assert len({mine["secret"] for mine in processes}) == 1


@NIGHTLY
def test_processes_that_do_not_agree_are_refused(processes):
    for mine in processes:
        assert len(mine["refused"]) == 10
        for words, stated in mine["refused"].items():
            assert words in stated


# --- shards, parameters and copies of rows in several processes ---


@NIGHTLY
def test_eight_shards_are_the_same_to_the_last_bit_on_any_devices_and_processes(
        found, further, processes, lost):
    one = [further["bits 1"], further["epsilon 1"][0]]
    assert found["bits 8"] == one[0]
    assert [[mine["bytes"], mine["epsilon"]] for mine in processes] == [one] * 2
    assert [mine["shards"] for mine in lost[1]] == [one] * 4


@NIGHTLY
def test_a_run_of_which_a_process_was_killed_goes_on_on_fewer_to_the_same_last_bit(
        further, planted, processes):
    """The state that it died in was written by all and has no name, so the one before is valid."""
    unfinished = [name for name in planted["saved of killed"] if name not in ("1", "2")]
    assert {"1", "2"} <= set(planted["saved of killed"])
    assert unfinished
    assert all(name.startswith("3.") for name in unfinished)
    for goes_on in (planted, *processes):
        assert goes_on["resumed shards"] == further["bits 1"]
    for stated in planted["refused shards"]:
        assert "another number of shards" in stated


@NIGHTLY
def test_parameters_and_copies_of_rows_may_lie_in_several_processes(planted, processes):
    for mine in processes:
        assert mine["across"] < GRID
        assert mine["statement across"]
        assert mine["held"] == [[2], [2]]  # of 4, so that no process could save them all
        assert mine["resumed across"] == 0
        assert mine["seen"] == [4]
        assert len(set(mine["marks across"])) == 1
        assert len(mine["refused across"]) == 2
        for words, stated in mine["refused across"].items():
            assert words in stated
    assert planted["resumed parameters"] < GRID


@NIGHTLY
def test_copies_of_rows_that_differ_in_one_bit_are_not_released(processes):
    for mine in processes:
        assert "Copies of the rows differ" in mine["copies"]
        assert mine["bug copies"] == "no refusal"


SPREAD = textwrap.dedent("""
    import jax, jax.numpy as jnp
    import jaxminimax as jmm
    from jaxminimax import Saddle

    mesh = jax.make_mesh((2,), ("data",))
    rows = jax.device_put(jnp.ones((40, 3)), jax.NamedSharding(mesh, jax.P("data")))
    game = jmm.Problem(jmm.saddle_operator(lambda w, v, row: jnp.sum((w - row) ** 2)))
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=40)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.0), iterations=2)
    key, z = jax.random.key(0), Saddle(jnp.zeros(3), ())
    rest = hyper, jmm.sgda, game
    for call in (lambda rows: jmm.run(key, z, rows, *rest),
                 lambda rows: jmm.fit(key, z, rows, *rest, delta=1e-3, progress=False),
                 lambda rows: jmm.sweep(key[None, None], z, rows, jmm.stack([hyper]), *rest[1:]),
                 lambda rows: jmm.release(key, jmm.sgda.mechanism(hyper), 0, game, z, rows),
                 lambda rows: jmm.private_gradient(key, rows, game, jmm.sgda.mechanism(hyper))):
        try:
            call(rows)
        except ValueError as error:
            assert "2 devices: give placement.shard(data, mesh)" in str(error), error
        else:
            raise AssertionError
    jmm.fit(key, z, rows, *rest, delta=1e-3, progress=False, mesh=mesh)
    whole = jax.device_put(rows, jax.NamedSharding(mesh, jax.P()))
    jmm.run(key, z, whole, *rest)
    print("done")
""")


@pytest.mark.nightly
def test_rows_that_the_user_spread_are_refused_with_the_way_out_or_spread_by_fit():
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SPREAD], capture_output=True, text=True, check=False,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")
                          + " --xla_force_host_platform_device_count=2"})
    assert child.stdout == "done\n", child.stderr
