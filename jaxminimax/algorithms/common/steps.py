"""Where a run starts, and the projected step that most algorithms take."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.algorithms.common import averaging, schedules
from jaxminimax.base import checks, tree
from jaxminimax.base.types import GroupProblem, Problem, PyTree, Saddle


def started(z: Saddle, hyper: Any) -> Saddle:
    """The initial point as arrays, once the settings that it goes with are defined.

    Args:
      z: initial point; leaves of any shape and float dtype.
      hyper: with `iterations` and `averaging`; `step` and `weight_step`, if it has them, are a
        number or a schedule, or a `Saddle` of one for each player.

    Raises:
      ValueError: for a count, a step or an average that is not defined.
    """
    checks.count("iterations", hyper.iterations)
    averaging.check(hyper.averaging)
    for name in ("step", "weight_step"):
        step: Any = getattr(hyper, name, None)
        if isinstance(step, Saddle):
            for player, one in step._asdict().items():
                schedules.check(f"{name}.{player}", one)
        elif hasattr(hyper, name):
            schedules.check(name, step)
    return jax.tree.map(jnp.asarray, z)


def stepped(z: PyTree, g: PyTree, step: schedules.Step | Saddle, t: jax.Array,
            problem: Problem | GroupProblem) -> PyTree:
    """P(z - step_t g), in the dtypes of z.

    Args:
      z: the point, or the w of a `GroupProblem`.
      g: what to descend along, like z.
      step: a number or a schedule; for a `Saddle` z, also one for each player.
      t: the round, from 1, int32 `[]`.
      problem: `project` is used.
    """
    def player(z: PyTree, g: PyTree, step: schedules.Step) -> PyTree:
        length = schedules.at(step, t)
        return jax.tree.map(lambda x, a: x - length.astype(x.dtype) * a.astype(x.dtype), z, g)

    new = Saddle(*map(player, z, g, step)) if isinstance(step, Saddle) else player(z, g, step)
    return projected(new, z, problem)


def projected(new: PyTree, z: PyTree, problem: Problem | GroupProblem) -> PyTree:
    """P(new), in the dtypes of z."""
    return tree.cast_like(problem.project(new), z)
