"""What a run promised and spent, in words and in JSON."""

import dataclasses
import importlib.metadata
import json
from typing import Any

from jaxminimax import _check
from jaxminimax import mechanism as words
from jaxminimax.accounting import _curves
from jaxminimax.accounting._charge import charged, charges, first, multiplier, realised
from jaxminimax.accounting._epsilon import charged_epsilon, check_delta, warn_of, worst
from jaxminimax.mechanism import (
    Disjoint,
    FixedSize,
    Full,
    GroupGradients,
    GroupLosses,
    GroupSolution,
    Leaf,
    Mechanism,
    Poisson,
    Query,
    RecordLosses,
    Repeat,
    Resolvent,
    Sequence,
    Solution,
    Tree,
)

_BOUND = {
    "gaussian": "exact Gaussian composition",
    "unsampled": "exact Gaussian composition, amplification by sampling not used",
    "rdp": "Renyi divergences of the worst pair",
    "pld": "privacy loss distribution, rounded pessimistically",
}
_CLIPPED = ("Each record's operator is clipped to the stated norms, per player or jointly as "
            "stated, before it is summed.")
_PLACES = ("A record's row does not depend on what any record contains: the data are not sorted, "
           "grouped, deduplicated or filtered by value before they are cut, and their order is the "
           "same in every session of a run.")
_CERTIFIED = "A solution without a certificate of the stated residual is not released, but NaN."
_ONCE = ("Each record's loss is clipped to the stated range, and a record is read once, for its "
         "loss or for its gradient, by its place in its group.")
_LOSSES = "Each record's loss is clipped to the stated range before it is averaged."
_PUBLIC_GROUPS = ("Which group a record is in, and so every group's size, is public: neighbouring "
                  "data sets differ in what one record of one group contains.")
ENFORCED = (
    "Noise, sampling and clip norms of the run are those of the mechanism charged here.",
    "Releases beyond the allowed number, and samples beyond their capacity, are NaN.",
)
ASSUMED = (
    "One record is the unit of privacy, and a person contributes no more than the unit says.",
    "n, the initial point, the preprocessing, the projection and every hyper-parameter are public; "
    "choosing them by looking at these data is not paid for here.",
    "The key is secret, drawn with full entropy, and used for this run only.",
    "The operator of a record, losses, public terms, projection, optimisers and schedules read no "
    "data but that one record: none closes over records, or over numbers computed from them.",
    "The statement is for one run; publishing several runs on the same data adds up.",
    "The generator's words are independent and uniform, floating-point arithmetic is IEEE's, and "
    "equal programs on equal numbers give equal results; how long a release takes is not "
    "published.",
)
_EXACT = ("Sums are integers on public grids, noise is made of integers of known law, and they are "
          "added without rounding; what rounding to the grid may move is charged. The last bits of "
          "what is released tell no more than the rest.")
_FLOATS = "Noise is made of floating-point numbers; attacks on their last bits are not covered."
_FIXED_END = ("The epsilon of what was spent is for an end that was fixed beforehand. If a look at "
              "what was released decided when to stop, only the epsilon of all that is allowed "
              "holds.")


@dataclasses.dataclass(frozen=True)
class Statement:
    """A privacy statement; `str` for words, `to_json` for a flat record.

    Attributes:
      epsilon: of everything the mechanism allows. It holds for a run that ends earlier too, by
        whatever rule: what was released is a part of what would have been.
      epsilon_spent_if_fixed: of what was spent, provided that this number of releases was fixed
        before the first one. A rule that looks at what was released can stop where the privacy
        loss is large, and then this number does not hold.
      delta: the delta of both.
      neighbours: "replace_one" or "add_or_remove_one".
      unit: what one record is.
      sampling: in words, one sentence a part.
      spent: releases made.
      allowed: releases allowed.
      noise_multiplier: per part and player, noise on the clipped sum over clip norm.
      clip: per part and player.
      effective_noise_multiplier: per part, players combined.
      charged_noise_multiplier: per part, the multiplier of a mechanism with real-valued sums and
        noise that is no more private than what runs: rounding is part of the distance.
      realisation: per part, what the grid, sums of blocks and the sampler of the noise cost.
      accountant: bound, library and version, of `epsilon`.
      event: the dp-accounting event that `epsilon` is of; multipliers are noise over clip norm.
      enforced: what the code guarantees.
      assumed: what the user must see to.
    """

    epsilon: float
    epsilon_spent_if_fixed: float
    delta: float
    neighbours: str
    unit: str
    sampling: tuple[str, ...]
    spent: int
    allowed: int
    noise_multiplier: tuple[dict[str, float], ...]
    clip: tuple[dict[str, float], ...]
    effective_noise_multiplier: tuple[float, ...]
    charged_noise_multiplier: tuple[float, ...]
    realisation: tuple[str, ...]
    accountant: str
    event: str
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain Python values; infinity becomes None, as JSON has no word for it.

        A statement with `epsilon: null` is one without any guarantee.
        """
        return dict(json.loads(json.dumps(dataclasses.asdict(self)), parse_constant=lambda _: None))

    def __str__(self) -> str:
        relation = {"replace_one": "one record is replaced by another",
                    "add_or_remove_one": "one record is present or counts as absent"}
        spent = f"Spent {self.spent} of {self.allowed} releases"
        if self.spent < self.allowed:
            spent += ("; the epsilon above is of all of them, and holds whatever made the run end. "
                      f"Had this end been fixed beforehand, not chosen by looking at what was "
                      f"released: epsilon = {self.epsilon_spent_if_fixed:.4g}")
        lines = [
            f"({self.epsilon:.4g}, {self.delta:g})-differential privacy for {self.unit}; "
            f"neighbouring data sets: {relation[self.neighbours]}.",
            f"{spent}.",
            *self.sampling,
            "Noise / clip norm per player: " + "; ".join(map(_players, self.noise_multiplier))
            + "; both together: "
            + ", ".join(f"{z:.5g}" for z in self.effective_noise_multiplier) + ".",
            *self.realisation,
            f"Accountant: {self.accountant}.",
            "Enforced by the code:", *(f"  - {x}" for x in self.enforced),
            "Assumed:", *(f"  - {x}" for x in self.assumed),
        ]
        if self.epsilon == float("inf"):
            lines[0] = f"NO privacy guarantee for {self.unit}: epsilon is infinite."
        return "\n".join(lines)


def _players(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}".strip() for name, value in values.items())


def accountant_name(bound: str) -> str:
    """The bound and the library it comes from."""
    return f"{_BOUND[bound]} (dp-accounting {importlib.metadata.version('dp-accounting')})"


def describe(part: Leaf) -> str:
    """The releases of a mechanism, in one sentence."""
    match part:
        case GroupLosses():
            what = "the index of the largest of" if part.only_argmax else "all of"
            return (f"{part.times} release(s) of {what} the groups' mean losses in [0, "
                    f"{words.concrete(part.bound):g}] with Laplace noise, {_groups(part.sizes)}.")
        case Tree():
            return (f"All prefix sums over {part.leaves} leaves by a binary tree of Gaussian sums; "
                    f"a record is in {part.leaves.bit_length()} of its nodes.")
        case RecordLosses():
            return (f"{part.times} release(s) of one record's loss in [0, "
                    f"{words.concrete(part.bound):g}] with Laplace noise, each record in at most "
                    "one of them.")
        case GroupSolution():
            first, last = (words.concrete(words.exact_sensitivity(
                part, words.concrete(part.reg_w) * 2.0**k)) for k in (0, part.phases - 1))
            return (f"{part.phases} release(s) of certified worst-group solutions with Gaussian "
                    f"noise, each on {_groups(words.phase_sizes(part))} that no other reads: "
                    f"sensitivity {first:.6g} in the first, {last:.6g} in the last, slack "
                    f"{words.concrete(part.slack):g}.")
        case Solution():
            return (f"1 release of a certified solution with Gaussian noise, for a sensitivity of "
                    f"{words.concrete(part.sensitivity):.6g} and a slack of "
                    f"{words.concrete(part.slack):g}.")
    assert isinstance(part, Repeat)
    if isinstance(part.query, GroupGradients):
        return (f"{part.times} release(s) of the gradients of one group each, chosen from earlier "
                f"releases and charged as if always the same one, {_groups(part.query.sizes)}: "
                f"{_sampled(part.query.sampling)}.")
    n = part.query.population
    times = f"{part.times} release(s)"
    if part.parts > 1:
        times += f" on each of {part.parts} disjoint parts of the data:"
    match part.query.sampling:
        case Poisson(rate=rate):
            how = (f"Poisson samples at rate {rate:.6g} of {n} records (expected batch "
                   f"{rate * n:.6g}, capacity {words.rows_read(part.query)})")
        case FixedSize(batch=batch, replacement=replacement):
            how = (f"samples of exactly {batch} of {n} records, "
                   f"{'with' if replacement else 'without'} replacement")
        case Disjoint(batch=batch):
            how = (f"disjoint batches of {batch} of {n} records, {-(-part.times // (n // batch))} "
                   "pass(es)")
        case _:
            how = f"all {n} records, without sampling"
    if isinstance(part.query, Resolvent):
        query = part.query
        growing = " on the first part, 2^t - 1 times that on part t" if query.doubling else ""
        return (f"{times} of certified proximal points on {how}: prox weight "
                f"{words.concrete(query.prox):.6g}{growing}, modulus "
                f"{words.concrete(words.modulus(query)):.6g}, residual at most "
                f"{words.concrete(query.slack):g} of the bound {words.concrete(query.bound):.6g} "
                "over the batch size, operators "
                + ("clipped to the bound." if query.assumes == "lipschitz" else "as they are."))
    clip = ", one clip for both players together" if part.query.joint else ""
    return f"{times} on {how}{clip}."


def _groups(sizes: tuple[int, ...]) -> str:
    least, most = min(sizes), max(sizes)
    groups = f"{len(sizes)} group{'s' * (len(sizes) > 1)}"
    return f"{groups} of {least}{f' to {most}' * (most > least)} records"


def _sampled(sampling: Full | Poisson | FixedSize) -> str:
    match sampling:
        case Poisson(rate=rate):
            return f"Poisson samples of it at rate {rate:.6g}"
        case FixedSize(batch=batch, replacement=replacement):
            return (f"samples of exactly {batch} of its records, "
                    f"{'with' if replacement else 'without'} replacement")
    return "all of its records"


def statement(algorithm: Any, hyper: Any, state: Any = None, *, delta: float,
              neighbours: str = "replace_one", alongside: tuple[Mechanism, ...] = (),
              unit: str = "one record", assumed: tuple[str, ...] = ()) -> Statement:
    """The privacy statement of a run.

    Its epsilon is that of all releases that are allowed, however few were made: that holds whatever
    ended the run. `Statement.epsilon_spent_if_fixed` is smaller, and holds on a condition.

    Args:
      algorithm: a module such as `sgda`.
      hyper: the `Hyper` that was run.
      state: the state it ended in, for the releases spent; None for all that are allowed.
      delta: in (0, 1).
      neighbours: as in `epsilon`.
      alongside: other mechanisms run on the same data, charged in full.
      unit: what one record is, e.g. "one patient's visit".
      assumed: further assumptions to print, e.g. the public constants of the preprocessing.

    Raises:
      ValueError: for a description that is not valid; for a state of several runs.
    """
    check_delta(delta)
    main = algorithm.mechanism(hyper)
    allowed = words.releases(main)
    spent = allowed if state is None else int(words.concrete(state.spent))
    _check.count("spent", spent, low=0)
    done = first(main, spent)
    so_far = (*alongside, *(() if done is None else (done,)))
    return state_of(Sequence(parts=(*alongside, main)), Sequence(parts=so_far), delta, spent=spent,
                    allowed=allowed, neighbours=neighbours, unit=unit, assumed=assumed)


def state_of(everything: Mechanism, so_far: Mechanism, delta: float, *, spent: int, allowed: int,
             neighbours: str = "replace_one", unit: str = "one record",
             assumed: tuple[str, ...] = ()) -> Statement:
    """The privacy statement of a description, for `statement` and the command line.

    Args:
      everything: all that is allowed.
      so_far: the part of it that was run.
      delta: in (0, 1).
      spent: releases made, to print.
      allowed: releases allowed, to print.
      neighbours: as in `epsilon`.
      unit: as in `statement`.
      assumed: as in `statement`.
    """
    check_delta(delta)
    warn_of(delta, everything, stacklevel=4)
    costs = charges(everything, neighbours)
    value, bound = worst(costs, float(delta), neighbours)
    dearest = max(costs, key=lambda cost: charged_epsilon(cost, float(delta), neighbours))
    parts = words.leaves(everything)
    return Statement(
        epsilon=value,
        epsilon_spent_if_fixed=worst(charges(so_far, neighbours), float(delta), neighbours)[0],
        delta=float(delta),
        neighbours=neighbours,
        unit=unit,
        sampling=tuple(map(describe, parts)),
        spent=spent,
        allowed=allowed,
        noise_multiplier=tuple(_numbers(p, "noise_multiplier")
                               or {_unit(p): multiplier(p)} for p in parts),
        clip=tuple(_numbers(p, "clip") for p in parts),
        effective_noise_multiplier=tuple(map(multiplier, parts)),
        charged_noise_multiplier=tuple(charged(part, neighbours) for part in parts),
        realisation=tuple(_realisation(part, neighbours) for part in parts),
        accountant=accountant_name(bound),
        event=str(_curves.event(dearest)),
        enforced=(*_guarantees(parts), *ENFORCED),
        assumed=(*ASSUMED, *(() if all(map(words.is_exact, parts)) else (_FLOATS,)),
                 *((_FIXED_END,) if spent < allowed else ()),
                 *dict.fromkeys(x for p in parts for x in _assumptions(p)), *assumed),
    )


def _realisation(part: Leaf, neighbours: str) -> str:
    """How noise and sums are made, and what that costs beside real numbers."""
    z, counted, cost = multiplier(part), charged(part, neighbours), realised(part)
    if isinstance(part, Solution):
        return "Noise is added by whoever releases the solution."
    if z == 0:
        return "No noise is added."
    rounded = (f"rounding to the grid and inside blocks is charged, a multiplier of {z:.6g} as "
               f"{counted:.6g} ({100 * (counted / z - 1):.2g} %)")
    if not words.is_exact(part):
        return f"Noise of floating-point numbers on sums on a grid; {rounded}."
    return (f"Integer noise, added exactly; {rounded}; the sampler's law adds {cost.ratio:.2g} to "
            f"epsilon and {cost.law_error:.2g} (1 + e^epsilon) to delta.")


def _guarantees(parts: list[Leaf]) -> list[str]:
    """What the code does to operators and solutions."""
    queries = [part.query for part in parts if isinstance(part, Repeat)]
    solved = [query for query in queries if isinstance(query, Resolvent)]
    clipped = len(queries) > len(solved) or any(q.assumes == "lipschitz" for q in solved)
    kinds = set(map(type, parts))
    said = {_EXACT: all(map(words.is_exact, parts)), _CLIPPED: clipped or Tree in kinds,
            _LOSSES: GroupLosses in kinds, _ONCE: RecordLosses in kinds,
            _CERTIFIED: bool(solved) or GroupSolution in kinds}
    return [words for words, holds in said.items() if holds]


def _assumptions(part: Leaf) -> tuple[str, ...]:
    """What a charge rests on, beside what is assumed of every mechanism."""
    places = (_PLACES,) if isinstance(part, Repeat) and (
        part.parts > 1 or isinstance(part.query.sampling, Disjoint)) else ()
    return (*_sensitivity_rests_on(part), *places)


def _sensitivity_rests_on(part: Leaf) -> tuple[str, ...]:
    match part:
        case GroupLosses() | Repeat(query=GroupGradients()):
            return (_PUBLIC_GROUPS,)
        case Solution(because=because):
            return (because,)
        case Tree():
            return (_PLACES,)
        case GroupSolution():
            lipschitz, bound, diameter = (words.concrete(x) for x in (
                part.lipschitz, part.bound, part.diameter))
            smooth = ("" if part.smooth is None
                      else f", {words.concrete(part.smooth):g}-smooth")
            return (f"Every record's loss is convex, {lipschitz:g}-Lipschitz{smooth} and in "
                    f"[0, {bound:g}] on the feasible set, whatever the record contains, and its "
                    "derivative as computed is finite and a subgradient there; neither losses nor "
                    "gradients are clipped.",
                    f"The feasible set is convex with diameter at most {diameter:g} and the "
                    "projection on it is Euclidean.",
                    _PUBLIC_GROUPS,
                    _PLACES,
                    "How long a run takes is not published: it depends on the data.")
        case RecordLosses():
            return (_PUBLIC_GROUPS, _PLACES)
        case Repeat(query=Resolvent() as query):
            bound, lipschitz, diameter = (words.concrete(x) for x in (
                query.bound, query.lipschitz, query.diameter))
            common = (f"Every record's operator, with the public terms, is {lipschitz:g}-Lipschitz "
                      "on the feasible set, whatever the record contains.",
                      f"The feasible set is convex with diameter at most {diameter:g}, the "
                      "projection on it is Euclidean, and the public terms are monotone.")
            if query.assumes == "lipschitz":
                return common
            return (f"Every record's operator is monotone on the feasible set and of norm at most "
                    f"{bound:g}, whatever the record contains; operators are not clipped.", *common)
    return ()


def _unit(part: Leaf) -> str:
    """What a noise multiplier is a multiple of, where that is no clip norm."""
    return {GroupLosses: "Laplace scale / (B / n_i)", RecordLosses: "Laplace scale / B"}.get(
        type(part), "")


def _numbers(part: Leaf, name: str) -> dict[str, float]:
    """Both players' numbers of that name in a `Query`; nothing of most other mechanisms."""
    if isinstance(part, Repeat) and isinstance(part.query, GroupGradients):
        return {"": words.concrete(getattr(part.query, name))}
    if not (isinstance(part, Repeat) and isinstance(part.query, Query)):
        return {}
    players = getattr(part.query, name)._asdict()
    return {k: words.concrete(x) for k, x in players.items() if x is not None}
