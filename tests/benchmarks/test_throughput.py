"""The benchmark of steps: every peer does the same step, and nothing is missing without a word."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.speed.throughput import __main__ as throughput
from benchmarks.speed.throughput import cases as throughput_cases
from benchmarks.speed.throughput import closed as throughput_closed
from benchmarks.speed.throughput import growth as throughput_growth
from benchmarks.speed.throughput import limits as throughput_limits
from benchmarks.speed.throughput import models as throughput_models
from benchmarks.speed.throughput import ours as throughput_ours
from benchmarks.speed.throughput import peer_jax as throughput_jax
from benchmarks.speed.throughput import peer_numpy as throughput_numpy
from benchmarks.speed.throughput import peers as throughput_peers
from benchmarks.speed.throughput import plot as throughput_plot
from benchmarks.speed.throughput import report as throughput_report
from benchmarks.speed.throughput import saved as throughput_saved
from benchmarks.speed.throughput import special as throughput_special
from benchmarks.speed.throughput.cases import CLIP, NOISE, Case, Entry

ROW = {"workload", "batch", "peer", "steps_per_second", "ratio", "peak_bytes", "compile_seconds",
       "fraction_of_limit"}


@pytest.fixture(autouse=True)
def as_it_runs():
    """In float32, and with the broadcasts that peers use."""
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        yield


def apart(one, two):
    assert set(one) == set(two)
    return max(float(np.max(np.abs(one[k] - two[k]))) for k in one)


def reference(case, x, y):
    """Plain per-example gradients by JAX, clipped and summed row by row in NumPy."""
    z = throughput_jax.point(case)
    g_w, g_v = jax.jit(lambda z: throughput_jax.gradients(case, z, x, y))(z)
    leaves = {k: np.asarray(a, np.float64) for k, a in
              {**g_w["theta"], "a": g_w["a"], "b": g_w["b"]}.items()}
    total = {k: np.zeros(a.shape[1:]) for k, a in leaves.items()}
    dual = 0.0
    for i in range(len(y)):
        norm = np.sqrt(sum(np.sum(a[i] ** 2) for a in leaves.values()))
        for k, a in leaves.items():
            total[k] += a[i] * min(1, CLIP[0] / norm)
        dual += float(g_v[i]) * min(1, CLIP[1] / abs(float(g_v[i])))
    old = throughput_cases.flat(z)
    w = {k: old[k] - 0.05 * total[k] / len(y) for k in total}
    length = np.sqrt(sum(np.sum(a ** 2) for a in w.values()))
    return {**{k: a * min(1, 10 / length) for k, a in w.items()}, "v": 0.05 * dual / len(y)}


@pytest.mark.nightly
@pytest.mark.parametrize("workload", ["linear 22", "mlp 8", "attention", "rnn", "lora"])
def test_every_peer_does_the_same_step_without_noise(workload):
    case = Case(workload, 4, 8)
    rows = x, y = tuple(a[:4] for a in throughput_cases.rows(case))
    wanted = reference(case, x, y)
    made = [throughput_ours._once(case, throughput_ours.problem(case))]

    def special(z, key, x, y, noisy):
        total = throughput_special.sums(case, z, x, y)
        return throughput_jax.move(z, jax.tree.map(lambda a: a / len(y), total))

    steps = [special] if workload not in throughput_saved.DEEP else []
    if workload == "linear 22":
        steps += [lambda *a: throughput_jax.vmap_step(case, *a),
                  lambda *a: throughput_jax.optax_step(case, *a)]
    if workload in ("linear 22", "mlp 8"):
        made += [throughput_numpy.make(case, rows, 1, norms).once for norms in (False, True)]
        steps.append(lambda z, key, x, y, noisy: throughput_jax.move(z, jax.tree.map(
            lambda a: a / len(y), throughput_special.sums(
                case, z, x, y, throughput_closed.squares(jnp, x)))))
    for once in [*made, *(throughput_jax.once(case, step) for step in steps)]:
        assert apart(once(x, y), wanted) < 2e-6


def test_most_rows_are_clipped_and_some_are_not():
    """Otherwise the comparison would say little."""
    case = Case("linear 22", 200, 200)
    x, y = throughput_cases.rows(case)
    g_w, g_v = jax.jit(lambda z: throughput_jax.gradients(case, z, x, y))(
        throughput_jax.point(case))
    norm = jnp.sqrt(sum(jnp.sum(a.reshape(200, -1) ** 2, 1) for a in jax.tree.leaves(g_w)))
    for share in (jnp.mean(norm > CLIP[0]), jnp.mean(jnp.abs(g_v) > CLIP[1])):
        assert 0.1 < share < 0.99


@pytest.mark.parametrize("long", [False, True])
def test_the_specialised_scan_draws_normal_numbers(long):
    count = 60_000 if long else 40_000
    words = jnp.asarray(np.random.default_rng(3).integers(0, 2**32, count, np.uint32))
    draw = throughput_special._long_normals if long else throughput_special.box_muller
    pairs = np.asarray(draw(words, 40_000), np.float64).reshape(2, -1)
    first, second, *_ = np.asarray(words, np.float64).reshape(3 if long else 2, -1)
    u = (first + 0.5) / 2**32 if not long else (first * 2**32 + second) / 2**64
    np.testing.assert_allclose(np.sum(pairs**2, 0), -2 * np.log(u), rtol=2e-5, atol=1e-5)
    turns = np.angle(pairs[1] + 1j * pairs[0]) / (2 * np.pi) % 1
    counts = np.histogram(turns, 8, (0, 1))[0] / pairs.shape[1]
    np.testing.assert_allclose(counts, 1 / 8, atol=6 * np.sqrt(7 / 64 / pairs.shape[1]))


@pytest.mark.parametrize("n", [7, 60_000, 2**16, 10**7])
def test_the_specialised_scan_draws_every_row_alike(n):
    words = np.random.default_rng(n).integers(0, 2**32, 1000, np.uint32)
    words[:2] = 0, 2**32 - 1
    carry = np.uint32(n - 1)
    got = throughput_special._below(jnp.asarray(words), n, carry)
    np.testing.assert_array_equal(got, [(int(w) * n + n - 1) >> 32 for w in words])


def test_the_specialised_scan_adds_the_noise_that_the_others_add():
    case = Case("linear 22", 5, 8)
    zeros = jax.tree.map(jnp.zeros_like, throughput_jax.point(case))
    made = throughput_special._noisy(case, zeros, jnp.ones(case.size))
    for name, a in throughput_cases.flat(made).items():
        player = int(name == "v")
        np.testing.assert_allclose(a, CLIP[player] * NOISE[player] / 5, rtol=1e-6)


def arguments(tmp_path, *more):
    return ["--only", "linear 22", "--batches", "8", "--rows", "32", "--rounds", "2",
            "--seconds", "1e-4", "--cores", "0",
            "--json", str(tmp_path / "made.json"), *more]


@pytest.mark.nightly
def test_a_run_writes_rows_and_says_who_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("JAXMINIMAX_PEER_TORCH", raising=False)
    monkeypatch.setenv("JAXMINIMAX_PEER_JAX_PRIVACY", str(tmp_path / "nowhere"))
    small = throughput_limits.measured("wall", 64)
    monkeypatch.setattr(throughput_limits, "measured", lambda kind: small)
    peers = ["specialised scan", "NumPy by hand"]
    assert throughput.main(arguments(
        tmp_path, "--peers", *peers, "Opacus ghost", "--plot", str(tmp_path / "made.png"))) == 0
    record = json.loads((tmp_path / "made.json").read_text())
    assert [r["peer"] for r in record["rows"]] == ["ours", *peers]
    for r in record["rows"]:
        assert set(r) >= ROW
        assert r["ratio_low"] <= r["ratio"] <= r["ratio_high"]
        assert (r["rounds"], r["workload"], r["batch"]) == (2, "linear 22", 8)
        assert min(r["steps_per_second"], r["ratio"], r["fraction_of_limit"]) > 0
    assert record["rows"][0]["ratio"] == 1
    stated = capsys.readouterr().out
    for line in ("torch: skipped: JAXMINIMAX_PEER_TORCH is not set",
                 "privacy: skipped: JAXMINIMAX_PEER_JAX_PRIVACY="):
        assert line in stated
        assert any(s.startswith(line) for s in record["skipped"])
    for name in ("made.png", "made_ratios.png", "made_growth.png"):
        assert (tmp_path / name).stat().st_size > 1000
    # what is there is kept; a peer that is chosen again is remade, and the library's row stays
    monkeypatch.setattr(throughput, "one_case", lambda *_: pytest.fail("measured again"))
    assert throughput.main(arguments(tmp_path, "--peers", *peers)) == 0
    assert json.loads((tmp_path / "made.json").read_text())["rows"] == record["rows"]
    fake = [{**r, "ratio": 7.0} for r in record["rows"] if r["peer"] != "specialised scan"]
    monkeypatch.setattr(throughput, "one_case", lambda *_: (fake, []))
    assert throughput.main(arguments(tmp_path, "--peers", "NumPy by hand", "--again")) == 0
    ratios = {r["peer"]: r["ratio"]
              for r in json.loads((tmp_path / "made.json").read_text())["rows"]}
    assert ratios == {r["peer"]: r["ratio"] for r in record["rows"]} | {"NumPy by hand": 7.0}
    with pytest.raises(SystemExit):  # results of other arguments are not written over
        throughput.main(arguments(tmp_path, "--rounds", "3"))


@pytest.mark.parametrize("wrong", [
    ("--rounds", "0"), ("--batches", "0"), ("--batches", "33"), ("--peers", "nobody"),
    ("--only", "linear 23"), ("--json", "no/such/folder.json"), ("--seconds", "-1")])
def test_bad_arguments_are_refused_in_one_line(tmp_path, capsys, wrong):
    with pytest.raises(SystemExit) as stop:
        throughput.main(arguments(tmp_path, *wrong))
    assert stop.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.fixture
def fleet(monkeypatch):
    """With NumPy in a process of its own, in the place of torch."""
    monkeypatch.setitem(throughput_peers._MODULES, "torch",
                        "benchmarks.speed.throughput.peer_numpy")
    monkeypatch.setitem(throughput_peers._VERSIONS, "torch", ("numpy",))
    monkeypatch.setenv("JAXMINIMAX_PEER_TORCH", sys.executable)
    monkeypatch.delenv("JAXMINIMAX_PEER_JAX_PRIVACY", raising=False)
    with throughput_peers.Fleet() as made:
        yield made


def test_a_peer_in_another_process_is_timed_and_checked(fleet):
    assert set(fleet.missing) == {"privacy"}
    assert fleet.versions == {"torch: numpy": np.__version__}
    case = Case("linear 22", 8, 64)
    here = throughput_peers.Here(throughput_numpy.make(case, fleet.data(case)[0], 3))
    there = fleet.make("NumPy", "torch", case, 3)
    assert there.steps == 3
    assert 0 < there.time("wall") < 10
    assert there.peak() is None or there.peak() >= 0
    fleet.check("linear 22", "NumPy", here, there)

    def wrong(x, y):
        return {k: a + 1e-3 for k, a in here.once(x, y).items()}

    other = throughput_peers.Here(Entry(lambda: None, 1, 0.0, wrong))
    with pytest.raises(throughput_cases.Skipped, match="away from"):
        fleet.check("linear 22", "other", here, other)
    with pytest.raises(throughput_cases.Skipped, match="linear and the MLP"):
        fleet.make("NumPy", "torch", Case("cnn", 8, 64), 3)
    there.drop()


def test_targets_are_read_off_the_rows():
    def row(peer, ratio, batch=64, peak=10):
        return {"workload": "mlp", "batch": batch, "peer": peer, "ratio": ratio,
                "peak_bytes": peak}

    actual = throughput_report.targets([
        row("ours", 1.0), row("Opacus ghost", 2.5), row("Opacus ghost", 4.0, 256),
        row("ours", 1.0, 4096, 14), row("not private, scan", 0.5, 4096, 10)])
    by = {t["target"]: t["reached"] for t in actual}
    assert by == {"mlp, batch 64, 256: at least 1 x Opacus ghost": True,
                  "mlp, batch 64, 256: at least 3 x Opacus ghost": False,
                  "mlp, batch 4096: peak memory below 1.5 x the step without privacy": True}


def test_growth_says_how_far_its_ends_are_apart():
    made = throughput_growth._timed("a sample", "rows", {
        n: (lambda n=n: throughput_growth.sampling("disjoint", n)) for n in (1000, 2000)},
        throughput.filled(throughput.parser().parse_args(["--quick", "--clock", "cpu"])))
    assert [r["number"] for r in made] == [1000, 2000]
    assert "last over first" in throughput_report.growth(made)[0]


def test_what_costs_too_much_is_not_run_and_says_why():
    done = {"workload": "cnn", "batch": 64, "peer": "jax_privacy", "steps_per_second": 2.0}
    record = {"rows": [done], "not_run": [{**done, "batch": 256, "why": "would take about 2.0 s"}]}
    assert throughput_saved.expected(Case("cnn", 256), "jax_privacy", record) == 2.0
    assert throughput_saved.expected(Case("cnn", 64), "jax_privacy", record) is None
    assert throughput_saved.expected(Case("cnn", 1024), "optax, loop", record) is None
    with pytest.raises(throughput_cases.Skipped, match="more than at batch 256"):
        throughput_saved.expected(Case("cnn", 1024), "jax_privacy", record)


def test_only_what_the_file_lacks_is_measured():
    args = throughput.filled(throughput.parser().parse_args(["--only", "rnn", "--batches", "64"]))
    rows = [{"workload": "rnn", "batch": 64, "peer": p} for p in ("ours", "Opacus ghost")]
    left = [p for p in throughput_saved.peers_of("rnn", 64) if p not in ("ours", "Opacus ghost")]
    assert list(throughput_saved.cells(args, {"rows": rows, "not_run": []}, {})) == [
        (Case("rnn", 64), ["ours", *left])]
    record = {"rows": rows, "not_run": [{**rows[0], "peer": p} for p in left]}
    assert list(throughput_saved.cells(args, record, {})) == []
    stated = throughput_saved.unmeasured({"rows": rows, "not_run": []}, (64, 256))
    assert f"rnn, batch 64: not measured yet: {'; '.join(left)}" in stated
    assert "rnn, batch 256: not measured yet: all peers" in stated
    args.again = True
    [(_, names)] = throughput_saved.cells(args, record, {"torch": "", "privacy": ""})
    assert names == [p for p in ("ours", *left) if throughput_report.PEERS[p] == "here"]


@pytest.mark.nightly
@pytest.mark.parametrize("model", sorted(throughput_models.UNROLLED))
def test_an_unrolled_model_is_the_same_one(model):
    case = Case(model, 1, 4)
    theta, x = throughput_jax.point(case)["theta"], jnp.asarray(throughput_cases.rows(case)[0][0])
    rolled, unrolled = (jax.jit(s[model])(theta, x) for s in (
        throughput_models.SCORERS, throughput_models.UNROLLED))
    np.testing.assert_allclose(rolled, unrolled, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wanted", [
    (0.5, 0.5, 0.5), (0.0, 0.01, 1.0, 0.99), (0.3, 0.1, 0.2), tuple(np.zeros(40)), (-1.0, 2.0)])
def test_labels_keep_their_order_and_their_distance(wanted):
    gap = 0.1
    actual = throughput_plot.spread(wanted, gap)
    order = np.argsort(wanted, kind="stable")
    apart = np.diff(np.asarray(actual)[order])
    assert np.all(apart > min(gap, 1 / (len(wanted) - 1)) - 1e-9)
    assert -1e-9 <= min(actual) <= max(actual) <= 1 + 1e-9
