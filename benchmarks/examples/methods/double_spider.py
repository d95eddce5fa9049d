"""DP Double-Spider: distributionally robust training by two estimates that are kept up apart.

    min over x, eta of  (1/n) sum_i  lam psi*((l(x; s_i) - eta) / lam) + eta.

The gradients of eta and of x have an anchor every q rounds and private differences in between:

    g_t = release of d_eta L at (x_t, eta_t), or g_{t-1} + its change since (x_{t-1}, eta_{t-1}),
    eta_{t+1} = eta_t - a g_t,
    v_t = release of d_x L at (x_t, eta_{t+1}), or v_{t-1} + its change since (x_{t-1}, eta_t),
    x_{t+1} = x_t - min(b, length / |v_t|) v_t.

Source: Xu, Ding, Ma, Xie, Tao, Slaitane and Wang, "Differentially private non-convex
distributionally robust optimization", 2026, arXiv:2602.16155. Its abstract was read, and public
code that names it, from which the order of the steps, their lengths and noise in proportion to
the points' distance are taken; its text and its proofs were not. Departures: differences are
clipped at L times the distance of both variables, and the noise is that of this library.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import jaxminimax as jmm
from benchmarks.examples.methods import only
from benchmarks.examples.methods.windows import Windows, release_in_window
from jaxminimax import Saddle
from jaxminimax.algorithms.descent import started


@jmm.types.pytree_dataclass
class Hyper:
    """The settings of a run: `query` is of x, `threshold` of eta; steps b of x and a of eta."""

    query: Windows
    threshold: Windows
    step: float
    step_threshold: float
    length: float  # of a step of x, at most
    iterations: int = jax.tree.static()


class State(NamedTuple):
    """The points of this round and the one before, both estimates, and the releases so far."""

    z: Saddle
    before: Saddle
    estimate: Saddle
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The last point."""
        return self.z


def mechanism(hyper: Hyper) -> jmm.Sequence:
    """Describes a release of eta's gradient and one of x's in every round."""
    return jmm.Sequence(parts=tuple(dataclasses.replace(one, rounds=hyper.iterations)
                                    for one in (hyper.threshold, hyper.query)), in_turn=True)


def init(z: Saddle, hyper: Hyper) -> State:
    """Starts at z, with w = {"x": ..., "eta": ...}."""
    z = started(z, hyper)
    return State(z, z, jax.tree.map(jnp.zeros_like, z), jnp.int32(0))


def update(key: jax.Array, state: State, data: Any, hyper: Hyper, problem: jmm.Problem) -> State:
    """Makes one round."""
    threshold, model = mechanism(hyper).parts
    t, w, before = state.spent // 2, state.z.w, state.before.w

    def estimate(part: Any, name: str, w: Any, before: Any) -> Any:
        g, opens = release_in_window(key, part, t, only(problem, name), Saddle(w, ()),
                                     Saddle(before, ()), data)
        return jax.tree.map(lambda new, kept: jnp.where(opens, new, kept + new), g.w[name],
                            state.estimate.w[name])

    g = estimate(threshold, "eta", w, before)
    further = {**w, "eta": w["eta"] - hyper.step_threshold * g}
    v = estimate(model, "x", further, {**before, "eta": w["eta"]})
    step = jnp.minimum(hyper.step, hyper.length / jnp.maximum(optax.tree.norm(v), 1e-12))
    further["x"] = jax.tree.map(lambda x, v: x - step * v, w["x"], v)
    return State(problem.project(Saddle(further, ())), state.z, Saddle({"x": v, "eta": g}, ()),
                 state.spent + 2)
