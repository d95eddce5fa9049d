"""Average-reward Markov decision processes, from private transitions, as a bilinear saddle problem.

For transition probabilities P_a(i, j) and rewards r(i, a) of S states and A actions,

    min over |h_i| <= H, max over mu in the simplex, of   mu^T ((P_a - I) h + r):

mu is the share of time spent in state i with action a, h the difference of values. At the saddle
point mu is that of the best stationary policy, whose average reward is the value. Records are
transitions (i, a, j, r), one of which is the unit of privacy, with (i, a) drawn from a public
design beta (uniform, say), so that

    f(h, mu; (i, a, j, r)) = mu(i, a) / beta(i, a) (h_j - h_i + r)

has the bilinear form as its mean. A record's gradients are sparse, of norm 2^(1/2) mu(i, a) /
beta(i, a) for h and |h_j - h_i + r| / beta(i, a), at most S A (2 H + 1) for a uniform design and
rewards in [0, 1], for mu.

Source: Wang, "Primal-dual pi learning", arXiv:1710.06100, as in Yang et al., arXiv:2201.09046,
Appendix A, whose Bellman equation prints h_i where h_j, the value of the state that is reached, is
meant. Departures: mu ranges over the whole simplex; Euclidean projections; a design.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, Saddle, saddle_operator


def mdp(*, states: int, actions: int, bias: float, design: np.ndarray | None = None) -> Problem:
    """The saddle problem of an average-reward Markov decision process.

    Data are transitions (i, a, j, r), arrays `[n]`: states and actions as integers from 0, rewards
    as numbers. The point is h `[states]`, mu `[states, actions]`; `mdp_start` is a start and
    `mdp_policy` the policy of a mu, which is post-processing.

    Args:
      states: S.
      actions: A.
      bias: H. Half the spread of the optimal differences of values is enough.
      design: beta, the public probabilities `[states, actions]` with which the pairs (i, a) were
        drawn; None: uniform. Frequencies counted in the data are not public.

    Raises:
      ValueError: for sizes or a bound out of range, or a design that is no distribution with
        positive probabilities.

    Examples:
        >>> problem = jmm.problems.mdp(states=3, actions=2, bias=2.0)
        >>> g = problem.operator(jmm.problems.mdp_start(3, 2), (0, 1, 2, 0.5))
        >>> g.w.shape, g.v.shape
        ((3,), (3, 2))
    """
    checks.count("states", states)
    checks.count("actions", actions)
    checks.number("bias", bias, low=0.0)
    shape = (states, actions)
    beta = np.full(shape, 1 / (states * actions)) if design is None else np.asarray(design, float)
    if beta.shape != shape or not np.all(beta > 0) or abs(beta.sum() - 1) > 1e-6:
        raise ValueError(f"design must hold positive probabilities {list(shape)} that add up to 1, "
                         f"got shape {beta.shape} and sum {beta.sum():g}.")
    weight = 1 / beta

    def loss(h, mu, record):
        i, a, j, r = record
        ratio = mu[i, a] * jnp.asarray(weight, mu.dtype)[i, a]
        return ratio * (h[j] - h[i] + jnp.asarray(r, h.dtype))

    def value(z, data):
        return jnp.mean(jax.vmap(loss, (None, None, 0))(z.w, z.v, data))

    # bilinear, so a player's gradient is the same everywhere and its best response a vertex
    def best_h(mu, data):
        h = jnp.zeros(states, mu.dtype)
        return lowest(jax.grad(lambda h: value(Saddle(h, mu), data))(h))

    def best_mu(h, data):
        mu = jnp.zeros(shape, h.dtype)
        return vertex(-jax.grad(lambda mu: value(Saddle(h, mu), data))(mu))

    def lowest(g):
        return jnp.where(g > 0, -bias, bias).astype(g.dtype)

    def vertex(g):
        return jax.nn.one_hot(jnp.argmin(g), g.size, dtype=g.dtype).reshape(g.shape)

    return Problem(
        operator=saddle_operator(loss),
        project=lambda z: Saddle(jnp.clip(z.w, -bias, bias),
                                 optax.projections.projection_simplex(z.v)),
        value=value,
        best_response=Saddle(best_h, best_mu),
        support=lambda g: Saddle(lowest(g.w), vertex(g.v)),
    )


def mdp_start(states: int, actions: int) -> Saddle:
    """The initial point: h = 0 and the uniform mu.

    Examples:
        >>> start = jmm.problems.mdp_start(3, 2)
        >>> start.w.shape, round(float(start.v.sum()), 3)
        ((3,), 1.0)
    """
    return Saddle(jnp.zeros(states), jnp.full((states, actions), 1 / (states * actions)))


def mdp_policy(mu: jax.Array) -> jax.Array:
    """P[a | i] = mu(i, a) / sum_a mu(i, a), `[S, A]`; uniform in states that mu leaves out.

    Examples:
        >>> policy = jmm.problems.mdp_policy(jnp.array([[0.1, 0.3], [0.0, 0.0]]))
        >>> print(np.round(policy, 3))
        [[0.25 0.75]
         [0.5  0.5 ]]
    """
    total = jnp.sum(mu, 1, keepdims=True)
    known = total > 1e-6 / mu.shape[0]
    return jnp.where(known, mu / jnp.where(known, total, 1), 1 / mu.shape[1])
