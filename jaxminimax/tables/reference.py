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
      `auc` and `auc_reference`; None where the held-out rows have one label only.

    Raises:
      ImportError: without scikit-learn.
    """
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import roc_auc_score
    except ImportError as error:
        raise ImportError("a reference without privacy needs scikit-learn: pip install "
                          "'jaxminimax[sklearn]'") from error
    schema = scorer.schema
    held, y = schema.labels(test), schema.labels(rows)
    if len(np.unique(held)) < 2:
        return {"auc": None, "auc_reference": None}
    found: dict[str, float | None] = {
        "auc": float(roc_auc_score(held, scorer.decision_function(test))), "auc_reference": None}
    if len(np.unique(y)) == 2:
        x, z = schema.features(rows), schema.features(test)
        middle, spread = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1.0)
        fits = (LogisticRegression(C=c, max_iter=1000).fit((x - middle) / spread, y)
                for c in _STRENGTHS)
        found["auc_reference"] = max(
            float(roc_auc_score(held, fit.decision_function((z - middle) / spread)))
            for fit in fits)
    return found
