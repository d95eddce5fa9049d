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

Below it a decision process to show: transitions from a known table, exact measures of policies.
"""

from typing import Any

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

    def loss(h: Any, mu: Any, record: Any) -> Any:
        i, a, j, r = record
        ratio = mu[i, a] * jnp.asarray(weight, mu.dtype)[i, a]
        return ratio * (h[j] - h[i] + jnp.asarray(r, h.dtype))

    def value(z: Any, data: Any) -> Any:
        return jnp.mean(jax.vmap(loss, (None, None, 0))(z.w, z.v, data))

    # bilinear, so a player's gradient is the same everywhere and its best response a vertex
    def best_h(mu: Any, data: Any) -> Any:
        h = jnp.zeros(states, mu.dtype)
        return lowest(jax.grad(lambda h: value(Saddle(h, mu), data))(h))

    def best_mu(h: Any, data: Any) -> Any:
        mu = jnp.zeros(shape, h.dtype)
        return vertex(-jax.grad(lambda mu: value(Saddle(h, mu), data))(mu))

    def lowest(g: Any) -> Any:
        return jnp.where(g > 0, -bias, bias).astype(g.dtype)

    def vertex(g: Any) -> Any:
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
    """The initial point: h = 0 and the uniform mu."""
    return Saddle(jnp.zeros(states), jnp.full((states, actions), 1 / (states * actions)))


def mdp_policy(mu: jax.Array) -> jax.Array:
    """P[a | i] = mu(i, a) / sum_a mu(i, a), `[S, A]`; uniform in states that mu leaves out."""
    total = jnp.sum(mu, 1, keepdims=True)
    known = total > 1e-6 / mu.shape[0]
    return jnp.where(known, mu / jnp.where(known, total, 1), 1 / mu.shape[1])


# --- what it is shown on ---


def transitions(key: jax.Array, count: int, transition: np.ndarray, reward: np.ndarray
                ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """`count` records (i, a, j, r) of a known process, (i, a) uniform.

    Args:
      key: of the draws.
      count: n.
      transition: P_a(i, j) as `[S, A, S]`.
      reward: `[S, A]`.
    """
    checks.count("count", count)
    _process(transition, reward)
    states, actions, _ = np.shape(transition)
    one, two, three = jax.random.split(key, 3)
    i = jax.random.randint(one, (count,), 0, states)
    a = jax.random.randint(two, (count,), 0, actions)
    j = jax.random.categorical(three, jnp.log(jnp.asarray(transition))[i, a])
    return i, a, j, jnp.asarray(reward)[i, a]


def grid_world(side: int, *, slip: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """A square of cells with a reward in the last one, which sends the walker back at random.

    Actions 0, 1, 2, 3 are up, right, down, left; with probability `slip` the walker goes in a
    uniformly random direction instead, and walls keep it in place.

    Returns:
      P `[S, 4, S]` and r `[S, 4]`, S = side**2, cells row by row.
    """
    checks.count("side", side, low=2)
    checks.number("slip", slip, low=0.0, high=1.0, closed=True)
    states = side**2
    walk = np.zeros((states, 4, states))
    for i in range(states):
        for a, (down, right) in enumerate([(-1, 0), (0, 1), (1, 0), (0, -1)]):
            row, column = (np.clip(x, 0, side - 1) for x in (i // side + down, i % side + right))
            walk[i, a, row * side + column] = 1.0
    mixed = (1 - slip) * walk + slip * walk.mean(1, keepdims=True)
    mixed[-1] = 1 / states
    reward = np.zeros((states, 4))
    reward[-1] = 1.0
    return mixed, reward


def _process(transition: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A Markov decision process in float64.

    Raises:
      ValueError: unless they are probabilities `[S, A, S]` and finite numbers `[S, A]`.
    """
    p, r = np.asarray(transition, np.float64), np.asarray(reward, np.float64)
    if p.ndim != 3 or p.shape[0] != p.shape[2] or r.shape != p.shape[:2]:
        raise ValueError(f"transition must be [S, A, S] and reward [S, A], got {p.shape} and "
                         f"{r.shape}.")
    if not (np.all(p >= 0) and np.allclose(p.sum(2), 1, atol=1e-6) and np.all(np.isfinite(r))):
        raise ValueError("transition must hold probabilities that add up to 1 for every state and "
                         "action, and rewards must be finite.")
    return p / p.sum(2, keepdims=True), r


def average_reward(transition: np.ndarray, reward: np.ndarray, policy: np.ndarray) -> float:
    """The average reward of a stationary policy, exactly, on the host: of the process, not of data.

    Args:
      transition: `[S, A, S]`.
      reward: `[S, A]`.
      policy: P[a | i], `[S, A]`.

    Raises:
      ValueError: for shapes that do not fit, a policy that is none, or one under which the chain
        falls into several parts, so that the average depends on the start.
    """
    return float(_evaluate(*_process(transition, reward), policy)[0])


def optimal_policy(transition: np.ndarray, reward: np.ndarray
                   ) -> tuple[np.ndarray, float, np.ndarray]:
    """The best stationary policy by policy iteration, exactly, on the host.

    Returns:
      The policy `[S, A]`, its average reward, and the differences of values h `[S]`, centred so
      that the largest |h_i| is smallest: H in `mdp` must be at least that.

    Raises:
      ValueError: as `average_reward`, for every policy on the way: processes where some policy
        falls into several parts may be refused even if the best one does not.
    """
    p, r = _process(transition, reward)
    policy = np.full(r.shape, 1 / r.shape[1])
    for _ in range(10 * r.size):
        gain, h = _evaluate(p, r, policy)
        ahead = r + p @ h
        better = ahead.max(1) > (policy * ahead).sum(1) + 1e-10
        if not better.any():
            break
        policy = np.where(better[:, None], np.eye(r.shape[1])[ahead.argmax(1)], policy)
    return policy, float(gain), h - (h.max() + h.min()) / 2


def _evaluate(p: np.ndarray, r: np.ndarray, policy: np.ndarray) -> tuple[float, np.ndarray]:
    """Gain g and differences of values h with g + h = r + P h and h_0 = 0."""
    policy = np.asarray(policy, np.float64)
    if policy.shape != r.shape or not np.all(policy >= -1e-9) or not np.allclose(
            policy.sum(1), 1, atol=1e-4):
        raise ValueError(f"policy must hold probabilities [S, A] = {list(r.shape)}, got shape "
                         f"{policy.shape}.")
    policy = policy / policy.sum(1, keepdims=True)
    size = len(r)
    system = np.eye(size) - np.einsum("ia,iaj->ij", policy, p)
    system[:, 0] = 1.0  # the column of h_0, which is 0, serves g
    if np.linalg.cond(system) > 1e12:
        raise ValueError("under this policy the chain falls into several parts, so its average "
                         "reward depends on where it starts.")
    solved = np.linalg.solve(system, (policy * r).sum(1))
    gain, solved[0] = solved[0], 0.0
    return float(gain), solved


def mdp_gap(z: Saddle, transition: np.ndarray, reward: np.ndarray, bias: float) -> float:
    """The strong gap of (h, mu) on the true process, in closed form; reads no data.

    It is max_{i,a} ((P_a - I) h + r)(i, a) - mu^T r + H ||mu^T (P_a - I)||_1.
    """
    p, r = _process(transition, reward)
    h, mu = (np.asarray(x, np.float64) for x in z)
    flow = np.einsum("ia,iaj->j", mu, p) - mu.sum(1)
    return float((p @ h - h[:, None] + r).max() - (mu * r).sum() + bias * np.abs(flow).sum())
