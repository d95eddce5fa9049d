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
# # What a sampler costs, and how ε goes wrong
#
# This notebook shows the charge for each way of reading the data, common mistakes on the way to an
# ε, the formulas that papers print, and how close attacks on the real code come to the claim. The
# accountant computes every ε below from the description of a mechanism. Unless another relation is
# named, neighbours differ in one *replaced* record. A noise multiplier $z$ is the standard
# deviation of the noise on the clipped sum divided by the clip norm.

# %%
import dataclasses
import math
import os
import sys

import jax
import matplotlib.pyplot as plt
import numpy as np

sys.path.extend([".", ".."])  # benchmarks are in the root of the repository

import jaxminimax as jmm
from benchmarks.privacy import audit as audits
from benchmarks.privacy import lower_bounds, papers_noise
from jaxminimax import Saddle
from jaxminimax.audit import audit

quick = bool(os.environ.get("JAXMINIMAX_QUICK"))
n, delta = 1000, 1e-6


def samplers(batch: int) -> dict:
    """Every way to read about `batch` of n records."""
    return {"Poisson": jmm.Poisson(rate=batch / n),
            "fixed, without replacement": jmm.FixedSize(batch=batch),
            "fixed, with replacement": jmm.FixedSize(batch=batch, replacement=True),
            "disjoint passes": jmm.Disjoint(batch=batch),
            "full": jmm.Full()}


def releases(sampling, times: int, z: float = 1.0, population: int = n) -> jmm.Repeat:
    """`times` noisy sums of one player's clipped operators."""
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None), sampling=sampling,
                      population=population)
    return jmm.Repeat(query=query, times=times)


def needed(sampling, times: int, epsilon: float) -> float:
    """The noise multiplier that makes the releases (epsilon, delta)-private."""
    return jmm.accounting.calibrate_noise(releases(sampling, times), epsilon,
                                          delta).query.noise_multiplier.w


# %% [markdown]
# ## Noise for ε
#
# The noise on the *mean*, $z C / m$ for batches of $m$, affects a step. For a full batch it is
# $2 \sqrt{T} C / (n \mu)$ in every coordinate, with $\mu$ the Gaussian parameter of $(\varepsilon,
# \delta)$ (dashed). No sampler here needs less: sampling saves work, never noise. Amplification
# stops helping where $z$ comes near 1. Samples of a fixed size then need more noise than Poisson
# samples, because the replaced record takes or leaves a slot that others would fill, and those
# may pull the other way. Disjoint batches are not amplified at all: they suit a single pass.

# %%
batches = [30] if quick else [10, 30, 100, 300]
times = [20] if quick else [10, 100, 1000]
epsilons = [1.0] if quick else [0.25, 0.5, 1.0, 2.0, 4.0]
middle, rounds = 30, 20 if quick else 200
names = ["Poisson", "disjoint passes", "full"] if quick else list(samplers(middle))
found = {"batch m": (batches, lambda x: (x, rounds, 1.0)),
         "rounds T": (times, lambda x: (middle, x, 1.0)),
         "ε": (epsilons, lambda x: (middle, rounds, x))}

figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for ax, (label, (values, at)) in zip(axes, found.items(), strict=True):
    noise = {}
    for name in names:
        noise[name] = np.array([needed(samplers(m)[name], t, e) / (n if name == "full" else m)
                                for m, t, e in map(at, values)])
        ax.plot(values, noise[name], "k--" if name == "full" else "o-", markersize=4,
                linewidth=1, label=name)
    for name in names:
        assert (noise[name] >= 0.999 * noise["full"]).all(), (
            f"{name} does not need less noise on the mean than all records do")
    ax.set(xscale="log", yscale="log", xlabel=label)
    ax.set_xticks(values, [f"{x:g}" for x in values])
    ax.minorticks_off()
    print(f"noise multiplier over {label} = {values}:")
    for name, row in noise.items():
        size = [n if name == "full" else at(x)[0] for x in values]
        print(f"  {name:28s}" + "".join(f"{x * m:10.3f}" for x, m in zip(row, size, strict=True)))
axes[0].set(ylabel="noise on the mean over the clip norm", title=f"T = {rounds}, ε = 1")
axes[1].set(title=f"m = {middle}, ε = 1")
axes[2].set(title=f"m = {middle}, T = {rounds}")
axes[0].legend(fontsize=6)
figure.suptitle(f"Noise that (ε, {delta:g})-privacy needs, n = {n}, replace-one; full batch dashed",
                fontsize=9)
plt.show()

# %% [markdown]
# ## ε over δ
#
# The figure has the ε of the same noise under five descriptions. Dotted is the ε that an explicit
# pair of neighbouring data sets attains (all other records' vectors opposite to the differing
# one's). It is a lower bound on any correct accountant.

# %%
z, m, t = (2.0, 50, 20) if quick else (2.0, 50, 100)
deltas = [1e-6, 1e-2] if quick else [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
figure, ax = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for i, name in enumerate(names):
    curve = [jmm.epsilon(releases(samplers(m)[name], t, z), d) for d in deltas]
    ax.plot(deltas, curve, "o-", markersize=3, color=f"C{i}", label=name)
    if name.startswith("fixed"):
        low = [papers_noise.pair(n, m, z / 2, t, d, replacement="without" not in name, grid=1e-4)
               for d in deltas]
        ax.plot(deltas, low, ":", color=f"C{i}")
        assert all(a <= b for a, b in zip(low, curve, strict=True)), "attained, so below the claim"
    print(f"{name:28s}" + "".join(f"{e:9.3f}" for e in curve))
ax.plot([], [], "k:", label="attained")
ax.set(xscale="log", yscale="log", xlabel="δ", ylabel="ε",
       title=f"z = {z:g}, {t} releases, m = {m} of n = {n}, replace-one")
ax.legend(fontsize=7)
plt.show()

# %% [markdown]
# ## Common mistakes
#
# * **Two players, one sample.** Both players' gradients are taken on one and the same sample.
#   That is one release, with $z_{\text{eff}} = (z_w^{-2} + z_v^{-2})^{-1/2}$. Composing two
#   independently subsampled releases under-counts, and charging one player alone more so.
# * **Replace-one is twice add-or-remove.** Replacing a record moves a sum by up to $2 C$. For full
#   batches that doubles the Gaussian parameter; on small Poisson samples less of it shows. An ε for
#   one relation is no ε for the other.
# * **The sampler that runs must be the one that is charged.** Shuffled or drawn batches of a fixed
#   size are no Poisson samples. The setting is that of the DP-SGDA paper's experiments.

# %%
big = dict(population=39992)
q, rounds_big = 64 / 39992, 937 if quick else 9373


def both(z_w, z_v, relation, rate=0.01, times=100 if quick else 1000):
    """Releases of one or two players on a Poisson sample of 100,000 records."""
    query = jmm.Query(clip=Saddle(*(None if x is None else 1.0 for x in (z_w, z_v))),
                      noise_multiplier=Saddle(z_w, z_v), sampling=jmm.Poisson(rate=rate),
                      population=100_000)
    made = jmm.Repeat(query=query, times=times)
    return made, jmm.epsilon(made, delta, neighbours=relation)


added = "add_or_remove_one"
one, one_player = both(1.0, None, added)
_, right = both(1.0, 1.0, added)
_, replaced = both(1.0, 1.0, "replace_one")
whole = jmm.accounting.calibrate_noise(releases(jmm.Full(), 100), 1.0, delta, neighbours=added)
twice = jmm.epsilon(jmm.Sequence(parts=(one, one)), delta, neighbours=added)
poisson = jmm.accounting.calibrate_noise(releases(jmm.Poisson(rate=q), rounds_big, **big), 1.0,
                                         delta)
noise = poisson.query.noise_multiplier.w
rows = [("both players, add-or-remove: one player charged", one_player, right),
        ("both players: two independent samples charged", twice, right),
        ("full batch, replace-one: add-or-remove charged", 1.0, jmm.epsilon(whole, delta)),
        ("64 of 39992 without replacement: Poisson charged", 1.0,
         jmm.epsilon(releases(jmm.FixedSize(batch=64), rounds_big, noise, **big), delta))]
if not quick:
    for replacement in (False, True):
        low = papers_noise.pair(39992, 64, noise / 2, rounds_big, delta, replacement=replacement,
                                grid=2e-6)
        print(f"64 of 39992 with{'' if replacement else 'out'} replacement: an explicit pair of "
              f"data sets attains ε = {low:.2f}")
        assert low > 1.2, "Poisson accounting of fixed-size samples is refuted, not just loose"
    rows += [("64 of 39992 with replacement: Poisson charged", 1.0, jmm.epsilon(releases(
        jmm.FixedSize(batch=64, replacement=True), rounds_big, noise, **big), delta))]
print(f"both players on Poisson samples: ε = {right:.2f} add-or-remove, {replaced:.2f} replace-one")
for name, claim, true in rows:
    print(f"{name:50s} claims ε = {claim:5.2f}, accountant {true:6.2f}")
    assert true > 1.2 * claim, f"{name}: the trap under-counts"

figure, ax = plt.subplots(figsize=(8, 2.4), layout="constrained")
for i, (_, claim, true) in enumerate(rows):
    ax.plot([claim, true], [-i, -i], color="grey", linewidth=1)
ax.plot([r[1] for r in rows], -np.arange(len(rows)), "x", color="C3", label="claimed")
ax.plot([r[2] for r in rows], -np.arange(len(rows)), "o", color="C0", label="accountant")
ax.set_yticks(-np.arange(len(rows)), [r[0] for r in rows], fontsize=7)
ax.set(xscale="log", xlabel=f"ε at δ = {delta:g}")
ax.legend(fontsize=7)
plt.show()

# %% [markdown]
# ## Printed formulas
#
# This compares noise formulas as the papers print them with the ε that they really give: an upper
# bound by the accountant for the paper's listing, and a lower bound attained by an explicit pair of
# neighbours. A lower bound above the claim refutes a formula as printed (often a constant that was
# left open, read as 1, or a range of ε that was not stated). Far to the left of the claim, noise is
# wasted. The full table is `python -m benchmarks.privacy.papers_noise`.

# %%
printed = list(papers_noise.dpgda(True))[:3] if quick else [
    c for c in papers_noise.cases(True) if c.formula not in ("Theorem 9", "Proposition 7")]
printed = [papers_noise.row(c) for c in printed]
for r in printed:
    true, low = (math.nan if r[k] is None else r[k] for k in ("epsilon_true", "epsilon_lower"))
    print(f"{r['paper']:12s} {r['formula']:15s} {r['setting'][:34]:35s} claims "
          f"{r['epsilon_claimed']:5.2f}, true ≤ {true:7.3f}, attained {low:7.3f}, noise / needed "
          f"{r['noise_over_needed']:.2f}")
    assert not low > true * (1 + 1e-6), "no pair attains more than the accountant's bound"
assert any((r["epsilon_lower"] or 0) > 1.05 * r["epsilon_claimed"] for r in printed), (
    "some printed formula is refuted by an explicit pair")

figure, ax = plt.subplots(figsize=(8, 1.2 + 0.2 * len(printed)), layout="constrained")
for i, r in enumerate(printed):
    low, true = ((r[k] or math.nan) / r["epsilon_claimed"]
                 for k in ("epsilon_lower", "epsilon_true"))
    ax.plot([low, true], [-i, -i], color="grey", linewidth=1)
    ax.plot(true, -i, "o", markersize=4, color="C0")
    ax.plot(low, -i, "^", markersize=4, color="C3" if low > 1 else "C2")
for marker, color, text in (("o", "C0", "accountant's upper bound"), ("^", "C2", "attained"),
                            ("^", "C3", "attained, and above the claim")):
    ax.plot([], [], marker, color=color, markersize=4, label=text)
ax.axvline(1.0, color="k", linestyle="--", linewidth=1, label="the paper's claim")
ax.set_yticks(-np.arange(len(printed)), [
    f"{r['paper']}, {r['formula']}, {r['setting'][:30]}, ε = {r['epsilon_claimed']:g}"
    for r in printed], fontsize=5)
ax.set(xscale="log", xlabel="ε over the claimed ε, at the paper's δ")
ax.legend(fontsize=6)
plt.show()

# %% [markdown]
# ## How close attacks come
#
# Each attack runs the real update code thousands of times on two neighbouring data sets that are
# easy to distinguish. A threshold test and Clopper-Pearson bounds on its hits give a lower bound on
# the ε of the code, right with probability 0.999 per point. A point above the diagonal would be a
# bug. One planted bug shows that it would be seen: the cross ran with half of the noise of its
# claim.
#
# Attacks cannot come near the claim everywhere: rare events cannot be counted ($\delta = 0.01$
# here, so that they need not be), and with thousands of runs the bounds' own errors cost a good
# part.

# %%
trials = 10_000 if quick else 20_000
cases = [c for c in audits.CASES if c.quick and not c.joint][:1 if quick else None]
points = []
for case in cases:
    for epsilon in (2.0,) if quick else (1.0, 2.0, 4.0):
        hyper = audits.hyper_of(jmm.sgda, case)
        line, used = audits.row("sgda", jmm.sgda, case, hyper, epsilon, "replace_one", trials, 0)
        if case == cases[0] and epsilon == 2.0:
            half = dataclasses.replace(used.query, noise_multiplier=Saddle(*(
                0.5 * x for x in used.query.noise_multiplier)))
            half, claim = dataclasses.replace(used, query=half), line["epsilon_claimed"]
        points.append((case.name, line["epsilon_claimed"], line["epsilon_lower"]))
        print(f"{case.name:31s} claims ε = {points[-1][1]:.3f}, attained {points[-1][2]:.3f}")
        assert not line["violated"], f"{case.name}: an attack attains more than the claim"

bug = audit(jax.random.key(1), jmm.sgda, half, audits.DELTA, runs=trials)
print(f"{'half of the noise':31s} claims ε = {claim:.3f}, attained {bug.epsilon_lower:.3f}")
assert bug.epsilon_lower > claim, "the audit sees that half of the noise is missing"

figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
for i, name in enumerate(dict.fromkeys(p[0] for p in points)):
    mine = [p for p in points if p[0] == name]
    ax.plot([p[1] for p in mine], [p[2] for p in mine], "o", color=f"C{i}", label=name)
ax.plot(claim, bug.epsilon_lower, "rx", markersize=8, label="half of the noise")
line = np.array([0.0, 1.2 * max(p[1] for p in points)])
ax.plot(line, line, "k--", linewidth=1, label="claim")
ax.set(xlabel="claimed ε", ylabel="ε attained, confidence 0.999",
       title=f"sgda, δ = {audits.DELTA:g}, replace-one, {trials} runs a side")
figure.legend(fontsize=7, loc="outside right upper")
plt.show()

# %% [markdown]
# If all draws of a sampler can be enumerated, no statistics are needed. This is the divergence of
# two explicit data sets divided by the accountant's bound, for one release. At a ratio of 1 the
# bound cannot be improved there.

# %%
exact = lower_bounds.table(1, [(3, 2)] if quick else [(2, 1), (3, 2), (4, 3)])
for name in lower_bounds.SAMPLERS:
    ratios = [r["attained_over_claimed"] for r in exact if r["sampler"] == name]
    print(f"{name:12s} largest attained / claimed {max(ratios):.6f} over {len(ratios)} cases")
    assert max(ratios) <= 1 + 1e-9, f"{name}: a pair exceeds the bound"
    assert max(ratios) > 0.9, f"{name}: the bound is nearly attained"
