"""The operator of the whole objective at a point: its records' part released, the rest added."""

import jax

from jaxminimax.base import tree
from jaxminimax.base.types import Problem, PyTree, Saddle
from jaxminimax.door import core
from jaxminimax.door.operator_keys import public_term
from jaxminimax.door.sums import release
from jaxminimax.mechanism import Repeat


def noisy_operator(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem,
                   z: Saddle, data: PyTree) -> Saddle:
    """A release at z plus the public terms there, in the dtypes of z.

        g = release(z) + (grad_w r, -grad_v r)(z).

    The terms r that read no data are added after the noise: neither clipped nor noised nor charged.

    Args:
      key: root key of the run, a secret; as in `release`.
      mechanism: what was promised to the accountant.
      spent: number of releases already made, int32 `[]`.
      problem: `operator` and `public` are used.
      z: the point to query.
      data: as in `release`.

    Returns:
      A `Saddle` like z; NaN everywhere once all allowed releases were made.

    Raises:
      ValueError: as `release`.
    """
    g = release(key, mechanism, spent, problem, z, data)
    if problem.public is not None:
        g = tree.add(g, public_term(problem, z, key, core.Kind.MEAN, spent))
    return tree.cast_like(g, z)
