"""Ways to train one model for several groups: by the rule for tables, and by the theorems."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.accuracy.worst_group.tasks import Rows, Task
from jaxminimax import GroupGradients, GroupLosses, Saddle
from jaxminimax.apps.tables import Schema, defaults, linear, rule
from jaxminimax.apps.tables.columns import Number
from jaxminimax.apps.tables.preparation import prepare
from jaxminimax.apps.tables.records import scaled
from jaxminimax.apps.tables.scorer import Moments
from jaxminimax.apps.tables.training import carry_out
from jaxminimax.mechanism import Selection

TABLES = ("average", "balanced", "balanced, then minimax")  # by the rule
_NAMED = dict(zip(TABLES, ("average", "balanced", "minimax"), strict=True))


class Found(NamedTuple):
    """A trained model.

    Attributes:
      scores: of rows' features, `[n, width] -> [n]`.
      statement: of what was released.
      rounds: made.
    """

    scores: Callable[[np.ndarray], np.ndarray]
    statement: jmm.accounting.Statement
    rounds: int


def _schema(task: Task) -> Schema:
    if task.table is not None:
        return task.table.schema
    return Schema({f"x{k}": Number(-1, 1) for k in range(task.dim - 1)}, "y", "1")


def default_of(task: Task, epsilon: float, delta: float) -> str:
    """Which of `TABLES` the rule takes for groups like these."""
    chosen = defaults(sum(task.sizes), _schema(task), epsilon=epsilon, delta=delta,
                      sizes=task.sizes, by_label=task.by_label)
    return TABLES[tuple(_NAMED.values()).index(chosen.method)]


def by_rule(name: str, task: Task, rows: Rows, epsilon: float, delta: float, key: jax.Array,
            assumed: tuple[str, ...]) -> Found:
    """One of `TABLES`, which pay for moments of the features too."""
    rule_of = functools.partial(rule.defaults, method=_NAMED[name])
    prepared = prepare(task.table_of(rows), _schema(task), rule_of, epsilon=epsilon, delta=delta,
                       names=(), groups=task.groups_of(rows), unit=task.unit, assumed=assumed)
    rounds = prepared.settings.hyper.iterations
    made = carry_out(prepared, key, linear.train_linear, every=rounds)

    def scores(x: np.ndarray) -> np.ndarray:
        return scaled(x, Moments(*made.moments), made.floor) @ made.weights

    return Found(scores, made.statement, rounds)


# --- by theorems ---


@functools.cache  # one object for the same numbers: programs are kept by it
def _problem(bound: float, radius: float) -> jmm.GroupProblem:
    return jmm.problems.group_glm("logistic", feature_bound=bound, radius=radius)


def _group_hyper(algorithm: Any, task: Task, epsilon: float, delta: float) -> Any:
    s, active = task.settings, algorithm is jmm.active_groups
    query = GroupGradients(clip=s.clip, sizes=task.sizes)
    losses: Any = (Selection if active else GroupLosses)(bound=s.loss_bound, sizes=task.sizes)
    own = {} if active else {"weight_step": s.weight_step}
    hyper = algorithm.Hyper(query=query, losses=losses, step=0.5, averaging=jmm.averaging.TAIL,
                            iterations=s.iterations, **own)
    hyper = jmm.calibrate(algorithm, hyper, epsilon, delta, share=s.share)
    step = jmm.group_sgd.gradient_step(hyper.query, s.iterations, dim=task.dim,
                                       diameter=2 * s.radius)
    return dataclasses.replace(hyper, step=s.reach * step)


def _solved_hyper(task: Task, epsilon: float, delta: float) -> jmm.phased_erm.Hyper:
    s = task.settings
    problem = _problem(*s.solved)
    eta = jmm.phased_erm.calibrated_eta(
        sizes=task.sizes, dim=task.dim, lipschitz=problem.lipschitz, bound=problem.bound,
        diameter=problem.diameter, epsilon=epsilon, delta=delta)
    made: jmm.phased_erm.Hyper = jmm.plan(
        jmm.phased_erm, problem=problem, sizes=task.sizes, dim=task.dim, epsilon=epsilon,
        delta=delta, eta=s.farther * eta, phases=s.phases).hyper
    return made


def _online_hyper(task: Task, epsilon: float, delta: float) -> jmm.group_oco.Hyper:
    radius, clip, bound = task.settings.online
    clipped = _problem(task.settings.feature_bound, radius)._replace(lipschitz=clip,
                                                                           bound=bound)
    made: jmm.group_oco.Hyper = jmm.plan(
        jmm.group_oco, problem=clipped, sizes=task.sizes, dim=task.dim, epsilon=epsilon,
        delta=delta, iterations=task.settings.rounds).hyper
    return made


class Method(NamedTuple):
    """An algorithm with the settings of `Task.settings`.

    Attributes:
      algorithm: the module.
      hyper: `(task, epsilon, delta) -> Hyper`, calibrated.
      problem: `task ->` the problem that it trains on.
      read: `(hyper, state) ->` how often it evaluates a record's loss or gradient; None: every
        round reads all records for the losses, and one group's for the gradient.
    """

    algorithm: Any
    hyper: Callable[[Task, float, float], Any]
    problem: Callable[[Task], jmm.GroupProblem]
    read: Callable[[Any, Any], int] | None = None


def _solved_read(hyper: jmm.phased_erm.Hyper, _: Any) -> int:
    query = hyper.query
    if query.steps is None:
        raise ValueError("steps is not set: use phased_erm.certified.")
    return (query.steps + 2) * query.phases * sum(jmm.mechanism.phase_sizes(query))


def _usual(task: Task) -> jmm.GroupProblem:
    return _problem(task.settings.feature_bound, task.settings.radius)


METHODS = {
    "group_sgd": Method(jmm.group_sgd, functools.partial(_group_hyper, jmm.group_sgd), _usual),
    "active_groups": Method(jmm.active_groups, functools.partial(_group_hyper, jmm.active_groups),
                            _usual),
    "phased_erm": Method(jmm.phased_erm, _solved_hyper,
                         lambda task: _problem(*task.settings.solved), _solved_read),
    "group_oco": Method(jmm.group_oco, _online_hyper,
                        lambda task: _problem(task.settings.feature_bound,
                                              task.settings.online[0]),
                        lambda _, state: int(state.spent)),
}
NAMES = (*TABLES, *METHODS)


def run(name: str, task: Task, rows: Rows, epsilon: float, delta: float,
        key: jax.Array) -> tuple[Any, Any]:
    """The hyper and the last state of one of `METHODS`; its program is compiled once."""
    method = METHODS[name]
    hyper = method.hyper(task, epsilon, delta)
    made, _ = task.arranged(rows)
    start = Saddle(jnp.zeros(task.dim, jnp.float32), ())
    state, _ = jmm.run(key, start, made, hyper, method.algorithm, method.problem(task))
    return hyper, jax.block_until_ready(state)


def by_theorem(name: str, task: Task, rows: Rows, epsilon: float, delta: float, key: jax.Array,
               assumed: tuple[str, ...]) -> Found:
    """One of `METHODS` on features on a public scale.

    Raises:
      ValueError: for a run that diverged.
    """
    hyper, state = run(name, task, rows, epsilon, delta, key)
    w = np.asarray(state.average.w, np.float64)
    if not np.all(np.isfinite(w)):
        raise ValueError(f"{name} at epsilon {epsilon:g} diverged, or its sample did not fit")

    def scores(x: np.ndarray) -> np.ndarray:
        return task.centred(x) @ w

    said = jmm.statement(METHODS[name].algorithm, hyper, state, delta=delta, unit=task.unit,
                         assumed=assumed)
    return Found(scores, said, hyper.iterations)


def train(name: str, task: Task, rows: Rows, epsilon: float, delta: float, key: jax.Array,
          assumed: tuple[str, ...] = ()) -> Found:
    """One of `NAMES`."""
    how = by_rule if name in TABLES else by_theorem
    return how(name, task, rows, epsilon, delta, key, assumed)


def reference(task: Task, rows: Rows, balanced: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Scores of a logistic regression without privacy, every group with the same weight or not."""
    from sklearn.linear_model import LogisticRegression

    middle, spread = rows.x.mean(0), np.where(rows.x.std(0) > 0, rows.x.std(0), 1.0)
    weight = 1 / np.bincount(rows.group)[rows.group] if balanced else np.ones(len(rows.y))
    weight = weight / weight.mean()
    made = LogisticRegression(C=1.0, max_iter=300).fit((rows.x - middle) / spread, rows.y, weight)

    def scores(x: np.ndarray) -> np.ndarray:
        result: np.ndarray = made.decision_function((x - middle) / spread)
        return result

    return scores


def accuracies(scores: np.ndarray, rows: Rows, groups: int) -> np.ndarray:
    """Accuracy of every group, `[p]`; NaN of one without records."""
    right = (scores > 0) == (rows.y > 0.5)
    counts = np.bincount(rows.group, minlength=groups)
    with np.errstate(invalid="ignore"):
        result: np.ndarray = np.bincount(rows.group, right, groups) / counts
    return result


def noise_key(name: str, epsilon: float, seed: int) -> jax.Array:
    """A key for every run: the difference of two runs with the same noise would give data away."""
    root = jax.random.fold_in(jax.random.key(NAMES.index(name)),
                              np.float32(epsilon).view(np.uint32))
    return jax.random.fold_in(root, seed)
