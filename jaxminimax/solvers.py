"""Solvers of strongly monotone variational inequalities, with certificates.

    find u* in W with <G(u*), u - u*> >= 0 for all u in W,

for a mu-strongly monotone, l-Lipschitz G. Iteration counts are fixed in advance, so that running
time tells nothing, and a solution is certified by its residual, never by hope. Nothing here is
private: residuals and iterates read whatever G reads.

Source: operator extrapolation, Kotsalis, Lan and Li, "Simple and optimal methods for stochastic
variational inequalities, I", arXiv:2011.02987, as used by Boob and Guzman, arXiv:2104.02988,
Appendix B, Algorithm 3. Departures: the rate below carries the constant that their bound leaves
out, which short runs exceed without it; the count follows from it; the start is in W.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax import _check
from jaxminimax._types import Tree

Operator = Callable[[Tree], Tree]


class Certified(NamedTuple):
    """A point and what bounds its distance from the solution.

    Attributes:
      point: v in W.
      residual: ||e|| for an e in G(v) + N_W(v). With G mu-strongly monotone,
        ||v - u*|| <= ||e|| / mu, and <G(v), v - u> <= ||e|| D for all u in W.
    """

    point: Tree
    residual: jax.Array


def in_float64(function: Callable[..., Tree]) -> Callable[..., Tree]:
    """`function`, traced with 64-bit types switched on, whatever the caller's setting.

    It gets arrays of any dtype and must return none that is wider than 32 bits. Mapped over, it is
    traced anew inside the switch: batching what was traced would round the types it finds.
    """
    @jax.custom_batching.custom_vmap
    def wide(*args: Tree) -> Tree:
        with jax.enable_x64(True):
            return function(*args)

    def rule(_: int, batched: list, *args: Tree) -> tuple[Tree, Tree]:
        axes = jax.tree.map(lambda b: 0 if b else None, tuple(batched))
        out = in_float64(jax.vmap(function, axes))(*args)
        return out, jax.tree.map(lambda _: True, out)

    wide.def_vmap(rule)
    return wide


def _condition(lipschitz: float, modulus: float) -> float:
    _check.number("modulus", modulus, low=0.0)
    _check.number("lipschitz", lipschitz, low=0.0)
    if modulus > lipschitz:
        raise ValueError(f"modulus must be at most lipschitz={lipschitz!r}, got {modulus!r}: an "
                         "operator is no more strongly monotone than it is Lipschitz.")
    return 1 + modulus / lipschitz


def extrapolation_bound(steps: int, *, lipschitz: float, modulus: float, distance: float) -> float:
    """Proven bound on ||u - u*|| after `steps` steps from a start at most `distance` away.

    (2 kappa / (2 kappa - 1))^(1/2) kappa^(-steps/2) distance, with kappa = 1 + mu / l.
    """
    kappa = _condition(lipschitz, modulus)
    log = 0.5 * (math.log(2 * kappa / (2 * kappa - 1)) - steps * math.log(kappa))
    return math.exp(log) * distance


def extrapolation_steps(accuracy: float, *, lipschitz: float, modulus: float,
                        distance: float) -> int:
    """Steps after which ||u - u*|| <= accuracy: ceil(ln(2 distance^2 / accuracy^2) / ln kappa).

    Args:
      accuracy: wanted bound on the distance from the solution [parameter units].
      lipschitz: l, of G.
      modulus: mu, of G.
      distance: bound on the start's distance from the solution, e.g. the diameter of W.

    Raises:
      ValueError: for numbers out of range.
    """
    kappa = _condition(lipschitz, modulus)
    _check.number("accuracy", accuracy, low=0.0)
    _check.number("distance", distance, low=0.0)
    ratio = math.log(2.0) + 2 * (math.log(distance) - math.log(accuracy))
    return max(1, math.ceil(ratio / math.log(kappa)))


def certifying_steps(residual: float, *, lipschitz: float, modulus: float,
                     distance: float) -> int:
    """Steps after which `certify` cannot find more than `residual`, in exact arithmetic.

    An iterate within zeta of the solution has a residual of at most 2 l (1 + sqrt 2) zeta.
    """
    return extrapolation_steps(residual / (2 * (1 + math.sqrt(2)) * lipschitz),
                               lipschitz=lipschitz, modulus=modulus, distance=distance)


def _norm(x: Tree) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(a)) for a in jax.tree.leaves(x)))


def operator_extrapolation(operator: Operator, project: Callable[[Tree], Tree], start: Tree, *,
                           lipschitz: jax.typing.ArrayLike, modulus: jax.typing.ArrayLike,
                           steps: int) -> Tree:
    """The iterate after some steps of operator extrapolation.

        z_{t+1} = P_W(z_t - (G(z_t) + (G(z_t) - G(z_{t-1})) / kappa) / (2 l)),  kappa = 1 + mu / l.

    One new evaluation of G a step; G(z_0) = G(z_1).

    Args:
      operator: G, on pytrees.
      project: Euclidean projection on W.
      start: z_1 in W; public, or released before: never an iterate of another solve.
      lipschitz: l.
      modulus: mu.
      steps: number of steps, at least 1.
    """
    weight = 1.0 / (1.0 + modulus / lipschitz)

    def move(z: Tree, direction: Tree) -> Tree:
        new = project(jax.tree.map(
            lambda x, g: x - (g / (2.0 * lipschitz)).astype(x.dtype), z, direction))
        return jax.tree.map(lambda a, x: a.astype(x.dtype), new, z)

    def step(_: jax.Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        z, before = carry
        g = operator(z)
        return move(z, jax.tree.map(lambda a, b: a + (a - b) * weight, g, before)), g

    first = operator(start)
    z, _ = jax.lax.fori_loop(1, steps, step, (move(start, first), first))
    return z


def certify(operator: Operator, project: Callable[[Tree], Tree], point: Tree, *,
            lipschitz: jax.typing.ArrayLike) -> Certified:
    """One more projected step and its residual.

        v = P_W(u - G(u) / l),      e = G(v) - G(u) + l (u - v)   in   G(v) + N_W(v).

    Release v, not u: the bounds of `Certified` are about v. They take the monotonicity of G as
    given and do not need l to be right.

    Args:
      operator: G.
      project: Euclidean projection on W.
      point: u, what a solver returned.
      lipschitz: l > 0; any positive number gives a valid certificate.
    """
    here = operator(point)
    v = project(jax.tree.map(lambda u, g: u - (g / lipschitz).astype(u.dtype), point, here))
    there = operator(v)
    e = jax.tree.map(lambda a, b, u, x: a - b + lipschitz * (u - x), there, here, point, v)
    return Certified(v, _norm(e))
