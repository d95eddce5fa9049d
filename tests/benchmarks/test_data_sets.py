import bz2
import dataclasses
import gzip
import hashlib
import http.client
import pathlib
import urllib.request

import numpy as np
import pandas as pd
import pytest
from statsmodels.datasets import randhie

from benchmarks.data_sets import adult as set_adult
from benchmarks.data_sets import csv_files as set_csv
from benchmarks.data_sets import data, features
from benchmarks.data_sets import files as data_files
from benchmarks.data_sets import ijcnn1 as set_ijcnn1
from benchmarks.data_sets import images as set_images
from benchmarks.data_sets import randhie as set_randhie

FILES = {"ijcnn1": set_ijcnn1.FILES, "adult": set_adult.FILES, **set_images.FILES}


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch, tmp_path):
    """Hide data that the machine may hold, and the user's cache."""
    monkeypatch.delenv("JAXMINIMAX_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(header + array.tobytes())


def svmlight(x, y, first_index):
    rows = (
        " ".join([f"{label:+.1f}", *(f"{j + first_index}:{v:g}" for j, v in enumerate(row) if v)])
        for row, label in zip(x, y, strict=True)
    )
    return bz2.compress("\n".join(rows).encode())


def ijcnn1_rows(n, seed=0):
    rng = np.random.default_rng(seed)
    x = np.hstack([np.eye(10)[np.arange(n) % 10], rng.uniform(-1, 1, (n, 12)).round(3)])
    return x, np.where(np.arange(n) % 10 == 0, 1, -1)


def adult_rows(n, seed=0):
    x = (np.random.default_rng(seed).random((n, 123)) < 0.1).astype(int)
    x[:, [0, 122]] = 1  # The first and the last index, so that an offset would be an error.
    return x, np.where(np.arange(n) % 4 == 0, 1, -1)


def image_rows(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 28, 28), np.uint8), (np.arange(n) % 10).astype(np.uint8)


def write(folder, monkeypatch, name, contents):
    """Write files of a data set and make their checksums the expected ones."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for stem, content in contents.items():
        (folder / name / (stem + FILES[name].ending)).write_bytes(content)
        monkeypatch.setitem(FILES[name].checksums, stem, hashlib.sha256(content).hexdigest())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small data folder: 100 (ijcnn1), 40 (adult) and 30 (images) training rows."""
    folder = tmp_path / "data"
    for name, rows, sizes, stem, first in (
        ("ijcnn1", ijcnn1_rows, (100, 50), "ijcnn1", 1),
        ("adult", adult_rows, (40, 20), "adult123", 0),
    ):
        parts = {
            f"{stem}.{part}": svmlight(*rows(n, seed), first)
            for seed, (part, n) in enumerate(zip(("trn", "tst"), sizes, strict=True))
        }
        write(folder, monkeypatch, name, parts)
    for name in ("mnist", "fashion_mnist"):
        for seed, (part, n) in enumerate((("train", 30), ("t10k", 10))):
            images, classes = image_rows(n, seed)
            files = {f"{part}-images-idx3": idx(images), f"{part}-labels-idx1": idx(classes)}
            write(folder, monkeypatch, name, files)
    return folder


def rows_of(x, y):
    """The records as a sorted list, to compare data sets up to the order of their rows."""
    return sorted(map(tuple, np.column_stack([x, y]).tolist()))


def all_rows(dataset):
    x = np.concatenate([dataset.x_train, dataset.x_test])
    return rows_of(x, np.concatenate([dataset.y_train, dataset.y_test]))


def check(dataset):
    for part in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test):
        assert part.dtype == np.float32
        assert np.isfinite(part).all()
    assert dataset.x_train.shape[0] == dataset.y_train.shape[0]
    assert dataset.x_test.shape == (len(dataset.y_test), dataset.x_train.shape[1])
    assert set(dataset.y_train) == set(dataset.y_test) == {0, 1}
    assert 0 < dataset.prior < 1
    assert dataset.unit.startswith("one ")
    assert dataset.public
    assert all(sentence.endswith(".") for sentence in dataset.public)


# randhie


def test_randhie():
    dataset = data.load("randhie")
    check(dataset)
    assert dataset.x_train.shape == (16152, 31)
    assert dataset.x_test.shape == (4038, 31)
    assert np.concatenate([dataset.y_train, dataset.y_test]).sum() == 13882
    assert np.abs(dataset.x_train[:, :9]).max() <= 1
    assert "person-year" in dataset.unit
    assert dataset.prior == 0.7


def test_randhie_parts_are_disjoint_and_exhaustive():
    # As multisets, the parts add up to the table: no row is lost and none is used twice.
    frame = randhie.load_pandas().data
    expected = rows_of(set_randhie.features(frame), frame["mdvis"] > 0)
    assert all_rows(data.load("randhie", seed=5)) == expected


def test_randhie_does_not_show_the_label():
    frame = randhie.load_pandas().data.head(50)
    hidden = frame.assign(mdvis=0)
    np.testing.assert_array_equal(set_randhie.features(frame), set_randhie.features(hidden))


@pytest.mark.nightly
def test_randhie_is_useful_for_a_linear_scorer():
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    dataset = data.load("randhie")
    model = LogisticRegression(max_iter=1000).fit(dataset.x_train, dataset.y_train)
    scores = model.decision_function(dataset.x_test)
    assert roc_auc_score(dataset.y_test, scores) > 0.67


def test_seed_decides_order_and_split():
    first, again, other = (data.load("randhie", seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.x_train, again.x_train)
    np.testing.assert_array_equal(first.y_test, again.y_test)
    assert (first.x_train != other.x_train).any()
    assert rows_of(first.x_test, first.y_test) != rows_of(other.x_test, other.y_test)


# Data-independence


def csv_frame(n=300):
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, n),
            "income": np.where(rng.random(n) < 0.1, np.nan, rng.lognormal(10, 1, n)),
            "town": rng.choice(["Ayr", "Bath", "Cork"], n),
            "owner": rng.random(n) < 0.5,
        }
    )


TRANSFORMS = {
    "randhie": (set_randhie.features, lambda: randhie.load_pandas().data.head(300)),
    "adult": (set_adult.centred, lambda: adult_rows(300)[0].astype(np.float32)),
    **{f"{name}: {key}": (value.of, make)
       for name, make in (("ijcnn1", lambda: ijcnn1_rows(300)[0].astype(np.float32)),
                          ("fashion_mnist", lambda: image_rows(300)[0]))
       for key, value in features.FEATURES[name].items()},
    "csv": (set_csv.features_of, csv_frame),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_features_of_a_record_do_not_depend_on_other_records(name):
    transform, make = TRANSFORMS[name]
    table = make()
    take = table.iloc.__getitem__ if isinstance(table, pd.DataFrame) else table.__getitem__
    full = transform(table)
    assert full.dtype == np.float32
    subset = np.random.default_rng(0).permutation(300)[:40]
    np.testing.assert_array_equal(transform(take(subset)), full[subset])
    np.testing.assert_array_equal(transform(take([17])), full[[17]])


@pytest.mark.parametrize("name", ["ijcnn1", "adult", "mnist"])
def test_replacing_a_row_replaces_one_loaded_record(name, folder, monkeypatch):
    before = data.load(name, data_dir=folder)
    if name == "mnist":
        images, _ = image_rows(30)
        images[3] = 255 - images[3]
        write(folder, monkeypatch, name, {"train-images-idx3": idx(images)})
    else:
        make, n, stem, first = {
            "ijcnn1": (ijcnn1_rows, 100, "ijcnn1.trn", 1),
            "adult": (adult_rows, 40, "adult123.trn", 0),
        }[name]
        x, y = make(n)
        x[3, 12:] = 1
        write(folder, monkeypatch, name, {stem: svmlight(x, y, first)})
    after = data.load(name, data_dir=folder)
    changed = (before.x_train != after.x_train).any(1).sum()
    changed += (before.x_test != after.x_test).any(1).sum()
    assert changed == 1


# Features by hand


def test_ijcnn1_features():
    row = np.zeros((1, 22), np.float32)
    row[0, [2, 10, 11, 12, 21]] = [1, 0.5, 0.5, 0.5, -0.25]
    expected = np.array([-0.07] * 10 + [0.25, 0.6, 1.5] + [0] * 8 + [-0.75])
    expected[2] = 0.63
    original = row.copy()
    np.testing.assert_allclose(features.weighted(row)[0], expected, atol=1e-6)
    np.testing.assert_array_equal(row, original)


def test_image_features():
    image = np.zeros((1, 4, 4), np.uint8)
    image[0, :2, 2:] = [[255, 0], [0, 255]]
    pooled = np.array([0, 0.5, 0, 0]) - 0.25
    expected = 8 * pooled / np.linalg.norm(pooled)
    np.testing.assert_allclose(features.pooled(image, 0.25)[0], expected, rtol=1e-6)


def test_edges_tell_where_and_which_way():
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, :, 14:] = 200  # dark to bright, to the right: direction 0
    cells = features.orientations(image).reshape(8, 7, 7)
    assert np.linalg.norm(cells) == pytest.approx(8)
    assert (cells[0, :, 3] > cells[0, :, 0]).all()
    np.testing.assert_allclose(cells[4, :, :5], cells[4, 0, 0], atol=1e-5)  # but the border
    turned = features.orientations(np.swapaxes(image, 1, 2)).reshape(8, 7, 7)
    np.testing.assert_allclose(turned[2], cells[0].T, atol=1e-5)  # a quarter turn is two bins


def test_cosines_keep_the_record_and_only_weigh_it():
    x = image_rows(3)[0]
    plain, flat = features.pooled(x, 0.3), features.cosines(x, 0.3, 1e12)
    np.testing.assert_allclose(flat @ flat.T, plain @ plain.T, rtol=1e-4, atol=1e-3)


def test_products_of_lags():
    row = np.arange(22, dtype=np.float32)[None] / 22
    z = features.products(row, phases=False)[0]
    assert z[22] == pytest.approx(9 * (12 / 22) * (13 / 22))
    assert z.shape == (42,)
    assert features.products(row, phases=True).shape == (1, 162)


def test_features_that_read_other_rows_say_so(folder):
    for name, known in features.FEATURES.items():
        for key, value in known.items():
            assert any(x.startswith("NOT PUBLIC") for x in value.public) == (
                key == "published scaling"), name
    x = data.load("ijcnn1", data_dir=folder, features="published scaling").x_train
    assert x.min() == 0
    assert x.max() == 1


def test_validation_rows_come_from_the_training_file(folder, monkeypatch):
    monkeypatch.setattr(set_images, "_HELD_OUT", 10)
    full = data.load("mnist", data_dir=folder)
    held = data.load("mnist", data_dir=folder, split="validation")
    assert all_rows(held) == rows_of(full.x_train, full.y_train)
    assert held.x_test.shape == (10, 196)


def test_csv_features():
    frame = pd.DataFrame({"x": [0.0, np.nan, -2.0], "town": ["Ayr", None, "Ayr"]})
    features = set_csv.features_of(frame)
    assert features.shape == (3, 1 + 256 + 1)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-6)
    # Nothing known: all that is left is the constant.
    np.testing.assert_array_equal(features[1], np.eye(258)[-1])
    np.testing.assert_array_equal(np.flatnonzero(features[0])[0], np.flatnonzero(features[2])[1])
    np.testing.assert_allclose(features[2, 0] / features[2, -1], np.arcsinh(-2), rtol=1e-6)


def test_csv_features_tell_columns_and_values_apart():
    frame = pd.DataFrame({"home": ["Ayr", "Bath"], "work": ["Bath", "Ayr"]})
    features = set_csv.features_of(frame)
    assert (features[0] != features[1]).any()


def test_normalise_keeps_a_row_of_zeros():
    np.testing.assert_array_equal(
        features.unit(np.array([[0.0, 0], [3, 4]])), [[0, 0], [0.6, 0.8]]
    )


# Files


@pytest.mark.parametrize(
    ("name", "split", "n_train", "n_test", "d", "prior"),
    [
        ("ijcnn1", "random", 80, 20, 22, 0.1),
        ("ijcnn1", "file", 80, 50, 22, 0.1),
        ("adult", "random", 40, 20, 123, 0.25),
        ("adult", "file", 40, 20, 123, 0.25),
        ("mnist", "random", 30, 10, 196, 0.5),
        ("fashion_mnist", "file", 30, 10, 196, 0.5),
    ],
)
def test_load_from_a_folder(folder, name, split, n_train, n_test, d, prior):
    dataset = data.load(name, data_dir=folder, split=split, seed=1)
    check(dataset)
    assert dataset.name == name
    assert dataset.x_train.shape == (n_train, d)
    assert dataset.x_test.shape == (n_test, d)
    assert dataset.prior == prior


def test_ijcnn1_splits(folder):
    held_out, file = (data.load("ijcnn1", data_dir=folder, split=s) for s in ("random", "file"))
    x, y = ijcnn1_rows(100)
    full = rows_of(features.weighted(x.astype(np.float32)), y > 0)
    assert all_rows(held_out) == full
    np.testing.assert_array_equal(held_out.x_train, file.x_train)
    x, y = ijcnn1_rows(50, seed=1)
    np.testing.assert_allclose(file.x_test, features.weighted(x), atol=1e-6)
    np.testing.assert_array_equal(file.y_test, y > 0)


def test_adult_indices_start_at_zero(folder):
    dataset = data.load("adult", data_dir=folder)
    x, y = adult_rows(20, seed=1)
    np.testing.assert_allclose(dataset.x_test, x - 14 / 123, atol=1e-6)
    np.testing.assert_array_equal(dataset.y_test, y > 0)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_images_keep_their_labels(folder, name):
    images, classes = image_rows(30)
    expected = features.pooled(images, features.PIXELS[name][0])
    dataset = data.load(name, data_dir=folder, seed=2)
    assert rows_of(dataset.x_train, dataset.y_train) == rows_of(expected, classes <= 4)
    assert (dataset.x_train != expected).any(), "training rows are not shuffled"
    np.testing.assert_allclose(np.linalg.norm(dataset.x_test, axis=1), 8, rtol=1e-5)


def test_idx_reader():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(data_files.idx(idx(array)), array)
    with pytest.raises(ValueError, match="not an idx file"):
        data_files.idx(gzip.compress(b"\0\0\x0d\1" + bytes(8)))


def test_environment_names_the_folder_and_the_argument_wins(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXMINIMAX_DATA", str(folder))
    assert len(data.load("adult").y_train) == 40
    with pytest.raises(ValueError, match="is missing"):
        data.load("adult", data_dir=tmp_path / "elsewhere")


def test_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"ijcnn1\.trn\.bz2 is missing; save https://") as error:
        data.load("ijcnn1", data_dir=tmp_path)
    assert "JAXMINIMAX_DATA" in str(error.value)
    assert not (tmp_path / "home").exists(), "a named folder must not lead to a download"


def test_wrong_checksum_is_refused(folder):
    path = folder / "mnist" / "train-images-idx3-ubyte.gz"
    expected = FILES["mnist"].checksums["train-images-idx3"]
    path.write_bytes(path.read_bytes() + b"x")
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="wrong SHA-256") as error:
        data.load("mnist", data_dir=folder)
    for part in (str(path), expected, actual):
        assert part in str(error.value)


def test_every_file_has_a_checksum():
    assert set(FILES) == set(data.NAMES) - {"randhie"}
    every = [*FILES.values(), set_adult.AS_WRITTEN]
    sums = [value for files in every for value in files.checksums.values()]
    assert len(set(sums)) == 14
    assert all(len(bytes.fromhex(value)) == 32 for value in sums)
    assert all(files.source.endswith("/") for files in every)


# Download


def serve(monkeypatch, name, folder):
    """Make a local folder the public source of a data set."""
    served = dataclasses.replace(FILES[name], source=folder.as_uri() + "/")
    if name in set_images.FILES:
        monkeypatch.setitem(set_images.FILES, name, served)
    else:
        monkeypatch.setattr({"ijcnn1": set_ijcnn1, "adult": set_adult}[name], "FILES", served)


def test_download_is_cached(folder, tmp_path, monkeypatch):
    serve(monkeypatch, "mnist", folder / "mnist")
    first = data.load("mnist")
    cache = tmp_path / "home" / ".cache" / "jaxminimax" / "mnist"
    names = sorted(path.name for path in (folder / "mnist").iterdir())
    assert sorted(path.name for path in cache.iterdir()) == names
    for path in (folder / "mnist").iterdir():
        path.unlink()
    np.testing.assert_array_equal(data.load("mnist").x_train, first.x_train)
    (cache / names[0]).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="wrong SHA-256"):
        data.load("mnist")


def test_adult_has_another_name_at_its_source(folder, monkeypatch):
    for path in (folder / "adult").iterdir():
        path.rename(path.with_name(path.name.replace("adult123", "adult")))
    serve(monkeypatch, "adult", folder / "adult")
    assert len(data.load("adult").y_train) == 40


def test_wrong_download_is_not_kept(folder, tmp_path, monkeypatch):
    serve(monkeypatch, "ijcnn1", folder / "ijcnn1")
    (folder / "ijcnn1" / "ijcnn1.trn.bz2").write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match=r"wrong SHA-256 of file://.*ijcnn1\.trn\.bz2"):
        data.load("ijcnn1")
    assert not list((tmp_path / "home").rglob("*.bz2*"))


@pytest.mark.parametrize("error", [http.client.IncompleteRead(b""), TimeoutError("slow")])
def test_failed_download_says_what_to_do(monkeypatch, error):
    def fail(url, timeout):
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    with pytest.raises(OSError, match=r"could not download .*save it as mnist/train-images"):
        data.load("mnist")


# Arguments


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("cifar", "random", "unknown data set 'cifar'; choose one of randhie"),
        ("mnist", "test", "split must be 'random', 'file' or 'validation', got 'test'"),
        ("randhie", "file", "randhie has no published test file"),
    ],
)
def test_wrong_arguments(name, split, message):
    with pytest.raises(ValueError, match=message):
        data.load(name, split=split)


# CSV


def write_csv(path, n=300, **columns):
    frame = csv_frame(n).assign(bought=np.where(np.arange(n) % 3 == 0, "yes", "no"))
    frame.assign(**columns).to_csv(path, index=False)
    return path


def test_from_csv(tmp_path):
    path = write_csv(tmp_path / "shop.csv")
    dataset = set_csv.from_csv(path, "bought", "yes", prior=0.3, seed=2)
    check(dataset)
    assert dataset.name == "shop"
    assert dataset.prior == 0.3
    assert dataset.x_train.shape == (240, 3 + 256 + 1)
    assert dataset.x_test.shape[0] == 60
    assert np.concatenate([dataset.y_train, dataset.y_test]).sum() == 100
    again, other = (set_csv.from_csv(path, "bought", "yes", seed=seed) for seed in (2, 3))
    np.testing.assert_array_equal(dataset.x_train, again.x_train)
    assert (dataset.x_train != other.x_train).any()
    assert all_rows(dataset) == all_rows(other)


def test_from_csv_without_text_columns_or_with_few_numbers(tmp_path):
    path = tmp_path / "numbers.csv"
    pd.DataFrame({"x": np.arange(200.0), "label": np.arange(200) % 2}).to_csv(path, index=False)
    dataset = set_csv.from_csv(path, "label", 1)
    check(dataset)
    assert dataset.x_train.shape == (160, 2)
    assert len(np.unique(dataset.x_train[:, 0])) > 100, "the size of the number is lost"


def test_from_csv_takes_labels_as_written(tmp_path):
    path = write_csv(tmp_path / "a.csv", bought=np.where(np.arange(300) % 2, "NA", " null "))
    assert set_csv.from_csv(path, "bought", "NA").y_train.mean() == pytest.approx(0.5, abs=0.1)
    assert set_csv.from_csv(path, "bought", "null").y_train.mean() == pytest.approx(0.5, abs=0.1)


def one_of(n, position):
    return np.where(np.arange(n) == position, "yes", "no")


@pytest.mark.parametrize(
    ("columns", "label", "positive", "message"),
    [
        ({}, "sold", "yes", r"no column 'sold' in .*its columns are age, income, town, owner, b"),
        ({}, "bought", "Yes", r"no row has bought == 'Yes'; values found: 'yes', 'no'"),
        ({"bought": "yes"}, "bought", "yes", "one class only"),
        ({"bought": one_of(300, 3)}, "bought", "yes", "part of .* has one class only"),
        ({"bought": ""}, "bought", "yes", "rows without a label"),
        ({"age": np.inf}, "bought", "yes", r"column 'age' of .* holds infinite numbers"),
        ({"n": 99}, "bought", "yes", "has 99 rows; at least 100 are needed"),
    ],
)
def test_from_csv_refuses(tmp_path, columns, label, positive, message):
    path = write_csv(tmp_path / "a.csv", **columns)
    with pytest.raises(ValueError, match=message):
        set_csv.from_csv(path, label, positive)


def test_from_csv_refuses_missing_file_missing_features_and_wrong_prior(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        set_csv.from_csv(tmp_path / "b.csv", "bought", "yes")
    path = tmp_path / "a.csv"
    path.write_text("bought\n" + "yes\nno\n" * 100)
    with pytest.raises(ValueError, match="no column besides the label"):
        set_csv.from_csv(path, "bought", "yes")
    for prior in (0, 1, float("nan")):
        with pytest.raises(ValueError, match="prior must be between 0 and 1"):
            set_csv.from_csv(path, "bought", "yes", prior=prior)


def test_from_csv_path_may_be_text_or_path(tmp_path):
    path = write_csv(tmp_path / "a.csv")
    assert isinstance(path, pathlib.Path)
    check(set_csv.from_csv(str(path), "bought", "yes"))


def test_a_file_as_it_was_written_may_lie_there_compressed(tmp_path, monkeypatch):
    content = b"39, State-gov\n"
    monkeypatch.setitem(set_adult.AS_WRITTEN.checksums, "adult.data",
                        hashlib.sha256(content).hexdigest())
    (tmp_path / "adult").mkdir()
    packed = tmp_path / "adult" / "adult.data.gz"
    packed.write_bytes(gzip.compress(content))
    assert set_adult.AS_WRITTEN.read("adult.data", tmp_path) == content
    packed.write_bytes(gzip.compress(content + b"?"))
    with pytest.raises(ValueError, match=r"wrong SHA-256 of .*adult\.data\.gz"):
        set_adult.AS_WRITTEN.read("adult.data", tmp_path)
