# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A first private saddle point
#
# This notebook solves a two-player quadratic game with differential privacy. The saddle point is
# known, so it shows how the strong gap falls with the number of records, and how a run states its
# privacy.
#
# `f(w, v; (a, b)) = (mu/2)|w - a|^2 + c <w, v> - (mu/2)|v - b|^2` on two balls; each record is a
# pair (a, b).

# %%
import math
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxminimax as jmm
from jaxminimax import Saddle

mu, c, dim, radius = 1.0, 0.5, 10, 2.0
game = jmm.problems.quadratic_game(modulus=mu, coupling=c, radius=Saddle(radius, radius))


def records(key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """Pairs (a, b): fixed means plus 0.4 times a random unit vector."""
    noise = jax.random.normal(key, (2, n, dim))
    noise = 0.4 * noise / jnp.linalg.norm(noise, axis=2, keepdims=True)
    return 0.6 * jnp.eye(dim)[:1] + noise[0], -0.5 * jnp.eye(dim)[1:2] + noise[1]


# %% [markdown]
# ## One run
#
# `Query` describes what a round does to the data: clip norms and, after `calibrate`, the noise. The
# clip norms here are above every gradient, so clipping changes nothing. The statement is computed
# from the same object.

# %%
n = 1000
bound = mu * (radius + 1) + c * radius  # of every record's gradient, for either player
query = jmm.Query(clip=Saddle(bound, bound), population=n)
hyper = jmm.gda.Hyper(query=query, modulus=mu, iterations=math.ceil(n ** (2 / 3)))
hyper = jmm.calibrate(jmm.gda, hyper, epsilon=1.0, delta=1e-6)

start = Saddle(jnp.zeros(dim), jnp.zeros(dim))
data = records(jax.random.key(0), n)
state, _ = jmm.run(jmm.noise.secret_key(), start, data, hyper, jmm.gda, game)
print(jmm.statement(jmm.gda, hyper, state, delta=1e-6))

# %% [markdown]
# ## The gap against n
#
# With the noise calibrated to epsilon, the expected gap is of order `d / (n epsilon)^2`: slope -2.
# (Gaps read the data and are not private: they are for study. Keys are fixed for the same reason.)

# %%
quick = os.environ.get("JAXMINIMAX_QUICK") == "1"  # for a first look
sizes = (500, 1000, 2000) if quick else (250, 500, 1000, 2000, 4000)
epsilons, runs = (0.5, 1.0, 4.0), 10 if quick else 20
gaps = np.zeros((len(epsilons), len(sizes)))
for j, n in enumerate(sizes):
    data = records(jax.random.key(n), n)
    query = jmm.Query(clip=Saddle(bound, bound), population=n)
    plain = jmm.gda.Hyper(query=query, modulus=mu, iterations=math.ceil(n ** (2 / 3)))
    hypers = jmm.stack([jmm.calibrate(jmm.gda, plain, e, 1e-6) for e in epsilons])

    @jax.jit
    def gap(keys, data, hypers):
        states, _ = jmm.sweep(keys, start, data, hypers, jmm.gda, game)
        one = jax.vmap(jmm.metrics.strong_gap, (None, 0, None))
        return jax.vmap(one, (None, 0, None))(game, states.average, data)

    keys = jax.random.split(jax.random.key(1), (len(epsilons), runs))
    gaps[:, j] = gap(keys, data, hypers).mean(1)

slope = np.polyfit(np.log(sizes[-3:]), np.log(gaps[1, -3:]), 1)[0]
print(f"slope at epsilon = 1 over n >= {sizes[-3]}: {slope:.2f}")
assert -2.4 < slope < -1.6, "the gap is noise: it falls like 1 / n^2"

# %%
figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
for epsilon, row in zip(epsilons, gaps, strict=True):
    axes.loglog(sizes, row, "o-", label=f"epsilon = {epsilon:g}")
guide = gaps[1, -1] * (np.array(sizes) / sizes[-1]) ** -2.0
axes.loglog(sizes, guide, "k--", linewidth=1, label="slope -2")
axes.set(xlabel="records n", ylabel="strong gap", title="DP-GDA, delta = 1e-6, replace-one")
axes.set_xticks(sizes, [str(n) for n in sizes])
axes.minorticks_off()
axes.legend()
plt.show()
