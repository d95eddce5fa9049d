"""On any number of devices and processes: the same run, the same epsilon, and one noise.

A process has one number of devices, so the work is done in `mesh_worker`, started once as one
process of 8 forced devices and once as two processes of 2.
"""

import json
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

WORKER = pathlib.Path(__file__).parent / "mesh_worker.py"
ROUNDING = 1e-14  # float64 numbers near 1
GRID = 1e-5  # blocks are made of other rows, and each is rounded to the grid

pytestmark = pytest.mark.slow  # its workers run for two minutes
SAMPLINGS = ("full", "poisson", "fixed", "overflow", "replacement", "disjoint")
DEVICES = (1, 8)  # 2 and 4 in other tests of this file


def start(*arguments):
    return subprocess.Popen([sys.executable, "-W", "error", str(WORKER), *map(str, arguments)],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def results(workers):
    """What the workers found; none may fail."""
    try:
        said = [worker.communicate(timeout=900)[0] for worker, _ in workers]
    finally:
        for worker, _ in workers:
            worker.kill()
    for (worker, _), words in zip(workers, said, strict=True):
        assert worker.returncode == 0, words[-3000:]
    return [json.loads(out.read_text()) for _, out in workers]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("devices") / "found.json"
    return results([(start("devices", out), out)])[0]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    folder = tmp_path_factory.mktemp("processes")
    outs = [folder / f"{number}.json" for number in range(2)]
    return results([(start("process", out, number, port), out)
                    for number, out in enumerate(outs)])


@pytest.mark.parametrize("count", DEVICES)
def test_a_run_is_the_same_on_any_number_of_devices_and_costs_the_same(found, count):
    assert found[f"run {count}"] < GRID
    assert found[f"silent run {count}"] < ROUNDING
    assert found[f"statement {count}"]
    one, many = found[f"epsilon {count}"]
    assert one == many > 0


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_sampling_reads_the_same_rows(found, name):
    """With noise, and without, where nothing but the sample decides."""
    assert found[f"equal {name}"] < GRID
    assert found[f"silent {name}"] < ROUNDING
    # what one device refuses, eight do: a sample that outgrew its capacity, one release too many
    refused = found[f"refused {name}"]
    assert refused[-1]
    assert any(refused[:-1]) == (name == "overflow")
    assert not all(refused)


def test_a_shard_takes_as_many_passes_as_its_sample_needs(found):
    assert found["passes poisson"] < GRID
    assert found["bug one pass"] > 0.01


def test_a_saved_state_goes_on_on_other_devices(found):
    assert found["resumed"] < GRID
    assert found["resumed statement"]
    assert found["scanned"] < GRID


@pytest.mark.parametrize("name", ["extragradient", "recursive_sgda"])
def test_algorithms_of_several_releases_or_parts_are_the_same(found, name):
    assert found[f"algorithm {name}"] < GRID
    assert found[f"algorithm statement {name}"]


def test_an_operator_that_draws_has_the_keys_of_its_rows_on_every_mesh(found):
    assert max(found[f"drawn {how}"] for how in ("full", "in passes")) < GRID
    assert found["bug keys of places"] > 1e-3


def test_every_shard_puts_its_rows_into_slots_in_an_order_of_its_own(found):
    """In one order for all, where the others lie would tell whether a record is before them."""
    np.testing.assert_array_equal(found["slots"], np.tile(np.arange(1, 27), (7, 1)))
    assert found["same slots"] < 0.4


@pytest.mark.parametrize("how", ["everywhere", "backwards"])
def test_rows_that_are_on_the_devices_already_count_once_each(found, how):
    assert found[f"placed {how}"] < GRID


def test_rows_have_the_same_fingerprint_wherever_they_are(found, processes):
    assert [here["marks"] for here in (found, *processes)] == [1, 1, 1]


def test_a_second_axis_holds_copies_or_parameters(found):
    assert found["two axes"] < GRID
    assert found["parameters spread"] < GRID
    assert found["still spread"]
    assert "axis 'data'" in found["refused parameters over data"]


def test_a_record_is_clipped_once_in_whatever_shard_it_is(found):
    """203 equal records add up to 203 clip norms, and swapping one moves that by two."""
    np.testing.assert_allclose(found["all"], 203, rtol=1e-12)
    np.testing.assert_allclose(found["moved"], 2, rtol=1e-9)
    assert found["moved unclipped"] > 1e3


def test_the_noise_is_the_described_one_and_not_every_devices(found):
    assert max(abs(x - 1) for x in found["noise scale"]) < 0.04  # 3000 numbers: 3 deviations
    assert found["bug half of the noise"] > 0.4
    assert found["bug noise of every device"] > 1


@pytest.mark.parametrize("bug", ["no sum", "sum of sums", "padding counts"])
def test_what_goes_wrong_in_the_sum_shows(found, bug):
    assert found[f"bug {bug}"] > 1e-3


def test_what_does_not_run_on_a_mesh_is_refused(found):
    assert len(found["unlike"]) == 7
    for said in found["unlike"].values():
        assert "run this one on one device" in said
    for words, said in found["refused"].items():
        assert words in said


def test_a_release_moves_the_parameters_once_and_nothing_else(found):
    """And the arithmetic of a device falls with its rows."""
    for made, size in zip(found["collectives"], found["size"], strict=True):
        assert {kind for kind, _ in made} == {"all-reduce"}
        # integers of 32 bits, where the point is float64; float sums in a branch without noise
        assert sum(moved for _, moved in made) == size // 2
    flops, rows = found["share"]
    assert 0.6 * rows < flops < 1.02 * rows  # every device draws the sample and the noise
    assert rows > 2  # not 4: each has room for a sample that falls unevenly


# --- data on the hosts ---


def test_data_on_the_host_make_the_run_of_the_mesh_in_memory_bit_for_bit(found):
    assert found["host poisson"] == found["host disjoint"] == 0
    assert found["host run"] == 0
    assert found["host statement"]
    assert found["host passes"] < ROUNDING
    assert found["host resumed"] < GRID


def test_a_shard_that_was_sent_other_rows_makes_nan_of_the_release(found):
    assert found["host sound"] == [False, False, False, True]  # the last is one too many
    assert found["host wrong row"] == [False, True, False, True]
    assert all(found["host swapped shards"])
    assert all(found["host other releases"])
    assert found["bug own comparison"] == found["host sound"]
    assert "another description" in found["host refused"]


# --- two processes ---


def test_two_processes_feed_their_own_rows_and_end_alike(processes):
    one, other = processes
    assert sorted(one["rows"] + other["rows"]) == list(range(203))
    assert not set(one["rows"]) & set(other["rows"])
    assert one["bytes"] == other["bytes"]  # different noise would give the sum away
    for mine in processes:
        assert mine["equal"] < GRID
        assert mine["equal handed"] < GRID
        assert mine["statement"]
        assert mine["saved"] == 0
    assert one["epsilon"] == other["epsilon"]
    assert one["secret"] == other["secret"]


def test_two_processes_send_their_own_rows_from_their_hosts(processes):
    for mine in processes:
        assert mine["host equal"] == 0
        assert mine["host statement"]
        assert mine["host mark"]
        assert mine["host wrong row"]
        assert len(mine["host refused"]) == 5
        for words, said in mine["host refused"].items():
            assert words in said


def test_processes_that_do_not_agree_are_refused(processes):
    for mine in processes:
        assert len(mine["refused"]) == 10
        for words, said in mine["refused"].items():
            assert words in said
