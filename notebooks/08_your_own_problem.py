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
# # Your own problem
#
# A loss, a projection, an optimiser and a metric of your own; checkpoints; a variational
# inequality; the statement and JSON; and the messages that typical mistakes get.
#
# The problem: **detect, with bounded false alarms** (Neyman-Pearson). Among records $(x, y)$, keep
# the loss on positives small while the loss on negatives stays below $\tau$:
#
# $$\min_{\|w\| \le 5} \max_{0 \le v \le 5} \; \mathbb{E}\Big[ \tfrac{[y = 1]}{p} \ell(\langle x, w
# \rangle) + v \, \tfrac{[y = 0]}{1 - p} \ell(-\langle x, w \rangle) \Big] - \tau v +
# \tfrac{\rho}{2} \|w\|^2 - \tfrac{\rho}{2} v^2, \qquad \ell(t) = \ln(1 + e^{-t}),$$
#
# with the class prior $p$ public. The last three terms read no data.

# %%
import dataclasses
import functools
import json
import os
import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxminimax as jmm
from jaxminimax import Saddle

quick = bool(os.environ.get("JAXMINIMAX_QUICK"))
n, dim, prior, tau, rho, delta = (400 if quick else 4000), 5, 0.3, 0.25, 0.02, 1e-6
rounds, seeds = (40, 3) if quick else (300, 10)
jit = functools.partial(jax.jit, compiler_options={  # plain jax.jit does as well
    "xla_backend_optimization_level": 0 if quick else 3})

# %%
def loss(w, v, record):
    """Of one record; w and v may be any pytrees, and one record is all that it may read."""
    x, y = record
    t = x @ w["direction"] + w["bias"]
    positive = y / prior * jnp.logaddexp(0.0, -t)
    return positive + v * (1 - y) / (1 - prior) * jnp.logaddexp(0.0, t)


problem = jmm.Problem(
    operator=jmm.saddle_operator(loss),  # (grad_w, -grad_v): both players descend along it
    public=lambda z: Saddle(jax.tree.map(lambda a: rho * a, z.w), tau + rho * z.v),
    project=lambda z: Saddle(optax.projections.projection_l2_ball(z.w, 5.0),
                             jnp.clip(z.v, 0.0, 5.0)),
)


def sample(seed, n):
    """Positives around (1, 1/2, 0, ...), negatives around minus that, features within radius 3."""
    rng = np.random.default_rng(seed)
    y = rng.random(n) < prior
    x = np.where(y, 1, -1)[:, None] * np.array([[1, 0.5, 0, 0, 0]]) + rng.normal(size=(n, dim))
    x *= np.minimum(1, 3 / np.linalg.norm(x, axis=1, keepdims=True))
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


data, test = sample(0, n), sample(1, 5000)
start = Saddle({"direction": jnp.zeros(dim, jnp.float32), "bias": jnp.zeros((), jnp.float32)},
               jnp.ones((), jnp.float32))

# %% [markdown]
# Either player may take any optax optimiser. Only the noisy operator reaches it, so privacy does
# not depend on it. Build it once, because it is hashed by identity. Player w gets 80 % of the
# budget; `calibrate` keeps the ratio and computes the noise.

# %%
adam = functools.partial(optax.adam, b1=0.5)
query = jmm.Query(clip=Saddle(3.0, 2.0), population=n,
                  noise_multiplier=jmm.mechanism.budget_split(w=0.8))
hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.05, 0.1), iterations=rounds,
                       optimiser=Saddle(adam, optax.sgd), averaging=jmm.averaging.TAIL)
epsilons = [1.0] if quick else [0.25, 0.5, 1.0, 2.0, 4.0]
hypers = [jmm.calibrate(jmm.sgda, hyper, e, delta) for e in epsilons]
assert all(jmm.epsilon(jmm.sgda.mechanism(h), delta) <= e
           for h, e in zip(hypers, epsilons, strict=True)), "calibrated noise is enough"


@jax.jit
def metric(z, rows):
    """A metric of your own: loss on positives and on negatives. It reads the data: not private."""
    x, y = rows
    t = x @ z.w["direction"] + z.w["bias"]
    means = (jnp.sum(y * jnp.logaddexp(0.0, -t)) / jnp.sum(y),
             jnp.sum((1 - y) * jnp.logaddexp(0.0, t)) / jnp.sum(1 - y))
    return jnp.stack(means)


# %% [markdown]
# ## Seeds and budgets in one program
#
# `sweep` runs every budget with every seed. A last row has no noise (and no privacy), for
# reference. `observe` sees the state after each round, which is private output already, and never
# the data.

# %%
silent = dataclasses.replace(hyper, query=dataclasses.replace(
    query, noise_multiplier=Saddle(0.0, 0.0)))
unclipped = dataclasses.replace(hyper, query=dataclasses.replace(
    query, clip=Saddle(30.0, 30.0), noise_multiplier=Saddle(0.0, 0.0)))
stacked = jmm.stack([*hypers, unclipped, silent])


def observe(state):
    """The averaged point after a round: what a private run could have published."""
    return state.average


@jit
def swept(keys, data, hypers):
    states, path = jmm.sweep(keys, start, data, hypers, jmm.sgda, problem, observe)
    each = jax.vmap(jax.vmap(metric, (0, None)), (0, None))
    last = each(states.average, test)
    first = jax.tree.map(lambda x: x[:, 0], path)  # the first seed's rounds
    return last, each(first, test), first.v


last, path, multiplier = map(np.asarray, swept(
    jax.random.split(jax.random.key(2), (len(epsilons) + 2, seeds)), data, stacked))
reference = last[-1, 0]
relaxed = tau + rho * multiplier[-2:, -1]
for word, values, bound in zip(("no noise and no clip", "no noise"), last[-2:, 0], relaxed,
                               strict=True):
    print(f"{word:20s}: loss on positives {values[0]:.3f}, on negatives {values[1]:.3f}; "
          f"tau + rho v = {bound:.3f}")
for e, values in zip(epsilons, last, strict=False):
    print(f"ε = {e:4g}: positives {values[:, 0].mean():.3f} ± {values[:, 0].std(ddof=1):.3f}, "
          f"negatives {values[:, 1].mean():.3f} ± {values[:, 1].std(ddof=1):.3f}")
assert np.isfinite(last).all(), "no run released NaN"
if not quick:
    assert abs(last[-2, 0, 1] - relaxed[0]) < 0.02, "without noise and clip the bound is met"
    assert last[0, :, 0].std() > last[len(epsilons) - 1, :, 0].std(), "more budget, less spread"

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for k, (word, color) in enumerate((("positives", "C0"), ("negatives", "C1"))):
    own = last[:len(epsilons), :, k]
    axes[0].errorbar(epsilons, own.mean(1), own.std(1, ddof=1), marker="o", markersize=4,
                     capsize=3, color=color, label=f"loss on {word}")
    axes[0].axhline(reference[k], color=color, linestyle="--", linewidth=1,
                    label=f"{word}, no privacy")
axes[0].axhline(tau, color="grey", linewidth=1, label="tau")
axes[0].axhline(relaxed[0], color="grey", linestyle=":", linewidth=1,
                label="tau + rho v, no clip")
axes[0].set(xscale="log", xlabel="ε", ylabel="loss on held-out records",
            title=f"n = {n}, δ = {delta:g}, replace-one; {seeds} seeds, ± sd")
axes[0].set_xticks(epsilons, [f"{e:g}" for e in epsilons])
axes[0].minorticks_off()
axes[0].legend(fontsize=6)
for i, e in enumerate([*epsilons, None]):
    axes[1].plot(np.arange(1, rounds + 1), path[-1 if e is None else i, :, 1],
                 "k--" if e is None else "-", linewidth=1,
                 label="no privacy" if e is None else f"ε = {e:g}")
axes[1].axhline(tau, color="grey", linewidth=1)
axes[1].set(xlabel="round", ylabel="loss on negatives", title="one run each, averaged point")
axes[1].legend(fontsize=6)
plt.show()

# %% [markdown]
# At an interior saddle point the loss on negatives is $\tau + \rho v$: the quadratic term relaxes
# the bound. The run without clipping reaches it. Clip norms of 3 and 2 are a good part below the
# longest gradients (a positive's may be 10 long), and **clipping moves the solution**: all runs
# with them, private or not, let more false alarms through. A bound that must hold needs a smaller
# $\tau$, or clip norms that bind less and noise that is larger.
#
# There is no theorem for Adam's steps; the dashed line is the same run without noise. Games with a
# known saddle point, and their rates, are in `01_first_private_saddle` and `03_convergence`.
#
# ## A long run: stop, resume, statement
#
# `fit` is the same run on the host's clock. With `checkpoint` it saves the state, never the key or
# the data, and goes on from there. Release $k$ is a function of the key and $k$ alone. So a resumed
# run ends bit for bit where an uninterrupted one does, and nothing is released twice with other
# noise. Use `jmm.noise.secret_key()` for a real run; the key here is fixed so that this page can be
# repeated.

# %%
chosen, key = hypers[len(epsilons) // 2], jax.random.key(3)


def stop_half_way(state):
    """Stands for a crash."""
    if int(state.spent) >= rounds // 2:
        raise KeyboardInterrupt


with tempfile.TemporaryDirectory() as folder:
    how = dict(delta=delta, checkpoint=folder, every=rounds // 4, progress=False)
    try:
        jmm.fit(key, start, data, chosen, jmm.sgda, problem, callback=stop_half_way, **how)
    except KeyboardInterrupt:
        print("stopped; resuming")
    done = jmm.fit(key, start, data, chosen, jmm.sgda, problem, unit="one visit", **how)
    try:
        jmm.fit(jax.random.key(4), start, data, chosen, jmm.sgda, problem, **how)
    except ValueError as error:
        print(f"another key on the same folder: {str(error).replace(folder, 'FOLDER')}\n")

whole = jmm.fit(key, start, data, chosen, jmm.sgda, problem, delta=delta, every=rounds // 4,
                progress=False)
same = jax.tree.map(np.array_equal, *jax.device_get((done.state.average, whole.state.average)))
assert all(jax.tree.leaves(same)), "a resumed run is the uninterrupted one, bit for bit"
assert int(done.state.spent) == rounds, "and its releases were counted once"
print(done.statement)

# %% [markdown]
# ## Results as JSON
#
# The statement is stored with its numbers. JSON has no infinity: a statement with
# `"epsilon": "no guarantee"` has no guarantee, and null is for a number that does not apply.

# %%
on_positives, on_negatives = map(float, metric(done.state.average, test))
result = {"loss_positives": on_positives, "loss_negatives": on_negatives,
          "n": n, "jax": jax.__version__, "jaxminimax": jmm.__version__,
          "statement": done.statement.to_json()}
text = json.dumps(result, indent=1, allow_nan=False)
print(text[:620], "...")
assert json.loads(text)["statement"]["epsilon"] <= epsilons[len(epsilons) // 2], "the ε of the run"

# %% [markdown]
# ## A variational inequality
#
# An operator need not be a gradient. Firms with quantities $u$ face an uncertain market: $F(u; x) =
# (D + K) u - x$ with $D$ positive and $K$ skew, on a box. `extragradient` clips the operator and
# needs no property of it. The natural residual $\|u - P(u - F(u))\|$ is 0 at solutions only.

# %%
skew = np.array([[0.0, 1.0, -0.5], [-1.0, 0.0, 0.8], [0.5, -0.8, 0.0]])
matrix = 0.5 * np.eye(3) + skew
box = jmm.problems.box(np.zeros(3), np.ones(3))
market = jmm.problems.variational_inequality(
    lambda u, x: jnp.asarray(matrix, u.dtype) @ u - x, box)
demand = np.array([[0.6, 0.2, 0.5]]) + 0.3 * np.random.default_rng(0).uniform(-1, 1, (n, 3))
mean, demand = demand.mean(0), jnp.asarray(demand, jnp.float32)
bound = float(np.linalg.norm(matrix, 2) * box.reach + np.linalg.norm([0.9, 0.5, 0.8]))
both = jmm.Query(clip=Saddle(bound, None), population=n)
firms = [jmm.calibrate(jmm.extragradient, jmm.extragradient.Hyper(
    query=both, step=Saddle(0.2, 0.2), iterations=rounds), e, delta) for e in epsilons]


@jit
def residuals(keys, data, hypers):
    states, _ = jmm.sweep(keys, Saddle(jnp.zeros(3, jnp.float32), ()), data, hypers,
                          jmm.extragradient, market)
    one = jax.vmap(jax.vmap(jmm.metrics.natural_residual, (None, 0, None)), (None, 0, None))
    return one(market, states.average, data)


found = np.asarray(residuals(jax.random.split(jax.random.key(5), (len(epsilons), seeds)), demand,
                             jmm.stack(firms)))
u = np.zeros(3)
for _ in range(2000):  # the plain projection method, for the size of the residual at the start
    u = np.clip(u - 0.2 * (matrix @ u - mean), 0, 1)
untrained = np.linalg.norm(np.clip(mean, 0, 1))
print(f"solution without privacy: {np.round(u, 3)}; residual at the start {untrained:.3f}")
for e, values in zip(epsilons, found, strict=True):
    print(f"ε = {e:4g}: residual {values.mean():.4f} ± {values.std(ddof=1):.4f}")
assert found[-1].mean() < untrained, "the private point is better than the start"

# %% [markdown]
# ## Mistakes, and their messages
#
# The host refuses every mistake here before it touches data.

# %%
def ran(hyper, rows=data, problem=problem):
    return jmm.run(key, start, rows, hyper, jmm.sgda, problem)


def with_query(**changes):
    return dataclasses.replace(chosen, query=dataclasses.replace(chosen.query, **changes))


mistakes = {
    "run without calibrating": lambda: ran(dataclasses.replace(hyper, query=jmm.Query(
        clip=Saddle(3.0, 2.0), population=n))),
    "a data set of another size": lambda: ran(chosen, sample(6, 7)),
    "a negative clip norm": lambda: ran(with_query(clip=Saddle(-1.0, 2.0))),
    "delta in percent": lambda: jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=5),
    "epsilon of 0": lambda: jmm.calibrate(jmm.sgda, hyper, epsilon=0.0, delta=delta),
    "a batch of 64 as a Poisson rate": lambda: jmm.calibrate(jmm.sgda, with_query(
        sampling=jmm.Poisson(rate=64)), epsilon=1.0, delta=delta),
    "add-or-remove with fixed-size batches": lambda: jmm.calibrate(
        jmm.sgda, with_query(sampling=jmm.FixedSize(batch=10)), epsilon=1.0, delta=delta,
        neighbours="add_or_remove_one"),
    "a gap without best responses": lambda: jmm.metrics.strong_gap(problem, start, data),
    "two ways of sampling in one sweep": lambda: jmm.stack(
        [chosen, with_query(sampling=jmm.FixedSize(batch=10))]),
}
for name, mistake in mistakes.items():
    try:
        mistake()
    except ValueError as error:
        print(f"{name}:\n    {error}\n")
    else:
        raise AssertionError(f"{name} was not refused")

# %% [markdown]
# One mistake raises no error, because it can happen inside a compiled program: a release beyond the
# allowed number is NaN.

# %%
update = jit(jmm.sgda.update, static_argnames="problem")
once_more = update(key, done.state, data, chosen, problem)
print(once_more.z.v)
assert bool(jnp.isnan(once_more.z.v)), "the budget is spent"
