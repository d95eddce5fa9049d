"""`python -m jaxminimax train`: from a table to a private scorer, and how well it predicts.

How well labels are predicted on held-out rows is not private. The references are ordinary models on
the same features, standardised by the training rows.
"""

import argparse
import datetime
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import sys
import warnings
from typing import Any

import jax
import numpy as np
import scipy

from jaxminimax.accounting import Ledger
from jaxminimax.apps.tables import check, columns, files, records, report, training
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.apps.tables.scorer import MODEL, Scorer
from jaxminimax.apps.tables.unfinished import PAGE, REPORT, UNFINISHED, results_locked
from jaxminimax.base import VERSION, own_files
from jaxminimax.releases import release_keys

STRENGTHS = (1.0, 1000.0)  # C: with the usual regularisation, and with nearly none


def add(commands: Any) -> None:
    """Adds `train` to the commands of a parser."""
    text = "trains a private scorer of a table"
    command = commands.add_parser("train", help=text, description=text + (
        ". With --test-fraction it also prints the AUC on rows held out, and that of a logistic "
        "regression without privacy on the same features: both are outside of the guarantee. With "
        "--out a command that was stopped goes on where it was, if it is given again."))
    flag = command.add_argument
    flag("table", help="CSV file with a header line, or Parquet file")
    check.add_schema(flag)
    flag("--epsilon", type=float, required=True, help="of everything that training releases")
    flag("--delta", type=float, required=True, help="of (epsilon, delta); well below 1/n, "
         "as publishing one record in n at random has delta = 1/n")
    flag("--allow-large-delta", action="store_true", help="allow a delta of 1/n or more")
    flag("--test-fraction", type=float, metavar="F",
         help="share of the records (persons, if the schema has an owner) held out to test on; "
              "without it all rows train")
    flag("--certify", type=float, metavar="F",
         help="share of each group's rows held out for a certificate: a bound on the worst group's "
              "share of wrong predictions, by a release of its own at no further epsilon")
    flag("--stop-on-notes", action="store_true",
         help="end the training after its moments, for a tenth of the budget, if these say that a "
              "column or the label is not what the schema says")
    flag("--seed", type=int, help="of the split and of the noise, for experiments: anyone who has "
                                  "it can remove the noise. Default: the system's entropy")
    flag("--ledger", metavar="FILE",
         help="ledger that is charged for all of it before anything is released, and that refuses "
              "what its budget does not cover; `jaxminimax ledger FILE --epsilon E --delta D` "
              "opens one")
    flag("--name", help="of this training in the ledger (default: run 1 and so on)")
    flag("--unit", help="what one record is, for the statement and the ledger (default: one row, "
                        "or one person)")
    flag("--purpose", help="what the model is for, printed in the report")
    flag("--by", help="who runs the training, printed in the report")
    flag("--out", metavar="FOLDER", help="where model.json, report.json and report.html go")
    flag("--json", action="store_true", help="print JSON only")
    flag("--quiet", action="store_true", help="no progress bar")


def train(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns what the command prints, with --json and without; writes the files of --out."""
    folder = None if args.out is None else pathlib.Path(args.out)
    if args.name is not None and args.ledger is None:
        raise ValueError(f"--name {args.name} is that of a run in a ledger: say --ledger FILE too.")
    with results_locked(folder):
        schema = check.schema_of(args, lambda: files.read(args.table))
        rows, test_rows = files.Frames(args.table, schema.numeric, schema.names), None
        if args.test_fraction is not None:
            frame = files.read(args.table, schema.numeric)
            owners = schema.owners(frame)
            test = files.held_out(len(frame), owners, args.test_fraction, args.seed or 0)
            rows, test_rows = frame[~test], frame[test]
        if folder is not None and (folder / MODEL).exists() and not any(
                (folder / UNFINISHED).glob("*/key")):
            warnings.warn(f"{folder} holds a scorer already, which is replaced: what it cost stays "
                          "spent, and this is a further release.", UserWarning, stacklevel=2)
        scorer, facts = _trained(args, rows, test_rows, schema, folder)
        if folder is not None:
            scorer.save(folder / MODEL)
            facts["model_sha256"] = hashlib.sha256((folder / MODEL).read_bytes()).hexdigest()
            own_files.write(folder / REPORT, json.dumps(facts, indent=1))
            own_files.write(folder / PAGE, report.page(scorer, facts))
            own_files.remove(folder / UNFINISHED)  # with the keys
        return facts, "\n".join(report.lines(
            scorer, facts, 0 if test_rows is None else len(test_rows)))


def _trained(args: argparse.Namespace, rows: Any, test_rows: Any, schema: Schema,
             folder: pathlib.Path | None) -> tuple[Scorer, dict[str, Any]]:
    """Returns the scorer and its record."""
    ledger = None if args.ledger is None else Ledger(args.ledger)
    key = None if args.seed is None else release_keys.root_of_training(
        jax.random.key(args.seed, impl="threefry2x32"), 0)
    scorer = training.train(
        rows, schema, epsilon=args.epsilon, delta=args.delta, key=key, ledger=ledger,
        name=args.name, progress=sys.stderr.isatty() and not (args.quiet or args.json),
        unit=args.unit, people=args.people, allow_large_delta=args.allow_large_delta,
        certify=args.certify, stop_on_notes=args.stop_on_notes,
        folder=None if folder is None else folder / UNFINISHED / "0")
    facts: dict[str, Any] = {"auc": None, "auc_standard_error": None, "auc_reference": None}
    if test_rows is not None:
        facts = held_out(scorer, rows, test_rows)
    outside = list(facts)
    facts |= {"epsilon": scorer.statement.epsilon, "delta": scorer.statement.delta,
              "table": pathlib.Path(args.table).name, "purpose": args.purpose, "by": args.by,
              "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
              "versions": {"jaxminimax": VERSION, "Python": platform.python_version(), **{
                  name: importlib.metadata.version(name) for name in ("jax", "numpy")}},
              "ledger": None if ledger is None else report.books_left(ledger), "seed": args.seed,
              "group_losses": scorer.group_losses,
              "certificate": scorer.certificate and scorer.certificate.to_json(),
              **report.released(scorer),
              "schema": scorer.schema.to_dict(),
              "notes": [note.to_json() for note in scorer.notes],
              "outside_the_guarantee": outside,
              "statement": scorer.statement.to_json()}
    return scorer, facts


# --- on rows held out ---


def held_out(scorer: Scorer, rows: Any, test: Any) -> dict[str, float | None]:
    """Measures a scorer on rows held out, and a model without privacy; no guarantee covers that.

    Of a label with a positive value the reference is an ordinary logistic regression on the same
    features, standardised by the training rows, the better of two strengths of regularisation: of
    both on the test rows, so that it is no weaker than what a user would get.

    Args:
      scorer: trained on `rows`.
      rows: of the training set, as a frame of pandas.
      test: rows held out, likewise.

    Returns:
      For a label with a positive value `auc`, `auc_standard_error` and `auc_reference`; None where
      the held-out rows have one label only. Otherwise the numbers of `measured` by name, and those
      of a logistic or a ridge regression by name with `_reference`. Rows without a label are left
      out, and `held_out_without_label` says how many of those held out: outside the guarantee, too.

    Raises:
      ImportError: without scikit-learn.
    """
    schema, count = scorer.schema, len(test)
    rows, test = (x[records.labelled(schema.labels(x))] for x in (rows, test))
    missing, scores = {"held_out_without_label": count - len(test)}, scorer.decision_function(test)
    if schema.target is not None:
        best = measured(schema, test, reference(schema, rows, test))
        return {**measured(schema, test, scores), **missing,
                **{f"{name}_reference": number for name, number in best.items()}}
    y, auc, error, plain = schema.labels(test), None, None, None
    if len(np.unique(y)) == 2:
        auc, error = area(scores, y)
        if len(np.unique(schema.labels(rows))) == 2:
            plain = max(area(reference(schema, rows, test, strength=c), y)[0] for c in STRENGTHS)
    return {"auc": auc, "auc_standard_error": error, "auc_reference": plain, **missing}


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
    valid = records.labelled(y)
    if isinstance(schema.target, columns.Category):
        y, logs = y[valid], scipy.special.log_softmax(scores[valid], 1)
        classes_with_auc = np.flatnonzero(y.any(0) & ~y.all(0))
        areas = [metrics.roc_auc_score(y[:, k], logs[:, k]) for k in classes_with_auc]
        return {"macro_auc": float(np.mean(areas)) if areas else None,
                "log_loss": float(-np.mean(logs[y > 0]))}
    assert schema.target is not None
    truth = schema.target.decode(y[valid])
    guess = np.clip(scores[valid], schema.target.low, schema.target.high)
    return {"r2": float(metrics.r2_score(truth, guess)),
            "mean_absolute_error": float(metrics.mean_absolute_error(truth, guess))}


def reference(schema: Schema, rows: Any, test: Any, model: Any = None, *,
              strength: float = 1.0) -> np.ndarray:
    """Returns the scores of a model without privacy on rows held out, as a scorer's.

    Args:
      schema: of the table.
      rows: of the training set; those without a label are left out.
      test: rows held out.
      model: of scikit-learn, of features that are standardised by the training rows; None: a ridge
        regression of numbers, a logistic regression of all other labels.
      strength: C of the logistic regression.

    Raises:
      ImportError: without scikit-learn.
    """
    try:
        from sklearn import linear_model, pipeline, preprocessing
    except ImportError as error:
        raise ImportError("a reference without privacy needs scikit-learn: pip install "
                          "'jaxminimax[sklearn]'") from error
    x, y, z = schema.features(rows), schema.labels(rows), schema.features(test)
    valid, target = records.labelled(y), schema.target
    if model is None:
        model = (linear_model.Ridge() if isinstance(target, columns.Number)
                 else linear_model.LogisticRegression(C=strength, max_iter=1000))
    fit = pipeline.make_pipeline(preprocessing.StandardScaler(), model).fit(
        x[valid], y[valid].argmax(1) if isinstance(target, columns.Category) else y[valid])
    if target is None:
        return np.asarray(fit.decision_function(z))
    if isinstance(target, columns.Number):
        return np.asarray(target.decode(fit.predict(z)))
    scores = np.full((len(z), y.shape[1]), np.log(1e-12))  # of classes that no row trained
    scores[:, fit.classes_] = fit.predict_log_proba(z)
    return scores


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

    def beaten(x: np.ndarray, sample: np.ndarray) -> np.ndarray:
        ranks = np.searchsorted(sample, x, "left") + np.searchsorted(sample, x, "right")
        return ranks / (2 * len(sample))

    wins, losses = beaten(high, low), 1 - beaten(low, high)
    if min(len(wins), len(losses)) < 2:
        return float(wins.mean()), None
    return float(wins.mean()), float(np.sqrt(
        wins.var(ddof=1) / len(wins) + losses.var(ddof=1) / len(losses)))
