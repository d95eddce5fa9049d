"""Signs of a public term, compared at synthetic points; no data are read.

For an objective with the terms r(w, v), `Problem.public` is P = (grad_w r, -grad_v r). Along
directions a of w and b of v its derivatives are

    <a, dP_w[b]> = -<b, dP_v[a]>,    <a, dP_w[a]> = r''[a, a],    <b, dP_v[b]> = -r''[b, b].

So where r depends on both players, a part with the wrong sign makes the first two numbers equal. A
regulariser holds its player back: its last number is positive, and negative with the wrong sign. A
term that is linear in both players alone, c @ w + d @ v, shows nothing.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import Saddle

_POINTS = 16
_SMALL = 1e-3  # of the norms' product, below which a number counts as zero


def warnings_of(problem: Any, z: Saddle) -> tuple[str, ...]:
    """Returns a warning for each sign of the public term that seems to be wrong.

    Args:
      problem: `public`, `project` and `random` are used.
      z: a public point.
    """
    if getattr(problem, "public", None) is None:
        return ()
    keys = jax.random.split(jax.random.key(0), _POINTS)
    numbers = np.asarray(jax.jit(lambda keys: jax.lax.map(
        lambda key: _derivatives(problem, z, key), keys))(keys), np.float64)
    # entries that are 0 or not finite say nothing, at this point
    ww, wv, vw, vv = np.where(np.isfinite(numbers), numbers, 0.0).T
    texts = []
    both = np.abs(wv) + np.abs(vw) > 0
    if both.any() and np.all(np.abs(wv - vw)[both] < 0.1 * np.abs(wv + vw)[both]):
        texts.append("One player's part of the public term has the wrong sign: where the terms r "
                     "depend on both players, public(z) is Saddle(grad_w r, -grad_v r), with minus "
                     "the gradient of v, and the derivatives at synthetic points have one sign.")
    for name, sign, curved in (("w", "+", ww), ("v", "-", vv)):
        if np.all(curved < 0):
            texts.append(
                f"The public term drives {name} away: a step against it makes {name} grow, at each "
                f"synthetic point. A regulariser {sign}(c/2)|{name}|^2 of the objective has "
                f"public(z).{name} = +c {name}, as v's part is minus the gradient.")
    return tuple(texts)


def _derivatives(problem: Any, z: Saddle, key: jax.Array) -> jax.Array:
    """Computes <a, dP_w[a]>, <a, dP_w[b]>, <b, dP_v[a]> and <b, dP_v[b]>; small ones are 0."""
    further, along, own = jax.random.split(key, 3)
    # near z, and far from it: only there do both signs of a term such as tanh show
    scale = jnp.where(jax.random.bits(own) % 2, 1.0, 10.0)
    moved = problem.project(jax.tree.map(
        lambda x, y: x + (scale * y).astype(x.dtype), z, _normal(further, z)))
    middle = jax.tree.map(lambda x, y: ((x + y) / 2).astype(x.dtype), z, moved)
    a, b = _normal(along, z)
    still = jax.tree.map(jnp.zeros_like, z)

    def public(z: Saddle) -> Saddle:
        return problem.public(z, own) if problem.random else problem.public(z)

    def along_one(direction: Saddle) -> list[jax.Array]:
        _, change = jax.jvp(public, (middle,), (direction,))
        return [_product(a, change.w), _product(b, change.v)]

    (ww, vw), (wv, vv) = (along_one(Saddle(a, still.v)), along_one(Saddle(still.w, b)))
    return jnp.stack([ww, wv, vw, vv])


def _normal(key: jax.Array, like: Any) -> Any:
    """Draws standard normal numbers like a tree."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, max(len(leaves), 1))
    return jax.tree.unflatten(structure, [
        jax.random.normal(k, jnp.shape(x), jnp.result_type(x))
        for k, x in zip(keys, leaves, strict=False)])


def _product(x: Any, y: Any) -> jax.Array:
    """Computes <x, y>; 0 if it is small against the norms."""
    pairs = list(zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True))
    value, one, other = (sum((jnp.vdot(*p) for p in those), jnp.zeros(())) for those in (
        pairs, [(p[0], p[0]) for p in pairs], [(p[1], p[1]) for p in pairs]))
    return jnp.where(jnp.abs(value) > _SMALL * jnp.sqrt(one * other), value, 0.0)
