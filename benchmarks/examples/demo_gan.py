"""Wasserstein GANs as a saddle problem: private synthetic data.

    min over w in W, max over v of   (1/n) sum_i D_w(z_i)  -  (1/m) sum_k D_w(G_v(xi_k))
                                     + (rho/2) ||w||^2,

a discriminator D that is low on the records and high on what the generator G makes of latent points
xi. Only D_w(z) reads a record, and it does not contain v: give the generator no clip norm,
`Query(clip=Saddle(c, None))`. Its gradient then is neither noised nor charged, and whatever it
generates, however much of it, is post-processing.

The latent points are a public bank that is drawn once, or fresh ones in every round
(`FreshLatents`), from the key of the public term. A bank adds no sampling noise, and with about a
thousand points of few dimensions a generator has no room to learn them by heart; more dimensions
want fresh points. Metrics should look at fresh points.

Source: Arjovsky, Chintala and Bottou, "Wasserstein generative adversarial networks", ICML 2017, as
in Yang et al., arXiv:2201.09046, Appendix A. Departures: players swap signs (D is low on records);
weights are projected to a set that bounds the Lipschitz constant of D; the penalty.

Below them a mixture on a ring to show generators on, and how near their samples come to it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator

LIMITS = ("spectral", "entry", "ball")


def mlp_generator(v: dict[str, jax.Array], xi: jax.Array) -> jax.Array:
    """Two layers, ReLU; parameters W1 `[k, h]`, b1 `[h]`, W2 `[h, d]`, b2 `[d]`; a point `[d]`."""
    return jax.nn.relu(xi @ v["W1"] + v["b1"]) @ v["W2"] + v["b2"]


def image_generator(v: dict[str, jax.Array], xi: jax.Array) -> jax.Array:
    """`mlp_generator` and a sigmoid: pixels in (0, 1)."""
    return jax.nn.sigmoid(mlp_generator(v, xi))


def generator_init(key: jax.Array, *, latent: int, hidden: int, dim: int) -> dict[str, jax.Array]:
    """Random parameters of `mlp_generator`: matrices are N(0, 1 / fan in), biases 0."""
    for name, value in dict(latent=latent, hidden=hidden, dim=dim).items():
        checks.count(name, value)
    one, two = jax.random.split(key)
    return {"W1": jax.random.normal(one, (latent, hidden)) / latent**0.5, "b1": jnp.zeros(hidden),
            "W2": jax.random.normal(two, (hidden, dim)) / hidden**0.5, "b2": jnp.zeros(dim)}


def cosine_discriminator(key: jax.Array, *, dim: int, hidden: int, low: float, high: float
                         ) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Two layers whose first one is random, public and stays: (2/h)^(1/2) <w, cos(A x + b)>.

    Linear in w `[hidden]`, so the saddle problem is convex in w; a record's gradient has norm at
    most 2^(1/2), so a clip there changes nothing; start from w = 0. The rows of A have uniform
    directions and norms that are log-uniform between `low` and `high`. With a penalty rho, the
    minimum over w is -1 / (2 rho) times a squared kernel distance of records and generated points.

    Args:
      key: of the first layer; public, so not the run's.
      dim: d, of a record `[d]`.
      hidden: h.
      low: smallest frequency [1 / record units]: about 1 over the size of the whole.
      high: largest frequency: about 1 over the size of the finest features.

    Raises:
      ValueError: for sizes or frequencies out of range.
    """
    checks.count("dim", dim)
    checks.count("hidden", hidden)
    checks.number("low", low, low=0.0)
    checks.number("high", high, low=low)
    keys = jax.random.split(key, 3)
    size = low * (high / low) ** jax.random.uniform(keys[0], (hidden,))
    first = jax.random.normal(keys[1], (dim, hidden))
    first = first * (size / jnp.linalg.norm(first, axis=0))[None]
    offset = 2 * jnp.pi * jax.random.uniform(keys[2], (hidden,))

    def discriminator(w: Any, x: Any) -> Any:
        wave = jnp.cos(x @ first.astype(x.dtype) + offset.astype(x.dtype))
        return (2 / hidden) ** 0.5 * wave.astype(w.dtype) @ w

    return discriminator


def latents(key: jax.Array, count: int, dim: int) -> jax.Array:
    """A bank of standard normal points `[count, dim]` of mean 0: each point with its mirror.

    Raises:
      ValueError: for an odd count.
    """
    checks.count("count", count, low=2)
    if count % 2:
        raise ValueError(f"count must be even, got {count}: every point comes with its mirror.")
    half = jax.random.normal(key, (count // 2, dim))
    return jnp.concatenate([half, -half])


@dataclasses.dataclass(frozen=True)
class FreshLatents:
    """Other `latents` in every round, instead of a bank.

    Attributes:
      count: m, of a round; even.
      dim: of a point.
    """

    count: int
    dim: int

    def __post_init__(self) -> None:
        latents(jax.random.key(0), self.count, self.dim)  # its checks


def limited(w: PyTree, limit: float, norm: str = "spectral") -> PyTree:
    """Projection of a network's weights to a set on which its Lipschitz constant is bounded.

    With layers of slope at most 1, the constant is at most the product of the matrices' norms.

      "spectral"  every matrix's singular values, and every vector's norm, are at most `limit`;
      "entry"     every entry is at most `limit` in absolute value;
      "ball"      all parameters together have norm at most `limit`.

    Each is the Euclidean projection to a convex set.

    Raises:
      ValueError: for a limit that is not positive or another norm.
    """
    checks.number("limit", limit, low=0.0)
    checks.one_of("norm", norm, LIMITS)
    if norm == "ball":
        return optax.projections.projection_l2_ball(w, limit)
    if norm == "entry":
        return jax.tree.map(lambda x: jnp.clip(x, -limit, limit), w)

    def shrink(x: Any) -> Any:
        if x.ndim != 2:
            return optax.projections.projection_l2_ball(x, limit)
        # x less what its too large singular directions have above the limit; from the smaller of
        # the two Gram matrices, whose eigenvectors are much cheaper than singular vectors
        wide = x.shape[0] <= x.shape[1]
        values, basis = jnp.linalg.eigh(x @ x.T if wide else x.T @ x)
        scale = jnp.minimum(1.0, limit / jnp.sqrt(jnp.maximum(values, limit**2)))
        shrunk = (basis * scale[None]) @ basis.T
        return shrunk @ x if wide else x @ shrunk

    return jax.tree.map(shrink, w)


def wgan(discriminator: Callable[[PyTree, jax.Array], jax.Array],
         generator: Callable[[PyTree, jax.Array], jax.Array], bank: jax.Array | FreshLatents, *,
         limit: float = 1.0, norm: str = "spectral",
         penalty: float = 0.0) -> Problem:
    """The Wasserstein GAN problem.

    Data are records z `[n, ...]`. Release w's operator only: `Query(clip=Saddle(c, None))`.

    Args:
      discriminator: `(w, z) -> []`, the score of one record: `cosine_discriminator(...)`,
        `mlp_scorer` (from `mlp_init`), or your own.
      generator: `(v, xi) -> z`, a record made of one latent point: `mlp_generator`, or your own.
      bank: xi `[m, ...]`, public latent points, see `latents`; never from the data. Or
        `FreshLatents`: the problem then draws (`Problem.random`), and `value` takes a bank of its
        own.
      limit: of the discriminator's weights, see `limited`.
      norm: which norm `limit` bounds.
      penalty: rho >= 0; it reads no data, and damps the players' circling.

    Raises:
      ValueError: for an empty bank, a limit or penalty out of range, or another norm.
    """
    checks.number("limit", limit, low=0.0)
    checks.number("penalty", penalty, low=0.0, closed=True)
    checks.one_of("norm", norm, LIMITS)
    fresh = bank if isinstance(bank, FreshLatents) else None
    fixed = (latents(jax.random.key(0), bank.count, bank.dim) if isinstance(bank, FreshLatents)
             else bank)
    if jnp.ndim(fixed) < 1 or not len(fixed):
        raise ValueError(f"bank must be latent points [m, ...], got shape {jnp.shape(fixed)}.")

    def real(w: Any, _: Any, record: Any, *key: Any) -> Any:
        return discriminator(w, record)

    def made(w: Any, v: Any, key: Any = None) -> Any:
        """Minus the mean score of what the generator makes, and the penalty."""
        points = fixed if key is None or fresh is None else latents(key, fresh.count, fresh.dim)
        fakes = jax.vmap(generator, (None, 0))(v, points)
        size = sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(w))
        return penalty / 2 * size - jnp.mean(jax.vmap(discriminator, (None, 0))(w, fakes))

    public = saddle_operator(made)

    def value(z: Any, data: Any) -> Any:
        return jnp.mean(jax.vmap(discriminator, (None, 0))(z.w, data)) + made(*z)

    return Problem(operator=saddle_operator(real),
                   public=lambda z, key=None: public(z, key), random=fresh is not None,
                   project=lambda z: Saddle(limited(z.w, limit, norm), z.v), value=value)


# --- what it is shown on ---


def ring(key: jax.Array, count: int, *, modes: int = 8, spread: float = 0.1) -> jax.Array:
    """A mixture of Gaussians whose centres lie on the unit circle, `[count, 2]`."""
    checks.count("count", count)
    checks.number("spread", spread, low=0.0)
    one, two = jax.random.split(key)
    centres = ring_centres(modes)[jax.random.randint(one, (count,), 0, modes)]
    return centres + spread * jax.random.normal(two, (count, 2))


def ring_centres(modes: int = 8) -> jax.Array:
    """The centres of `ring`, `[modes, 2]`."""
    checks.count("modes", modes)
    angle = 2 * jnp.pi * jnp.arange(modes) / modes
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], 1)


def sliced_wasserstein(key: jax.Array, made: jax.Array, data: jax.Array,
                       directions: int = 128) -> jax.Array:
    """Reads the data; not private. Mean Wasserstein-1 distance over random directions.

    On a line the distance of two samples of one size is the mean absolute difference of their order
    statistics; samples of different sizes are compared at the quantiles of the smaller one. Two
    samples of one law are about (sizes)^(-1/2) apart.

    Args:
      key: of the directions, uniform on the unit sphere.
      made: `[m, d]`.
      data: `[n, d]`.
      directions: how many.
    """
    checks.count("directions", directions)
    along = jax.random.normal(key, (directions, made.shape[1]), made.dtype)
    along = along / jnp.linalg.norm(along, axis=1, keepdims=True)
    count = min(len(made), len(data))
    levels = (jnp.arange(count) + 0.5) / count

    def quantiles(x: jax.Array, u: jax.Array) -> jax.Array:
        return jnp.quantile(x @ u, levels)

    return jnp.mean(jax.lax.map(
        lambda u: jnp.mean(jnp.abs(quantiles(made, u) - quantiles(data, u))), along))


def modes_covered(made: jax.Array, centres: jax.Array, *, within: float,
                  share: float = 0.2) -> tuple[jax.Array, jax.Array]:
    """How much of a known mixture is generated; reads no data, only the mixture's centres.

    Args:
      made: generated points `[m, d]`.
      centres: of equally likely modes, `[p, d]`.
      within: radius around a centre that belongs to its mode.
      share: of the fair share m / p that makes a mode count as covered.

    Returns:
      The number of modes covered, and the share of points within a mode.
    """
    away = jnp.linalg.norm(made[:, None] - centres[None], axis=2)
    inside = jnp.min(away, 1) <= within
    hits = jnp.zeros(len(centres)).at[jnp.argmin(away, 1)].add(inside.astype(made.dtype))
    return jnp.sum(hits >= share * len(made) / len(centres)), jnp.mean(inside.astype(made.dtype))
