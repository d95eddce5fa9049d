"""What whole runs do, put together from releases."""

from typing import Any

import jax

from jaxminimax._types import record
from jaxminimax.mechanism._grid import PARAMETERS
from jaxminimax.mechanism._queries import GroupGradients, Query, Resolvent


@record
class Repeat:
    """`times` adaptive uses of `query`, each on a fresh sample with fresh noise.

    With several parts, `times` uses on each of them, one part after the other: part p is rows
    [p m, (p + 1) m) of the data, m = `query.population`, and rows beyond the last part are never
    read. The order of the rows must be public. A record is in one part, so what is charged is
    `times` uses, however many parts there are.

    Attributes:
      query: what is released, and from how many records.
      times: uses on a part.
      parts: of the data.
    """

    query: Query | Resolvent | GroupGradients
    times: int = jax.tree.static()
    parts: int = jax.tree.static(default=1)


@record
class GroupLosses:
    """`times` releases of p groups' mean losses over all their records, plus Laplace noise.

    A replaced record belongs to one group, so one coordinate moves, by at most B / n_i, and its
    noise has scale noise_multiplier * B / n_i: unequal groups cost what equal ones do. With
    `only_argmax` the noisy values stay inside and the index of the largest is released, which costs
    the same: nothing better is proved for it. No minibatch may be read: amplification would have to
    cover this release and the gradient's together.

    Attributes:
      bound: B, losses lie in [0, B].
      sizes: n_1, ..., n_p, records of each group; public.
      noise_multiplier: Laplace scale over B / n_i [dimensionless].
      times: number of releases. Algorithms set it to their own number of rounds.
      only_argmax: whether only the index of the largest noisy loss is released.
      exact: as in `Query`.
    """

    bound: float | jax.Array
    sizes: tuple[int, ...] = jax.tree.static()
    noise_multiplier: float | jax.Array | None = None
    times: int = jax.tree.static(default=1)
    only_argmax: bool = jax.tree.static(default=False)
    exact: bool = jax.tree.static(default=True)


@record
class Tree:
    """All prefix sums of one pass of clipped vectors, by a binary tree of Gaussian sums (DP-FTRL).

    A record is in one leaf, hence in ceil(log2(leaves + 1)) nodes; replacing it moves each of them
    by at most twice the clip norm. (The published guarantee replaces it by zero: half of that.)

    Attributes:
      clip: bound on the L2 norm of a leaf's per-record vector.
      noise_multiplier: standard deviation of a node's noise over the clip norm.
      leaves: Q, the number of leaves.
      parameters: as in `Query`.
      exact: as in `Query`.
    """

    clip: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    leaves: int = jax.tree.static()
    parameters: int = jax.tree.static(default=PARAMETERS)
    exact: bool = jax.tree.static(default=True)


@record
class Solution:
    """One release of a solver's certified solution plus Gaussian noise (output perturbation).

    Attributes:
      sensitivity: replace-one bound on how far the exact solution moves.
      slack: rho, certified distance of what is released from the exact solution over the
        sensitivity; the noise covers (1 + 2 rho) times the sensitivity.
      noise_multiplier: standard deviation over (1 + 2 rho) * sensitivity.
      because: the assumptions that the sensitivity rests on; printed in the statement.
    """

    sensitivity: float | jax.Array
    slack: float | jax.Array = 0.0
    noise_multiplier: float | jax.Array | None = None
    because: str = jax.tree.static()


@record
class GroupSolution:
    """`phases` releases of certified solutions of the regularised worst-group problem.

    Phase t = 1, ..., T reads n_t = floor(n_i / T) records of every group i that no other phase
    reads, and releases, blurred, the w of the saddle point of

        sum_i v_i L_i(w) - mu_v sum_i v_i ln v_i + (mu_t / 2) ||w - c||^2     over W x simplex,

    with mu_t = 2^(t-1) `reg_w` and c released before. Replacing a record moves the exact point by
    at most `exact_sensitivity`; solutions are certified to within `slack` times that, and the noise
    is `noise_multiplier` times (1 + 2 slack) times it, see `solution_length`.

    Nothing is clipped: clipping would break the proof. Every record's loss must itself be convex,
    L-Lipschitz and in [0, B] on W, whatever the record contains; statements print it.

    Attributes:
      lipschitz: L, of one record's loss on W.
      bound: B, length of an interval that its values on W lie in.
      smooth: beta, Lipschitz constant of its gradient on W; None: not smooth.
      diameter: M, of W.
      reg_w: mu_1, weight of the quadratic in the first phase.
      reg_lam: mu_v, weight of the entropy.
      slack: certified distance from the exact point over the exact sensitivity.
      steps: of the inner solver, from `phased_erm.certified`.
      noise_multiplier: standard deviation of the noise over (1 + 2 slack) times the replace-one
        sensitivity [dimensionless]; as in `Solution`, not over half of it.
      sizes: n_1, ..., n_p, records of each group; public.
      phases: T.
      parameters: as in `Query`.
      exact: as in `Query`.
    """

    lipschitz: float | jax.Array
    bound: float | jax.Array
    smooth: float | jax.Array | None
    diameter: float | jax.Array
    reg_w: float | jax.Array
    reg_lam: float | jax.Array
    slack: float | jax.Array = 0.01
    steps: int | None = jax.tree.static(default=None)
    noise_multiplier: float | jax.Array | None = None
    sizes: tuple[int, ...] = jax.tree.static()
    phases: int = jax.tree.static()
    parameters: int = jax.tree.static(default=PARAMETERS)
    exact: bool = jax.tree.static(default=True)


@record
class RecordLosses:
    """`times` releases of one record's loss each plus Laplace noise, no record more than once.

    Which record is next may depend on what was released. A replaced record is in one release and
    moves it by at most B, so the whole stream costs as much as one release.

    Attributes:
      bound: B, losses are clipped to [0, B].
      noise_multiplier: Laplace scale over B [dimensionless].
      times: number of releases.
      exact: as in `Query`.
    """

    bound: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    times: int = jax.tree.static()
    exact: bool = jax.tree.static(default=True)


@record
class Sequence:
    """Mechanisms on the same data, each free to look at the earlier answers.

    Attributes:
      parts: the mechanisms.
      in_turn: whether they take turns, one release of each in a round, instead of running one after
        the other; decides what a run that stopped early has spent.
    """

    parts: tuple[Any, ...]
    in_turn: bool = jax.tree.static(default=False)


@record
class Parallel:
    """Mechanisms on disjoint data sets, fixed in advance; each may look at the earlier answers.

    A record is in one of them, so the largest cost counts, never the sum; and each part is charged
    in full.

    Attributes:
      parts: the mechanisms.
      in_turn: whether a round makes one release of every part, so that they end together; if not,
        they run one after the other.
    """

    parts: tuple[Any, ...]
    in_turn: bool = jax.tree.static(default=False)


Leaf = Repeat | GroupLosses | Tree | Solution | GroupSolution | RecordLosses
Mechanism = Leaf | Sequence | Parallel


def releases(mechanism: Mechanism) -> int:
    """Number of releases that the mechanism allows."""
    match mechanism:
        case Repeat(times=times, parts=parts):
            return times * parts
        case GroupLosses(times=times) | RecordLosses(times=times):
            return times
        case Tree(leaves=count) | GroupSolution(phases=count):
            return count
        case Solution():
            return 1
    return sum(map(releases, mechanism.parts))


def leaves(mechanism: Mechanism) -> list[Leaf]:
    """The mechanisms that `Sequence` and `Parallel` are built from, in order."""
    if isinstance(mechanism, Sequence | Parallel):
        return [leaf for part in mechanism.parts for leaf in leaves(part)]
    return [mechanism]


def is_exact(leaf: Leaf) -> bool:
    """Whether a mechanism's noise is made of integers and added without rounding."""
    if isinstance(leaf, Solution):  # whose user adds the noise
        return False
    return leaf.query.exact if isinstance(leaf, Repeat) else leaf.exact
