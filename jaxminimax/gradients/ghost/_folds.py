"""Products of a parameter with what depends on no record, as in x (W + A B).

Where the loss uses P M, with P `[k, r]` and M `[r, o]`, its derivative by P M is sum_t x_t d_t^T,
and by P it is sum_t x_t (M d_t)^T: rows x as they are and d of r numbers, where P M has o. For M P
the rows are M^T x_t. No matrix `[k, o]` is made. M is taken as a constant; if it depends on
parameters, P or others, they are followed by themselves. M d_t is computed before anything is held,
so norm and sum see the same numbers.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.tree import EXACT, at_least_float32
from jaxminimax.gradients.ghost._flat import Path, Step
from jaxminimax.gradients.ghost._uses import Use, as_matrices
from jaxminimax.gradients.ghost._views import View, entries


def folded(use: Use, at: Path, step: Step, me: int, view: View) -> Use | None:
    """The use of a parameter that a use of its product is; None if it is none of one matrix.

    Args:
      use: of the product.
      at: where the product is made.
      step: the product, `dot_general`.
      me: which operand of it the parameter is.
      view: from the parameter to that operand.
    """
    contracted, batch = step.params["dimension_numbers"]
    p, m = step.avals[me], step.avals[1 - me]
    mine, its = contracted[me], contracted[1 - me]
    free = tuple(i for i in range(p.ndim) if i not in mine)
    its_free = tuple(i for i in range(m.ndim) if i not in its)
    k, o = (math.prod(a.shape[i] for i in axes) for a, axes in ((p, free), (m, its_free)))
    r = math.prod(p.shape[i] for i in mine)
    if batch[0] or use.groups > 1 or use.kind == "lookup" or not k * o * r:
        return None
    if jnp.issubdtype(step.out.dtype, jnp.complexfloating) or sorted(use.shape) != sorted((k, o)):
        return None
    number = np.arange(k * o).reshape((k, o) if me == 0 else (o, k))
    number = number if me == 0 else number.T
    its_entries = entries(use.view, step.out.shape)
    along = np.array_equal(its_entries, number)  # whether x goes along the parameter's own axes
    if not along and not np.array_equal(its_entries, number.T):
        return None

    def factors(met: Sequence[jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, d = use.factors(met[:-1], d)
        matrix = met[-1].transpose((*its_free, *its)).reshape(o, r)

        def by(a: jax.Array) -> jax.Array:
            wide = at_least_float32(jnp.result_type(a, matrix))
            return jnp.matmul(a.astype(wide), matrix.astype(wide), precision=EXACT)

        return (x, by(d)) if along else (by(x), d)

    order, shape = ((*free, *mine), (k, r)) if along else ((*mine, *free), (r, k))
    return use._replace(operands=(*use.operands, (at, 1 - me)), shape=shape, factors=factors,
                        view=as_matrices(view, p, order, shape), folded=True)
