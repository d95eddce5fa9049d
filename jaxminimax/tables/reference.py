"""What a table gives without privacy, beside the private scorer: for study, never for release."""

from typing import Any

import numpy as np

from jaxminimax.tables.scorer import Scorer

_STRENGTHS = (1.0, 1000.0)  # C: with the usual regularisation, and with nearly none


def aucs(scorer: Scorer, rows: Any, test: Any) -> dict[str, float | None]:
    """AUC on rows held out, private and not; none of it is inside the guarantee.

    The reference is an ordinary logistic regression on the same features, standardised by the
    training rows, the better of two strengths of regularisation: of both on the test rows, so that
    it is no weaker than what a user would get.

    Args:
      scorer: trained on `rows`.
      rows: of the training set.
      test: rows held out.

    Returns:
      `auc`, `auc_standard_error` and `auc_reference`; None where the held-out rows have one label
      only.

    Raises:
      ImportError: without scikit-learn.
    """
    schema = scorer.schema
    held, y = schema.labels(test), schema.labels(rows)
    if len(np.unique(held)) < 2:
        return {"auc": None, "auc_standard_error": None, "auc_reference": None}
    auc, error = area(scorer.decision_function(test), held)
    found: dict[str, float | None] = {"auc": auc, "auc_standard_error": error,
                                      "auc_reference": None}
    if len(np.unique(y)) == 2:
        found["auc_reference"] = regression(schema.features(rows), y, schema.features(test), held)
    return found


def area(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float | None]:
    """AUC, and its standard error over held-out rows; None where a label has one row only.

    The variance is that of DeLong, DeLong and Clarke-Pearson, "Comparing the areas under two or
    more correlated receiver operating characteristic curves", Biometrics 1988: with v_i the share
    of negatives that positive i beats, and u_j the share of positives that beat negative j, ties
    counting half, it is var(v) / positives + var(u) / negatives; without the noise of training.

    Args:
      scores: `[n]`.
      labels: `[n]`, in {0, 1}, with both.
    """
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels) > 0.5
    high, low = np.sort(scores[labels]), np.sort(scores[~labels])

    def beaten(x: np.ndarray, by: np.ndarray) -> np.ndarray:
        return (np.searchsorted(by, x, "left") + np.searchsorted(by, x, "right")) / (2 * len(by))

    wins, losses = beaten(high, low), 1 - beaten(low, high)
    if min(len(wins), len(losses)) < 2:
        return float(wins.mean()), None
    return float(wins.mean()), float(np.sqrt(
        wins.var(ddof=1) / len(wins) + losses.var(ddof=1) / len(losses)))


def regression(x: np.ndarray, y: np.ndarray, z: np.ndarray, held: np.ndarray) -> float:
    """AUC on rows held out of a logistic regression without privacy, the better of two strengths.

    Args:
      x: features of the training rows, `[n, d]`.
      y: their labels, in {0, 1}, with both.
      z: features of the rows held out.
      held: their labels, with both.

    Raises:
      ImportError: without scikit-learn.
    """
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise ImportError("a reference without privacy needs scikit-learn: pip install "
                          "'jaxminimax[sklearn]'") from error
    middle, spread = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1.0)
    fits = (LogisticRegression(C=c, max_iter=1000).fit((x - middle) / spread, y)
            for c in _STRENGTHS)
    return max(area(fit.decision_function((z - middle) / spread), held)[0] for fit in fits)
