"""The operator of the whole objective at a point: its records' part released, the rest added."""

import jax

from jaxminimax.base import tree
from jaxminimax.base.types import Problem, PyTree, Saddle
from jaxminimax.mechanism import Repeat
from jaxminimax.releases.operator_keys import public_term
from jaxminimax.releases.sums import release, release_and_clip


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
    return _with_public(g, key, mechanism, spent, problem, z)


def noisy_operator_and_clip(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem,
                            z: Saddle, data: PyTree, clip: Saddle | None,
                            ) -> tuple[Saddle, Saddle | None]:
    """`noisy_operator`, with these clip norms where the description's follow a quantile.

    Args:
      key: as in `noisy_operator`.
      mechanism: as in `noisy_operator`.
      spent: as in `noisy_operator`.
      problem: as in `noisy_operator`.
      z: as in `noisy_operator`.
      data: as in `noisy_operator`.
      clip: see `sums.release_and_clip`; None without `Query.adaptive`.

    Returns:
      As `noisy_operator`; and the next clip norms.

    Raises:
      ValueError: as `sums.release_and_clip`.
    """
    if mechanism.query.adaptive is None:
        return noisy_operator(key, mechanism, spent, problem, z, data), None
    g, clip = release_and_clip(key, mechanism, spent, problem, z, data, clip)
    return _with_public(g, key, mechanism, spent, problem, z), clip


def _with_public(g: Saddle, key: jax.Array, mechanism: Repeat, spent: jax.Array,
                 problem: Problem, z: Saddle) -> Saddle:
    if problem.public is not None:
        g = tree.add(g, public_term(problem, z, key, mechanism, spent))
    return tree.cast_like(g, z)
