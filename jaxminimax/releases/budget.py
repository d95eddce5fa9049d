"""The guard that no release is made beyond those that are described, whatever its number."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks


def within_budget(spent: jax.typing.ArrayLike, limit: int) -> jax.Array:
    """Returns whether 0 <= spent < limit, for the number of releases made before this one.

    Raises:
      ValueError: for a number that is not one integer, has more than 32 bits, or is of a type that
        does not reach the limit: rounded, cut short or begun anew, it would repeat keys.
    """
    checks.scalars(spent=spent)
    if not jnp.issubdtype(jnp.result_type(spent), jnp.integer):
        raise ValueError(f"spent must be an integer, got {jnp.result_type(spent)}.")
    # a search among runs of several lengths traces the limit, and counts in int32
    if isinstance(limit, int) and jnp.iinfo(jnp.result_type(spent)).max < limit:
        raise ValueError(f"spent is of type {jnp.result_type(spent)}, which begins anew before "
                         f"{limit} releases: give an int32.")
    if not isinstance(spent, jax.Array) and abs(int(np.asarray(spent))) >= 2**31:
        raise ValueError(f"spent must be an integer of 32 bits, got {spent}: it is the number of "
                         "releases that were made before.")
    spent = jnp.asarray(spent)
    return (spent >= 0) & (spent < limit)
