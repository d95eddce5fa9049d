"""Synthetic data from a Wasserstein GAN: samples at several epsilon beside the data."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxminimax as jmm
from benchmarks.data_sets import images as set_images
from benchmarks.examples import demo_gan
from benchmarks.examples.runs import Outcome, Task, Trained, epsilon_label, row, train
from jaxminimax import Query, Saddle

DATASETS = ("ring", "mnist", "fashion_mnist")
EPSILONS, QUICK, SEEDS = (1.0, 10.0), (1.0,), 1
_ADAM = functools.partial(optax.adam, b1=0.5, b2=0.9)  # one object: hashed by identity
_SIZE = 7  # pixels along an edge
# by data set: latent numbers, units of generator and discriminator, frequencies, penalty, rounds
_SETTINGS = {"ring": (2, 128, 256, (1.0, 12.0), 0.03, 3000),
             "mnist": (8, 128, 512, (2.5, 12.0), 0.1, 2000),
             "fashion_mnist": (8, 128, 512, (2.5, 12.0), 0.1, 2000)}


def load(args: Any) -> tuple[Any, str, tuple[str, ...]]:
    """Records, the unit of privacy, and what is public about them."""
    if args.dataset == "ring":
        points = demo_gan.ring(jax.random.key(0), 4_000 if args.quick else 20_000)
        return points, "one point", ()
    pixels = set_images.images(args.dataset, size=_SIZE, data_dir=args.data_dir)
    unit = "one image, not one writer" if args.dataset == "mnist" else "one image"
    return pixels[:6_000] if args.quick else pixels, unit, (
        "Pixels are divided by 255 and averaged over 4x4 blocks.",)


def generator(dataset: str) -> Any:
    return demo_gan.mlp_generator if dataset == "ring" else demo_gan.image_generator


def task(args: Any, records: Any, unit: str, public: tuple[str, ...]) -> Task:
    """A discriminator of cosines, whose records' gradients are never clipped, and a generator."""
    latent, hidden, waves, (low, high), penalty, rounds = _SETTINGS[args.dataset]
    if args.quick:  # a smoother discriminator, which fewer rounds can follow
        rounds, high, penalty = 300, high / 3, 0.3
    n, dim = records.shape
    keys = jax.random.split(jax.random.key(1), 3)
    discriminator = demo_gan.cosine_discriminator(keys[0], dim=dim, hidden=waves, low=low,
                                                  high=high)
    # few numbers of a ring's points are well covered by a bank, more of an image's are not
    bank = (demo_gan.latents(keys[1], 512, latent) if args.dataset == "ring"
            else demo_gan.FreshLatents(512, latent))
    problem = demo_gan.wgan(discriminator, generator(args.dataset), bank, limit=100.0,
                            norm="ball", penalty=penalty)
    query = Query(clip=Saddle(math.sqrt(2), None), population=n,
                  sampling=jmm.Poisson(rate=200 / n))
    falling = jmm.schedules.Decay(scale=6e-4 * rounds, power=1.0, offset=0.3 * rounds)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.5, falling), iterations=rounds,
                           averaging=jmm.averaging.TAIL, optimiser=Saddle(optax.sgd, _ADAM))
    start = Saddle(jnp.zeros(waves), demo_gan.generator_init(keys[2], latent=latent,
                                                             hidden=hidden, dim=dim))
    return Task("gan", problem, start, records, hyper, unit,
                (*public, "The latent points and the discriminator's first layer are public."))


def made(args: Any, v: Any, count: int = 2000) -> jax.Array:
    """Points from fresh latent points, which the bank of the training does not hold."""
    xi = jax.random.normal(jax.random.key(2), (count, v["W1"].shape[0]), jnp.float32)
    return jax.vmap(generator(args.dataset), (None, 0))(v, xi)


def run(args: Any) -> Outcome:
    """Trains at every epsilon; the averaged generator makes the samples."""
    records, unit, public = load(args)
    result = train(task(args, records, unit, public), args.epsilon, args.delta, args.seeds)
    own = jnp.asarray(records[:2000], jnp.float32)
    distance = jax.jit(demo_gan.sliced_wasserstein)
    rows, samples = [], []
    for one in result:
        points = [made(args, jax.tree.map(lambda x, i=i: x[i], one.average.v))
                  for i in range(args.seeds)]
        measures = {"distance": [float(distance(jax.random.key(3), x, own)) for x in points]}
        if args.dataset == "ring":
            hits = [demo_gan.modes_covered(x, demo_gan.ring_centres(), within=0.25)
                    for x in points]
            measures |= {"modes": [int(a) for a, _ in hits], "inside": [float(b) for _, b in hits]}
        rows.append(row(one, args.delta, **measures))
        samples.append(np.asarray(points[0]))
    other = jnp.asarray(records[2000:4000], jnp.float32)
    base = float(distance(jax.random.key(3), other, own))
    title = (f"{args.dataset}: {len(records)} records; distance: sliced Wasserstein-1 of 2000 "
             f"samples to 2000 records, {base:.4f} for 2000 other records")
    return Outcome(title, rows, tuple(measures), [one.statement for one in result if one.statement],
                   lambda figure: draw(figure, args, np.asarray(own), result, rows, samples))


def draw(figure: Any, args: Any, records: np.ndarray, found: list[Trained],
         rows: list[dict[str, Any]], samples: list[np.ndarray]) -> None:
    """Records, and samples at every epsilon."""
    figure.set_size_inches(2.7 * (1 + len(found)), 3.2)
    figure.suptitle(f"{args.dataset}, private WGAN: delta = {args.delta:g}, replace-one; SW: "
                    "sliced Wasserstein distance to records", fontsize="medium")
    titles = ["records"] + [f"{epsilon_label(x.epsilon)}\nSW {r['distance']:.3f}"
                            for x, r in zip(found, rows, strict=True)]
    for axes, title, points in zip(figure.subplots(1, 1 + len(found)), titles,
                                   [records, *samples], strict=True):
        if args.dataset == "ring":
            axes.plot(*points[:2000].T, ".", markersize=1.5)
            axes.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect="equal", xlabel="x", ylabel="y")
        else:
            tiles = points[:64].reshape(8, 8, _SIZE, _SIZE)
            tiles = np.pad(tiles, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=0.5)
            axes.imshow(tiles.transpose(0, 2, 1, 3).reshape(8 * (_SIZE + 1), -1), cmap="gray",
                        vmin=0, vmax=1)
            axes.set_axis_off()
        axes.set_title(title, fontsize="small")
