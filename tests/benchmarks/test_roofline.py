"""The work of a step, counted before it is compiled, and the time that is predicted from it."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.speed import roofline
from benchmarks.speed.operations import OPERATIONS, work
from benchmarks.speed.throughput import limits
from benchmarks.speed.throughput import models as throughput_models
from benchmarks.speed.throughput import peer_jax as throughput_jax
from benchmarks.speed.throughput.cases import PICTURES, Case
from jaxminimax.noise import floored_normal
from tests.helpers.lanes import rest_nightly


@pytest.fixture(autouse=True)
def as_it_runs():
    """In float32, and with the broadcasts that peers use."""
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        yield


@functools.cache
def counted(workload, batch):
    return roofline.counted(Case(workload, batch, 8192), "gpu")


def products(count):
    return count["exact products"] + count["products"]


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


@pytest.mark.parametrize(("m", "n", "k", "many"), [(3, 5, 7, 1), (16, 1, 9, 4), (0, 3, 2, 1)])
def test_a_product_is_a_multiplication_and_an_addition_of_each_triple(m, n, k, many):
    count = work(lambda a, b: a @ b, shape(many, m, k), shape(many, k, n))
    assert count["products"] == 2 * many * m * n * k
    assert count["bytes"] == count["fused bytes"] == 4 * many * (m * k + k * n + m * n)
    exact = work(functools.partial(jnp.matmul, precision="highest"), shape(m, k), shape(k, n))
    assert exact["exact products"] == 2 * m * n * k
    assert exact["products"] == 0


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_a_product_of_windows_and_its_derivatives_are_as_dear(stride):
    def convolved(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID",
                                            dimension_numbers=("NHWC", "HWIO", "NHWC"))

    x, kernel = shape(2, 11, 11, 3), shape(3, 3, 3, 8)
    side = (11 - 3) // stride + 1
    due = 2 * 2 * side**2 * 8 * 3 * 3 * 3
    assert work(convolved, x, kernel)["products"] == due
    by_kernel = jax.grad(lambda kernel, x: jnp.sum(convolved(x, kernel)))
    assert work(by_kernel, kernel, x)["products"] == due
    # that by the input is written with zeros around, which are counted where they are of the edge
    by_input = work(jax.grad(lambda x, kernel: jnp.sum(convolved(x, kernel))), x, kernel)
    assert due <= by_input["products"] <= due * (11 / side / stride) ** 2


def test_a_loop_counts_as_often_as_it_runs_and_a_function_as_often_as_it_is_called():
    a = shape(4, 4)
    one = work(lambda a: a @ a, a)
    looped = work(lambda a: jax.lax.scan(lambda x, _: (x @ a, None), a, length=9)[0], a)
    assert looped["products"] == 9 * one["products"]
    assert looped["kernels"] == 9 * one["kernels"]
    square = jax.jit(lambda x: x @ x)
    assert work(lambda a: square(square(a)), a)["products"] == 2 * one["products"]
    until = work(lambda a: jax.lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x @ a, a), a)
    assert until["products"] == one["products"]
    assert until["decisions"] == 1


def test_a_branch_counts_its_usual_way_and_what_nobody_needs_counts_nothing():
    a = shape(4, 4)
    count = work(lambda a: jax.lax.cond(a[0, 0] > 0, lambda: a, lambda: a @ a @ a), a)
    assert products(count) == 0
    assert count["decisions"] == 1
    assert products(work(lambda a: (a @ a, a + 1)[1], a)) == 0


def test_elementwise_work_is_one_kernel_that_moves_its_ends_alone():
    n = 1000

    def chain(x, y):
        return jnp.sin(x * y + 1) - x

    count = work(chain, shape(n), shape(n))
    assert count["floats"] == 4 * n
    assert count["kernels"] == 1
    assert count["fused bytes"] == 3 * 4 * n
    assert count["bytes"] == 4 * n * (3 + 2 + 2 + 3)  # of *, + 1, sin and -
    whole = work(lambda x, y: jnp.sum(chain(x, y)), shape(n), shape(n))
    assert whole["fused bytes"] == 2 * 4 * n + 4
    assert whole["kernels"] == 1
    rows = work(lambda x, i: x[i], shape(10**6, 8), shape(5, dtype=jnp.int32))
    assert rows["fused bytes"] <= 4 * (2 * 5 * 8 + 4 * 5)  # those that are read, and no others


@pytest.mark.parametrize("workload", ["linear 784", "mlp"])
def test_the_count_of_a_gradient_is_the_compilers(workload):
    case = Case(workload, 256)
    count = work(functools.partial(throughput_jax.open_step, case), throughput_jax.point(case),
                 jax.random.key(0), shape(256, 784), shape(256), 0.0)
    mine = sum(count[kind] for kind in OPERATIONS)
    assert mine == pytest.approx(limits.operations(case), rel=0.01)


@pytest.mark.parametrize("workload", rest_nightly(["mlp", "linear 784", "cnn", "attention"], 1))
def test_twice_the_rows_are_twice_the_products_of_gradients(workload):
    small, large = counted(workload, 256), counted(workload, 512)
    assert products(large["not private"]) == 2 * products(small["not private"])
    assert products(large["private"]) == pytest.approx(2 * products(small["private"]), rel=0.01)
    assert large["noise"] == small["noise"]


@pytest.mark.parametrize("workload", rest_nightly(list(roofline.WORKLOADS), 2))
def test_privacy_takes_no_less_of_anything(workload):
    counts = counted(workload, 256)
    for kind in (*OPERATIONS[2:], "bytes", "fused bytes", "kernels"):
        assert counts["private"][kind] >= counts["not private"][kind], kind
    for name in ("private", "in slices"):
        assert products(counts[name]) >= products(counts["not private"])
    for count in counts.values():
        assert count["fused bytes"] <= count["bytes"]
    assert counts["private"]["integers"] > counts["noise"]["integers"]


def test_noise_is_integers_in_proportion_to_the_numbers():
    key = jax.eval_shape(lambda: jax.random.key(0))
    one, two = (work(lambda key, n=n: floored_normal(key, n, jnp.int32(20)), key)["integers"] / n
                for n in (2**16, 2**18))
    assert one == pytest.approx(two, rel=0.01)
    assert one > 20


def test_the_time_is_that_of_what_binds():
    count = work(lambda a, b: jnp.tanh(a @ b), shape(64, 64), shape(64, 64))
    free = roofline.Device(*[np.inf] * 5, launch=0.0, decision=0.0)
    assert roofline.predicted(count, free)["high"] == 0
    bound = {"products": ("products", count["products"]), "elementwise": ("floats", 64 * 64),
             "bytes": ("bandwidth", count["fused bytes"])}
    for binds, (rate, amount) in bound.items():
        made = roofline.predicted(count, free.__class__(**{**vars(free), rate: 2.0}))
        assert made["binds"] == binds
        assert made["low"] == amount / 2
        assert made["low"] <= made["high"]
    waits = roofline.predicted(count, free.__class__(**{**vars(free), "launch": 3.0}))
    assert waits["binds"] == "launches"
    assert waits["low"] == 3.0 * count["kernels"]


@pytest.mark.parametrize("workload", rest_nightly(list(PICTURES), 1))
def test_models_of_pictures_score_rows_and_learn_all_that_they_have(workload):
    case = Case(workload, 2)
    theta = throughput_jax.point(case)["theta"]
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(2, case.features)), jnp.float32)
    scorer = throughput_models.SCORERS[workload]
    gradient = jax.jit(jax.grad(lambda theta: jnp.sum(jax.vmap(scorer, (None, 0))(theta, rows))))
    assert all(bool(jnp.any(g != 0)) for g in jax.tree.leaves(gradient(theta)))


@pytest.mark.nightly
def test_predictions_and_measurements_stand_in_one_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(roofline.machine, "pin", lambda cores, module: None)
    file = tmp_path / "roofline.json"
    given = ["--quick", "--longest", "5", "--json", str(file)]
    assert roofline.main([*given, "--measure"]) == 0
    record = json.loads(file.read_text())
    assert [r["workload"] for r in record["rows"]] == ["linear 22", "mlp"]
    for r in record["rows"]:
        assert set(r["predicted"]) == set(record["devices"]) == {*roofline.DEVICES, "this"}
        assert set(r["measured"]) == set(r["work"]) - {"noise", "with memory"}
        assert all(x > 0 for x in r["measured"].values())
    assert roofline.main([*given, "--measure"]) == 0  # nothing anew
    assert json.loads(file.read_text())["rows"] == record["rows"]
    with pytest.raises(SystemExit):
        roofline.main(given)
    assert "measure" in capsys.readouterr().err
