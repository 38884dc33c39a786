"""Every backend, by every route of its products, equals the definition, with all gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.attend.calls import (
    BACKENDS,
    CPU,
    DIMS,
    DTYPES,
    EXTRAS,
    HEADS,
    LENGTHS,
    MASKS,
    STRIDES,
    TILINGS,
    B,
    Case,
    as_near_as_torch,
    bits,
    covering,
    differences,
    every_pair,
    expected_for,
    forced,
    forward_only,
    given_for,
    kept_by,
    ours,
    pairs_of,
    routes_for,
    seeded,
    wrong_in,
)
from tests.reference.draws import draw

from headwise.attend import attention, products, tiles
from headwise.attend.backends import tiled
from headwise.attend.call import Call
from headwise.attend.parts import MaskParts
from headwise.masks import Causal, Custom, Padding, Window
from headwise.numerics import compare

# -- the grid -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS)
def test_every_backend_equals_the_definition(mask):
    """Every pair of levels of two factors occurs: see ``test_every_pair_is_covered``."""
    cases = [case for case in covering() if case.mask == mask]
    assert [line for case in cases for line in wrong_in(case)] == []


def test_every_pair_is_covered():
    assert set().union(*map(pairs_of, covering())) == every_pair()
    assert set().union(*map(pairs_of, covering()[1:])) != every_pair()


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_the_full_product(dtype, mask):
    """dtype × mask × heads × Dk and Dv × lengths × strides; extras and tiles take turns."""
    extras = itertools.cycle(EXTRAS)
    tilings = itertools.cycle(TILINGS)
    wrong = []
    for heads, dims, lengths, strides in itertools.product(HEADS, DIMS, LENGTHS[1:], STRIDES):
        case = Case(dtype, mask, heads, dims, lengths, strides, next(extras), next(tilings))
        wrong += wrong_in(case)
    assert wrong == []


WRONG = {
    "mask": {"mask": Causal() & Window(4, 0)},
    "scale": {"scale": 0.36},
    "softcap": {"softcap": 2.5},
    "no-softcap": {"softcap": None},
    "dropout": {"dropout_p": 0.0},
}


@pytest.mark.parametrize("changed", WRONG)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_wrong_option_is_found_in_every_result(dtype, changed):
    """The negative twin of the grid: each kind of result can fail."""
    case = Case(dtype, mask="causal", lengths=(9, 9), extra="everything")
    given = given_for(case)
    with forced(routes_for(dtype)["own"], "small"):
        expected = expected_for(given, kept_by(given, "tiled"))
        assert differences(given, ours(given, "tiled"), expected) == []
        found = differences(given, ours(given, "tiled", **WRONG[changed]), expected)
    wrong = {line.split(":")[0] for line in found}
    assert wrong >= {"output", *(f"gradient of {name}" for name in ("query", "key", "value"))}
    if changed != "scale":
        assert wrong >= {"gradient of sinks", "gradient of distance"}


@pytest.mark.parametrize("changed", ["mask", "scale"])
def test_the_wider_allowance_of_torchs_kernel_finds_a_wrong_option(changed):
    given = given_for(Case(torch.float32, mask="causal", lengths=(9, 9), extra="scale"))
    expected = expected_for(given)
    wider = as_near_as_torch(given, expected)
    assert all(allowed >= expected[1][name] for name, allowed in wider[1].items())
    assert differences(given, ours(given, "sdpa"), wider) == []
    found = differences(given, ours(given, "sdpa", **WRONG[changed]), wider)
    wrong = {line.split(":")[0] for line in found}
    assert wrong >= {"output", *(f"gradient of {name}" for name in ("query", "key", "value"))}


@pytest.mark.parametrize("name", ["query", "key", "value", "bias", "sinks"])
def test_a_wrong_gradient_is_found(name):
    given = given_for(Case(extra="bias-and-cap"))
    found, expected = ours(given, "tiled"), expected_for(given)
    assert differences(given, found, expected) == []
    wrong = found[f"gradient of {name}"].clone()
    wrong.view(-1)[wrong.abs().argmax()] *= 1 + 1e-6
    (line,) = differences(given, found | {f"gradient of {name}": wrong}, expected)
    assert line.startswith(f"gradient of {name}: 1 of")


def test_a_wrong_shape_and_a_wrong_dtype_are_found():
    given = given_for(Case(dtype=torch.float32))
    found, expected = ours(given, "eager"), expected_for(given)
    assert differences(given, found, expected) == []
    assert differences(given, found | {"output": found["output"].double()}, expected) == [
        "output is torch.float64"
    ]
    (line,) = differences(given, found | {"output": found["output"][:1]}, expected)
    assert line.startswith("output: shape")


@pytest.mark.parametrize("extra", ["scale-zero", "scale-negative"])
@pytest.mark.parametrize("mask", ["causal", "left", "query-slices", "holes", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scales_that_are_not_positive(dtype, mask, extra):
    """SDPA's CPU kernel for equal Dk and Dv gives NaN there under its own causal rule."""
    case = Case(dtype, mask, dims="equal", lengths=(9, 9), extra=extra)
    assert wrong_in(case) == []


# -- sizes at which the real blocks are crossed --------------------------------------------------


@pytest.mark.parametrize("route", routes_for(torch.float32))
@pytest.mark.parametrize(
    ("mask", "heads", "extra"),
    [
        ("causal", "gqa", "plain"),
        ("causal-window", "mha", "softcap"),
        ("left", "mqa", "everything"),
        ("documents", "gqa", "sinks"),
        ("per-head", "gqa", "bias-one-head"),
        ("holes", "mha", "distance"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_real_blocks(mask, heads, extra, dtype, route):
    lengths = (293, 317)  # more than two blocks of 128, and no multiple of anything
    case = Case(dtype, mask, heads, "wider", lengths, "time-first", extra, "as-it-is")
    given = given_for(case)
    with forced(routes_for(dtype).get(route)):
        expected = expected_for(given, kept_by(given, "tiled"))
        if dtype == torch.float32:
            # Where the definition adds head by head, a folded group is one sum: G times as long.
            group = case.sizes.Hq // case.sizes.Hkv
            expected = expected[0], {name: group * size for name, size in expected[1].items()}
        assert differences(given, ours(given, "tiled"), expected) == []


# -- memory that nobody has written --------------------------------------------------------------


@pytest.fixture
def poisoned():
    """Fresh memory and the kept buffers are full of NaN."""
    kept = tiles._buffers.__dict__.get("kept", {})
    for buffer in kept.values():
        buffer.fill_(torch.nan)
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", ["nothing", "all-padding", "left", "per-both"])
def test_nothing_unwritten_is_read(mask, dtype, poisoned):
    for extra in ("scale", "everything", "bias-hiding", "weights", "weights-averaged"):
        assert wrong_in(Case(dtype, mask, lengths=(7, 5), extra=extra)) == []


def test_results_are_nobody_elses_memory():
    """Buffers are kept from call to call: a second call must not change what the first gave."""
    case = Case(mask="causal", lengths=(11, 21), extra="weights", tiling="as-it-is")
    given, other = given_for(case), given_for(Case(lengths=(11, 21), mask="right", extra="weights"))
    plain = given_for(Case(mask="causal", lengths=(11, 21), extra="sinks"))
    for backend in ("eager", "tiled"):
        first = forward_only(given, backend) | ours(plain, backend)
        copies = {name: value.clone() for name, value in first.items()}
        forward_only(other, backend)
        ours(given_for(Case(mask="window", lengths=(11, 21), extra="distance")), backend)
        assert all(torch.equal(first[name], copies[name]) for name in first)
        kept = tiles._buffers.__dict__.get("kept", {})
        addresses = {buffer.untyped_storage().data_ptr() for buffer in kept.values()}
        assert addresses
        assert not addresses & {x.untyped_storage().data_ptr() for x in first.values()}


def test_inputs_are_left_alone():
    for strides in STRIDES:
        given = given_for(Case(strides=strides, extra="everything", mask="left"))
        before = {name: leaf.clone() for name, leaf in given.leaves.items()}
        upstream = given.upstream.clone()
        for backend in BACKENDS:
            if backend in ("eager", "tiled"):
                ours(given, backend)
        assert all(torch.equal(given.leaves[name], before[name]) for name in before)
        assert torch.equal(given.upstream, upstream)


# -- one gradient at a time ----------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "tiled"])
@pytest.mark.parametrize("name", ["query", "key", "value", "bias", "sinks", "distance"])
def test_a_gradient_for_one_input_alone(name, backend):
    extra = "everything" if name == "distance" else "bias-and-cap"
    given = given_for(Case(mask="causal", extra=extra))
    truth = ours(given, backend)[f"gradient of {name}"]
    leaves = {n: leaf.detach().requires_grad_(n == name) for n, leaf in given.leaves.items()}
    options = given.options
    if "distance" in leaves:
        options["bias"] = type_of_bias(leaves)
    elif "bias" in leaves:
        options["bias"] = leaves["bias"]
    with seeded(3), forced(None, "as-it-is"):
        made = attention(
            leaves["query"], leaves["key"], leaves["value"],
            backend=backend, sinks=leaves["sinks"], **options,
        )  # fmt: skip
    (alone,) = torch.autograd.grad(made, [leaves[name]], given.upstream)
    assert torch.equal(alone, truth)


def type_of_bias(leaves):
    from headwise.attend import DistanceBias

    return DistanceBias(leaves["distance"])


def test_a_bias_without_gradient_costs_none(monkeypatch):
    """Its gradient would be as large as itself."""
    given = given_for(Case(extra="bias", mask="causal"))
    tensors = [given.leaves[name] for name in ("query", "key", "value")]
    call = Call(*tensors, MaskParts(), 0.5, given.leaves["bias"])
    assert tiled.backward(call, given.upstream)[3] is not None
    assert tiled.backward(call, given.upstream, bias_too=False)[3] is None
    seen = []
    monkeypatch.setattr(tiles.ExtraGradients, "add_bias", lambda *_: seen.append(1))
    query = given.leaves["query"].detach().requires_grad_()
    made = attention(
        query,
        given.leaves["key"],
        given.leaves["value"],
        bias=given.leaves["bias"],
        backend="tiled",
    )
    made.sum().backward()
    assert seen == []


# -- modes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
def test_inference_mode_and_training_take_turns(backend):
    given = given_for(Case(mask="causal", lengths=(9, 9)))
    wanted = ours(given, backend)
    tiles._buffers.__dict__.clear()
    with torch.inference_mode():
        made = forward_only(given, backend)["output"]
        assert made.is_inference()
    again = ours(given, backend)
    assert torch.equal(made, wanted["output"])
    assert all(torch.equal(again[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
def test_nothing_is_recorded_without_gradients(backend):
    given = given_for(Case(mask="causal"))
    query, key, value = (given.fresh()[name] for name in ("query", "key", "value"))
    with torch.no_grad():
        assert not attention(query, key, value, backend=backend).requires_grad
    assert attention(query, key, value, backend=backend).requires_grad


@pytest.mark.parametrize("extra", ["plain", "everything"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(reentrant, extra):
    """The call is made again inside of the backward pass, with the same dropout."""
    given = given_for(Case(mask="left", lengths=(9, 9), extra=extra, strides="time-first"))
    wanted = ours(given, "tiled")
    leaves = given.fresh()
    options = given.options | {"backend": "tiled"}
    if "distance" in leaves:
        options |= {"bias": type_of_bias(leaves), "sinks": leaves["sinks"]}

    def block(query, key, value):
        return attention(query, key, value, **options)

    with seeded(3):
        made = torch.utils.checkpoint.checkpoint(
            block, leaves["query"], leaves["key"], leaves["value"], use_reentrant=reentrant
        )
        made.backward(given.upstream)
    assert torch.equal(made, wanted["output"])
    for name in ("query", "key", "value"):
        assert torch.equal(leaves[name].grad, wanted[f"gradient of {name}"]), name


def test_the_backward_pass_can_be_run_twice():
    given = given_for(Case(mask="causal", extra="everything"))
    leaves = given.fresh()
    with seeded(3):
        made = attention(
            leaves["query"], leaves["key"], leaves["value"],
            sinks=leaves["sinks"], bias=type_of_bias(leaves), backend="tiled", **given.options,
        )  # fmt: skip
    once, twice = (
        torch.autograd.grad(made, list(leaves.values()), given.upstream, retain_graph=True)
        for _time in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


def test_threads_do_not_share_buffers():
    from concurrent.futures import ThreadPoolExecutor

    cases = [
        given_for(Case(mask=mask, lengths=(11, 21), extra=extra))
        for mask, extra in itertools.product(("causal", "left", "per-head"), ("scale", "sinks"))
    ]
    with forced(None, "small"):
        wanted = [plain(given) for given in cases]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(plain, cases * 3))
    for at, results in enumerate(found):
        for name, value in wanted[at % len(cases)].items():
            assert torch.equal(results[name], value), (at, name)


def plain(given):
    """As ``ours``, without the generator that all threads share."""
    leaves = given.fresh()
    made = attention(
        leaves["query"], leaves["key"], leaves["value"],
        backend="tiled", sinks=leaves.get("sinks"), **given.options,
    )  # fmt: skip
    found = torch.autograd.grad(made, list(leaves.values()), given.upstream)
    return dict(zip(["output", *leaves], [made.detach(), *found], strict=True))


# -- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
def test_dropout_keeps_the_right_share(backend):
    """A binomial count: within 5 standard deviations."""
    given = given_for(Case(lengths=(40, 61), extra="dropout"))
    with forced(None, "middle"):
        kept = kept_by(given, backend) > 0
    p, n = given.options["dropout_p"], kept.numel()
    assert abs(int(kept.sum()) - n * (1 - p)) < 5 * (n * p * (1 - p)) ** 0.5
    # No two heads, samples or blocks of queries draw the same cells.
    rows = kept.flatten(0, 2)
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
def test_another_seed_drops_other_weights(backend):
    given = given_for(Case(extra="dropout"))
    one, same, other = (forward_only(given, backend, seed=seed)["output"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
def test_dropout_does_not_move_the_mean(backend):
    """The mean over n draws lies within 5 standard errors of the result without dropout."""
    given, n = given_for(Case(extra="dropout", mask="causal", lengths=(5, 5))), 400
    options = {"mask": Causal(), "backend": backend, "dropout_p": 0.4}
    query, key, value = (given.leaves[name] for name in ("query", "key", "value"))
    with seeded(5), torch.no_grad():
        draws = torch.stack([attention(query, key, value, **options) for _draw in range(n)])
        wanted = attention(query, key, value, mask=Causal(), backend=backend)
    error = 5 * draws.std(0) / n**0.5
    assert ((draws.mean(0) - wanted).abs() <= error + 1e-12).all()


@pytest.mark.parametrize("dtype", [torch.float64])
def test_dropped_gradients_by_finite_differences(dtype):
    given = given_for(Case(dtype, mask="left", extra="everything", lengths=(5, 7)))
    found = ours(given, "tiled")
    step = 1e-6
    for name, leaf in given.leaves.items():
        direction = draw(*leaf.shape, name=f"direction of {name}")
        ends = []
        for sign in (1, -1):
            moved = given.leaves | {name: leaf + sign * step * direction}
            shifted = type(given)(given.case, moved, given.upstream, None)
            ends.append((forward_only(shifted, "tiled")["output"] * given.upstream).sum())
        slope = (ends[0] - ends[1]) / (2 * step)
        inner = (found[f"gradient of {name}"] * direction).sum()
        # Central differences: step² times the third derivative, and eps/step of rounding.
        assert compare(slope, inner, allowed=1e-8 * max(1.0, abs(float(inner)))).passed, name


def test_the_seed_may_be_the_largest_one():
    """Seeds of tiles are sums: none may leave what a generator takes."""
    q, k, v = (draw(2, 6, 5, 4, name=name) for name in "qkv")
    call = Call(q, k, v, MaskParts(), 0.5, dropout_p=0.5)
    assert torch.equal(tiled.forward(call, 2**31 - 1)[0], tiled.forward(call, 2**31 - 1)[0])


# -- numbers that are no numbers -----------------------------------------------------------------


@pytest.mark.parametrize("where", ["keys", "values"])
@pytest.mark.parametrize("padding", ["left", "right", "holes"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_padded_tokens_reaches_no_real_row(backend, padding, where):
    q, k, v = (draw(B, 6, 9, 8, name=name) for name in "qkv")
    keep = {
        "left": torch.arange(9) >= torch.tensor([[4], [0]]),
        "right": torch.arange(9) < torch.tensor([[5], [9]]),
        "holes": bits(B, 9, name="holes", above=-0.3),
    }[padding]
    assert not keep.all()
    mask, gone = Padding(keep), ~keep[:, None, :, None]
    if where == "keys":
        k = k.masked_fill(gone, torch.nan)
    else:
        v = v.masked_fill(gone, torch.nan)
    clean = attention(
        q, k.masked_fill(gone, 7.0), v.masked_fill(gone, 7.0), mask=mask, backend="eager"
    )  # fmt: skip
    if backend == "ragged" and padding == "holes":
        return  # it refuses holes
    with torch.no_grad():
        assert compare(attention(q, k, v, mask=mask, backend=backend), clean, allowed=1e-13).passed
    if backend != "split-keys":  # no gradients there
        leaves = [x.requires_grad_() for x in (q, k, v)]
        made = attention(*leaves, mask=mask, backend=backend)
        found = torch.autograd.grad(made, leaves, torch.ones_like(made))
        assert all(g.isfinite().all() for g in found)


def test_nan_in_a_hidden_token_that_is_not_padding_is_not_promised_to_stay_there():
    """A zero weight times NaN is NaN: only padding says that nobody means what is there."""
    q, k, v = (draw(1, 2, 9, 8, name=name) for name in "qkv")
    hidden = Custom(torch.arange(9) != 2)
    v[:, :, 2] = torch.nan
    for backend in ("eager", "sdpa", "tiled"):
        assert attention(q, k, v, mask=hidden, backend=backend).isnan().all(), backend


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
@pytest.mark.parametrize("bias", [None, (9, 9)])
def test_nan_of_a_query_is_not_hushed_up(bias, backend):
    """A row of NaN is not a row that sees nothing, and the other rows stay what they are."""
    q, k, v = (draw(1, 2, 9, 8, name=name) for name in "qkv")
    bias = None if bias is None else draw(*bias, name="bias")
    clean = attention(q, k, v, mask=Causal(), bias=bias, backend=backend)
    q[0, 1, 4, 3] = torch.nan
    made = attention(q, k, v, mask=Causal(), bias=bias, backend=backend)
    assert made[0, 1, 4].isnan().all()
    touched = torch.zeros(1, 2, 9, 1).bool()
    touched[0, 1, 4] = True
    assert compare(made, clean, allowed=1e-13, where=~touched).passed


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
def test_infinite_scores_are_nan_as_in_the_definition(backend):
    q, k, v = (draw(1, 2, 9, 8, name=name) for name in "qkv")
    q[0, 0, 3, 2] = torch.inf
    made = attention(q, k, v, mask=Causal(), backend=backend)
    assert made[0, 0, 3].isnan().all()
    assert int(made.isnan().any(-1).sum()) == 1


@pytest.mark.parametrize("backend", ["eager", "tiled"])
def test_a_sink_of_minus_infinity_is_no_sink(backend):
    """Also for rows that see nothing."""
    q, k, v = draw(2, 6, 7, 8, name="q"), draw(2, 3, 5, 8, name="k"), draw(2, 3, 5, 8, name="v")
    sinks = torch.full((6,), -torch.inf, dtype=torch.float64)
    with_sinks = attention(q, k, v, mask=Causal(), sinks=sinks, backend=backend)
    without = attention(q, k, v, mask=Causal(), backend=backend)
    assert compare(with_sinks, without, allowed=1e-13).passed
    assert torch.equal(with_sinks[:, :, :2], torch.zeros(2, 6, 2, 8, dtype=torch.float64))


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
def test_large_scores_do_not_overflow(backend):
    q, k, v = (draw(1, 2, 9, 8, name=name) for name in "qkv")
    made = attention(q * 1e8, k, v, mask=Causal(), backend=backend)
    best = (q @ k.transpose(-1, -2)).masked_fill(~Causal().dense(9, 9), -torch.inf).argmax(-1)
    assert torch.equal(made, v.gather(2, best[..., None].expand(-1, -1, -1, 8)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_samples_that_see_nothing_belong_to_the_graph(backend):
    """Gradients of zero, not of nothing; and NaN in tokens that nobody reads stays there."""
    nobody = Padding(torch.zeros(B, 9, dtype=torch.bool))
    q, k, v = (draw(B, 6, 9, 8, name=name).requires_grad_() for name in "qkv")
    with torch.no_grad():
        q[0, 0, 0] = k[1, 0, 0] = v[1, 0, 1] = torch.nan
        if backend in ("tiled", "ragged"):
            assert torch.equal(
                attention(q, k, v, mask=nobody, backend=backend), torch.zeros_like(q)
            )
    if backend != "split-keys":  # no gradients there
        made = attention(q, k, v, mask=nobody, backend=backend)
        found = torch.autograd.grad(made, (q, k, v), torch.ones_like(made))
        if backend in ("tiled", "ragged"):
            assert all(torch.equal(g, torch.zeros_like(g)) for g in found)


# -- bfloat16 beside SDPA ------------------------------------------------------------------------


def rms_errors(dtype, head_dim, backend, route=None):
    """Root mean square of the error relative to that of the truth: output, dq, dk, dv."""
    shape = (1, 4, 512, head_dim)
    given = [draw(*shape, name=name).to(dtype) for name in ("q", "k", "v", "upstream")]

    def run(dtype, backend):
        q, k, v = (x.to(dtype).requires_grad_() for x in given[:3])
        made = attention(q, k, v, mask=Causal(), backend=backend)
        grads = torch.autograd.grad(made, (q, k, v), given[3].to(dtype))
        return [x.detach().double() for x in (made, *grads)]

    truth = run(torch.float64, "eager")
    with forced(route):
        found = run(dtype, backend)
    return [
        float((a - b).square().mean().sqrt() / b.square().mean().sqrt())
        for a, b in zip(found, truth, strict=True)
    ]


@pytest.mark.parametrize("route", routes_for(torch.bfloat16))
@pytest.mark.parametrize("head_dim", [64, 128])
def test_bfloat16_gradients_are_no_worse_than_those_of_sdpa(head_dim, route):
    ours = rms_errors(torch.bfloat16, head_dim, "tiled", routes_for(torch.bfloat16)[route])
    theirs = rms_errors(torch.bfloat16, head_dim, "sdpa")
    for name, own, other in zip(("dq", "dk", "dv"), ours[1:], theirs[1:], strict=True):
        assert own <= other, f"{name}: {own:.3e}, SDPA {other:.3e}"
    assert max(ours + theirs) < 0.01


def test_a_comparison_with_sdpa_can_fail():
    """The negative twin: gradients of bfloat16 weights that were rounded once more are worse."""
    theirs = rms_errors(torch.bfloat16, 64, "sdpa")
    eager = rms_errors(torch.bfloat16, 64, "eager")
    assert any(own > other for own, other in zip(eager[1:], theirs[1:], strict=True))


# -- other devices -------------------------------------------------------------------------------

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@needs_cuda
@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
@pytest.mark.parametrize("extra", ["plain", "everything", "bias-hiding"])
def test_on_cuda(backend, extra):
    from headwise.attend import DistanceBias

    given = given_for(Case(torch.float32, "left", lengths=(9, 9), extra=extra))
    options = given.options | {"dropout_p": 0.0}
    if backend == "sdpa" and extra == "everything":
        pytest.skip("SDPA has no softcap and no sinks")

    def run(device):
        leaves = {n: x.detach().to(device).requires_grad_() for n, x in given.leaves.items()}
        bias = leaves.get("bias")
        if "distance" in leaves:
            bias = DistanceBias(leaves["distance"])
        made = attention(
            leaves["query"], leaves["key"], leaves["value"],
            bias=bias, sinks=leaves.get("sinks"), backend=backend, **options,
        )  # fmt: skip
        grads = torch.autograd.grad(made, list(leaves.values()), given.upstream.to(device))
        return [x.detach().cpu() for x in (made, *grads)]

    for here, there in zip(run("cpu"), run("cuda"), strict=True):
        assert compare(there, here, allowed=1e-4).passed


def test_the_cpu_is_where_routes_are_measured():
    assert products.route(torch.float64, CPU).compute == torch.float64
    assert products.route(torch.bfloat16, torch.device("meta")).compute == torch.bfloat16
