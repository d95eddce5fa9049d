"""Gaps and risks, which read the data and are not private: for study, never for release."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxminimax.base import row_names
from jaxminimax.base.types import GroupProblem, Problem, PyTree, Saddle
from jaxminimax.releases import release_keys


def _needs(problem: Problem, *players: str) -> Callable[[Saddle, PyTree], jax.Array]:
    """Returns the problem's value function; refuses a problem that lacks what a metric needs."""
    if problem.value is None:
        raise ValueError("The problem has no value: give Problem(value=...) to measure it.")
    for player in players:
        if getattr(problem.best_response, player) is None:
            raise ValueError(f"The problem has no best response of {player} in closed form: give "
                             "Problem(best_response=Saddle(..., ...)) one, or use another metric.")
    return problem.value


def strong_gap(problem: Problem, z: Saddle, data: PyTree) -> jax.Array:
    """Reads the data; not private. The strong gap max_v L(w, v) - min_w L(w, v) at one point z.

    L is the mean over `data`: the empirical gap on the training data, the population gap on data
    that stand for the population. Its mean over runs is the strong gap. Use float64 near 1e-7.

    Args:
      problem: a problem with closed-form best responses of both players.
      z: the point.
      data: the records, leaves `[n, ...]`.

    Raises:
      ValueError: if the problem has no closed-form best responses.

    Examples:
        >>> game = jmm.problems.bilinear_game(coupling=1.0, radius=Saddle(1.0, 1.0))
        >>> z = Saddle(jnp.array([0.6, 0.8]), jnp.zeros(2))  # the opponent gains |w|
        >>> round(float(jmm.metrics.strong_gap(game, z, (jnp.zeros((4, 2)), jnp.zeros((4, 2))))), 3)
        1.0
    """
    value = _needs(problem, "w", "v")
    w, v = problem.best_response.w(z.v, data), problem.best_response.v(z.w, data)
    return value(Saddle(z.w, v), data) - value(Saddle(w, z.v), data)


def weak_gap(problem: Problem, zs: Saddle, data: PyTree) -> jax.Array:
    """Reads the data; not private. The weak gap max_v E L(w, v) - min_w E L(w, v), E over samples.

    The responses do not depend on the sample of an output, so the gap is at most the strong one. It
    may be 0 where the strong gap has its largest value: it certifies no single output. The
    expectation over the algorithm's coins stays outside: pass outputs for one key, and average over
    keys. (With all runs' coins mixed in one call the value is smaller still.)

    Args:
      problem: a problem whose players are coupled by a bilinear term only, as in the games of this
        library: the best response to the random opponent is then the one to its mean.
      zs: outputs of R runs with one key, each on its own sample; leaves `[R, ...]`. The estimate
        exceeds the weak gap by O(tr Cov / R), or by O((tr Cov / R)^(1/2)) where gaps have kinks.
      data: records that stand for the population.

    Raises:
      ValueError: if the problem has no closed-form best responses.

    Examples:
        >>> game = jmm.problems.bilinear_game(coupling=1.0, radius=Saddle(1.0, 1.0))
        >>> zs = Saddle(jnp.array([[1.0], [-1.0]]), jnp.zeros((2, 1)))  # each has a strong gap of 1
        >>> float(jmm.metrics.weak_gap(game, zs, (jnp.zeros((4, 1)), jnp.zeros((4, 1)))))
        0.0
    """
    value = _needs(problem, "w", "v")
    mean = jax.tree.map(lambda x: jnp.mean(x, 0), zs)
    w, v = problem.best_response.w(mean.v, data), problem.best_response.v(mean.w, data)
    upper = jax.vmap(lambda w: value(Saddle(w, v), data))(zs.w)
    lower = jax.vmap(lambda v: value(Saddle(w, v), data))(zs.v)
    return jnp.mean(upper) - jnp.mean(lower)


def relative_accuracy(problem: Problem, z: Saddle, saddle: Saddle, data: PyTree) -> jax.Array:
    """Reads the data; not private. L(w, v*) - L(w*, v), against one saddle point only.

    An inner solver promises that it is at most the distance of its start from (w*, v*) times its
    relative accuracy. It is at most the empirical gap, and takes no maximum over responses.

    Args:
      problem: a problem with a `value`.
      z: the point.
      saddle: (w*, v*), a saddle point on `data`.
      data: the records, leaves `[n, ...]`; L is their mean.

    Raises:
      ValueError: if the problem has no value.

    Examples:
        >>> game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
        >>> data = (jnp.ones((4, 1)), jnp.zeros((4, 1)))
        >>> saddle, z = game.saddle_point(data), Saddle(jnp.zeros(1), jnp.zeros(1))
        >>> bool(jmm.metrics.relative_accuracy(game, z, saddle, data) > 0)
        True
    """
    value = _needs(problem)
    return value(Saddle(z.w, saddle.v), data) - value(Saddle(saddle.w, z.v), data)


def primal_risk(problem: Problem, w: PyTree, data: PyTree) -> jax.Array:
    """Reads the data; not private. The primal risk R(w) = max_v L(w, v).

    Args:
      problem: a problem with a closed-form best response of v.
      w: the point of player w.
      data: the records, leaves `[n, ...]`.

    Raises:
      ValueError: if the problem has no closed-form best response of v.

    Examples:
        >>> toy = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
        >>> float(jmm.metrics.primal_risk(toy, jnp.zeros(1), (jnp.ones((4, 1)), jnp.zeros((4, 1)))))
        0.5
    """
    value = _needs(problem, "v")
    return value(Saddle(w, problem.best_response.v(w, data)), data)


def mean_operator(problem: Problem, z: Saddle, data: PyTree) -> Saddle:
    """Reads the data; not private. F(z) of `problem`: the mean operator, and public terms.

    Args:
      problem: a problem whose operator does not draw; others are refused by a `ValueError`.
      z: the point.
      data: the records, leaves `[n, ...]`.

    Examples:
        >>> pull = jmm.Problem(lambda z, x: Saddle(z.w - x, ()))  # towards the mean of the records
        >>> jmm.metrics.mean_operator(pull, Saddle(jnp.zeros(1), ()), jnp.ones((4, 1))).w.tolist()
        [-1.0]
    """
    release_keys.refuse(problem, "The mean operator")
    values = jax.vmap(problem.operator, (None, 0))(z, data)
    mean = jax.tree.map(lambda x: jnp.mean(x, 0), values)
    return mean if problem.public is None else optax.tree.add(mean, problem.public(z))


def vi_gap(problem: Problem, z: Saddle, data: PyTree) -> jax.Array:
    """Reads the data; not private. max over u in W of <F(u), z - u>, 0 at solutions only.

    Its expectation over runs is the strong gap of the variational inequality.

    Args:
      problem: a problem with `furthest`, the maximiser.
      z: the point.
      data: the records, leaves `[n, ...]`.

    Raises:
      ValueError: if the problem has no `furthest`.

    Examples:
        >>> turn = jmm.problems.affine(matrix=np.array([[0.0, 1.0], [-1.0, 0.0]]), offset_bound=0.5,
        ...                            domain=jmm.problems.ball(1.0))
        >>> float(jmm.metrics.vi_gap(turn.problem, Saddle(jnp.zeros(2), ()), jnp.zeros((4, 2))))
        0.0
    """
    if problem.furthest is None:
        raise ValueError("The problem has no maximiser in closed form: give Problem(furthest=...) "
                         "one, or use vi_gap_bound.")
    u = problem.furthest(z, data)
    return optax.tree.vdot(mean_operator(problem, u, data), optax.tree.sub(z, u))


def vi_gap_bound(problem: Problem, z: Saddle, data: PyTree) -> jax.Array:
    """Reads the data; not private. max over u in W of <F(z), z - u>.

    It is at least `vi_gap`, by monotonicity, and equal to it for skew operators such as those of
    bilinear games, where both are the strong gap.

    Args:
      problem: a problem with `support`, the linear minimiser.
      z: the point.
      data: the records, leaves `[n, ...]`.

    Raises:
      ValueError: if the problem has no linear minimiser.

    Examples:
        >>> game = jmm.problems.matrix_game(entry_bound=1.0, shape=(2, 2))
        >>> payoffs = jnp.tile(jnp.array([[1.0, -1.0], [-1.0, 1.0]]), (4, 1, 1))
        >>> mixed = jnp.full(2, 0.5)
        >>> float(jmm.metrics.vi_gap_bound(game.problem, Saddle(mixed, mixed), payoffs))
        0.0
    """
    if problem.support is None:
        raise ValueError("The problem has no linear minimiser: give Problem(support=...) one.")
    g = mean_operator(problem, z, data)
    return optax.tree.vdot(g, optax.tree.sub(z, problem.support(g)))


def weak_vi_gap(problem: Problem, zs: Saddle, data: PyTree) -> jax.Array:
    """Reads the data; not private. max over u in W of <F(u), E z - u>, E over samples.

    <F(u), z - u> is affine in z, so E moves inside. The expectation over the algorithm's coins
    stays outside: pass outputs for one key, and average over keys.

    Args:
      problem: a problem with `furthest`, the maximiser.
      zs: outputs of runs with one key, each on its own sample; leaves `[R, ...]`.
      data: records that stand for the population.

    Examples:
        >>> turn = jmm.problems.affine(matrix=np.array([[0.0, 1.0], [-1.0, 0.0]]), offset_bound=0.5,
        ...                            domain=jmm.problems.ball(1.0))
        >>> zs = Saddle(jnp.array([[1.0, 0.0], [-1.0, 0.0]]), ())  # two runs
        >>> float(jmm.metrics.weak_vi_gap(turn.problem, zs, jnp.zeros((4, 2))))
        0.0
    """
    return vi_gap(problem, jax.tree.map(lambda x: jnp.mean(x, 0), zs), data)


def natural_residual(problem: Problem, z: Saddle, data: PyTree) -> jax.Array:
    """Reads the data; not private. ||z - P_W(z - F(z))|| of `problem`, 0 at solutions only.

    Args:
      problem: a problem whose operator does not draw; others are refused by a `ValueError`.
      z: the point.
      data: the records, leaves `[n, ...]`.

    Examples:
        >>> pull = jmm.Problem(lambda z, x: Saddle(z.w - x, ()))  # towards the mean of the records
        >>> float(jmm.metrics.natural_residual(pull, Saddle(jnp.ones(1), ()), jnp.ones((4, 1))))
        0.0
    """
    moved = problem.project(optax.tree.sub(z, mean_operator(problem, z, data)))
    return optax.tree.norm(optax.tree.sub(z, moved))


def group_risks(problem: GroupProblem, w: PyTree, data: PyTree,
                sizes: tuple[int, ...]) -> jax.Array:
    """Reads the data; not private. Every group's mean loss at w, `[p]`.

    Args:
      problem: a problem, of which only the loss is used, without clipping.
      w: the point.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`.
      sizes: the number of records of each group.

    Raises:
      ValueError: for a problem whose loss draws.

    Examples:
        >>> problem = jmm.problems.group_means(radius=1.0, record_bound=1.0)
        >>> data = jnp.array([[[1.0], [9.0]], [[0.0], [0.0]]])  # groups of one record and of two
        >>> jmm.metrics.group_risks(problem, jnp.zeros(1), data, (1, 2)).tolist()
        [0.5, 0.0]
    """
    release_keys.refuse(problem, "A group's risk")
    losses = jax.vmap(jax.vmap(problem.loss, (None, 0)), (None, 0))(w, data)
    n = jnp.asarray(sizes)[:, None]
    present = jnp.arange(losses.shape[1])[None] < n
    return jnp.sum(jnp.where(present, losses, 0), 1) / n[:, 0]


def worst_group_risk(problem: GroupProblem, w: PyTree, data: PyTree,
                     sizes: tuple[int, ...]) -> jax.Array:
    """Reads the data; not private. The largest of the groups' mean losses at w.

    Args:
      problem: a problem, of which only the loss is used, without clipping.
      w: the point.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`.
      sizes: the number of records of each group.

    Examples:
        >>> problem = jmm.problems.group_means(radius=1.0, record_bound=1.0)
        >>> float(jmm.metrics.worst_group_risk(problem, jnp.zeros(1), jnp.ones((2, 1, 1)), (1, 1)))
        0.5
    """
    return jnp.max(group_risks(problem, w, data, sizes))


def auc(scores: jax.Array | np.ndarray, y: jax.Array | np.ndarray) -> float:
    """Reads the data; not private. The area under the ROC curve, by scikit-learn.

    Args:
      scores: the score of each record, `[n]`, finite.
      y: labels in {0, 1}, `[n]`.

    Raises:
      ValueError: if a score is not finite: a diverged run has no AUC, not 0.5. For indexes of
        pandas that differ.

    Examples:
        >>> jmm.metrics.auc(jnp.array([0.1, 0.4, 0.35, 0.8]), jnp.array([0, 0, 1, 1]))
        0.75
    """
    from sklearn.metrics import roc_auc_score
    row_names.check({"scores": scores, "labels": y})
    if not bool(jnp.all(jnp.isfinite(scores))):
        raise ValueError("scores are not finite: the run diverged or its budget ran out.")
    return float(roc_auc_score(y, scores))


def parity_violation(predicted: np.ndarray, groups: np.ndarray) -> float:
    """Reads the data; not private. The largest violation of demographic parity by hard predictions.

    It is the largest difference between two groups' shares of predictions of one class.

    Args:
      predicted: predicted classes, not scores, `[n]`.
      groups: the group of each record, `[n]`.

    Raises:
      ValueError: for scores instead of classes, for lengths that differ, or for indexes of pandas
        that differ.

    Examples:
        >>> jmm.metrics.parity_violation(np.array([1, 0, 1, 1]), np.array([0, 0, 1, 1]))
        0.5
    """
    return odds_violation(predicted, np.zeros(np.shape(predicted)), groups)


def odds_violation(predicted: np.ndarray, y: np.ndarray, groups: np.ndarray) -> float:
    """Reads the data; not private. The largest violation of equalised odds by hard predictions.

    It is the largest `parity_violation` among the records of one class y. For two classes it is the
    larger one of the differences in true and false positive rates. A group without records of a
    class takes no part in the violation of that class.

    Args:
      predicted: predicted classes, not scores, `[n]`.
      y: the records' classes, `[n]`.
      groups: the group of each record, `[n]`.

    Raises:
      ValueError: for scores instead of classes, for lengths that differ, or for indexes of pandas
        that differ.

    Examples:
        >>> predicted, y = np.array([1, 0, 1, 1]), np.array([1, 1, 1, 1])
        >>> jmm.metrics.odds_violation(predicted, y, np.array([0, 0, 1, 1]))
        0.5
    """
    row_names.check({"predicted": predicted, "classes": y, "groups": groups})
    predicted, y, groups = arrays = tuple(map(np.asarray, (predicted, y, groups)))
    if {a.shape for a in arrays} != {(len(predicted),)}:
        raise ValueError("predictions, classes and groups must be vectors of one length, got "
                         f"shapes {[a.shape for a in arrays]}.")
    if predicted.dtype.kind == "f" and np.any(predicted != np.round(predicted)):
        raise ValueError("predicted must be classes, got numbers that are not whole: compare the "
                         "scores with a threshold first.")

    def violation(predicted: np.ndarray, groups: np.ndarray) -> float:
        shares = np.array([[np.mean(predicted[groups == group] == label)
                            for group in np.unique(groups)] for label in np.unique(predicted)])
        return float(np.max(np.ptp(shares, axis=1)))

    return max(violation(predicted[y == label], groups[y == label]) for label in np.unique(y))
