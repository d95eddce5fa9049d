"""Integer noise has the law it is said to have: proofs are evaluated, stages held to each other."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import special, stats

from benchmarks.privacy import noise_law, normal_tables
from jaxminimax import noise as law
from jaxminimax.base.random_bits import random_words
from jaxminimax.base.tree import in_float64
from jaxminimax.noise import _sampler, _tables
from jaxminimax.noise._tables import places
from tests.conftest import QUICK
from tests.helpers.lanes import rest_nightly

mp.mp.prec = 400
BITS = 22
SIZE = 4096
UNIT = mp.mpf(2) ** -_tables.FRACTION
normal = jax.jit(law.floored_normal, static_argnums=1)
first = jax.jit(_sampler.first)
middle = jax.jit(_tables.middle)
last = jax.jit(jax.vmap(_tables.last))


@pytest.fixture(autouse=True)
def digits():
    with mp.workprec(400):
        yield


def tail(x):
    """P(|G| >= x)."""
    return mp.erfc(x / mp.sqrt(2))


def quantile(u):
    log = float(mp.log(u / 2))
    return normal_tables.quantile(u, mp.mpf(-float(special.ndtri_exp(log))))


def split(number):
    """A number of 255 bits as the 8 words of a draw, its sign 0."""
    return [(number >> 32 * k) & 0xFFFFFFFF for k in reversed(range(8))]


def floors(drawn):
    """floor(2^22 q(u)) of words `[n, 8]`, by 400-bit arithmetic, and the signs."""
    actual = []
    for row in drawn.astype(object):
        number = int(sum(w << 32 * k for k, w in enumerate(reversed(row)))) % 2**255
        actual.append(int(mp.floor(quantile((number + mp.mpf(0.5)) / 2**255) * 2**BITS)))
    return np.array(actual), drawn[:, 0] >> 31


def small_words(count, seed):
    """Words of draws from octaves 0, 1, ..., 166, and back again, signs at random."""
    random = np.random.default_rng(seed)
    numbers = [(int.from_bytes(random.bytes(32)) % 2**254 + 2**254) >> i % 167
               for i in range(count)]
    drawn = np.array([split(x) for x in numbers], np.uint32)
    drawn[:, 0] |= random.integers(0, 2, count).astype(np.uint32) << 31
    return drawn


# --- tables ---


@pytest.fixture(scope="module")
def remade():
    """Coefficients, remainders and slopes dq/dt at the left end of cells, by (count, octave)."""
    actual = {}
    for octaves, count, degree in (_tables.MIDDLE, _tables.LAST):
        every = range(octaves)
        for octave in (o for o in every if o < 6 or o > octaves - 4 or o % 16 == 0):
            start = quantile(mp.mpf(2) ** -octave) if octave else mp.mpf(0)
            actual[count, octave] = normal_tables.cells(octave, count, degree, start)
    return actual


def test_the_tables_are_the_coefficients_of_the_quantile(remade):
    table = _tables.tables()
    assert table.middle.shape == (31 * 16, 12)
    assert table.last.shape == (168 * 8, 28, 6)
    for (count, octave), (rows, _, _) in remade.items():
        here = slice(octave * count, (octave + 1) * count)
        if count == _tables.MIDDLE.cells:
            expected = [[float(mp.ldexp(a, BITS)) for a in row] for row in rows]
            np.testing.assert_array_equal(table.middle[here], expected)
        else:
            expected = [[normal_tables.limbs(a) for a in row] for row in rows]
            np.testing.assert_array_equal(table.last[here], expected)


def test_what_the_series_leave_out_is_as_small_as_the_proofs_say(remade):
    for (count, octave), (rows, remainders, _) in remade.items():
        assert all(a >= 0 for row in rows for a in row)
        assert all(x >= 0 for x in remainders)
        bound = mp.mpf(2) ** -53.9 if count == _tables.MIDDLE.cells else mp.mpf("0.13") * UNIT
        assert max(remainders) < bound, octave


@pytest.mark.nightly
def test_the_committed_file_is_what_the_module_makes():
    for made, kept in zip(normal_tables.make(), _tables.tables(), strict=True):
        assert made.dtype == kept.dtype
        np.testing.assert_array_equal(made, kept)


def test_the_last_stage_reaches_beyond_its_tail(remade):
    """What `normal_ratio` says of octaves 166 and 167, and of the tails."""
    count = _tables.LAST.cells
    rows, _, end = remade[count, 166]
    assert quantile(mp.mpf(2) ** -167) == pytest.approx(end, rel=1e-30)
    assert end > mp.mpf(15) + mp.mpf(2) ** -86
    assert max(sum(k * a for k, a in enumerate(row)) for row in rows) < 0.0083
    assert remade[count, 167][2] < 16  # 4 bits before the point
    assert tail(15) < law.NORMAL_TAIL < 1.5 * tail(15)
    assert mp.exp(-128) < law.LAPLACE_TAIL < 2 * mp.exp(-128)
    lost = 28 + 27 + 0.2 + 2 + 1
    assert mp.mpf(2) ** -85 * float(mp.mpf("0.0083")) < 2 * UNIT
    assert mp.mpf(2) ** -256 * 2**167 / 15 < UNIT
    assert lost * UNIT < mp.mpf(2) ** -86


def test_every_cell_of_the_first_stage_is_within_its_error():
    """Fit, roundings, and what the bits not drawn move, for all 3,328 cells.

    The fit's error D is at most its largest value at 65 points and h^2 / 8 times the largest |D''|,
    which is at an end, for q'' is monotone. Roundings are counted as if no product were fused.
    """
    table = _tables.tables()
    c0, c1, c2 = table.slopes.astype(np.float64)
    ratio = _tables.FIRST.cells // _tables.MIDDLE.cells
    index = np.arange(_tables.FIRST.octaves * _tables.FIRST.cells)
    octave = _tables.FIRST.octaves - 1 - index // _tables.FIRST.cells
    cell = index % _tables.FIRST.cells
    width = 2.0 ** (30 - octave) / _tables.FIRST.cells
    start = (_tables.FIRST.cells + cell) * width
    a = table.middle[octave * _tables.MIDDLE.cells + cell // ratio].T

    def exact(v):  # in units of 2^-22, to float64's 2^-23 (see `_tables._middle`)
        return np.polynomial.polynomial.polyval(1 - (cell % ratio + v / width) / ratio, a,
                                                tensor=False)

    # the derivatives in closed form, in words
    end = np.stack([exact(0.0), exact(width)]) * 2.0**-BITS
    slope = -np.sqrt(np.pi / 2) * np.exp(end**2 / 2) * 2.0**-31
    bend = end * slope**2
    assert np.all(np.diff(2.0**BITS * slope, axis=0) > 0)  # |q'| is largest at the start
    np.testing.assert_allclose(-special.ndtri((start + 0.5) * 2.0**-32) * 2**BITS, exact(0.5),
                               atol=1e-5, rtol=0)
    points = np.linspace(0, 1, 65)[:, None] * width
    fit = np.abs([exact(v) - table.base - (c0 + (v - 0.5) * (c1 + c2 * (v - 0.5)))
                  for v in points]).max(0)
    fit += (width / 64) ** 2 / 8 * np.abs(2.0**BITS * bend - 2 * c2).max(0) + 2.0**-22
    largest = width - 1

    def half(x):  # what rounding to float32 may add, for results up to x
        return np.spacing(np.abs(x).astype(np.float32)).astype(np.float64) / 2

    y = c0 + 2.1  # and more than any intermediate result: c1 < 0 < c2
    rounded = (largest * (half(c2 * largest) + half(c1))  # c2 v, + c1
               + half(c1 * largest)  # times v
               + 2 * half(y)  # + c0, and + or - the error
               + half(c1))  # the error's own
    moved = 0.5 * 2.0**BITS * np.abs(slope[0]) - 0.5 * np.abs(c1)
    assert np.all(y < 2**14)
    assert (fit + rounded + moved).max() < _sampler.FIRST_ERROR
    # y - error stays positive, whatever its rounding, so conversion is the floor
    lowest = c0 + c1 * largest + c2 * largest**2
    assert np.all(lowest - 0.5 * np.abs(c1) - 2 * _sampler.FIRST_ERROR > 0)
    assert np.all(c2 >= 0)


# --- stage against stage ---


def certain(word, shift=0):
    """Numbers of the first stage that are wrong where it is certain; and how many are in doubt.

    Against the next one, with the smallest and the largest bits that may follow.
    """
    actual = np.asarray(first(word, jnp.int32(shift)))
    doubt = actual == _sampler.DOUBT
    wrong = np.zeros(len(word), bool)
    for rest in (0, 2**32 - 1):
        more = jnp.full(len(word), rest, jnp.uint32)
        magnitude, again = (np.asarray(x) for x in middle(word, more, more, jnp.int32(shift)))
        signed = np.where(np.asarray(word) >> 31, ~magnitude, magnitude)
        wrong |= ~doubt & ~again & (actual != signed)
    return wrong.sum(), doubt.mean()


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 4, 22])
@pytest.mark.optimised
def test_the_first_stage_is_right_at_the_edges_of_all_cells(shift):
    """The first and the last 129 words of each, of both signs in turn."""
    top = np.arange(_tables.FIRST.cells, 2 * _tables.FIRST.cells, dtype=np.uint64)
    edges = (top << np.arange(10, 23, dtype=np.uint64)[:, None]).ravel()
    near = (edges[:, None] + np.arange(-129, 129).astype(np.uint64)) % 2**31
    word = near.ravel().astype(np.uint32)
    word[::2] |= np.uint32(2**31)
    wrong, doubt = certain(jnp.asarray(word), shift)
    assert wrong == 0
    assert doubt < 1


@pytest.mark.slow
@pytest.mark.parametrize("shift", rest_nightly([0, 12, 4, 22], 2))
@pytest.mark.optimised
def test_the_first_stage_is_right_in_blocks_of_all_words(shift):
    starts = np.random.default_rng(shift).integers(0, 2**19, 256).astype(np.uint32)
    starts[:3] = 0, 2**19 - 1, 2**18
    word = (starts[:, None] << np.uint32(13)) + np.arange(2**13, dtype=np.uint32)
    wrong, doubt = certain(jnp.asarray(word.ravel()), shift)
    assert wrong == 0
    small = np.mean(starts % 2**18 < 2**5)  # below 2^18, where all is left to the next stage
    assert doubt - small < 3.2 * 2.0**-shift * 0.0079 + 0.002


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 22])
@pytest.mark.optimised
def test_the_middle_stage_is_right_at_the_edges_of_all_cells(shift):
    """The numbers of 95 bits next to each edge, against the last stage."""
    scale = 2**224
    edges = [(16 + cell) * scale << octave >> 4 for octave in range(31) for cell in range(16)]
    numbers = np.array([split(edge + apart) for edge in edges for apart in (
        -1, 0, 1, 2**160, -(2**160), 2**191, -(2**191), scale, -scale)], np.uint32)
    actual, again = (np.asarray(x) for x in middle(*(jnp.asarray(numbers[:, k]) for k in range(3)),
                                                   jnp.int32(shift)))
    expected = np.asarray(last(jnp.asarray(numbers))) >> shift
    assert np.all(again | (actual == expected))
    assert again.mean() < (0.01 if shift == 0 else 0.1)  # m = 0, and q(1) = 0, are left


@pytest.mark.slow
@pytest.mark.optimised
def test_stages_agree_with_arithmetic_of_400_bits():
    drawn = small_words(330, seed=1)
    expected, sign = floors(drawn)
    np.testing.assert_array_equal(last(jnp.asarray(drawn)), expected)
    actual, again = (np.asarray(x) for x in middle(*(jnp.asarray(drawn[:, k]) for k in range(3)),
                                                   jnp.int32(0)))
    assert np.all(again | (actual == expected))
    assert not again[:31].any()
    one = np.asarray(first(jnp.asarray(drawn[:, 0]), jnp.int32(8)))
    assert np.all((one == _sampler.DOUBT) | (one == np.where(sign, ~expected, expected) >> 8))
    assert (one != _sampler.DOUBT)[:13].sum() >= 12


@pytest.mark.slow
@pytest.mark.optimised
def test_the_brute_force_finds_an_interval_that_is_too_narrow(monkeypatch):
    actual = noise_law.every_word(2**21)
    assert actual["wrong"] == 0
    assert actual["not_compared"] < 30
    assert actual["in_doubt_at_18_bits"] < actual["in_doubt_at_22_bits"] < 1
    monkeypatch.setattr(_sampler, "FIRST_ERROR", np.float32(-0.01))
    assert noise_law.every_word(2**21)["wrong"] > 1000


# --- the law, exactly ---


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "integers"), [
    (0, range(1, 16)), (2, range(1, 61)),
    (12, np.random.default_rng(0).integers(1, 15 * 2**12, 150).tolist()),
    (22, [1, 2, 3, 15 * 2**22, *np.random.default_rng(1).integers(1, 15 * 2**22, 150).tolist()])])
@pytest.mark.optimised
def test_the_last_stage_gives_every_tail_its_probability(bits, integers):
    """P(A >= a) is the u where the number turns from a - 1 to a: within e = 2^-86 of a's place.

    That is what `normal_ratio` is proved from; it holds far beyond eight standard deviations.
    """
    e, low, high = mp.mpf(2) ** -86, [], []
    for a in integers:
        x = mp.mpf(a) / 2**bits
        low.append(split(int(mp.floor(tail(x + e) * 2**255)) - 1))
        high.append(split(int(mp.ceil(tail(x - e) * 2**255))))
    shift = BITS - bits
    np.testing.assert_array_equal(np.asarray(last(jnp.array(low, jnp.uint32))) >> shift, integers)
    np.testing.assert_array_equal(np.asarray(last(jnp.array(high, jnp.uint32))) >> shift,
                                  np.array(integers) - 1)


@pytest.mark.parametrize("bits", [0, 4, 13, 22])
def test_the_ratio_holds_for_boundaries_that_are_off_by_the_proved_error(bits):
    e, w = mp.mpf(2) ** -86, mp.mpf(2) ** -bits
    for a in (0, 1, 2**bits, 3 * 2**bits, 8 * 2**bits, 15 * 2**bits - 1):
        ideal = tail(a * w) - tail((a + 1) * w)
        off = [tail(a * w - s * e) - tail((a + 1) * w + s * e) for s in (1, -1)] if a else [
            1 - tail(w + e)]
        assert max(abs(mp.log(p / ideal)) for p in off) <= law.normal_ratio(bits)


def from_words(monkeypatch, drawn, bits):
    """The sampler on given words, `[32 k, 8]`, for these numbers of bits."""
    with monkeypatch.context() as patch:
        given = jnp.asarray(drawn).T
        patch.setattr(_sampler, "_settled", _sampler._settled.__wrapped__)  # traced anew
        patch.setattr(_sampler, "random_words", lambda key, shape: given[0])
        patch.setattr(_tables, "words_of", lambda key, fine, size, place, parts, **how: jnp.pad(
            given, ((0, 1), (0, 0)))[:1 + 2 * parts, place])
        draw = jax.jit(lambda b: law.floored_normal(jax.random.key(0), len(drawn), b))
        return [np.asarray(draw(b)) for b in bits]


@pytest.mark.slow
def test_rare_words_go_through_all_stages(monkeypatch):
    """More doubts than are settled at once, most of them left to the last stage."""
    drawn = small_words(320, seed=2)
    drawn[7, 0], drawn[8, 0] = 2**31 - 1, 2**32 - 1  # u next to 1, which float32 would round to 1
    drawn[9], drawn[10] = 0, [2**32 - 1] * 8
    drawn[9, 7] = drawn[10, 7] = 1
    expected, sign = floors(drawn)
    keep = np.arange(320) != 9  # that one is beyond all tables
    for bits, actual in zip((22, 18, 0), from_words(monkeypatch, drawn, (22, 18, 0)), strict=True):
        magnitude = np.where(sign, ~actual, actual)
        np.testing.assert_array_equal(magnitude[keep], (expected >> (22 - bits))[keep])
        assert 15 * 2**bits <= magnitude[9] < 16 * 2**bits


# --- the law, drawn ---


@pytest.mark.slow
@pytest.mark.parametrize("bits", [0, 3, 7])
@pytest.mark.optimised("3")
def test_drawn_integers_have_the_normal_law(bits):
    actual = noise_law.chi_square(4 * 10**6, bits)
    assert actual["p"] > 1e-3
    assert actual["cells"] > 7 * 2**bits


@pytest.mark.slow
def test_numbers_of_all_bits_have_the_moments_of_the_normal_law():
    x = np.asarray(normal(jax.random.key(7), 2**20, BITS), np.float64)
    y = (x + 0.5) * 2.0**-BITS
    for power, mean, second in ((1, 0, 1), (2, 1, 3), (3, 0, 15), (4, 3, 105), (6, 15, 10395)):
        assert abs(np.mean(y**power) - mean) < 4.5 * np.sqrt((second - mean**2) / len(y))
    assert stats.kstest(y, "norm").pvalue > 1e-3
    lowest = x.astype(int) & 255  # what is finest is uniform
    assert stats.chisquare(np.bincount(lowest, minlength=256)).pvalue > 1e-3
    for apart in (1, 2, 2**19):
        assert abs(np.corrcoef(y[:-apart], y[apart:])[0, 1]) * np.sqrt(len(y) - apart) < 4.5


# --- a function of the key ---


@pytest.mark.slow
def test_numbers_for_fewer_bits_are_those_for_more_shifted():
    key = jax.random.key(1)
    finest = np.asarray(normal(key, SIZE, BITS))
    for bits in range(BITS):
        np.testing.assert_array_equal(normal(key, SIZE, bits), finest >> (BITS - bits))


@pytest.mark.slow  # several programs to compile
def test_lanes_and_rounds_draw_what_each_alone_would():
    keys = jax.random.split(jax.random.key(2), 6)
    bits = jnp.array([22, 18, 0, 20, 22, 7])
    alone = np.stack([normal(k, SIZE, b) for k, b in zip(keys, bits, strict=True)])
    draw = jax.jit(jax.vmap(lambda k, b: law.floored_normal(k, SIZE, b)))
    np.testing.assert_array_equal(draw(keys, bits), alone)
    rounds = jax.jit(lambda *x: jax.lax.scan(
        lambda _, x: (None, law.floored_normal(x[0], SIZE, x[1])), None, x)[1])
    np.testing.assert_array_equal(rounds(keys, bits), alone)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "least"), [(64, 2), (96, 4)])
def test_a_rare_branch_stays_a_branch_under_vmap(size, least):
    keys = jax.random.split(jax.random.key(3), 4)
    text = jax.jit(jax.vmap(lambda k: law.floored_normal(k, size, 18))).lower(keys).as_text()
    alone = jax.jit(lambda k: law.floored_normal(k, size, 18)).lower(keys[0]).as_text()
    assert text.count("stablehlo.case") == alone.count("stablehlo.case") >= least


def test_few_numbers_are_settled_as_many_are():
    key, x = jax.random.key(6), jnp.full(64, _sampler.DOUBT)
    few, many = (_sampler._settled(key, x, jnp.int32(0), most) for most in (64, 0))
    np.testing.assert_array_equal(few, many)
    assert not np.any(few == _sampler.DOUBT)


@pytest.mark.nightly
@pytest.mark.slow  # several programs to compile
@pytest.mark.optimised
def test_neither_the_compiler_nor_wide_types_change_a_bit():
    key = jax.random.key(4)
    expected = np.asarray(normal(key, SIZE, BITS))
    draw = jax.jit(lambda k, b: law.floored_normal(k, SIZE, b))
    plain = draw.lower(key, jnp.int32(BITS)).compile(compiler_options=QUICK)
    np.testing.assert_array_equal(plain(key, jnp.int32(BITS)), expected)
    with jax.enable_x64(False):
        actual = [draw(key, BITS), jax.jit(in_float64(draw))(key, BITS),
                  jax.jit(jax.vmap(in_float64(draw), (0, None)))(key[None], BITS)[0]]
    for x in actual:
        assert x.dtype == jnp.int32
        np.testing.assert_array_equal(x, expected)


SHARDS = """
import jax
from jax.sharding import AxisType, PartitionSpec as P
from jaxminimax import noise as law
keys = jax.random.split(jax.random.key(5), 4)
mesh = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Auto,))
draw = jax.jit(jax.shard_map(lambda k: law.floored_normal(k[0], 4096, 22)[None], mesh=mesh,
                             in_specs=P("a"), out_specs=P("a"), check_vma=False))
print(draw(keys).tolist())
"""


@pytest.mark.slow  # several programs to compile
def test_shards_draw_what_each_alone_would_without_wide_types():
    root = pathlib.Path(__file__).parents[2]
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_ENABLE_X64": "0", "JAX_PLATFORMS": "cpu",
                                "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", SHARDS], env=environment, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    keys = jax.random.split(jax.random.key(5), 4)
    np.testing.assert_array_equal(json.loads(done.stdout), [normal(k, 4096, BITS) for k in keys])


@pytest.mark.slow  # several programs to compile
def test_keys_of_the_device_draw_the_same_law():
    keys = jax.random.split(jax.random.key(6, impl="rbg"), 3)
    drawn = [np.asarray(normal(k, 20_000, BITS)) for k in keys]
    assert stats.kstest((drawn[0] + 0.5) * 2.0**-BITS, "norm").pvalue > 1e-3
    np.testing.assert_array_equal(normal(keys[0], 20_000, 10), drawn[0] >> 12)
    lanes = jax.jit(jax.vmap(lambda k: law.floored_normal(k, 20_000, BITS)))(keys)
    np.testing.assert_array_equal(lanes, drawn)
    with pytest.raises(ValueError, match="unsafe_rbg"):
        law.floored_normal(jax.random.key(0, impl="unsafe_rbg"), 3, 18)
    with pytest.raises(ValueError, match="One key is used up at a time"):
        law.floored_normal(keys, 3, 18)


@pytest.mark.slow
@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_words_at_a_place_are_those_of_the_whole_draw_and_further_ones_are_new(generator):
    key = jax.random.key(8, impl=generator)
    size, place = 1000, jnp.array([0, 3, 499, 500, 999])
    draw = jax.jit(lambda k, place, parts: _tables.words_of(
        k, _tables.fine_key(k), size, place, parts), static_argnums=2)
    actual = draw(key, place, 4)
    assert actual.shape == (9, 5)
    np.testing.assert_array_equal(actual[0], random_words(key, (size,))[place])
    np.testing.assert_array_equal(draw(key, place[1:3], 1), actual[:3, 1:3])
    every = draw(key, jnp.arange(size), 4)
    assert len(np.unique(every)) > 9 * size - 5  # of 2^32; no word is one that another place has


@pytest.mark.parametrize("size", [0, 33])
def test_any_size_is_filled(size):
    x = normal(jax.random.key(9), size, BITS)
    assert x.shape == (size,)
    assert x.dtype == jnp.int32
    assert len(np.unique(x)) == size


def test_places_of_set_bits_are_found():
    random = np.random.default_rng(4)
    find = jax.jit(places)
    for count, share in ((1, 0.5), (33, 0.02), (2000, 0.3)):
        bits = random.random((32, count)) < share
        bits[3, 0] = True
        flags = np.sum(bits.astype(np.uint32) << np.arange(32, dtype=np.uint32)[:, None], 0,
                       dtype=np.uint32)
        total = bits.sum()
        actual = np.asarray(find(jnp.asarray(flags), jnp.arange(total, dtype=jnp.int32)))
        np.testing.assert_array_equal(np.sort(actual), np.flatnonzero(bits))


@pytest.mark.parametrize(("wrong", "message"), [
    ({"size": -1}, "size must be an integer"), ({"size": 2**31}, "size|split"),
    ({"bits": 23}, r"bits must lie in \[0, 22\], got 23"), ({"bits": -1}, "bits must lie in"),
    ({"bits": 17.5}, "bits must be whole"), ({"bits": np.arange(2)}, "bits must be one number")],
    ids=str)
def test_what_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        law.floored_normal(jax.random.key(0), **({"size": 4, "bits": 18} | wrong))


def test_the_ratio_is_asked_for_bits_that_there_are():
    assert law.normal_ratio(22) == 2.0**-85 * (2**22 + 16)
    for bits in (-1, 23, 1.5):
        with pytest.raises(ValueError, match="bits"):
            law.normal_ratio(bits)


# --- Laplace ---


def test_digits_have_the_probabilities_of_a_geometric_number():
    """Thresholds are rounded down to 2^-256; what that loses is below the ratio."""
    table = _sampler.thresholds()
    assert table.shape == (29, 8)
    lost = mp.mpf(0)
    for j, row in enumerate(table.tolist()):
        full = sum(word << 32 * (7 - k) for k, word in enumerate(row))
        ideal = 1 / (1 + mp.exp(mp.mpf(2) ** (j - 22)))
        assert 0 <= ideal * mp.mpf(2) ** 256 - full < 1
        share = mp.mpf(full) / mp.mpf(2) ** 256
        lost += max(abs(mp.log(share / ideal)), abs(mp.log((1 - share) / (1 - ideal))))
    assert lost - mp.log(1 - mp.exp(-128)) < law.LAPLACE_RATIO
    # the digits' product is the geometric law
    a = 0b1011 << 19
    product = mp.fprod((lambda p: p if a >> j & 1 else 1 - p)(1 / (1 + mp.exp(mp.mpf(2)**(j - 22))))
                       for j in range(60))
    r = mp.exp(-mp.mpf(2) ** -22)
    assert abs(product / (r**a * (1 - r)) - 1) < 1e-60


def test_each_digit_is_drawn_against_its_threshold(monkeypatch):
    table = _sampler.thresholds()
    for below, expected in ((0, 0), (1, 2**29 - 1)):  # the threshold itself, and one less
        drawn = table.copy()
        for row in drawn[: 29 * below]:
            k = np.flatnonzero(row)[-1]
            row[k] -= 1
            row[k + 1:] = 2**32 - 1
        for sign, value in ((0, expected), (2**31, ~expected)):
            given = jnp.asarray(np.append(np.uint32(sign), drawn.ravel())[:, None])
            monkeypatch.setattr(_sampler, "random_words", lambda key, shape, given=given: given)
            actual = jax.jit(lambda k: law.floored_laplace(k, ()))(jax.random.key(0))
            assert actual == value


@pytest.mark.slow
def test_drawn_integers_have_the_laplace_law():
    keys = jax.random.split(jax.random.key(10), 20)
    draw = jax.jit(lambda k: law.floored_laplace(k, (100, 100)))
    x = np.stack([draw(k) for k in keys])
    assert x.dtype == np.int32
    coarse = np.clip(x >> 20, -24, 23)  # quarters
    ends = np.arange(-24, 25) / 4
    cdf = stats.laplace.cdf(ends)
    cdf[0], cdf[-1] = 0, 1
    counts = np.bincount(coarse.ravel() + 24, minlength=48)
    assert stats.chisquare(counts, np.diff(cdf) * x.size).pvalue > 1e-3
    assert stats.kstest(((x + 0.5) * 2.0**-22).ravel(), "laplace").pvalue > 1e-3
    np.testing.assert_array_equal(jax.jit(jax.vmap(draw))(keys[:2]), x[:2])
    for one, other in itertools.pairwise(x.reshape(20, -1)[:4]):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.045
    rbg = draw(jax.random.key(1, impl="rbg"))
    assert stats.kstest((np.ravel(rbg) + 0.5) * 2.0**-22, "laplace").pvalue > 1e-3
    with jax.enable_x64(False):
        np.testing.assert_array_equal(draw(keys[0]), x[0])


@pytest.mark.parametrize("size", [1, 33, 465, *(
    pytest.param(size, marks=pytest.mark.slow) for size in (2, 31, 1000))])
def test_numbers_of_a_block_are_those_of_a_draw_of_that_size(size):
    """With one program for all sizes; at 22 bits one in 60 is in doubt first."""
    block = jax.jit(_sampler.normal_block, static_argnames="block")
    for bits in (0, 17, 22):
        for seed in range(3):
            key = jax.random.key(seed)
            np.testing.assert_array_equal(
                block(key, jnp.int32(size), jnp.int32(bits), block=1024)[:size],
                _sampler.floored_normal(key, size, bits))
