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
# # The worst group
#
# This notebook trains one model for several groups and judges it by the group where it is worst:
#
# $$\min_w \; \max_{v \in \Delta_p} \; \sum_{i=1}^p v_i L_i(w), \qquad
# L_i(w) = \frac{1}{n_i} \sum_{j \in \text{group } i} \ln\big(1 + e^{-y_j \langle x_j, w
# \rangle}\big).$$
#
# `balanced_groups` releases the gradients of all groups at once, with weights $v_t$ that were
# released before, and noise in proportion to the largest weight of a record in that round:
#
# $$g_t = \sum_i \frac{v_{t,i}}{n_i} \sum_{j} \mathrm{clip}_C(\nabla \ell_{ij}) + N(0, (D_t/\mu)^2
# I), \qquad D_t = 2 C \max_i \frac{v_{t,i}}{n_i}.$$
#
# Weights are balanced at first, $v_i = 1/p$, and move towards large noisy losses later. Groups and
# their sizes are public; the content of a record is protected.
#
# Two facts come first. If groups are cut by the label **the label is public**, and the guarantee
# is about the rest of a record. If groups have all labels in them, the worst group is
# the hardest one: the last part is about that.

# %%
import dataclasses
import json
import os
import pathlib
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

sys.path.extend([".", ".."])  # benchmarks are in the root of the repository

import jaxminimax as jmm
from benchmarks.accuracy.worst_group import methods as group_methods
from benchmarks.accuracy.worst_group import tasks as group_tasks
from benchmarks.common import report
from jaxminimax import Saddle
from jaxminimax.apps.tables import defaults, records

quick = bool(os.environ.get("JAXMINIMAX_QUICK"))
delta = 1e-6
results = pathlib.Path(report.__file__).parents[1] / "accuracy/results/worst_group.json"
rows = json.loads(results.read_text(encoding="utf-8"))["rows"]


held_out = {(r["case"], r["method"], r["epsilon"]):
            (r["worst_group_accuracy"], r["worst_group_accuracy_se"] or 0.0) for r in rows}


# %% [markdown]
# ## Groups with labels
#
# The table has the worst-group accuracy on held-out records, mean over seeds ± standard error, from
# `benchmarks/accuracy/results/worst_group.json`. The methods are the average record; balanced
# groups; balanced, then minimax; and `group_sgd`, whose release is the gradient of one drawn group.

# %%
methods = ("average", "balanced", "balanced, then minimax", "group_sgd")
labelled = ("randhie-label", "cattaneo-label", "adult-label")
figure, axes = plt.subplots(1, len(labelled), figsize=(9, 3), layout="constrained")
for ax, case in zip(axes, labelled, strict=True):
    for i, method in enumerate(methods):
        found = {e: held_out[case, method, e] for e in (1.0, 4.0) if (case, method, e) in held_out}
        for epsilon, (mean, error) in found.items():
            print(f"{case:15s} {method:23s} ε = {epsilon:g}: {mean:.3f} ± {error:.3f}")
        if found:
            ax.errorbar(list(found), *zip(*found.values(), strict=True), marker="o", markersize=4,
                        capsize=3, color=f"C{i}", label=method)
    ax.axhline(held_out[case, "balanced logistic regression", None][0], color="grey",
               linestyle="--", linewidth=1, label="balanced, no privacy")
    ax.set(xscale="log", xlabel="ε", title=case)
    ax.set_xticks([1, 4], ["1", "4"])
    ax.minorticks_off()
axes[0].set_ylabel("accuracy of the worst group")
axes[1].legend(fontsize=6)
plt.show()

balanced = {(case, e): mean for (case, m, e), (mean, _) in held_out.items() if m == "balanced"
            and case in labelled}
compared = {m: [(mean, balanced[case, e]) for (case, name, e), (mean, _) in held_out.items()
                if name == m and (case, e) in balanced] for m in ("average", "group_sgd")}
assert compared["average"], "the file has both"
assert compared["group_sgd"]
assert all(mean < other - 0.2 for mean, other in compared["average"]), "balancing is what pays"
assert all(mean < other for mean, other in compared["group_sgd"]), "one drawn group is dearer"

# %% [markdown]
# Equal weights for all groups give nearly everything. One drawn group's gradient has noise
# $2C/n_i$, and all groups at once have $2C/(p \min n)$.
#
# ## The weights of the groups
#
# This is one run on the table `randhie` at $\varepsilon = 4$. $v_t$ is private output like the
# model. It is constant for three tenths of the rounds. Then noisy losses move it, in steps that are
# so short that their noise adds up to little. (Features are on their public scale here.)

# %%
task = group_tasks.load("randhie", "health", by_label=True)
train, held = task.split(0)
chosen = defaults(len(train.y), task.table.schema, epsilon=4.0, delta=delta, sizes=task.sizes,
                  by_label=True)
print(chosen.explain())
hyper = dataclasses.replace(chosen.hyper, iterations=20) if quick else chosen.hyper
cut = task.groups_of(train)
plain = records.records(train.x.astype(np.float32), np.array(train.y, np.float32))
one = np.ones((*plain.x.shape[:2], 1), np.float32)
data = cut.arranged((np.concatenate([plain.x / np.sqrt(plain.x.shape[-1]), one], -1), plain.y,
                     plain.weight))
state, weights = jmm.run(jax.random.key(0), Saddle(jnp.zeros(task.dim), ()), data, hyper,
                         jmm.balanced_groups, records.GROUP_LOGISTIC, lambda s: jnp.exp(s.z.v))
assert np.all(weights.sum(1) <= 1 + 1e-4), "weights, capped"
assert np.allclose(weights[: int(0.3 * hyper.iterations)], 1 / len(task.names), atol=1e-6)
figure, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
for i, name in enumerate(task.names):
    ax.plot(np.arange(1, len(weights) + 1), weights[:, i], label=name)
ax.set(xlabel="round", ylabel="weight of the group", ylim=(0, None))
ax.legend(fontsize=6, ncols=2)
plt.show()

# %% [markdown]
# ## The statement
#
# The statement is for that run and the release of means that `train` also pays for. The table above
# is of many runs on the same data, and their ε add up: use it for study, and do not release it.

# %%
print(jmm.statement(jmm.balanced_groups, chosen.hyper, delta=delta, alongside=chosen.extra(),
                    unit=task.unit, assumed=(*task.public, *cut.assumed,
                                             "Keys follow from seeds; a real run needs a secret "
                                             "key.")))

# %% [markdown]
# ## Groups without labels: no gain
#
# The worst group of a good average model is the hardest one, and more weight does not make it
# easier. Even without privacy, a logistic regression with balanced groups is no better on its worst
# group of `randhie` by health than the one of the average record. So the rule trains on the average
# record, and releases the groups' mean losses under that model.

# %%
for method in ("logistic regression", "balanced logistic regression"):
    mean, error = held_out["randhie", method, None]
    print(f"randhie by health, {method:28s} {mean:.3f} ± {error:.3f}")
without = group_tasks.load("randhie", "health")
assert group_methods.default_of(without, 1.0, delta) == "average"
gain = (held_out["randhie", "balanced logistic regression", None][0]
        - held_out["randhie", "logistic regression", None][0])
assert gain < 0.01, "nothing is gained here"
