"""Attacks on clip norms that follow released counts: a pair that moves sums and counts at most.

The differing record is just within the clip norms on one data set, and opposite and far beyond them
on the other. So one replaced record moves every sum by twice its clip norm and every count by two
halves, and what is charged for both is attained. All others are zero.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from jaxminimax import Saddle, audit, sgda
from jaxminimax.audit import Signal

N, CLIP, DELTA = 20, Saddle(0.5, 2.0), 1e-2
ZERO = Saddle(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))


def _itself(z: Saddle, x: Saddle) -> Saddle:
    return x


PROBLEM = jmm.Problem(operator=_itself)


def hyper_of(joint: bool = False, share: float = 0.5, **query: Any) -> sgda.Hyper:
    """One round in which the counts have half of the budget, so that they can be seen."""
    described = jmm.Query(**{"clip": CLIP, "noise_multiplier": Saddle(1.5, 1.5), "population": N,
                             "joint": joint, "adaptive": jmm.AdaptiveClip(share=share), **query})
    return sgda.Hyper(query=described, step=Saddle(0.5, 0.5), iterations=1)


def pair(joint: bool = False) -> Saddle:
    """The two data sets, leaves `[2, n, 1]`."""
    def player(clip: float) -> jax.Array:
        inside = 0.9999 * clip * (0.5**0.5 if joint else 1.0)
        own = jnp.array([inside, -1e6 * clip], jnp.float32)
        return jnp.zeros((2, N, 1), jnp.float32).at[:, 0, 0].set(own)

    return jax.tree.map(player, CLIP)


def seen(state: Any, joint: bool = False) -> dict[str, Any]:
    """What a state shows of its last release: the point, and the logarithms of the clip norms."""
    norms = state.clip.w if joint else state.clip  # a joint clip has one count, which both show
    return {"z": state.z, "clip": jax.tree.map(jnp.log, norms)}


def signal(key: jax.Array, joint: bool = False, runs: int = 4000) -> Signal:
    """How far the record moves the sums and the counts of one release, over what is charged."""
    return audit.signal(key, sgda, hyper_of(joint), ZERO, pair(joint), PROBLEM, runs=runs,
                        observe=lambda state, _: seen(state, joint))


def attack(key: jax.Array, runs: int = 40_000, epsilon: float = 3.0) -> tuple[float, float]:
    """A lower bound on epsilon from all that one update shows, and the claimed one."""
    hyper = jmm.calibrate(sgda, hyper_of(noise_multiplier=None), epsilon, DELTA)
    start = sgda.init(ZERO, hyper)

    @jax.jit
    def shown(keys: jax.Array, data: Saddle) -> Any:
        return jax.lax.map(lambda k: seen(sgda.update(k, start, data, hyper, PROBLEM)), keys)

    def numbers(key: jax.Array, side: int) -> np.ndarray:
        data = jax.tree.map(lambda x: x[side], pair())
        states = jax.device_get(shown(jax.random.split(key, runs), data))
        return np.concatenate([np.reshape(x, (runs, -1)) for x in jax.tree.leaves(states)], 1)

    first, second = jax.random.split(key)
    one, two = numbers(first, 0), numbers(second, 1)
    half = runs // 2  # weighs the numbers; only the other half enters the bound
    weight = (one[:half].mean(0) - two[:half].mean(0)) / one[:half].var(0)
    result = audit.lower_bound({"linear": one @ weight}, {"linear": two @ weight}, DELTA)
    return result[0], jmm.epsilon(sgda.mechanism(hyper), DELTA)
