"""The table of algorithms at equal privacy: same target, counted evaluations, sound constants."""

import json
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.accuracy import compare, compare_noise
from benchmarks.rates import cases as rate_cases
from jaxminimax import Saddle

RESULT = pathlib.Path(__file__).parents[2] / "benchmarks/accuracy/results/compare.json"


@pytest.mark.nightly
def test_every_algorithm_meets_the_same_target_on_the_same_records():
    entries = compare._game(40, 4.0)
    assert len(entries) == 6
    for entry in entries:
        made = jmm.epsilon(entry.algorithm.mechanism(entry.hyper), rate_cases.DELTA)
        assert 0.99 * 4.0 < made <= 4.0
        assert entry.hyper.query.population == 40
        np.testing.assert_array_equal(entry.data(3), entries[0].data(3))


@pytest.mark.nightly
def test_a_row_says_what_was_measured():
    entry = next(e for e in compare._game(40, 4.0) if e.name == "extragradient, one pass")
    row = compare.row(entry, 4.0, range(3))
    assert row["evaluations"] <= 40
    assert row["releases"] == 2 * entry.hyper.iterations
    assert row["measure"] == "strong gap"
    assert 0 < row["value"] < 4
    assert row["epsilon"] <= row["target_epsilon"] == 4.0


@pytest.mark.nightly
def test_the_constants_of_the_auc_problem_hold_for_every_record():
    """L of the clipped operator is that of the raw one; the public term counts too."""
    settings = types.SimpleNamespace(clip=18.0)
    hyper, problem = compare._proximal_auc(2000, 0.2, settings, 5.0, 1e-5)
    rng = np.random.default_rng(0)

    def points():
        theta = jnp.asarray(rng.normal(size=(200, 4)))
        w = {"theta": theta, "a": theta[:, 0] * 0.5, "b": theta[:, 1] - 0.1}
        return jax.vmap(problem.project)(Saddle(w, jnp.asarray(rng.normal(size=200))))

    def whole(z, x):
        return jax.tree.map(jnp.add, problem.operator(z, x), problem.public(z))

    one, two = points(), points()
    away = sum(jnp.sum((a - b).reshape(200, -1) ** 2, 1)
               for a, b in zip(*map(jax.tree.leaves, (one, two)), strict=True)) ** 0.5
    for size in (0.1, 2.5, 100.0):
        for y in (0, 1):
            x = jnp.asarray(rng.normal(size=4))
            record = (size * x / jnp.linalg.norm(x), jnp.asarray(y))
            g, h = (jax.vmap(whole, (0, None))(z, record) for z in (one, two))
            apart = sum(jnp.sum((a - b).reshape(200, -1) ** 2, 1)
                        for a, b in zip(*map(jax.tree.leaves, (g, h)), strict=True)) ** 0.5
            assert float(jnp.max(apart / away)) <= float(hyper.query.lipschitz)


def test_missing_data_are_refused_before_anything_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("JAXMINIMAX_DATA", raising=False)
    monkeypatch.setattr(compare, "row", lambda *_: pytest.fail("ran"))

    def offline(*_):
        raise compare.auc.Refused("no such file")

    monkeypatch.setattr(compare.auc, "load", offline)
    with pytest.raises(SystemExit) as stop:
        compare.main(["--data-dir", str(tmp_path)])
    assert stop.value.code == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.nightly  # four programs
def test_noise_has_a_row_for_each_epsilon_and_kind(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(330, 3)).astype(np.float32)
    y = (x[:, 0] > 1).astype(np.float32)
    few = types.SimpleNamespace(x_train=x[:210], y_train=y[:210], x_test=x[210:], y_test=y[210:],
                                prior=0.2)
    monkeypatch.setattr(compare_noise.auc, "load", lambda *_: few)
    rows = compare_noise.rows((4.0,), None, 2)
    assert [r["algorithm"].split(", ", 2)[2] for r in rows] == [
        "Poisson, oracle", "Poisson, 32 parts in turn, oracle", "disjoint, oracle",
        "disjoint, 32 bands, oracle"]
    assert all(0.9 * 4 < r["epsilon"] <= 4.0 and r["releases"] == 2 and 0 <= r["value"] <= 1
               for r in rows)
    assert [r["evaluations"] for r in rows[2:]] == [200, 200]


def test_the_noise_that_is_better_depends_on_epsilon():
    rows = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    actual = {(r["target_epsilon"], r["algorithm"].split(", ", 2)[2]): r for r in rows
              if r["algorithm"].endswith("oracle")}
    assert len(actual) == 8

    def ahead(epsilon, kind, other):  # by two standard errors
        a, b = (actual[epsilon, f"{k}, oracle"] for k in (kind, other))
        return a["value"] - b["value"] > 2 * np.hypot(a["error"], b["error"])

    assert ahead(1.0, "Poisson", "disjoint, 32 bands")
    for correlated in ("disjoint, 32 bands", "Poisson, 32 parts in turn"):
        assert ahead(8.0, correlated, "Poisson")
    assert all(ahead(e, "disjoint, 32 bands", "disjoint") for e in (1.0, 8.0))
