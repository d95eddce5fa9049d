"""Random descriptions and hostile inputs: the accountant answers soundly, or says why it refuses.

    python -m benchmarks.privacy.fuzz --cases 10000 [--json FILE]

A case is a random description, of all kinds, alone or put together, with a random relation, number
of records a person, delta and question; in about half of them one value anywhere is replaced by a
hostile one (NaN, infinity, a tracer, a string, a huge integer, ...). Every case has to end in one
of these:

* refused: a ValueError with a message.
* answered: an epsilon that is a number above 0 and not below what an explicit attack on the charged
  pairs attains (the Gaussian part alone exactly, thresholds on any one release, and on whether any
  of them exceeds a threshold); a delta in [0, 1] and not below the attacks'.
* nothing: epsilon is 0, and no attack attains delta even at 0.
* infinite: epsilon is infinite, and either there is no noise, or failures alone cost delta, or the
  attacks attain at least `ENOUGH`, or the expected privacy loss is so large that they would if it
  were normal: then the realised law of the noise, 1e-40 or so of delta times e^epsilon, is dearer
  than delta.

All else is a finding: another exception, a warning that is neither about delta nor about an epsilon
that is not proven, a NaN, an epsilon of 0 or infinity without such a reason, one below an attack, a
case that takes more than `LONGEST` seconds.
"""

import collections
import json
import math
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.privacy.fuzz_cases import (
    HOSTILE,
    description,
    kinds_in,
    real,
    size,
    spoiled,
    traced,
)
from jaxminimax.mechanism.costs import Charge, PrivacyLoss, silent

ENOUGH = 30.0  # an epsilon that may be called infinite
LONGEST = 20.0  # seconds of a case
_LOST = 1e-6  # relative, of attacks' rounding


class Case(NamedTuple):
    """What is asked."""

    made: Any
    question: str
    delta: Any
    epsilon: Any
    neighbours: Any
    people: Any
    hostile: str


def case(rng: np.random.Generator) -> Case:
    """A random one; about half are spoiled in one place."""
    made = description(rng)
    question = str(rng.choice(["epsilon", "delta", "statement", "calibrate"],
                              p=[0.6, 0.3, 0.05, 0.05]))
    plain: dict[str, Any] = {
        "delta": real(rng, 1e-16, 0.6), "epsilon": real(rng, 1e-4, 30.0),
        "neighbours": "add_or_remove_one" if rng.random() < 0.2 else "replace_one",
        "people": 1 if rng.random() < 0.6 else size(rng, 2, 30)}
    hostile = ""
    if rng.random() < 0.5:
        with_ = HOSTILE[int(rng.integers(len(HOSTILE)))]
        where = str(rng.choice(["made", *plain], p=[0.6, 0.1, 0.1, 0.1, 0.1]))
        hostile = f"{where} with {type(with_).__name__} {str(with_)[:40]}"
        if where == "made":
            made = with_ if rng.random() < 0.05 else spoiled(rng, made, with_)
        else:
            plain[where] = with_
        if rng.random() < 0.05:
            hostile = "tracer"
    return Case(made, question, hostile=hostile, **plain)


def ask(one: Case) -> Any:
    """The answer; what it raises is the caller's to judge."""
    how = {"neighbours": one.neighbours, "people": one.people}
    match one.question:
        case "epsilon":
            return jmm.epsilon(one.made, one.delta, **how)
        case "delta":
            return jmm.delta(one.made, one.epsilon, **how)
        case "calibrate":
            return jmm.epsilon(jmm.accounting.calibrate_noise(one.made, one.epsilon, one.delta,
                                                              **how),
                               one.delta, **how)
    from jaxminimax.accounting import statement_of_run
    said = statement_of_run.statement_for(one.made, lambda _: one.made, one.delta, spent=1,
                                          allowed=1, **how)
    json.dumps(said.to_json(), allow_nan=False)
    assert str(said)
    return said.epsilon


# --- attacks on the charged pairs ---


def thresholds(loss: PrivacyLoss, times: int, neighbours: str,
               people: int) -> tuple[np.ndarray, np.ndarray]:
    """P and Q of "a release exceeds t" and of "some release does", for many t."""
    if loss.kind == "laplace":
        t = np.linspace(-5 * loss.z, people + 30 * loss.z, 300)
        p, q = (stats.laplace.sf(t, at, loss.z) for at in (people, 0.0))
        below = [stats.laplace.cdf(t, at, loss.z) for at in (people, 0.0)]
    else:
        z = loss.z
        if loss.kind == "poisson":
            hits = np.arange(people + 1)
            ahead = stats.binom.pmf(hits, people, loss.rate)
            back = ahead if neighbours == "replace_one" else (hits == 0).astype(float)
            up, down = hits.astype(float), -hits.astype(float)
        else:  # the others opposite: each hit moves by two clip norms
            most = min(people, 40) if loss.kind == "fixed" else 40
            hits = np.arange(min(most, loss.batch) + 1)
            law = (stats.hypergeom(loss.population, min(people, loss.population), loss.batch)
                   if loss.kind == "fixed"
                   else stats.binom(loss.batch, min(1.0, people / loss.population)))
            ahead, back = law.pmf(hits), (hits == 0).astype(float)
            up, down = 2.0 * hits, 0.0 * hits
        t = np.linspace(-3 * z, up[-1] + 12 * z, 300)
        p = sum(w * special.ndtr((m - t) / z) for w, m in zip(ahead, up, strict=True))
        q = sum(w * special.ndtr((m - t) / z) for w, m in zip(back, down, strict=True))
        below = [sum(w * special.ndtr((t - m) / z) for w, m in zip(law, at, strict=True))
                 for law, at in ((ahead, up), (back, down))]
    p, q = np.minimum(p, 1.0), np.minimum(q, 1.0)
    some = [-np.expm1(times * np.log1p(-np.minimum(x, 1 - 1e-16))) for x in (p, q)]
    # not from 1 - p, whose digits are lost where p is near 1
    none = [np.minimum(x, 1.0) ** times for x in reversed(below)]
    return np.concatenate([p, some[0], none[0]]), np.concatenate([q, some[1], none[1]])


def attained(cost: Charge, neighbours: str, people: int) -> tuple[np.ndarray, np.ndarray]:
    """P and Q of many events under the pairs of a charge."""
    result = [thresholds(loss, times, neighbours, people) for loss, times in cost.losses]
    if cost.gaussian:
        mu = people * (2.0 if neighbours == "replace_one" else 1.0) * math.sqrt(cost.gaussian)
        t = np.concatenate([np.linspace(-6, mu + 6, 200), np.linspace(mu / 2, mu + 38, 200)])
        result.append((special.ndtr(mu - t), special.ndtr(-t)))
    p, q = zip((np.zeros(1), np.zeros(1)), *result, strict=True)
    return np.concatenate(p), np.concatenate(q)


def least_epsilon(one: Case, costs: tuple[Charge, ...]) -> float:
    """What an attack attains at delta, of the best alternative; -infinity: not even delta."""
    best = -math.inf
    for cost in costs:
        p, q = attained(cost, one.neighbours, one.people)
        sure = p > one.delta * (1 + 1e-9)
        with np.errstate(divide="ignore"):
            logs = np.log(p[sure] - one.delta) - np.log(q[sure])
        best = max(best, float(np.max(logs[np.isfinite(logs)], initial=-math.inf)))
    return best


def least_delta(one: Case, costs: tuple[Charge, ...]) -> float:
    """What an attack attains at epsilon."""
    best = 0.0
    for cost in costs:
        p, q = attained(cost, one.neighbours, one.people)
        with np.errstate(over="ignore", invalid="ignore"):
            gain = p - np.where(q > 0, math.exp(min(one.epsilon, 700.0)) * q, 0.0)
        best = max(best, float(np.max(gain)))
    return best


# --- what became of a case ---


def judged(one: Case, answer: Any) -> str:
    """"answered", "nothing" or "infinite"; or what is wrong with it."""
    if isinstance(answer, bool) or not isinstance(answer, float) or math.isnan(answer):
        return f"FINDING: the answer is {answer!r}"
    if one.question == "calibrate":
        fine = 0 < answer <= one.epsilon * (1 + 1e-9)
        return "answered" if fine else f"FINDING: calibrated to {answer}"
    costs = jmm.mechanism.composed.charges(one.made, one.neighbours)
    if one.question == "delta":
        least = least_delta(one, costs)
        fine = 0 <= answer <= 1 and answer >= least * (1 - _LOST) - 1e-300
        return "answered" if fine else f"FINDING: delta = {answer}, attacks attain {least}"
    least = least_epsilon(one, costs)
    if answer < 0 or answer < least * (1 - _LOST) - 1e-9:
        return f"FINDING: epsilon = {answer}, attacks attain {least}"
    if answer == 0:
        return "nothing"
    if math.isfinite(answer):
        return "answered"
    costly = any(silent(cost) or cost.failures(one.people) > 0.01 * one.delta
                 or one.people * cost.departure(one.people) * math.exp(ENOUGH) > 0.01 * one.delta
                 for cost in costs)
    if costly or max(least, expected(one, costs)) >= ENOUGH:
        return "infinite"
    return f"FINDING: infinite, and attacks attain {least}"


def expected(one: Case, costs: tuple[Charge, ...]) -> float:
    """About epsilon, were the privacy loss normal, with the mean that two-way splits show."""
    best = 0.0
    for cost in costs:
        mean = one.people**2 * 2 * cost.gaussian
        for loss, times in cost.losses:
            p, q = thresholds(loss, 1, one.neighbours, one.people)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                split = p * np.log(p / q) + (1 - p) * np.log1p((q - p) / (1 - q))
            mean += times * float(np.max(split[np.isfinite(split)], initial=0.0))
        best = max(best, mean - math.sqrt(2 * mean) * float(special.ndtri(min(one.delta, 0.5))))
    return best


def run(one: Case) -> str:
    """What became of a case."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "delta = |epsilon is (above|not)", UserWarning)
            if one.hostile == "tracer":
                traced(lambda x: ask(one._replace(delta=x, epsilon=x)))
                return "FINDING: a tracer was answered"
            answer = ask(one)
    except ValueError as error:
        return "refused" if str(error) else "FINDING: refused without a word"
    except Exception as error:  # whatever else it is, it is a finding
        return f"FINDING: {type(error).__name__}: {str(error)[:200]}"
    try:
        return judged(one, answer)
    except ValueError as error:
        return f"FINDING: answered {answer}, and then refused: {str(error)[:200]}"


def fuzz(cases: int, seed: int) -> dict[str, Any]:
    """Counts, findings and times of that many cases."""
    rng = np.random.default_rng(seed)
    counts: collections.Counter[str] = collections.Counter()
    by_kind: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    findings, slowest, began = [], (0.0, ""), time.process_time()
    for number in range(cases):
        one = case(rng)
        clock = time.process_time()
        outcome = run(one)
        took = time.process_time() - clock
        if took > LONGEST:
            outcome = f"FINDING: took {took:.1f} s; {outcome}"
        if took > slowest[0]:
            slowest = (took, str(one)[:400])
        word = outcome.split(":")[0]
        counts[word] += 1
        for kind in kinds_in(one.made):
            by_kind[kind][word] += 1
        if word == "FINDING":
            findings.append({"case": number, "outcome": outcome, "asked": str(one)[:600]})
    return {
        "cases": cases, "seed": seed, "outcomes": dict(counts),
        "kinds": {kind: dict(result) for kind, result in sorted(by_kind.items())},
        "findings": findings, "cpu_seconds": round(time.process_time() - began, 1),
        "slowest": {"seconds": round(slowest[0], 2), "asked": slowest[1]},
    }


def main(argv: list[str] | None = None) -> int:
    """Runs it; 1 if anything was found."""
    p = report.Parser(__file__, __doc__, "json")
    p.add_argument("--cases", type=report.count, default=1000)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args(argv)
    result = fuzz(args.cases, args.seed)
    for word, count in sorted(result["outcomes"].items()):
        print(f"{word:10} {count}")
    print(f"{result['cpu_seconds']} CPU s; slowest {result['slowest']['seconds']} s")
    for finding in result["findings"][:20]:
        print(f"\n{finding['case']}: {finding['outcome']}\n  {finding['asked']}")
    report.save(args, result)
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
