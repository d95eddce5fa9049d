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
# # A private GAN
#
# This notebook makes synthetic data under differential privacy, by a saddle problem. A
# discriminator D is low on records and high on generated points. A generator G makes points on
# which D is low,
#
# `min_w max_v  mean_i D_w(z_i) - mean_k D_w(G_v(xi_k)) + (rho / 2) |w|^2`.
#
# Only the first term reads records, and it does not contain `v`. So the generator gets no clip norm
# and no noise, and costs no privacy. Once trained, it may make any number of points.

# %%
import functools
import math
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxminimax as jmm
from benchmarks.examples import demo_gan
from jaxminimax import Saddle

quick = os.environ.get("JAXMINIMAX_QUICK") == "1"
n, rounds, batch = (2000, 60, 100) if quick else (20_000, 3000, 200)
records = demo_gan.ring(jax.random.key(0), n)

# %% [markdown]
# ## The problem
#
# The discriminator has two layers. The first is random, public and fixed, so D is linear in `w` and
# the problem is convex in `w`. No record's gradient is longer than the root of two, so
# clipping there changes nothing. The latent points are a public bank: the second mean is a function
# of the point alone, which the algorithm adds after the release.

# %%
latent, hidden, waves = 2, 128, 256
keys = jax.random.split(jax.random.key(1), 3)
discriminator = demo_gan.cosine_discriminator(keys[0], dim=2, hidden=waves, low=1.0, high=12.0)
bank = demo_gan.latents(keys[1], 512, latent)
problem = demo_gan.wgan(discriminator, demo_gan.mlp_generator, bank, limit=100.0,
                        norm="ball", penalty=0.03)
start = Saddle(jnp.zeros(waves), demo_gan.generator_init(keys[2], latent=latent, hidden=hidden,
                                                         dim=2))

# %% [markdown]
# ## A private run, and one without noise
#
# `clip=Saddle(c, None)`: the discriminator is released, the generator is not. The second run has no
# noise, for comparison, and is not private.

# %%
adam = functools.partial(optax.adam, b1=0.5, b2=0.9)
query = jmm.Query(clip=Saddle(math.sqrt(2), None), population=n,
                  sampling=jmm.Poisson(rate=batch / n))
falling = jmm.schedules.Decay(scale=6e-4 * rounds, power=1.0, offset=0.3 * rounds)
plain = jmm.sgda.Hyper(query=query, step=Saddle(0.5, falling), iterations=rounds,
                       averaging=jmm.averaging.TAIL, optimiser=Saddle(optax.sgd, adam))
epsilons, delta = (1.0,), 1e-6
hypers = [jmm.calibrate(jmm.sgda, plain, epsilon, delta) for epsilon in epsilons]
silent = jmm.Query(clip=query.clip, noise_multiplier=Saddle(0.0, None), population=n,
                   sampling=query.sampling)
hypers.append(jmm.sgda.Hyper(query=silent, step=plain.step, iterations=rounds,
                             averaging=jmm.averaging.TAIL, optimiser=plain.optimiser))


@jax.jit
def train(keys, hypers):
    return jax.lax.map(lambda x: jmm.run(x[0], start, records, x[1], jmm.sgda, problem)[0],
                       (keys, hypers))


# fixed keys, so that the figure can be repeated: a real run takes jmm.noise.secret_key()
states = train(jax.random.split(jax.random.key(2), len(hypers)), jmm.stack(hypers))
first = jax.tree.map(lambda x: x[0], states)
print(jmm.statement(jmm.sgda, hypers[0], first, delta=delta, unit="one point"))

# %% [markdown]
# ## Generated points
#
# The averaged generator makes these points from fresh latent points. The sliced Wasserstein
# distance reads the records and is not private: it is for study.

# %%
xi = jax.random.normal(jax.random.key(3), (2000, latent))
made = jax.vmap(lambda v: jax.vmap(demo_gan.mlp_generator, (None, 0))(v, xi))(states.average.v)
distance = jax.jit(lambda x: demo_gan.sliced_wasserstein(jax.random.key(4), x, records[:2000]))
centres = demo_gan.ring_centres()
names = [*(f"epsilon = {e:g}" for e in epsilons), "without noise"]
found = []
for name, points in zip(names, made, strict=True):
    modes, inside = demo_gan.modes_covered(points, centres, within=0.25)
    found.append((float(distance(points)), int(modes), float(inside)))
    print(f"{name}: distance {found[-1][0]:.3f}, {found[-1][1]} of 8 modes, "
          f"{found[-1][2]:.0%} of the points within one")

# %%
figure, axes = plt.subplots(1, 3, figsize=(8, 3), layout="constrained")
figure.suptitle(f"delta = {delta:g}, replace-one; SW: sliced Wasserstein distance to records",
                fontsize="medium")
titles = ["records", *(f"{a}, SW {b[0]:.3f}" for a, b in zip(names, found, strict=True))]
for ax, title, points in zip(axes, titles, [records[:2000], *made], strict=True):
    ax.plot(*np.asarray(points).T, ".", markersize=1)
    ax.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect="equal", xlabel="x", ylabel="y")
    ax.set_title(title, fontsize="small")
plt.show()

# %% [markdown]
# ## The noise of a round and of the average
#
# The whole budget goes to one player. This prints the noise of the mean gradient in a round, and
# the noise of the mean over half of the rounds.

# %%
for name, hyper in zip(names, hypers, strict=True):
    std = math.sqrt(2) * float(hyper.query.noise_multiplier.w) / batch
    print(f"{name}: {std:.4f} a coordinate and round, {std / math.sqrt(rounds / 2):.5f} averaged")
