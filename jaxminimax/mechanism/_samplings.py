"""Which records a release reads."""

import jax

from jaxminimax._types import record

# P[a Poisson sample outgrows a capacity that was not given], per release. With 10^6 releases the
# charge to delta stays near 1e-11 at epsilon = 1.
OVERFLOW = 1e-17


@record
class Full:
    """Every record takes part in every release."""


@record
class Poisson:
    """Every record takes part independently with probability `rate`, anew in every release.

    Both fields are static: the thresholds of the sampler are computed from `rate` with exact
    integer arithmetic on the host, and `capacity` is a shape.

    Attributes:
      rate: q in (0, 1].
      capacity: most records that a release can hold. A larger sample makes the release NaN, and
        the probability of that is charged to delta. None: the smallest capacity that overflows
        with probability at most 1e-17.
    """

    rate: float = jax.tree.static()
    capacity: int | None = jax.tree.static(default=None)


@record
class Disjoint:
    """Release k reads rows [k b, (k + 1) b), then the next b, and starts over after a pass.

    Rows beyond the last whole batch are never read. The order of the rows must be public: shuffle
    the data once with a permutation that does not depend on it.

    Attributes:
      batch: b, records in a release.
    """

    batch: int = jax.tree.static()


@record
class FixedSize:
    """Exactly `batch` records take part, uniformly, anew in every release; replace-one only.

    Attributes:
      batch: m.
      replacement: whether a record may be drawn several times, as the papers' listings write it.
        It then costs much more than a Poisson sample of the same expected size.
    """

    batch: int = jax.tree.static()
    replacement: bool = jax.tree.static(default=False)
