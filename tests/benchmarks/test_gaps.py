"""The zoo of gaps: what each of them sees, in closed form, and the benchmark that shows them."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.examples import demo_games
from benchmarks.rates import gaps
from jaxminimax import Saddle, metrics, problems


def test_the_majorities_of_two_halves_have_no_weak_gap_and_the_largest_strong_one():
    made = gaps.halves(10, 50_000)
    assert made["strong"] == 2.0
    assert made["weak"] < 0.03  # 0, and the plug-in's bias
    assert made["variance"] == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("hard", [1, 4, 16])
def test_the_price_of_stability_is_met_with_equality(hard):
    made = gaps.stability(2.0, 3.0, 50, hard)
    assert made["shift"] == pytest.approx(made["delta"], rel=1e-12)
    assert made["excess"] == pytest.approx(made["bound"], rel=1e-12)
    if hard == 16:
        assert (made["bound"], made["delta"]) == pytest.approx((0.24, 0.75))


def test_weak_is_at_most_strong_and_strong_at_most_weak_plus_the_spread():
    """Gap - GapWeak <= sqrt(2) L tau, for outputs on fresh samples and one key."""
    game = problems.bilinear_game(coupling=1.0, radius=Saddle(0.5, 0.5))
    rng = np.random.default_rng(0)
    mean = (jnp.asarray([[0.2, 0.0]]), jnp.asarray([[0.0, 0.2]]))
    zs = Saddle(*(jnp.asarray(0.3 * rng.normal(size=(400, 2))) for _ in "wv"))
    zs = jax.jit(jax.vmap(game.project))(zs)
    weak, each = jax.jit(lambda zs: (metrics.weak_gap(game, zs, mean), jax.vmap(
        lambda z: metrics.strong_gap(game, z, mean))(zs)))(zs)
    weak, strong = float(weak), float(np.mean(each))
    spread = math.sqrt(sum(float(jnp.sum(jnp.var(x, 0))) for x in zs))
    lipschitz = math.hypot(0.7, 0.7)
    assert 0 <= weak <= strong <= weak + math.sqrt(2) * lipschitz * spread
    assert strong > weak + 0.01


@pytest.mark.nightly
@pytest.mark.parametrize("p", [0.6, 0.2, 1.0])
def test_the_gap_of_the_kinked_game_has_a_closed_form(p):
    game, s = demo_games.kinked_game(), (1 - p) / 2
    count = np.round(100 * np.array([s, p, s])).astype(int)
    column = jnp.asarray(np.repeat([-1.0, 0.0, 1.0], count))
    data = (column, column)
    for w, v in np.random.default_rng(1).uniform(-1, 1, (12, 2)):
        exact = sum(p * abs(x) + max(abs(x) - p, 0) for x in (w, v))
        z = Saddle(jnp.asarray(w), jnp.asarray(v))
        np.testing.assert_allclose(metrics.strong_gap(game, z, data), exact, atol=1e-12)
        grid = np.linspace(-1, 1, 401)
        values = [game.value(Saddle(jnp.asarray(w), jnp.asarray(y)), data) for y in (-1.0, 0, 1.0)]
        assert max(values) >= max(float(np.mean(abs(w - column)) + w * y - np.mean(abs(
            np.asarray(column) - y))) for y in grid) - 1e-12
    assert float(metrics.strong_gap(game, Saddle(jnp.zeros(()), jnp.zeros(())), data)) == 0


def test_relative_accuracy_is_at_most_the_gap_and_exact_for_a_bilinear_game():
    game = problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(9.0, 9.0))
    rng = np.random.default_rng(2)
    data = tuple(jnp.asarray(rng.normal(size=(5, 3))) for _ in "ab")
    saddle = game.saddle_point(data)
    for _ in range(5):
        z = Saddle(*(jnp.asarray(rng.normal(size=3)) for _ in "wv"))
        relative = float(metrics.relative_accuracy(game, z, saddle, data))
        # strongly convex-concave and quadratic: half of the squared distance
        distance = sum(float(jnp.sum((a - b) ** 2)) for a, b in zip(z, saddle, strict=True))
        assert relative == pytest.approx(distance / 2, rel=1e-9)
        assert relative <= float(metrics.strong_gap(game, z, data))
    with pytest.raises(ValueError, match="has no value"):
        metrics.relative_accuracy(game._replace(value=None), z, saddle, data)


BOX = problems.box(-np.ones(2), 2 * np.ones(2))
SETS = {"boxes": Saddle(BOX, BOX), "simplices": Saddle(problems.simplex(), problems.simplex()),
        "ball and simplex": Saddle(problems.ball(0.7), problems.simplex())}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SETS))
def test_bilinear_games_on_any_sets_know_their_best_responses(name):
    sets = SETS[name]
    game = problems.bounded_bilinear(coupling=1.0, offset=0.5, sets=sets)
    strong, bound, value, project = (jax.jit(f) for f in (
        lambda z, x: metrics.strong_gap(game.problem, z, x),
        lambda z, x: metrics.vi_gap_bound(game.problem, z, x), game.problem.value,
        game.problem.project))
    rng = np.random.default_rng(3)
    data = tuple(jnp.asarray(0.3 * rng.normal(size=s)) for s in ((8, 2, 2), (8, 2), (8, 2)))
    for _ in range(5):
        z = project(Saddle(*(jnp.asarray(rng.normal(size=2)) for _ in "wv")))
        gap = float(strong(z, data))
        assert gap == pytest.approx(float(bound(z, data)), abs=1e-9)
        others = [project(Saddle(*(jnp.asarray(3 * rng.normal(size=2)) for _ in "wv")))
                  for _ in range(30)]
        least = max(float(value(Saddle(z.w, o.v), data)) for o in others) - min(
            float(value(Saddle(o.w, z.v), data)) for o in others)
        assert 0 <= least <= gap + 1e-9
    assert game.diameter == pytest.approx(math.hypot(sets.w.diameter, sets.v.diameter))
    with pytest.raises(ValueError, match="and not both"):
        problems.bounded_bilinear(coupling=1.0, offset=0.5)


@pytest.mark.nightly
def test_the_command_writes_all_three_tables(tmp_path, monkeypatch, capsys):
    few = {k: gaps.METHODS[k] for k in ("recursive", "sgda, one pass")}
    monkeypatch.setattr(gaps, "METHODS", few)
    monkeypatch.setattr(gaps, "COINS", 2)
    out, figure = tmp_path / "g.json", tmp_path / "g.png"
    assert gaps.main(["--n", "64", "--sets", "2", "--json", str(out),
                      "--plot", str(figure)]) == 0
    made = json.loads(out.read_text())
    assert {r["algorithm"] for r in made["rows"]} == set(few)
    for row in made["rows"]:
        assert 0 <= row["weak"] <= row["strong"] + 1e-6
        assert row["epsilon"] == pytest.approx(1.0, abs=1e-3)
    gap = {r["algorithm"]: r["strong"] for r in made["rows"]}
    wins = 64 if gap["recursive"] < gap["sgda, one pass"] else None
    assert made["crossings"] == [{"algorithm": "sgda, one pass", "recursive_wins_from": wins}]
    assert figure.stat().st_size > 5000
    assert "every single output has a gap of 2" in capsys.readouterr().out


def test_a_table_that_was_stopped_goes_on(tmp_path, monkeypatch, capsys):
    """Rows of the file are kept if their settings are the same, and refused if not."""
    asked, out = [], tmp_path / "g.json"

    def measured(name, n, epsilon, sets):
        asked.append((name, n))
        return {"algorithm": name, "n": n, "epsilon": epsilon, "strong": 0.1, "error": 0.01,
                "weak": 0.1, "empirical": 0.1, "evaluations": n, "runs": 2 * sets,
                "statement": "-"}

    monkeypatch.setattr(gaps, "METHODS", {k: gaps.METHODS[k] for k in ("recursive", "proximal, "
                                                                       "many passes")})
    monkeypatch.setattr(gaps, "COINS", 2)
    monkeypatch.setattr(gaps, "measured", measured)
    monkeypatch.setattr(gaps, "halves", lambda *_: dict.fromkeys(
        ("sets", "strong", "weak", "variance"), 1))
    assert gaps.main(["--n", "64", "--sets", "3", "--json", str(out)]) == 0
    assert gaps.main(["--n", "64", "128", "--sets", "3", "--resume", "--json", str(out)]) == 0
    assert [n for _, n in asked] == [64, 64, 128, 128]
    assert len(json.loads(out.read_text())["rows"]) == 4
    for other in (["--sets", "4"], ["--sets", "3", "--epsilon", "2"]):
        with pytest.raises(SystemExit):
            gaps.main(["--n", "64", *other, "--resume", "--json", str(out)])
        assert "made by other settings" in capsys.readouterr().err


def test_a_crossing_is_where_the_last_loss_ends():
    def rows(name, values):
        return [{"algorithm": name, "n": n, "strong": v} for n, v in values.items()]

    ours = rows("recursive", {1: 5.0, 2: 3.0, 4: 1.0, 8: 0.5})
    for other, expected in (({1: 4.0, 2: 4.0, 4: 0.9, 8: 0.6}, 8), ({1: 6, 2: 6, 4: 6, 8: 6}, 1),
                            ({1: 0.1, 2: 0.1, 4: 0.1, 8: 0.1}, None)):
        actual = {r["algorithm"]: r["recursive_wins_from"] for r in gaps.crossings(
            ours + rows("sgda, one pass", other))}
        assert actual["sgda, one pass"] == expected
