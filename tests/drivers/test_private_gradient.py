"""A release as an optax transformation: what it computes, what it refuses, and what goes on."""

import contextlib
import itertools
import math
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.base.programs import constants
from jaxminimax.drivers import point_register, private_gradient
from jaxminimax.releases import data_flow, point_keys, sums
from tests.helpers.lanes import rest_nightly

N, DIM = 60, 3
X = np.random.default_rng(0).normal(size=(N, DIM)).astype(np.float32)
Z = Saddle(jnp.full(DIM, 0.1, jnp.float32), jnp.full(DIM, 0.2, jnp.float32))


def loss(w, v, x):
    return jnp.sum((w - x) ** 2) / 2 + jnp.dot(w + x, v) - jnp.sum(v**2) / 2


PROBLEM = jmm.Problem(operator=jmm.saddle_operator(loss))
ALONE = jmm.Problem(operator=jmm.saddle_operator(lambda w, v, x: jnp.sum((w - x) ** 2) / 2))
# public batches of one place, quick to compile, where the sampling is no matter
FULL = jmm.Full()


def described(sampling=FULL, times=6, clip=1.0, noise=1.0, **more):
    return jmm.Repeat(query=jmm.Query(clip=Saddle(clip, clip), population=N, sampling=sampling,
                                      noise_multiplier=Saddle(noise, noise), **more), times=times)


ONE_PLAYER = jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, None), population=N,
                                        noise_multiplier=Saddle(1.0, None)), times=6)


def made(mechanism=None, key=None, data=X, problem=PROBLEM, **more):
    return jmm.private_gradient(jmm.noise.secret_key() if key is None else key, data, problem,
                                described() if mechanism is None else mechanism, **more)


def alone(**more):
    return made(ONE_PLAYER, problem=ALONE, **more)


def step_of(tx):
    @jax.jit
    def step(ticket, state, z):
        changes, state = tx.update(ticket, state, z)
        return optax.apply_updates(z, changes), state

    return step


def trained(private, tx, z=Z, state=None, count=None):
    state, step = tx.init(z) if state is None else state, step_of(tx)
    for ticket in itertools.islice(private.tickets(state), count):
        z, state = step(ticket, state, z)
    return jax.block_until_ready((z, state))


def updated(private):
    return jax.jit(lambda ticket, state, z: private.update(ticket, state, z))


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(
        *map(jax.tree.leaves, (one, other)), strict=True))


@pytest.fixture
def next_process(monkeypatch):
    """Forgets what this process knows of keys, as one that goes on does."""
    def forget():
        for register in point_register._REGISTERS.values():
            register._held.close()
        monkeypatch.setattr(point_register, "_REGISTERS", {})

    return forget


# --- what it computes ---


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [
    described(jmm.Disjoint(batch=10)), described(jmm.Disjoint(batch=10), bands=2),
    described(jmm.mechanism.CyclicPoisson(rate=0.4, parts=2), bands=2)],
    ids=["disjoint", "bands", "cyclic"])
def test_where_samples_or_noise_are_fixed_it_is_release_to_the_bit(mechanism):
    key = jmm.noise.secret_key()
    private, alike = made(mechanism, key), jax.jit(jmm.release, static_argnames="problem")
    state, update = private.init(Z), updated(private)
    for number, ticket in enumerate(itertools.islice(private.tickets(state), 3)):
        g, state = update(ticket, state, Z)
        assert same(g, alike(key, mechanism, jnp.int32(number), PROBLEM, Z, X))


@pytest.mark.slow
def test_its_keys_and_nothing_else_differ_from_release():
    """So noise, clip and divisor are those of `release`, with the key of the point."""
    private, mechanism = made(described(jmm.Poisson(rate=0.3))), described(jmm.Poisson(rate=0.3))
    ticket, state = next(private.tickets(private.init(Z))), private.init(Z)
    key = point_keys.key_at(ticket.key, point_keys.digest(ticket.words, (Z, None)))
    alike = jax.jit(jmm.release, static_argnames="problem")
    assert same(updated(private)(ticket, state, Z)[0],
                alike(key, mechanism, jnp.int32(0), PROBLEM, Z, X))


@pytest.mark.slow
def test_both_players_descend_and_one_player_alone_trains():
    private = made(described(times=30, noise=0.0, clip=100.0))
    tx = optax.chain(private, optax.partition(
        {"w": optax.sgd(0.3), "v": optax.sgd(0.2)}, Saddle("w", "v")))
    z, state = trained(private, tx)
    assert int(state[0].number) == 30
    # min over w, max over v of |w - x|^2 / 2 + (w + x) v - |v|^2 / 2 at means: w = 0, v = mean
    np.testing.assert_allclose(z.w, np.zeros(DIM), atol=0.02)
    np.testing.assert_allclose(z.v, X.mean(0), atol=0.02)
    private = made(jmm.Repeat(query=jmm.Query(clip=Saddle(100.0, None), population=N,
                                              noise_multiplier=Saddle(0.0, None)), times=20),
                   problem=ALONE)
    w, _ = trained(private, optax.chain(private, optax.sgd(0.5)), jnp.zeros(DIM, jnp.float32))
    np.testing.assert_allclose(w, X.mean(0), atol=1e-3)


def test_the_noise_is_that_of_the_description():
    """Over independent coordinates and releases, and none where the multiplier is zero."""
    width, times = 300, 8
    wide = jmm.Problem(operator=jmm.saddle_operator(lambda w, v, x: jnp.sum(w * x[0])))
    mechanism = jmm.Repeat(query=jmm.Query(
        clip=Saddle(1e-3, None), population=N, noise_multiplier=Saddle(500.0, None)), times=times)
    private = made(mechanism, jax.random.key(901), problem=wide)
    w, state = jnp.zeros(width, jnp.float32), private.init(jnp.zeros(width))
    step, drawn = updated(private), []
    for ticket in private.tickets(state):
        g, state = step(ticket, state, w)
        drawn.append(np.asarray(g))
    values = np.stack(drawn).ravel() * N / (1e-3 * 500.0)
    # a chi-square of many degrees of freedom, within five standard errors
    assert abs(np.mean(values**2) - 1) < 5 * math.sqrt(2 / values.size)
    assert abs(np.mean(drawn[0] * drawn[1])) * (N / 0.5) ** 2 < 5 / math.sqrt(width)


def test_a_record_is_clipped():
    """A huge record moves the release by what a clipped one may move it."""
    mechanism, moved = described(noise=0.0, clip=0.5), []
    for first in (1e6, -1e6):
        data = X.copy()
        data[0] = first
        private = made(mechanism, data=data)
        ticket = next(private.tickets(private.init(Z)))
        moved.append(updated(private)(ticket, private.init(Z), Z)[0])
    for a, b in zip(*moved, strict=True):
        assert float(jnp.linalg.norm(a - b)) <= 2 * 0.5 / N * (1 + 1e-3)


@pytest.mark.slow
def test_public_terms_are_added_and_draw_by_keys_of_their_own():
    def operator(z, x, key):
        return Saddle(z.w - x * jax.random.uniform(key), z.v)

    problem = jmm.Problem(operator=operator, random=True,
                          public=lambda z, key: Saddle(100.0 + z.w, jnp.zeros_like(z.v)))
    private = made(problem=problem)
    g, _ = updated(private)(next(private.tickets(private.init(Z))), private.init(Z), Z)
    np.testing.assert_allclose(g.w, 100.1, atol=2)


@pytest.mark.slow
def test_clip_norms_follow_a_quantile_in_the_state():
    private = made(described(adaptive=jmm.AdaptiveClip(rate=0.5), noise=0.5), watched=True)
    state, step = private.init(Z), updated(private)
    tickets = private.tickets(state)
    ticket = next(tickets)
    _, after = step(ticket, state, Z)
    assert float(after.clip.w) != 1.0
    other = state._replace(clip=Saddle(jnp.float32(1.5), state.clip.v))
    with pytest.raises(Exception, match="at another point before"):
        jax.block_until_ready(step(ticket, other, Z))


# --- no noise serves two points ---


def test_samples_and_noise_follow_the_point():
    quiet = described(clip=1e-3, noise=1000.0)
    private, near = made(quiet), jax.tree.map(lambda x: x + 1e-5, Z)
    ticket, state, step = next(private.tickets(private.init(Z))), private.init(Z), updated(private)
    one, other = step(ticket, state, Z)[0], step(ticket, state, near)[0]
    # of one noise, the difference would be 1e-5 at most
    assert float(jnp.abs(one.w - other.w).max()) > 1e-3
    assert same(one, step(ticket, state, Z)[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8", "bool"])
def test_every_bit_of_a_point_counts_in_its_place(dtype):
    words, digest = np.array([1, 2], np.uint32), jax.jit(point_keys.digest)
    start = np.arange(1, 302).astype(jnp.dtype(dtype))
    points = [start, start[::-1].copy()] if dtype != "bool" else [start]
    kind = np.dtype(f"u{start.dtype.itemsize}")
    for bit in range(1 if dtype == "bool" else 8 * start.dtype.itemsize):
        for place in (0, 255, 256, 300):
            x = start.copy()
            x.view(kind)[place] ^= kind.type(1 << bit)
            points.append(x)
    seen = {np.asarray(digest(words, (jnp.asarray(x), None))).tobytes() for x in points}
    assert len(seen) == len(points)
    # leaves of their own rows, and another key
    assert np.asarray(digest(words, (jnp.asarray(start), jnp.zeros(1)))).tobytes() not in seen
    assert np.asarray(digest(words[::-1], (jnp.asarray(start), None))).tobytes() not in seen


def test_the_digest_is_its_formula_in_numpy():
    """By ten lines of Python's integers, as the docstring states it."""
    words = np.array([7, 9], np.uint32)
    x = np.random.default_rng(1).normal(size=300).astype(np.float32)
    drawn = [int(a) for a in np.asarray(point_keys.random_words(
        point_keys.threefry_key(jnp.asarray(words)), (4 * 513 + 4,)))]
    bits = np.pad(x.view(np.uint32), (0, 212)).reshape(2, 256)
    total = np.zeros(2, np.uint32)
    for r, row in enumerate(bits):
        h = []
        for i in range(4):
            a, b = drawn[512 * i:512 * i + 512], drawn[2048 + i]
            h.append((b + sum(int(u & 0xFFFF) * p + int(u >> 16) * q for u, p, q in zip(
                row, a[:256], a[256:], strict=True))) % 2**32 >> 16)
        for half in range(2):
            key = np.array(drawn[2052 + 2 * half:2054 + 2 * half], np.uint32)
            pair = point_keys.threefry(key, np.uint32(r), np.uint32(
                (h[2 * half] << 16) + h[2 * half + 1]))
            total += np.array([int(y) for y in pair], np.uint32)
    assert np.array_equal(point_keys.digest(words, (x,)), total)


def test_rows_that_differ_agree_in_a_half_as_often_as_proved():
    """In one of the four hashes of a row: 2^-16, over many keys, for the worst differences."""
    keys = np.random.default_rng(0).integers(0, 2**32, (4, 2**20), dtype=np.uint32)
    for difference, here in ((1, 3), (2**15, 2**15), (2**16 - 1, 2**16 - 1)):
        # g(x) = a here + b and g(y) = g(x) - a difference
        g = keys[0] * np.uint32(here) + keys[1]
        count = int(np.sum((g >> 16) == ((g - keys[0] * np.uint32(difference)) >> 16)))
        assert abs(count - 2**4) < 5 * 4


@pytest.mark.slow
@pytest.mark.parametrize("which", ["older state", "older ticket", "begun anew"])
def test_a_state_goes_with_its_own_ticket_alone(which):
    private = made()
    step, state = updated(private), private.init(Z)
    tickets = private.tickets(state)
    first = next(tickets)
    _, after = step(first, state, Z)
    second = next(tickets)
    pair = {"older state": (second, state), "older ticket": (first, after),
            "begun anew": (second, private.init(Z))}[which]
    assert np.isnan(step(*pair, Z)[0].w).all()
    assert np.isfinite(step(second, after, Z)[0].w).all()


@pytest.mark.slow
def test_a_number_is_handed_out_once_unless_it_is_watched():
    key = jmm.noise.secret_key()
    private = made(key=key)
    state = private.init(Z)
    next(private.tickets(state))
    for again in (private.tickets(state), made(key=key).tickets(state)):
        with pytest.raises(RuntimeError, match="handed out before"):
            next(again)
    with pytest.raises(RuntimeError, match="handed out before"):
        private.take(state, 2)
    watched = made(watched=True)
    one, other = (next(watched.tickets(state)) for _ in range(2))
    step = updated(watched)
    assert same(step(one, state, Z)[0], step(other, state, Z)[0])


def test_beyond_the_budget_there_is_no_ticket():
    private = made(described(times=2))
    _, state = trained(private, optax.chain(private, optax.sgd(0.1)))
    assert list(private.tickets(state)) == []
    with pytest.raises(ValueError, match="count must be at most 0"):
        private.take(state, 1)


@pytest.mark.slow
def test_one_key_is_for_one_data_set_one_problem_and_one_description():
    key = jmm.noise.secret_key()
    private = made(key=key)
    with pytest.raises(ValueError, match="another data set"):
        made(key=key, data=X + 1)
    with pytest.raises(ValueError, match="another description, strategy or mesh"):
        made(described(times=7), key=key)
    slowly = jmm.types.with_strategy(PROBLEM.operator, "vmap")
    with pytest.raises(ValueError, match="another description, strategy or mesh"):
        made(key=key, problem=jmm.Problem(operator=slowly))
    state, ticket = private.init(Z), next(private.tickets(private.init(Z)))
    updated(private)(ticket, state, Z)
    other = made(key=key, problem=jmm.Problem(operator=jmm.saddle_operator(
        lambda w, v, x: 2 * loss(w, v, x))))
    with pytest.raises(ValueError, match="another operator"):
        other.update(ticket, state, Z)
    shorter = jax.tree.map(lambda x: x[:2], Z)
    with pytest.raises(Exception, match=r"shapes"):
        private.update(ticket, state, shorter)


@pytest.mark.slow
def test_the_operator_is_one_in_all_traces():
    scale = [1.0]
    problem = jmm.Problem(operator=jmm.saddle_operator(
        lambda w, v, x: scale[0] * loss(w, v, x)))
    private = made(problem=problem)
    state, ticket = private.init(Z), next(private.tickets(private.init(Z)))
    updated(private)(ticket, state, Z)
    updated(private)(ticket, state, Z)
    scale[0] = 2.0
    with pytest.raises(ValueError, match="another operator"):
        updated(private)(ticket, state, Z)


@pytest.mark.slow
def test_an_operator_of_a_traced_number_is_refused():
    def step(scale, ticket, state):
        private = alone_of(scale)
        return private.update(ticket, state, Z.w)

    def alone_of(scale):
        held.append(scale)
        return private

    held = [1.0]
    problem = jmm.Problem(operator=jmm.saddle_operator(
        lambda w, v, x: jnp.sum(w * x) * held[-1]))
    private = made(ONE_PLAYER, problem=problem)
    with pytest.raises(ValueError, match="closes over a number of the traced step"):
        jax.jit(step)(2.0, next(private.tickets(private.init(Z.w))), private.init(Z.w))


@pytest.mark.slow
def test_another_machine_has_other_noise(next_process, monkeypatch):
    """Its sums are rounded in other ways, and under one noise the difference would show that."""
    key, steps = jmm.noise.secret_key(), []
    for machine in ("0" * 32, "1" * 32, "0" * 32):
        next_process()
        monkeypatch.setattr(private_gradient.fingerprint, "hash_machine",
                            lambda *_, machine=machine: {"-": machine})
        private = made(described(clip=1e-3, noise=1000.0), key)
        state = private.init(Z)
        steps.append(updated(private)(next(private.tickets(state)), state, Z)[0])
    assert same(steps[0], steps[2])
    assert float(jnp.abs(steps[0].w - steps[1].w).max()) > 1e-3


# --- what a trace refuses ---


def test_one_trace_uses_a_ticket_once():
    private = made()
    state, ticket = private.init(Z), next(private.tickets(private.init(Z)))
    with pytest.raises(ValueError, match="two points of one step"):
        jax.jit(lambda t: [private.update(t, state, z) for z in (Z, Z)])(ticket)


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [(None, None, 0), (None, 0, None), (0, None, None)],
                         ids=["points", "states", "tickets"])
@pytest.mark.parametrize("jitted", rest_nightly([True, False], 1))
def test_a_vmap_is_refused(mapped, jitted):
    private = made()
    ticket = next(private.tickets(private.init(Z)))
    arguments = [jax.tree.map(lambda x: jnp.stack([x, x]), one) if axis == 0 else one
                 for one, axis in zip((ticket, private.init(Z), Z), mapped, strict=True)]

    def update(*args):
        return private.update(*args)

    with pytest.raises(ValueError, match="vmap"):
        jax.vmap(jax.jit(update) if jitted else update, mapped)(*arguments)


def test_a_vmap_over_rows_alone_is_refused():
    private = made()
    ticket = next(private.tickets(private.init(Z)))
    with pytest.raises(ValueError, match="vmap"):
        jax.vmap(jax.jit(lambda rows: private.update(
            private_gradient.Ticket(number=ticket.number, key=ticket.key, data=rows,
                                    words=ticket.words, mark=ticket.mark),
            private.init(Z), Z)))(jnp.stack([X, X]))


@pytest.mark.slow
def test_derivatives_of_what_is_released_are_zero():
    private = alone()
    state, ticket = private.init(Z.w), next(private.tickets(private.init(Z.w)))
    slope = jax.grad(lambda w: jnp.sum(private.update(ticket, state, w)[0]))(Z.w)
    assert same(slope, jnp.zeros(DIM))


def test_what_is_no_ticket_of_its_own_is_refused():
    private, other = made(), made()
    state, ticket = private.init(Z), next(private.tickets(private.init(Z)))
    refused = [
        ((Z, state, Z), {}, "takes a ticket"),
        ((ticket, other.init(Z)[0], Z), {}, "state must be that of"),
        ((ticket, state), {}, "at the parameters"),
        ((next(other.tickets(other.init(Z))), state, Z), {}, "of another private_gradient"),
        ((jax.tree.map(jnp.copy, Z), state, Z), {"ticket": ticket}, "parameters themselves"),
        ((private.take(private.init(Z)._replace(number=1), 2), state, Z), {}, "several releases"),
    ]
    for arguments, how, message in refused:
        with pytest.raises(ValueError, match=message):
            private.update(*arguments, **how)


def test_what_it_cannot_be_made_of_is_refused(monkeypatch):
    key = jmm.noise.secret_key()
    group = jmm.problems.group_glm("hinge", feature_bound=2.0, radius=1.0)
    sequence = jmm.Sequence(parts=(described(), described()))
    for error, message, call in (
            (TypeError, "for groups", lambda: made(problem=group)),
            (TypeError, "Repeat of a Query", lambda: made(sequence)),
            (ValueError, "threefry2x32", lambda: made(key=jmm.noise.secret_key("rbg"))),
            (ValueError, "give ledger", lambda: made(name="first")),
            (ValueError, "leading axes", lambda: made(data=X[1:])),
            (ValueError, "records", lambda: made(data=jmm.placement.HostData(X[1:]))),
            (ValueError, "outside of jit", lambda: jax.jit(lambda: made(key=key))()),
            (ValueError, "outside of jit", lambda: jax.jit(lambda x: made(data=x))(X))):
        with pytest.raises(error, match=message):
            call()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for how in ({"watched": True}, {"mechanism": described(jmm.Disjoint(batch=10))}):
        with pytest.raises(ValueError, match="Several processes"):
            made(**how)


# --- the program of a step ---


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [jmm.Poisson(rate=0.3), jmm.Disjoint(batch=10)])
def test_no_program_holds_rows_or_key(sampling, next_process):
    next_process()
    words = np.array([0x12345678, 0x1ABCDEF1], np.uint32)
    data = np.full((N, DIM), np.float32(1.2345678))
    private = made(described(sampling), jax.random.wrap_key_data(words), data)
    ticket = next(private.tickets(private.init(Z)))
    lowered = updated(private).lower(ticket, private.init(Z), Z)
    text, secrets = lowered.as_text(), [*words, *np.ravel(jax.random.key_data(ticket.key)),
                                        *ticket.words]
    assert not any(str(int(x)) in text for x in secrets)
    traced = updated(private).trace(ticket, private.init(Z), Z)
    assert not any(np.any(np.asarray(x) == data[0, 0]) for x in constants(traced.jaxpr))


def test_a_step_is_checked_as_a_round_is(monkeypatch):
    """What reads rows past the release is refused while it is traced; one check, fail closed."""
    private = made()
    state, ticket = private.init(Z), next(private.tickets(private.init(Z)))
    checked = []
    monkeypatch.setattr(data_flow, "check", lambda *args: checked.append(args) or check(*args))
    check = data_flow_check
    updated(private)(ticket, state, Z)
    assert len(checked) == 2  # the program of the first trace to compare with, and the step's own

    def leaking(key, mechanism, spent, problem, z, data, clip):
        g, clip = release(key, mechanism, spent, problem, z, data, clip)
        return g._replace(w=g.w + 1e-9 * data[0]), clip

    def telling(key, mechanism, spent, problem, z, data, clip):
        jax.debug.print("{}", data[0])
        return release(key, mechanism, spent, problem, z, data, clip)

    def known(key, mechanism, spent, problem, z, data, clip):
        g, clip = release(key, mechanism, spent, problem, z, data, clip)
        return g._replace(w=g.w + jax.random.key_data(key)[0]), clip

    def louder(key, mechanism, *args):
        half = jax.tree.map(lambda x: x / 2, mechanism.query.noise_multiplier)
        query = jmm.Query(clip=mechanism.query.clip, population=N, noise_multiplier=half)
        return release(key, jmm.Repeat(query=query, times=mechanism.times), *args)

    def free(key, mechanism, spent, problem, z, data, clip):
        return jax.tree.map(jnp.zeros_like, z), clip

    release = sums.noisy_operator_and_clip
    for changed, message in (
            (leaking, "past a release"), (telling, "tells the host"), (known, "past a release"),
            (louder, "other settings")):
        monkeypatch.setattr(sums, "noisy_operator_and_clip", changed)
        private = made()
        with pytest.raises(ValueError, match=message):
            private.update(next(private.tickets(private.init(Z))), private.init(Z), Z)


data_flow_check = data_flow.check


def test_a_user_s_operator_that_holds_the_data_is_refused():
    data = jnp.asarray(X)
    problem = jmm.Problem(operator=jmm.saddle_operator(
        lambda w, v, x: jnp.sum((w - jnp.mean(data, 0)) ** 2)))
    private = made(ONE_PLAYER, problem=problem, data=data)
    with pytest.raises(ValueError, match="closes over"):
        private.update(next(private.tickets(private.init(Z.w))), private.init(Z.w), Z.w)


# --- the register ---


def test_watched_refuses_a_second_point_and_repeats_the_first():
    private = made(watched=True)
    step, state = updated(private), private.init(Z)
    ticket = next(private.tickets(state))
    assert same(*(step(ticket, state, Z)[0] for _ in range(2)))
    with pytest.raises(Exception, match="at another point before"):
        jax.block_until_ready(step(ticket, state, jax.tree.map(lambda x: x + 1, Z)))
    assert private.statement(delta=1e-3).spent == 1


@pytest.mark.slow
def test_a_scan_over_steps_takes_several_tickets():
    key = jmm.noise.secret_key()
    mechanism = described(jmm.Disjoint(batch=10))
    private = made(mechanism, key)
    tx = optax.chain(private, optax.sgd(0.1))

    @jax.jit
    def epoch(ticket, state, z):
        def step(carry, number):
            z, state = carry
            changes, state = tx.update(ticket.at(number), state, z)
            return (optax.apply_updates(z, changes), state), None

        return jax.lax.scan(step, (z, state), ticket.number)[0]

    z, state = Z, tx.init(Z)
    for _ in range(2):
        z, state = epoch(private.take(state, 3), state, z)
    point_register._REGISTERS.clear()
    other = made(mechanism, key)
    wanted, _ = trained(other, optax.chain(other, optax.sgd(0.1)))
    np.testing.assert_allclose(z.w, wanted.w, atol=1e-6)
    assert int(state[0].number) == 6


@pytest.mark.slow
def test_in_a_scan_one_ticket_releases_once():
    private = alone()
    ticket = next(private.tickets(private.init(Z.w)))

    def carried(carry, _):
        g, state = private.update(ticket, carry[1], carry[0])
        return (carry[0] - 0.1 * g, state), g

    steps = jax.jit(lambda: jax.lax.scan(carried, (Z.w, private.init(Z.w)), length=3)[1])()
    assert np.isnan(steps).all(1).tolist() == [False, True, True]


@pytest.mark.slow
def test_correlated_noise_comes_in_its_order():
    private = made(described(jmm.Disjoint(batch=10), bands=2))
    step, state = updated(private), private.init(Z)
    tickets = list(itertools.islice(private.tickets(state), 2))
    later = state._replace(number=jnp.int32(1))
    jax.block_until_ready(step(tickets[1], later, Z))
    with pytest.raises(Exception, match="comes after a later one"):
        jax.block_until_ready(step(tickets[0], state, Z))


@pytest.mark.slow
def test_host_rows_are_the_same_run():
    key = jmm.noise.secret_key()
    mechanism = described(jmm.Poisson(rate=0.3))
    private = made(mechanism, key, jmm.placement.HostData(X))
    z, _ = trained(private, optax.chain(private, optax.sgd(0.1)))
    hyper = jmm.sgda.Hyper(query=mechanism.query, step=Saddle(0.1, 0.1), iterations=6)
    wanted = jmm.run(key, Z, X, hyper, jmm.sgda, PROBLEM).state.z
    np.testing.assert_allclose(z.w, wanted.w, atol=1e-6)
    with pytest.raises(ValueError, match="rows of HostData come"):
        private.take(private.init(Z), 2)


@pytest.mark.slow
def test_rows_on_a_mesh_are_the_same_release():
    key, mechanism = jmm.noise.secret_key(), described(jmm.Disjoint(batch=10))
    data = jmm.placement.shard(X, jax.make_mesh((1,), ("data",)))
    private = made(mechanism, key, data)
    g, _ = updated(private)(next(private.tickets(private.init(Z))), private.init(Z), Z)
    wanted = jax.jit(jmm.release, static_argnames="problem")(
        key, mechanism, jnp.int32(0), PROBLEM, Z, X)
    np.testing.assert_allclose(g.w, wanted.w, atol=1e-6)


@pytest.mark.slow
def test_persons_are_records_and_the_statement_says_so():
    owners = np.repeat(np.arange(N // 2), 2)
    people = jmm.problems.by_person(X, owners, most=2)
    mechanism = jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, 1.0), population=N // 2,
                                           noise_multiplier=Saddle(2.0, 2.0)), times=2)
    private = made(mechanism, data=people, problem=jmm.problems.per_person(PROBLEM))
    z, _ = trained(private, optax.chain(private, optax.sgd(0.1)))
    assert np.isfinite(z.w).all()
    assert private.statement(delta=1e-3).unit == "one person"


@jmm.types.pytree_dataclass
class Own(jmm.Poisson):
    """A sampling of a user's, whose releases may share an order of the records."""


def test_samples_that_may_be_fixed_before_the_point_are_watched():
    sampled = [jmm.Poisson(rate=0.3), jmm.FixedSize(batch=10), jmm.Full(),
               jmm.FixedSize(batch=10, replacement=True), Own(rate=0.3), jmm.Disjoint(batch=10),
               jmm.mechanism.CyclicPoisson(rate=0.4, parts=2)]
    assert [made(described(one))._run.watched for one in sampled] == [False] * 4 + [True] * 3
    assert [made(described(one))._run.release.follows for one in sampled] == (
        [True] * 4 + [False] * 3)
    parts = jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, 1.0), population=N // 2,
                                       noise_multiplier=Saddle(1.0, 1.0)), times=2, parts=2)
    for private in (made(parts), made(data=jmm.placement.HostData(X)),
                    made(described(jmm.Disjoint(batch=10), bands=2))):
        assert private._run.watched
        assert not private._run.release.follows


# --- going on ---


@pytest.mark.slow
def test_a_new_process_goes_on_from_the_state_to_the_bit(next_process, tmp_path):
    import orbax.checkpoint as ocp

    key = jmm.noise.secret_key()
    private = made(key=key)
    half = trained(private, optax.chain(private, optax.adam(0.1)), count=3)
    with ocp.StandardCheckpointer() as saver:
        saver.save(tmp_path / "half", half)
    z, state = trained(private, optax.chain(private, optax.adam(0.1)), *half)
    next_process()
    again = made(key=key, watched=True)
    tx = optax.chain(again, optax.adam(0.1))
    with ocp.StandardCheckpointer() as saver:
        restored = saver.restore(tmp_path / "half", jax.tree.map(
            jnp.zeros_like, (Z, tx.init(Z))))
    assert same(trained(again, tx, *restored)[0], z)
    stated = again.statement(state, delta=1e-3)
    assert stated.spent == 6
    # of the first half, this process noted nothing
    assert any("Every state was used at one point" in x for x in stated.assumed)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", rest_nightly([
    described(jmm.Disjoint(batch=10), bands=2), described(jmm.Disjoint(batch=10))], 1))
def test_fixed_samples_go_on_by_a_journal_alone(mechanism, next_process, tmp_path):
    key, path = jmm.noise.secret_key(), tmp_path / "journal"
    private = made(mechanism, key)
    tx = optax.chain(private, optax.sgd(0.1))
    half = trained(private, tx, count=2)
    trained(private, tx, *half, count=1)  # in this process it goes on
    next_process()
    with pytest.raises(ValueError, match="give journal="):
        next(made(mechanism, key).tickets(half[1]))
    next_process()
    private = made(mechanism, key, journal=path)
    tx = optax.chain(private, optax.sgd(0.1))
    half = trained(private, tx, count=2)
    whole = trained(private, tx, *half)
    next_process()
    again = made(mechanism, key, journal=path)
    tx = optax.chain(again, optax.sgd(0.1))
    assert same(trained(again, tx, *half)[0], whole[0])
    # of a state that was changed in the meantime
    moved = jax.tree.map(lambda x: x + 1, half[0])
    with pytest.raises(Exception, match="at another point before"):
        trained(again, tx, moved, half[1])


@pytest.mark.slow
def test_a_journal_is_of_one_run_one_process_and_one_machine(next_process, tmp_path, monkeypatch):
    key, path = jmm.noise.secret_key(), tmp_path / "journal"
    private = made(key=key, journal=path)
    trained(private, optax.chain(private, optax.sgd(0.1)), count=2)
    with pytest.raises(ValueError, match="locked by another process"):
        made(journal=path)
    next_process()
    with pytest.raises(ValueError, match="the journal is another one"):
        made(journal=path)
    with pytest.raises(ValueError, match="another data set"):
        made(key=key, data=X + 1, journal=path)
    next_process()
    monkeypatch.setattr(private_gradient.fingerprint, "hash_machine", lambda *_: {"-": "0" * 32})
    moved = made(key=key, journal=path)
    with pytest.raises(Exception, match="on another machine before"):
        trained(moved, optax.chain(moved, optax.sgd(0.1)))
    assert moved.statement(delta=1e-3).spent == 2


def test_a_process_that_is_forked_off_is_refused(tmp_path, monkeypatch):
    """Both would use a number, at two points, and neither would learn of the other."""
    private = made(described(jmm.Disjoint(batch=10)), journal=tmp_path / "points")
    state = private.init(Z)
    ticket = next(iter(private.tickets(state)))
    parent = os.getpid()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: parent + 1)
        for then in (lambda: next(private.tickets(state)), lambda: private.take(state, 1),
                     lambda: private.update(ticket, state, Z), lambda: private.close(state)):
            with pytest.raises(Exception, match="one that was forked off"):
                jax.block_until_ready(then())
    assert np.isfinite(private.update(ticket, state, Z)[0].w).all()
    private.close()


LIMITS = point_register.Limits("run", 9, False, "machine")


def test_threads_that_begin_at_once_have_one_register(monkeypatch):
    """Each with its own would make a number at a point of its own."""
    waiting, made_by = threading.Barrier(2), []

    class Slow(point_register.Register):
        def __init__(self, *args):
            with contextlib.suppress(threading.BrokenBarrierError):
                waiting.wait(0.2)  # for another thread that makes one too
            super().__init__(*args)

    monkeypatch.setattr(point_register, "Register", Slow)
    monkeypatch.setattr(point_register, "_REGISTERS", {})
    threads = [threading.Thread(target=lambda: made_by.append(
        point_register.register("key", LIMITS, None))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made_by[0] is made_by[1]


def test_a_line_that_a_full_disk_cuts_short_is_no_answer(tmp_path, monkeypatch):
    """A process that goes on cuts it off, and would make the number at another point."""
    register = point_register.Register(LIMITS, tmp_path / "points")
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, text: write(file, text[:-3]))
        with pytest.raises(OSError, match="in part"):
            register.admit(np.array([1, 2, 5], np.uint32))
    for number in (5, 6):  # no line is added to a part of another
        with pytest.raises(RuntimeError, match="closed"):
            register.admit(np.array([1, 2, number], np.uint32))
    register.close()
    again = point_register.Register(LIMITS, tmp_path / "points")
    assert not again.points
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "message"), [
    (lambda text: text[:-5], None), (lambda text: text + b"1 ab", None),
    (lambda text: b"something else\n", "no journal"), (lambda text: text[10:], "no journal"),
    (lambda text: text.replace(b"rows ", b"rows"), "no journal"), (lambda text: b"\xff\n", "no")])
def test_a_torn_line_is_cut_off_and_other_damage_is_refused(damage, message, next_process,
                                                            tmp_path):
    key, path = jmm.noise.secret_key(), tmp_path / "journal"
    private = made(key=key, journal=path)
    half = trained(private, optax.chain(private, optax.sgd(0.1)), count=2)
    next_process()
    path.write_bytes(damage(path.read_bytes()))
    if message:
        with pytest.raises(ValueError, match=message):
            made(key=key, journal=path)
        return
    again = made(key=key, journal=path)
    trained(again, optax.chain(again, optax.sgd(0.1)), *half, count=1)
    assert path.read_bytes().endswith(b"\n")
    next_process()
    assert made(key=key, journal=path).statement(delta=1e-3).spent == 3


# --- what it states and costs ---


@pytest.mark.slow
def test_a_statement_counts_and_says_what_it_rests_on():
    mechanism = described(jmm.Poisson(rate=0.3), noise=4.0)
    private = made(mechanism)
    tx = optax.chain(private, optax.sgd(0.1))
    _, state = trained(private, tx, count=4)
    made_now = private.statement(state, delta=1e-3, unit="one visit")
    assert (made_now.spent, made_now.allowed, made_now.unit) == (4, 6, "one visit")
    np.testing.assert_allclose(made_now.epsilon, jmm.epsilon(mechanism, 1e-3), rtol=1e-9)
    assert sum("Every state was used at one point" in x for x in made_now.assumed) == 1
    assert sum("hands its tickets on" in x for x in made_now.assumed) == 1
    assert not any("no part of the library" in x for x in made_now.assumed)
    kept = made(watched=True).statement(delta=1e-3)
    assert kept.spent == 0
    assert not any("Every state was used at one point" in x for x in kept.assumed)
    assert any("answered at one point only" in x for x in kept.enforced)


def test_an_operator_that_asks_the_host_is_refused():
    """It could answer otherwise when a number comes again, so that one noise serves two sums."""
    def told(w, v, x):
        shape = jax.ShapeDtypeStruct((), x.dtype)
        return loss(w, v, x) * jax.pure_callback(
            lambda y: np.float32(1), shape, x[0], vmap_method="sequential")

    private = made(problem=jmm.Problem(operator=jmm.saddle_operator(told)))
    state = private.init(Z)
    with pytest.raises(ValueError, match="calls the host"):
        updated(private)(next(private.tickets(state)), state, Z)


def test_a_ledger_keeps_what_another_transformation_of_the_key_has_released(tmp_path):
    ledger = jmm.accounting.Ledger(tmp_path / "l.json", epsilon=8.0, delta=1e-3, filter="renyi")
    key, before = jmm.noise.secret_key(), ledger.remaining().share
    watched = made(described(noise=20.0), key, watched=True, ledger=ledger, name="watched")
    reserved = ledger.remaining().share
    other = made(described(noise=20.0), key)
    trained(other, optax.chain(other, optax.sgd(0.1)))
    watched.close()
    assert before > reserved
    assert ledger.remaining().share == reserved


def test_a_ledger_charges_before_rows_are_read(tmp_path, monkeypatch):
    ledger = jmm.accounting.Ledger(tmp_path / "ledger.json", epsilon=8.0, delta=1e-3)
    before = ledger.remaining().share
    reserved = []

    def rows(*args, **how):
        reserved.append(ledger.remaining().share)
        return of_rows(*args, **how)

    of_rows = private_gradient.fingerprint.hash_rows
    monkeypatch.setattr(private_gradient.fingerprint, "hash_rows", rows)
    cheap = described(noise=20.0, times=6)
    private = made(cheap, ledger=ledger, name="loop")
    assert reserved == [ledger.remaining().share]
    assert reserved[0] < before
    with pytest.raises(ValueError, match=r"exceed|left|budget"):
        made(described(noise=0.1), ledger=ledger, name="too much")
    assert len(reserved) == 1
    _, state = trained(private, optax.chain(private, optax.sgd(0.1)), count=3)
    private.close(state)
    assert reserved[0] < ledger.remaining().share < before
    with pytest.raises(RuntimeError, match="closed"):
        next(private.tickets(state))
    (entry,) = ledger._read()["entries"]
    assert entry["spent"] == 3


@pytest.mark.slow
def test_a_ledger_lets_a_run_go_on_by_its_journal_alone(tmp_path, next_process):
    key, path = jmm.noise.secret_key(), tmp_path / "journal"
    ledger = jmm.accounting.Ledger(tmp_path / "ledger.json", epsilon=8.0, delta=1e-3)
    cheap = described(noise=20.0, times=6)
    private = made(cheap, key, ledger=ledger, name="loop", journal=path)
    half = trained(private, optax.chain(private, optax.sgd(0.1)), count=2)
    spent = ledger.remaining().share
    next_process()
    again = made(cheap, key, ledger=ledger, name="loop", journal=path)
    trained(again, optax.chain(again, optax.sgd(0.1)), *half)
    again.close()
    assert ledger.remaining().share == spent
    next_process()
    path.unlink()
    with pytest.raises(ValueError, match="none of its releases"):
        made(cheap, key, ledger=ledger, name="loop", journal=path)
    next_process()
    with pytest.raises(ValueError, match="cannot continue without"):
        made(cheap, key, ledger=ledger, name="loop")


# --- switches of JAX ---

SWITCHES = {"disable_jit": lambda: jax.disable_jit(), "x32": lambda: jax.enable_x64(False),
            "strict promotion": lambda: jax.numpy_dtype_promotion("strict")}


@pytest.mark.nightly
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_of_jax_leaves_the_releases_as_they_are(switch, next_process):
    key = jmm.noise.secret_key()
    # whose keys do not depend on the machine, of which 64-bit types are a part
    mechanism = jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, None), population=N,
                                           noise_multiplier=Saddle(1.0, None),
                                           sampling=jmm.Disjoint(batch=10)), times=6)

    def run():
        private = made(mechanism, key, problem=ALONE)
        return trained(private, optax.chain(private, optax.sgd(0.1)), Z.w, count=2)

    wanted, _ = run()
    next_process()
    with SWITCHES[switch]():
        w, state = run()
    assert (w.dtype, int(state[0].number)) == (jnp.float32, 2)
    np.testing.assert_allclose(w, wanted, atol=1e-6)


@pytest.mark.slow
def test_debug_nans_is_refused_while_a_step_is_traced():
    private = alone()
    state, ticket = private.init(Z.w), next(private.tickets(private.init(Z.w)))
    with jax.debug_nans(True), pytest.raises(ValueError, match="jax_debug_nans is on"):
        updated(private)(ticket, state, Z.w)
    with jax.debug_nans(True), pytest.raises(ValueError, match="jax_debug_nans is on"):
        alone()


# --- around it, and behind it ---


AROUND = {
    "MultiSteps": lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
    "multi_transform": lambda tx: optax.multi_transform({"t": tx}, {"a": "t"}),
    "zero_nans": lambda tx: optax.chain(optax.zero_nans(), tx),
    "adam": lambda tx: optax.chain(optax.adam(0.1), tx),
    "weight decay": lambda tx: optax.chain(optax.add_decayed_weights(0.1), tx)}


@pytest.mark.slow
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("jitted", [False, True])
def test_wrappers_around_it_are_refused_and_say_where_they_go(around, jitted):
    """They would map over a ticket as over gradients, and keep what they compute of rows."""
    private = made(ONE_PLAYER, problem=jmm.Problem(operator=jmm.saddle_operator(
        lambda w, v, x: jnp.sum((w["a"] - x) ** 2))))
    params = {"a": jnp.zeros(DIM, jnp.float32)}
    tx = AROUND[around](optax.chain(private, optax.sgd(0.1)))
    ticket = next(private.tickets(private.init(params)))
    update = jax.jit(lambda *args: tx.update(*args)) if jitted else tx.update
    with pytest.raises((ValueError, TypeError), match=r"behind it: optax\.chain\(private, "):
        update(ticket, tx.init(params), params)


@pytest.mark.slow
@pytest.mark.parametrize("around", [optax.clip_by_global_norm(1.0), optax.scale(-1.0),
                                    optax.clip(1.0), optax.normalize_by_update_norm()])
def test_links_before_it_fail_on_the_key_of_a_ticket(around):
    private = alone()
    tx = optax.chain(around, private)
    ticket = next(private.tickets(private.init(Z.w)))
    # JAX refuses arithmetic with a key, and has no real part of one
    with pytest.raises((TypeError, NotImplementedError), match=r"key<fry>|abstract method real"):
        tx.update(ticket, tx.init(Z.w), Z.w)


def test_a_wrapper_that_hides_parameters_is_refused_by_init():
    tx = optax.multi_transform({"t": alone(), "f": optax.set_to_zero()}, {"a": "t", "b": "f"})
    with pytest.raises(ValueError, match=r"behind it: optax\.chain"):
        tx.init({"a": jnp.zeros(DIM), "b": jnp.zeros(1)})


@pytest.mark.slow
@pytest.mark.parametrize("behind", [
    lambda: optax.adamw(0.1), lambda: optax.MultiSteps(
        optax.sgd(0.1), 2).gradient_transformation(), lambda: optax.contrib.schedule_free_sgd(0.1),
    lambda: optax.chain(optax.ema(0.9), optax.sgd(optax.cosine_decay_schedule(0.1, 6)))],
    ids=["adamw", "MultiSteps", "schedule_free", "ema"])
def test_what_optax_puts_behind_it_trains(behind):
    private = alone()
    w, state = trained(private, optax.chain(private, behind()), Z.w)
    assert np.isfinite(w).all()
    assert int(state[0].number) == 6


@pytest.mark.slow
def test_hyperparameters_are_injected_around_it():
    private = alone()
    tx = optax.inject_hyperparams(lambda learning_rate: optax.chain(
        private, optax.adam(learning_rate)))(learning_rate=optax.linear_schedule(0.1, 0.0, 6))
    w, state = trained(private, tx, Z.w)
    assert np.isfinite(w).all()
    assert private_gradient._number(state) == 6


@pytest.mark.slow
def test_flax_trains_a_state_of_its_own():
    import flax.linen as nn
    from flax.training import train_state

    net = nn.Dense(1)
    params = net.init(jax.random.key(0), X[:1])
    problem = jmm.Problem(operator=jmm.saddle_operator(
        lambda w, v, x: jnp.sum((net.apply(w, x) - 1) ** 2)))
    private = made(ONE_PLAYER, problem=problem)
    state = train_state.TrainState.create(apply_fn=net.apply, params=params,
                                          tx=optax.chain(private, optax.adam(0.1)))
    step = jax.jit(lambda state, ticket: state.apply_gradients(grads=ticket))
    for ticket in private.tickets(state.opt_state):
        state = step(state, ticket)
    assert int(state.step) == 6
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))


@pytest.mark.slow
def test_nnx_hands_the_ticket_beside_its_parameters():
    from flax import nnx

    model = nnx.Linear(DIM, 1, rngs=nnx.Rngs(0))
    graph, params = nnx.split(model, nnx.Param)
    problem = jmm.Problem(operator=jmm.saddle_operator(
        lambda w, v, x: jnp.sum((nnx.merge(graph, w)(x) - 1) ** 2)))
    private = made(ONE_PLAYER, problem=problem)
    optimizer = nnx.Optimizer(model, optax.chain(private, optax.adam(0.1)), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, ticket):
        optimizer.update(model, nnx.state(model, nnx.Param), ticket=ticket)

    before = jax.tree.map(jnp.copy, params)
    for ticket in private.tickets(private.init(params)):
        step(model, optimizer, ticket)
    assert not same(before, nnx.state(model, nnx.Param))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.slow
def test_equinox_trains_what_it_filters():
    import equinox as eqx

    model = eqx.nn.Linear(DIM, 1, key=jax.random.key(0))
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    problem = jmm.Problem(operator=jmm.saddle_operator(
        lambda w, v, x: jnp.sum((eqx.combine(w, rest)(x) - 1) ** 2)))
    private = made(ONE_PLAYER, problem=problem)
    tx = optax.chain(private, optax.adam(0.1))
    state = tx.init(params)

    @eqx.filter_jit
    def step(model, state, ticket):
        changes, state = tx.update(ticket, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, changes), state

    for ticket in private.tickets(state):
        model, state = step(model, state, ticket)
    assert np.isfinite(model.weight).all()
    assert int(state[0].number) == 6
