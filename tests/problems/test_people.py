"""Persons as records: at most k rows of each, and what a person can do to a sum."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.problems import People, by_group, by_person, per_person
from jaxminimax.types import SaddleOperator

K, DIM, HIDDEN, CLIP = 3, 8, 6, Saddle(0.7, 0.4)
START = Saddle({"W": jnp.linspace(-1, 1, DIM * HIDDEN).reshape(DIM, HIDDEN),
                "b": jnp.full(HIDDEN, 0.1)}, jnp.linspace(0.5, 1.0, HIDDEN))


def loss(w, v, row):
    x, y = row
    return y * (jnp.tanh(x @ w["W"] + w["b"]) @ v)


PROBLEM = per_person(jmm.Problem(operator=jmm.saddle_operator(loss)))
STRATEGIES = ("vmap", "microbatch", "ghost")


@functools.cache
def summed(strategy, problem=PROBLEM):
    total = jmm.clipped_sum(problem.operator, CLIP, strategy=strategy, microbatch=2)
    return jax.jit(lambda people: total(START, people))


def table(rng, rows, size=1.0):
    return ((size * rng.normal(size=(rows, DIM))).astype(np.float32),
            rng.normal(size=rows).astype(np.float32))


def norms(tree):
    return [float(jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(one)))) for one in tree]


def made(rng, counts, size=1.0):
    owners = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    return by_person(table(rng, len(owners), size), owners, K)


# --- layout ---


def test_at_most_so_many_rows_of_each_in_the_order_of_the_table():
    data = np.arange(7)
    people = by_person({"x": data}, ["b", "a", "b", "b", "c", "b", "a"], 2)
    np.testing.assert_array_equal(people.present, [[1, 1], [1, 1], [1, 0]])
    np.testing.assert_array_equal(people.rows["x"], [[1, 6], [0, 2], [4, 4]])
    assert people.most == 2


def test_the_choice_of_rows_depends_on_nobody_else_and_is_fair():
    key, own, other = jax.random.key(3), np.arange(5) + 100, np.arange(4)
    how = dict(most=2, key=key, people=[7, 1, 2])
    alone = by_person(np.concatenate([own, other]), [1] * 5 + [2] * 4, **how)
    among = by_person(np.concatenate([other, own]), [7] * 4 + [1] * 5, **how)
    np.testing.assert_array_equal(alone.rows[1], among.rows[1])
    assert not alone.present[0].any()
    assert among.present[0].all()
    many = by_person(np.tile(np.arange(5), 400), np.repeat(np.arange(400), 5), 2, key=key)
    counts = np.bincount(many.rows.ravel(), minlength=5)  # 160 each, standard deviation 9.8
    assert np.all(np.abs(counts - 160) < 5 * 9.8)
    assert np.all(np.diff(many.rows, axis=1) > 0)


def test_nobodys_rows_stand_in_for_anothers():
    people = by_person(np.arange(1.0, 4.0), [0, 0, 2], 2, people=[0, 1, 2])
    np.testing.assert_array_equal(people.rows, [[1, 2], [0, 0], [3, 3]])


@pytest.mark.parametrize(("owners", "most", "more", "match"), [
    ([0, 1], 1, {}, "3.*2 owners"),
    (np.zeros((3, 1)), 1, {}, "integers or text"),
    ([0, 1, 2], 0, {}, "most"),
    ([0, 1, 2], 1, {"people": [0, 1]}, "every owner once"),
    ([0, 1, 2], 1, {"people": [0, 1, 2, 2]}, "every owner once"),
])
def test_owners_that_do_not_fit_are_refused(owners, most, more, match):
    with pytest.raises(ValueError, match=match):
        by_person(np.zeros(3), owners, most, **more)


# --- what a person does to a sum ---


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_person_moves_a_sum_by_no_more_than_one_record_does(strategy):
    """Whatever the rows, and however many: more than k, none, huge ones, NaN."""
    rng = np.random.default_rng(0)
    others = made(rng, [1, 2, 3, 5])
    worst = [0.0, 0.0]
    replaced = [made(rng, [count], size) for count in (1, K, 9) for size in (1.0, 1e3, 1e18)]
    replaced.append(People((np.full((1, K, DIM), np.nan, np.float32),
                            np.ones((1, K), np.float32)), np.ones((1, K), bool)))
    replaced.append(jax.tree.map(np.zeros_like, replaced[0]))
    sums = [summed(strategy)(jax.tree.map(lambda *x: np.concatenate(x), others, one))
            for one in replaced]
    for a in sums:
        for b in sums:
            actual = norms(jax.tree.map(jnp.subtract, a, b))
            worst = [max(x) for x in zip(worst, actual, strict=True)]
    for bound, most in zip(CLIP, worst, strict=True):
        assert most <= 2 * bound * (1 + 1e-5)
        assert most > 0.5 * bound  # or the search would have found nothing


def test_every_strategy_gives_the_same_sum():
    people = made(np.random.default_rng(1), [1, 2, 3, 5, 8])
    first, *others = (summed(strategy)(people) for strategy in STRATEGIES)
    for other in others:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), first,
                     other)


def test_a_persons_operator_is_the_mean_of_the_rows_that_are_read():
    rng = np.random.default_rng(2)
    x, y = table(rng, 2)
    (person,) = [jax.tree.map(lambda a: a[0], by_person((x, y), [0, 0], K))]
    plain = per_person(jmm.Problem(operator=lambda z, row: SaddleOperator(loss)(z, row)))
    double = per_person(jmm.Problem(operator=jmm.saddle_operator(loss)), total=True)
    rows, means, totals = jax.jit(lambda: (
        [SaddleOperator(loss)(START, (x[i], y[i])) for i in range(2)],
        [problem.operator(START, person) for problem in (PROBLEM, plain)],
        double.operator(START, person)))()
    want = jax.tree.map(lambda a, b: (a + b) / 2, *rows)
    for actual, factor in ((means[0], 1), (means[1], 1), (totals, 2)):
        jax.tree.map(lambda a, b, k=factor: np.testing.assert_allclose(a, k * b, rtol=1e-5), actual,
                     want)


def test_ghost_norms_over_a_persons_rows_need_no_gradient_a_person():
    wide = Saddle({"W": jnp.zeros((64, 32)), "b": jnp.zeros(32)}, jnp.ones(32))
    people = People((jnp.zeros((10, K, 64)), jnp.zeros((10, K))), jnp.ones((10, K), bool))
    stated = jmm.clipped_sum(PROBLEM.operator, CLIP).explain(wide, people)
    assert "strategy ghost" in stated
    assert f"Gram products of {K} rows" in stated
    assert "per-example gradient" not in next(x for x in stated.splitlines() if "'W'" in x)


def test_a_problem_is_wrapped_once():
    problem = jmm.Problem(operator=jmm.saddle_operator(loss))
    assert per_person(problem) is per_person(problem)
    assert per_person(problem).value is None


# --- whole runs ---


def test_the_statement_is_for_one_person_and_names_the_cap():
    people = by_person(np.zeros((9, 2), np.float32), [0, 0, 0, 0, 1, 2, 2, 3, 3], K)
    query = jmm.Query(clip=Saddle(1.0, None), population=4, noise_multiplier=Saddle(20.0, None))
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=2)
    problem = per_person(jmm.Problem(operator=lambda z, row: Saddle(row, ())))
    run = jmm.fit(jax.random.key(0), Saddle(jnp.zeros(2), ()), people, hyper, jmm.sgda, problem,
                  delta=1e-6, progress=False)
    assert run.statement.unit == "one person"
    assert run.statement.people == 1
    assert any(f"at most {K} row(s)" in x for x in run.statement.enforced)
    assert any("one owner" in x for x in run.statement.assumed)
    rows = jmm.statement(jmm.sgda, hyper, delta=1e-6)
    assert rows.unit == "one record"
    assert not any("row(s)" in x for x in rows.enforced)


def test_groups_of_persons():
    glm = jmm.problems.group_glm("logistic", feature_bound=1.0, radius=1.0)
    of_person = per_person(glm)
    rng = np.random.default_rng(4)
    people = made(rng, [1, 2, 3, 5])
    data, sizes = by_group(people, np.array([0, 1, 1, 0]))
    assert sizes == (2, 2)
    assert jax.tree.leaves(data)[0].shape == (2, 2, K, DIM)
    w = jnp.full(DIM, 0.1)
    person = jax.tree.map(lambda x: x[1, 0], data)  # two rows
    actual, *each = jax.jit(lambda: (of_person.loss(w, person), *(
        glm.loss(w, jax.tree.map(lambda x, i=i: x[i], person.rows)) for i in range(2))))()
    np.testing.assert_allclose(actual, np.mean(each), rtol=1e-6)
    assert of_person.bound == glm.bound
    with pytest.raises(ValueError, match="total"):
        per_person(glm, total=True)
