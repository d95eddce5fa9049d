"""How well labels are predicted on held-out rows; not private.

The references are ordinary models on the same features, standardised by the training rows.
"""

from typing import Any

import numpy as np
import scipy

from jaxminimax.tables.columns import Category
from jaxminimax.tables.schema import Schema
from jaxminimax.tables.scorer import Scorer

_STRENGTHS = (1.0, 1000.0)  # C: with the usual regularisation, and with nearly none
_NEVER = 1e-12  # probability of a class that no row trained


def held_out(scorer: Scorer, rows: Any, test: Any) -> dict[str, float | None]:
    """Measures a scorer on rows held out, and a model without privacy next to it.

    Args:
      scorer: trained on `rows`.
      rows: of the training set.
      test: rows held out.

    Returns:
      For a label with a positive value what `aucs` does. Otherwise the numbers of `measured`
      by name, and those of a logistic or a ridge regression by name with `_reference`.

    Raises:
      ImportError: without scikit-learn.
    """
    schema = scorer.schema
    if schema.target is None:
        return aucs(scorer, rows, test)
    own = measured(schema, test, scorer.decision_function(test))
    best = measured(schema, test, reference(schema, rows, test))
    return {**own, **{f"{name}_reference": number for name, number in best.items()}}


def measured(schema: Schema, test: Any, scores: np.ndarray) -> dict[str, float | None]:
    """Returns `macro_auc` and `log_loss` of classes, `r2` and `mean_absolute_error` of a number.

    The macro AUC is the mean over classes of the AUC of one class against all others; classes that
    no row has, or all have, are left out. The error is in the units of the label.

    Args:
      schema: of the label.
      test: rows; those without a label are left out.
      scores: as `Scorer.decision_function` returns them.
    """
    from sklearn import metrics

    y = schema.labels(test)
    if isinstance(schema.target, Category):
        kept = y.any(1)
        y, logs = y[kept], scipy.special.log_softmax(scores[kept], 1)
        both = np.flatnonzero(y.any(0) & ~y.all(0))
        areas = [metrics.roc_auc_score(y[:, k], logs[:, k]) for k in both]
        return {"macro_auc": float(np.mean(areas)) if areas else None,
                "log_loss": float(-np.mean(logs[y > 0]))}
    assert schema.target is not None
    low, high = schema.target.low, schema.target.high
    kept = ~np.isnan(y)
    truth, guess = low + (high - low) / 2 * (1 + y[kept]), np.clip(scores[kept], low, high)
    return {"r2": float(metrics.r2_score(truth, guess)),
            "mean_absolute_error": float(metrics.mean_absolute_error(truth, guess))}


def reference(schema: Schema, rows: Any, test: Any, model: Any = None) -> np.ndarray:
    """Returns the scores of a model without privacy on rows held out, as a scorer's.

    Args:
      schema: of the table.
      rows: of the training set; those without a label are left out.
      test: rows held out.
      model: of scikit-learn; None: a logistic regression of classes, a ridge regression of numbers.
    """
    from sklearn.linear_model import LogisticRegression, Ridge

    x, y, z = schema.features(rows), schema.labels(rows), schema.features(test)
    if isinstance(schema.target, Category):
        kept = y.any(1)
        fit = _standardised(model or LogisticRegression(max_iter=1000)).fit(
            x[kept], y[kept].argmax(1))
        scores = np.full((len(z), y.shape[1]), np.log(_NEVER))
        scores[:, fit.classes_] = fit.predict_log_proba(z)
        return scores
    assert schema.target is not None
    kept = ~np.isnan(y)
    low, high = schema.target.low, schema.target.high
    fit = _standardised(model or Ridge()).fit(x[kept], y[kept])
    return low + (high - low) / 2 * (1 + fit.predict(z))


def _standardised(model: Any) -> Any:
    """Returns a model of features that it standardises by the training rows."""
    from sklearn import pipeline, preprocessing

    return pipeline.make_pipeline(preprocessing.StandardScaler(), model)


def aucs(scorer: Scorer, rows: Any, test: Any) -> dict[str, float | None]:
    """Measures AUC on rows held out, with privacy and without; the guarantee covers neither.

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
    auc = error = best = None
    if len(np.unique(held)) == 2:
        auc, error = area(scorer.decision_function(test), held)
        if len(np.unique(y)) == 2:
            best = regression(schema.features(rows), y, schema.features(test), held)
    return {"auc": auc, "auc_standard_error": error, "auc_reference": best}


def area(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float | None]:
    """Returns AUC, and its standard error over held-out rows; None if a label has one row only.

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
    """Returns the AUC of a logistic regression without privacy, the better of two strengths.

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
    fits = (_standardised(LogisticRegression(C=c, max_iter=1000)).fit(x, y) for c in _STRENGTHS)
    return max(area(fit.decision_function(z), held)[0] for fit in fits)
