"""The published record: its rows, what published noise gives, and the whitened linear scorer."""

import gzip
import hashlib
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.data_sets import features
from benchmarks.data_sets import images as set_images
from benchmarks.papers import __main__ as published
from benchmarks.papers import auc as published_auc
from benchmarks.papers import claims as published_claims
from benchmarks.papers import page as published_report
from benchmarks.papers import truth as published_truth
from jaxminimax import Saddle

CELL = published_claims.CELLS[0]


def test_every_cell_has_settings_of_public_numbers():
    assert len(published_claims.CELLS) == 16
    assert len({c.name for c in published_claims.CELLS}) == 16
    for cell in published_claims.CELLS:
        s = published_claims.ours(cell)
        assert s.features is None or s.features in features.FEATURES[cell.data]
        assert 0.5 < cell.published < 1
        assert published_claims.model(s)
    assert [c.records for c in published_claims.CELLS[::4]] == [33_333, 33_995, 60_000, 60_000]


def test_second_moments_have_a_norm_that_no_clip_of_one_changes():
    x = np.random.default_rng(0).normal(size=(50, 4))
    x = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)).astype(np.float32)
    problem = published_auc.moments_problem(4)
    vectors = jax.jit(jax.vmap(lambda row: problem.operator(None, row).w))(x)
    norms = np.linalg.norm(vectors, axis=1)
    assert norms == pytest.approx((np.sum(x**2, 1) + 1) / 2, rel=1e-5)
    assert norms.max() <= 1 + 1e-6
    # from the mean of the vectors follow mean and covariance, hence uncorrelated features
    mean, to = published_auc.whitening(np.asarray(vectors, float).mean(0), 4, 0.0)
    assert mean == pytest.approx(x.mean(0), abs=1e-5)
    assert np.cov((x - mean) @ to, rowvar=False, bias=True) == pytest.approx(np.eye(4), abs=1e-3)


@pytest.mark.slow
def test_the_moments_have_the_noise_that_is_charged():
    n = 20
    x = jnp.full((n, 2), 0.5)
    problem, zero = published_auc.moments_problem(2), Saddle(jnp.zeros(6), ())
    moments, _ = published_auc.plan(published_auc.Whitened(clip=1.0, step=0.1, iterations=3), n, 2,
                                    0.1, 1.0, 1e-3)
    keys = jax.random.split(jax.random.key(0), 600)
    actual = jax.jit(jax.vmap(
        lambda k: jmm.release(k, moments, jnp.int32(0), problem, zero, x).w))(keys)
    true, std = problem.operator(None, x[0]).w, moments.query.noise_multiplier.w / n
    assert np.asarray(actual).std(0) == pytest.approx(np.full(6, std), rel=0.15)
    assert np.asarray(actual).mean(0) == pytest.approx(np.asarray(true), abs=5 * std / 600**0.5)


@pytest.mark.parametrize("epsilon", [0.5, 10.0])
def test_moments_and_rounds_cost_epsilon_together(epsilon):
    moments, hyper = published_auc.plan(published_claims.ours(CELL), 33_333, 196, 0.1, epsilon,
                                        1e-5)
    rounds = jmm.sgda.mechanism(hyper)

    def cost(*parts):
        return jmm.epsilon(jmm.Sequence(parts=parts), 1e-5)

    assert 0.999 * epsilon < cost(moments, rounds) <= epsilon
    assert cost(rounds) < 0.95 * epsilon
    quieter = jmm.mechanism.with_noise(moments, 0.5)
    assert cost(quieter, rounds) > 1.1 * epsilon
    assert math.isclose(moments.query.clip.w, 1.0)


def test_the_pair_brackets_the_gaussian_and_poisson_samples():
    # 50 full batches of multiplier 20 are one of 20 / sqrt 50
    one = jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, None), population=10,
                                     noise_multiplier=Saddle(20 / 50**0.5, None)), times=1)
    exact = jmm.epsilon(one, 1e-5)
    low, high = (published_truth.of_the_pair([(20.0, 1.0, 50)], 1e-5, up) for up in (False, True))
    assert 0.97 * exact < low <= exact <= high < 1.03 * exact
    low, high = published_truth.bracket([(2.0, 0.06, 30), (1.5, 0.06, 30)], 1000, 1e-4)
    assert 0.97 * high < low <= high
    # where the accountant has no bound, the pair rounded up gives one
    low, high = published_truth.bracket([(0.4, 0.06, 300)], 1000, 1e-4)
    assert 0.95 * high < low <= high < math.inf


def test_one_release_is_the_pair_of_one_release():
    low, high = (published_truth.of_the_pair([(0.5, 0.06, 1)], 1e-4, up) for up in (False, True))
    assert low - 0.02 <= published_truth.once(0.5, 0.06) <= high + 0.02


@pytest.mark.parametrize("epsilon", [0.5, 9.0])
def test_fermi_is_far_above_its_claim(epsilon):
    low, high = published_truth.fermi(epsilon)
    assert 50 * epsilon < low < high < math.inf


@pytest.mark.nightly
def test_norms_of_records_are_those_of_their_gradients():
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.uniform(size=(6, 5)), jnp.float32), jnp.asarray([0, 1, 0, 1, 0, 1.0])
    w = published_truth._start(jax.random.key(0), 5)
    w["a"], w["b"] = jnp.float32(0.3), jnp.float32(-0.2)
    alpha = jnp.float32(0.4)

    def norm(row, label):
        g = jax.grad(published_truth._loss)(w, alpha, row[None], label[None], 0.1)
        return jnp.sqrt(sum(jnp.sum(jnp.square(a)) for a in jax.tree.leaves(g)))

    actual = published_truth.record_norms(w, alpha, x, y, 0.1)
    assert np.asarray(actual) == pytest.approx(np.asarray(jax.jit(jax.vmap(norm))(x, y)), rel=1e-4)


def test_rows_have_the_fields_in_order_and_bounds_in_order():
    rows = published_report.of_yang(published_report.RESULTS / "table2.json")
    assert len(rows) == 60
    stored = json.loads((published_report.RESULTS / "published.json").read_text("utf-8"))
    assert [r for r in stored["rows"] if r["paper"] == rows[0]["paper"]] == rows  # is not older
    for r in rows:
        assert tuple(r) == published_report.FIELDS
        if r["true_epsilon_high"] is not None:
            assert 0.98 * r["true_epsilon_low"] <= r["true_epsilon_high"]
    with pytest.raises(ValueError, match=r"these differ.*'auc'"):
        published_report.row(auc=1.0)
    text = published_report.tables([{**rows[0], "ours": 0.1}])
    assert "Of 1 cells ours is ahead in 0, level in 0, behind in 1." in text
    assert "* behind: " in text
    error = {**rows[0], "metric": "error", "ours": 0.1, "published": 0.2}
    assert published_report.verdict(error) == "ahead"


def test_rows_of_the_fair_benchmark_are_read(tmp_path):
    file = tmp_path / "fair.json"
    assert published_report.of_fermi(file) == []
    row = dict(epsilon=0.5, delta=1e-9, metric="error at parity violation 0.14", published=0.16,
               ours=0.15, ours_se=0.004, seeds=3, ours_epsilon=0.5)
    free, out_of_reach = {**row, "epsilon": None}, {**row, "ours": None}
    file.write_text(json.dumps({"rows": [], "published": [
        row, free, out_of_reach, {**row, "published": None}]}))
    actual = published_report.of_fermi(file)
    assert [published_report.verdict(r) for r in actual] == ["level", "level", "behind"]
    assert actual[0]["true_epsilon_low"] > 0.5
    assert actual[1]["true_epsilon_low"] is None
    assert actual[1]["epsilon"] == 0.5
    assert "not reached" in published_report.tables(actual)


@pytest.mark.parametrize(("given", "message"), [
    (["--epochs", "81"], "give at most"),
    (["--data-dir", "/nowhere"], "no such folder"),
    (["--papers", "kang"], "invalid choice"),
    (["--json", "results.txt"], "ends in .json"),
])
def test_bad_input_is_refused(given, message, capsys, monkeypatch):
    monkeypatch.setattr(published_auc.data, "load", lambda *_, **__: pytest.fail("read data"))
    with pytest.raises(SystemExit) as stop:
        published.main(given)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A Fashion-MNIST of 600 pictures whose lower half is bright in classes 5-9."""
    rng = np.random.default_rng(0)
    (tmp_path / "fashion_mnist").mkdir()
    for part, n in (("train", 600), ("t10k", 100)):
        labels = rng.integers(0, 10, n).astype(np.uint8)
        pictures = rng.integers(0, 120, (n, 28, 28)).astype(np.uint8)
        pictures[labels >= 5, 14:] += 120
        for name, array in ((f"{part}-images-idx3", pictures), (f"{part}-labels-idx1", labels)):
            head = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">i4").tobytes()
            content = gzip.compress(head + array.tobytes())
            (tmp_path / "fashion_mnist" / f"{name}-ubyte.gz").write_bytes(content)
            monkeypatch.setitem(set_images.FILES["fashion_mnist"].checksums, name,
                                hashlib.sha256(content).hexdigest())
    return tmp_path


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:delta = ")
def test_the_table_is_made_kept_and_gone_on_with(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(published_claims, "CELLS", published_claims.CELLS[1:2])
    monkeypatch.setattr(published_truth, "_WIDTH", 8)
    path, text, picture = (tmp_path / f"t.{end}" for end in ("json", "md", "png"))
    given = ["--papers", "privatediff", "--quick", "--data-dir", str(folder), "--json", str(path),
             "--markdown", str(text), "--plot", str(picture)]
    assert published.main(given) == 0
    out = json.loads(path.read_text())
    assert out["complete"]
    (row,) = out["rows"]
    assert tuple(row) == published_report.FIELDS
    assert row["true_epsilon_low"] <= row["true_epsilon_high"]
    assert row["seeds"] == 1
    assert out["reruns"][0]["gradient"] > 0
    (stated,) = (x["statement"] for x in out["cells"].values() if "statement" in x)
    assert round(stated["epsilon"], 6) <= 1.0
    assert "Re-runs" in text.read_text()
    assert picture.read_bytes()[:4] == b"\x89PNG"

    monkeypatch.setattr(published, "run", lambda *_: pytest.fail("it was run again"))
    assert published.main(given) == 0
    with pytest.raises(SystemExit):
        published.main([*given, "--split", "validation"])
    assert "other arguments" in capsys.readouterr().err
