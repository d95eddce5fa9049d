"""A statement in plain words, for whoever has to decide whether it is good enough."""

import math
import textwrap

from jaxminimax.accounting import _limits
from jaxminimax.accounting._profile import Profile
from jaxminimax.accounting._sentences import relation_in_words
from jaxminimax.accounting._statement import Statement

_WIDTH = 92


def in_plain_words(said: Statement, profile: Profile) -> str:
    """What is released, whom the guarantee is for, what its numbers mean, and what it rests on.

    Args:
      said: the statement.
      profile: of the same description, relation and number of records, with the rate .001 of false
        positives among what it answers well.
    """
    several = said.people > 1
    whom = ("A person is taken to have at most "
            f"{said.people} records; for one with more it is weaker." if several else
            "A person with several records is protected less: epsilon grows about in proportion "
            "to their number, which --people counts.")
    blocks = [
        ("What is released", _released(said)),
        ("Whom the guarantee is for",
         f"The unit is {said.unit}. Two worlds are compared: the data as they are, and the data "
         f"where {relation_in_words(said.neighbours, said.people)}. What is published is nearly "
         f"as likely in both. {whom} What the data as a whole tell about people like them is not "
         "hidden; that is what the run is for."),
        ("What the numbers mean", _numbers(said, profile)),
        ("What it rests on", "Enforced by the code: noise, sampling and bounds on what a record "
         "moves. Not checked by the code, and for somebody to answer: the list 'Assumed' below; "
         "above all, that settings were not chosen by looking at these data, that the key of the "
         "random numbers is secret, and that all other releases of these data are added up."),
    ]
    return "\n\n".join(f"{title}.\n{textwrap.fill(text, _WIDTH)}" for title, text in blocks)


def _released(said: Statement) -> str:
    of = (f"{said.spent} of {said.allowed} allowed releases were made"
          if said.spent < said.allowed else f"{said.allowed} release{'s' * (said.allowed > 1)}")
    return (f"{of}, such as the model after each step. A release is computed from the records, or "
            "from a sample of them, with a limit on what each record can change, and noise is "
            f"added. In detail: {' '.join(said.sampling)} Results computed from the releases are "
            "covered too, and so is publishing all of them.")


def _numbers(said: Statement, profile: Profile) -> str:
    if math.isinf(said.epsilon):
        return f"Epsilon is {_limits.in_words(said.proven_up_to, said.delta)}."
    factor = math.exp(min(said.epsilon, 700.0))
    right = 50 * (1 + profile.advantage)
    strong = (f"epsilon = {said.epsilon:.4g} and delta = {said.delta:g}: the chance of any "
              "conclusion that anybody draws from what is published is at most e^epsilon = "
              f"{factor:.4g} times what it would have been in the other world, plus "
              f"{said.delta:g}.")
    if factor > 1000:
        strong += " By itself such a factor says little; the next sentences say more."
    found = profile.true_positives(1e-3)
    return (f"{strong} Somebody who knows everything else, and who is to tell the two worlds "
            f"apart with even odds, is right in at most {right:.4g} % of cases, where guessing is "
            "right in 50 %. If he may accuse wrongly once in a thousand, he is right about at "
            f"most {100 * found:.3g} % of those whom he looks for.")
