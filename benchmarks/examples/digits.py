"""Images of ten classes from one release: a generator that matches a noisy mean embedding.

A Wasserstein GAN whose discriminator is linear in fixed features phi has its best discriminator in
closed form: max over |w| <= 1 of <w, E phi(records) - E phi(made)> is the distance of the two
means. So all that the generator ever needs of the records is their mean, which one release gives:

    M = (1/n) sum_i phi(x_i) e_{y_i}^T + N(0, s^2 I),       |phi(x)| = 1,

a vector for each class, charged as one Gaussian. Everything after it is post-processing: the
generator is trained for as long as one likes, with fresh latent points in every step, to make
|M - E phi(made) e_y^T| small. A classifier that is trained on its images alone, and asked about
real test images, measures what they are worth.

Source: Harder, Adamczewski and Park, "DP-MERF: differentially private mean embeddings with random
features for practical privacy-preserving data generation", AISTATS 2021. Departures: frequencies of
several sizes; classes are taken to be equally likely; the charge is for replaced records, with
noise on integers.
"""

import dataclasses
import functools
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxminimax as jmm
from benchmarks.data_sets import images as set_images
from benchmarks.examples import demo_gan
from benchmarks.examples.runs import ASSUMED, Outcome, epsilon_label
from jaxminimax import Saddle

DATASETS = ("mnist", "fashion_mnist")
EPSILONS, QUICK, SEEDS = (1.0, 10.0), (1.0,), 3
CLASSES, SIDE, LATENT = 10, 28, 8


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a run costs.

    Attributes:
      features: of the embedding.
      some: of them that one step of the generator looks at.
      made: images of a step.
      hidden: units of the generator.
      steps: of the generator.
      labelled: images that the classifier is trained on.
    """

    features: int = 4000
    some: int = 400
    made: int = 300
    hidden: int = 256
    steps: int = 1500
    labelled: int = 5000


FEW = Sizes(features=500, some=100, made=100, hidden=64, steps=150, labelled=500)


def waves(key: jax.Array, count: int) -> jax.Array:
    """Random frequencies `[784, count / 2]`, public: directions uniform, sizes log-uniform."""
    one, two = jax.random.split(key)
    direction = jax.random.normal(one, (SIDE**2, count // 2))
    direction = direction / jnp.linalg.norm(direction, axis=0)
    return direction * 0.7 * (8 / 0.7) ** jax.random.uniform(two, (count // 2,))


def embedded(frequencies: jax.Array, x: jax.Array) -> jax.Array:
    """phi: cosines and sines, of norm 1, `[..., 2 k]` for frequencies `[784, k]`."""
    turns = x @ frequencies
    return jnp.concatenate([jnp.cos(turns), jnp.sin(turns)], -1) / frequencies.shape[1] ** 0.5


def described(count: int, epsilon: float, delta: float) -> jmm.sgda.Hyper:
    """The one release: all records, clipped at their norm, with noise for this target."""
    query = jmm.Query(clip=Saddle(1.0, None), population=count,
                      noise_multiplier=Saddle(0.0 if epsilon == math.inf else 1.0, None))
    once = jmm.sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=1)
    return once if epsilon == math.inf else jmm.calibrate(jmm.sgda, once, epsilon, delta)


def mean_embedding(key: jax.Array, hyper: jmm.sgda.Hyper, frequencies: jax.Array,
                   records: tuple[jax.Array, jax.Array]) -> jax.Array:
    """M, `[features, 10]`; the operator of a record is its own embedding."""
    def operator(z: Saddle, record: Any) -> Saddle:
        pixels, label = record
        x = pixels.astype(jnp.float32) / 255
        return Saddle(jnp.outer(embedded(frequencies, x), jax.nn.one_hot(label, CLASSES)), ())

    problem = jmm.Problem(jmm.types.with_strategy(operator, "microbatch", 100))
    start = Saddle(jnp.zeros((2 * frequencies.shape[1], CLASSES), jnp.float32), ())
    result: jax.Array = jmm.release(key, jmm.sgda.mechanism(hyper), jnp.int32(0), problem, start,
                                    records).w
    return result


def started(key: jax.Array, hidden: int) -> dict[str, jax.Array]:
    """A generator's parameters: two layers, the first one sees the class."""
    return demo_gan.generator_init(key, latent=LATENT + CLASSES, hidden=hidden, dim=SIDE**2)


def drawn(v: Any, key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Images in (0, 1) and their classes, in turn."""
    classes = jnp.arange(count) % CLASSES
    xi = jnp.concatenate([jax.random.normal(key, (count, LATENT)),
                          2 * jax.nn.one_hot(classes, CLASSES)], 1)
    return jax.vmap(demo_gan.image_generator, (None, 0))(v, xi), classes


@functools.partial(jax.jit, static_argnames="sizes")
def fitted(key: jax.Array, mean: jax.Array, frequencies: jax.Array, sizes: Sizes) -> Any:
    """Post-processing of the released mean: a generator whose mean embedding is near it."""
    steps = optax.cosine_decay_schedule(3e-3, sizes.steps)
    adam = optax.adam(steps, b1=0.5)
    own, first = jax.random.split(key)
    v = started(first, sizes.hidden)
    k = frequencies.shape[1]

    def loss(v: Any, key: jax.Array) -> jax.Array:
        one, two = jax.random.split(key)
        some = jax.random.choice(one, k, (sizes.some // 2,), replace=False)
        images, classes = drawn(v, two, sizes.made)
        phi = embedded(frequencies[:, some], images) * (sizes.some / 2 / k) ** 0.5
        ours = phi.T @ jax.nn.one_hot(classes, CLASSES) / sizes.made
        theirs = jnp.concatenate([mean[:k][some], mean[k:][some]])
        return jnp.sum(jnp.square(theirs - ours)) * (2 * k / sizes.some)

    def step(carry: tuple[Any, ...], t: jax.Array) -> tuple[tuple[Any, ...], jax.Array]:
        v, memory = carry
        value, g = jax.value_and_grad(loss)(v, jax.random.fold_in(own, t))
        move, memory = adam.update(g, memory, v)
        return (optax.apply_updates(v, move), memory), value

    (v, _), _ = jax.lax.scan(step, (v, adam.init(v)), jnp.arange(sizes.steps))
    return v


def accuracy(v: Any, sizes: Sizes, images: np.ndarray, labels: np.ndarray) -> float:
    """Of a logistic regression trained on generated images alone, on real test images."""
    from sklearn.linear_model import LogisticRegression

    made, classes = drawn(v, jax.random.key(2), sizes.labelled)
    judge = LogisticRegression(max_iter=200, C=0.1).fit(np.asarray(made), np.asarray(classes))
    return float(judge.score(images / 255.0, labels))


def run(args: Any) -> Outcome:
    """Trains at every epsilon, and once more from the mean without noise."""
    sizes = FEW if args.quick else Sizes()
    (images, labels), (test, answers) = (set_images.labelled(args.dataset, part, args.data_dir)
                                         for part in ("train", "t10k"))
    if args.quick:
        images, labels, test, answers = images[:6000], labels[:6000], test[:2000], answers[:2000]
    records = jnp.asarray(images), jnp.asarray(labels)
    frequencies = waves(jax.random.key(1), sizes.features)
    rows, statements, samples = [], [], []
    for epsilon in (*args.epsilon, math.inf):
        hyper = described(len(images), epsilon, args.delta)
        clock, scores = time.perf_counter(), []
        for seed in range(args.seeds):
            # a key for every run: the difference of two runs with the same noise would give data
            # away
            budget = np.float32(epsilon).view(np.uint32)
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), budget))
            mean = mean_embedding(keys[0], hyper, frequencies, records)
            v = fitted(keys[1], mean, frequencies, sizes)
            scores.append(accuracy(v, sizes, test, answers))
        private = epsilon < math.inf
        error = float(np.std(scores, ddof=1) / len(scores) ** 0.5) if len(scores) > 1 else 0.0
        rows.append({"method": "mean embedding", "epsilon": epsilon if private else None,
                     "delta": args.delta if private else None,
                     "accuracy": float(np.mean(scores)), "accuracy_se": error, "runs": args.seeds,
                     "records": len(images), "features": sizes.features,
                     "seconds": (time.perf_counter() - clock) / args.seeds})
        samples.append(np.asarray(drawn(v, jax.random.key(3), 60)[0]))
        if private:
            statements.append(jmm.statement(
                jmm.sgda, hyper, delta=args.delta, unit="one image",
                assumed=("Pixels are divided by 255; frequencies are public.", *ASSUMED)))
    title = (f"{args.dataset}: {len(images)} images of {SIDE} x {SIDE}; accuracy: of a logistic "
             f"regression trained on {sizes.labelled} generated images, on {len(test)} real ones")
    return Outcome(title, rows, ("accuracy",), statements,
                   lambda figure: draw(figure, args, images, rows, samples))


def draw(figure: Any, args: Any, images: np.ndarray, rows: list[dict[str, Any]],
         samples: list[np.ndarray]) -> None:
    """Records, and samples at every epsilon, a column a class."""
    figure.set_size_inches(2.7 * (1 + len(rows)), 2.3)
    figure.suptitle(f"{args.dataset}, one release: delta = {args.delta:g}, replace-one; accuracy "
                    "of a classifier trained on samples", fontsize="medium")
    titles = ["records"] + [
        f"{epsilon_label(math.inf if r['epsilon'] is None else r['epsilon'])}\n{r['accuracy']:.3f}"
        for r in rows]
    for axes, title, points in zip(figure.subplots(1, 1 + len(rows)), titles,
                                   [images[:60] / 255.0, *samples], strict=True):
        tiles = points.reshape(6, 10, SIDE, SIDE).transpose(0, 2, 1, 3)
        axes.imshow(tiles.reshape(6 * SIDE, -1), cmap="gray", vmin=0, vmax=1)
        axes.set_axis_off()
        axes.set_title(title, fontsize="small")
