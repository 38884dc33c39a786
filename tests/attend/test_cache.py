"""The cache on heads: one shot = chunks = token by token, for full and ring, padded or not."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attend.beside import Beside, cache_of, spec_of
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from headwise import KVCache
from headwise.attend.functional import make_call, run
from headwise.attend.parts import MaskParts
from headwise.errors import ShapeError, SpecError, UsageError
from headwise.spec import Alibi, AttentionSpec, Learned, Rope

ROPE = Rope(pairs="halves")
HEADS = {"MHA": (4, 4), "GQA": (4, 2), "MQA": (4, 1)}
T, F = True, False
LEFT = torch.tensor([[T, T, T, T, T], [F, F, T, T, T]])
RIGHT = torch.tensor([[T, T, T, F, F], [T, T, T, T, T]])
MIXED = torch.tensor([[F, T, T, F, F], [T, T, T, T, F]])
HOLES = torch.tensor([[T, F, T, F, T], [F, T, F, F, T]])
EMPTY_ROW = torch.tensor([[T, T, T, T, T], [F, F, F, F, F]])
PADDED = {"left": LEFT, "right": RIGHT, "mixed": MIXED, "holes": HOLES, "empty row": EMPTY_ROW}


def small(**fields) -> KVCache:
    """B 2, Hkv 1, Dk 2, Dv 3, eight tokens."""
    sizes = {"batch": 2, "num_kv_heads": 1, "head_dim": 2, "v_head_dim": 3, "max_len": 8}
    return KVCache(**(sizes | fields))


def tokens(new: int, *, batch: int = 2, dtype: torch.dtype = torch.float32, value: float = 1.0):
    """k and v for ``small``."""
    return (
        torch.full((batch, 1, new, 2), value, dtype=dtype),
        torch.full((batch, 1, new, 3), value, dtype=dtype),
    )


def state(cache: KVCache) -> list[Tensor]:
    """All that a later call can see."""
    store = cache._store
    first = torch.as_tensor(store.rows.first)
    return [store.key.clone(), store.value.clone(), cache.lengths, first, torch.tensor(len(cache))]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# ---------------------------------------------------------------------- equal to one shot
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("window", [None, (3, 0), (0, 0), (6, 2), (None, 1)])
@pytest.mark.parametrize("chunks", [[12], [1] * 12, [5, 1, 1, 5], [1, 11], [7, 5], [0, 4, 0, 8]])
def test_chunks_are_one_shot(heads, window, chunks):
    spec = spec_of(*HEADS[heads], window=window, positions=ROPE)
    told = Beside(spec, cache_of(spec, room=2))
    assert [wrong for new in chunks for wrong in told.say(new)] == []


@pytest.mark.parametrize("leave_out", ["rotation", "mask"])
def test_what_is_left_out_would_be_noticed(leave_out):
    spec = spec_of(positions=ROPE)
    assert Beside(spec, cache_of(spec), leave_out=leave_out).say(5) != []


def test_another_window_would_be_noticed():
    told = Beside(spec_of(window=(3, 0)), cache_of(spec_of(window=(4, 0)), room=2))
    assert told.say(4) == []
    assert told.say(1) != []


@pytest.mark.parametrize("keep", PADDED)
@pytest.mark.parametrize("window", [None, (2, 0)])
def test_padded_prompts_then_steps_and_chunks(keep, window):
    spec = spec_of(window=window, positions=ROPE)
    told = Beside(spec, cache_of(spec, room=3))
    assert told.say(5, PADDED[keep]) == []
    for _step in range(6):
        assert told.say(1) == []
    assert told.say(5, PADDED[keep]) == []
    assert told.say(4) == []


@pytest.mark.parametrize("window", [None, (3, 0)])
def test_rows_that_get_different_numbers_of_tokens(window):
    spec = spec_of(window=window, positions=ROPE)
    told = Beside(spec, cache_of(spec, room=2))
    assert told.say(3) == []
    for step in range(8):
        keep = torch.tensor([[T], [step % 3 == 0]])
        assert told.say(1, keep) == []
    assert told.cache.lengths.tolist() == [11, 6]


LAYOUTS = st.sampled_from(list(HEADS.values()))
WINDOWS = st.one_of(st.none(), st.tuples(st.integers(0, 5), st.sampled_from([0, 1, None])))


@settings(max_examples=40, deadline=None)
@given(layout=LAYOUTS, window=WINDOWS, room=st.integers(0, 4), chunks=st.lists(st.integers(0, 6)))
def test_any_chunks_are_one_shot(layout, window, room, chunks):
    spec = spec_of(*layout, window=window, positions=ROPE)
    told = Beside(spec, cache_of(spec, room=room, max_len=64 if window is None else None))
    assert [wrong for new in chunks[:10] for wrong in told.say(new)] == []


@st.composite
def turns(draw: st.DrawFn):
    """New tokens with and without padding, cuts and other rows, in any order."""
    kind = draw(st.sampled_from(["say", "say", "say", "pad", "pad", "cut", "rows", "cut rows"]))
    new = draw(st.integers(1, 5))
    keep = draw(st.lists(st.booleans(), min_size=15, max_size=15))
    return kind, new, torch.tensor(keep).view(3, 5)[:, :new]


@settings(max_examples=60, deadline=None)
@given(
    layout=LAYOUTS,
    window=WINDOWS,
    room=st.integers(0, 4),
    talk=st.lists(turns(), min_size=2, max_size=10),
    rotated=st.booleans(),
)
def test_any_conversation_is_one_shot(layout, window, room, talk, rotated):
    spec = spec_of(*layout, window=window, positions=ROPE if rotated else None)
    told = Beside(spec, cache_of(spec, batch=3, room=room))
    wrong = []
    for kind, new, keep in talk:
        lengths = told.cache.lengths
        if kind == "say":
            wrong += told.say(new)
        elif kind == "pad":
            wrong += told.say(new, keep)
        elif kind == "rows":
            told.reorder([new % 3, 0, 2])
        else:  # a ring says no if what would be seen is gone
            target = max(0, len(told.cache) - new) if kind == "cut" else (lengths - new).clamp(0)
            before = state(told.cache)
            try:
                told.truncate(target)
            except UsageError as error:
                assert window is not None and window[0] is not None
                assert "the ring has dropped" in error.what  # noqa: PT017
                assert same(before, state(told.cache))
    assert wrong == []


# ---------------------------------------------------------------------- positions
def test_positions_are_those_of_the_definition():
    """Real tokens before it; padding has the position of the last real token, or 0."""
    cache = small()
    assert cache.next_positions(3).tolist() == [[0, 1, 2]]
    keep = torch.tensor([[F, F, T, T], [T, T, F, F]])
    assert cache.next_positions(4, keep).tolist() == [[0, 0, 0, 1], [0, 1, 1, 1]]
    cache.append(*tokens(4), keep)
    assert cache.next_positions(2).tolist() == [[2, 3]]
    cache.append(*tokens(1), torch.tensor([[F], [T]]))
    assert cache.next_positions(1).tolist() == [[2], [3]]
    assert cache.next_positions(2, torch.tensor([[F, T], [T, T]])).tolist() == [[1, 2], [3, 4]]
    assert cache.next_positions(1).dtype == torch.int64


def test_positions_of_keys():
    cache = small(max_len=None, window=(2, 0), room=2)
    assert cache.append(*tokens(3)).k_positions.tolist() == [[0, 1, 2]]
    assert cache.append(*tokens(2)).k_positions.tolist() == [[1, 2, 3, 4]]
    assert cache.append(*tokens(2)).k_positions.tolist() == [[3, 4, 5, 6]]
    assert cache.append(*tokens(9)).k_positions.tolist() == [list(range(5, 16))]
    ragged = small()
    first = ragged.append(*tokens(3), torch.tensor([[F, T, T], [T, T, T]]))
    assert first.k_positions.tolist() == [[0, 0, 1], [0, 1, 2]]
    assert ragged.append(*tokens(1)).k_positions.tolist() == [[0, 1, 2, 3]]


# ---------------------------------------------------------------------- as cheap as possible
def test_equal_rows_need_numbers_only():
    cache = small(batch=2, max_len=32)
    assert cache.append(*tokens(3)).mask == MaskParts(highest=0)
    assert cache.append(*tokens(2)).mask == MaskParts(highest=3)
    assert cache.append(*tokens(1)).mask.hides_nothing
    ring = small(max_len=None, window=(3, 0), room=4)
    assert ring.append(*tokens(3)).mask == MaskParts(highest=0)
    assert ring.append(*tokens(2)).mask == MaskParts(lowest=0, highest=3)
    for _step in range(9):
        cached = ring.append(*tokens(1))
        assert cached.mask.hides_nothing
        assert cached.key.shape[2] == 4
        assert cached.slots_are_positions


def test_the_first_tokens_are_attended_as_they_are():
    k, v = tokens(5)
    for keep in (None, LEFT, RIGHT):
        cached = small().append(k, v, keep)
        assert cached.key is k
        assert cached.value is v
        assert cached.mask == MaskParts(highest=0, keep=keep)
        assert cached.slots_are_positions
    holes = small().append(k, v, HOLES)
    assert not holes.slots_are_positions
    assert holes.mask.table.shape == (2, 1, 5, 3)


def test_one_token_per_row_needs_a_row_of_keys_and_more_a_table():
    cache = small()
    cache.append(*tokens(3), torch.tensor([[F, T, T], [T, T, T]]))
    one = cache.append(*tokens(1))
    assert one.mask.keep.tolist() == [[T, T, T, F], [T, T, T, T]]
    assert (one.mask.table, one.mask.highest, one.slots_are_positions) == (None, None, False)
    two = cache.append(*tokens(2))
    assert two.mask.table[0, 0].tolist() == [[T, T, T, T, F, F], [T, T, T, T, T, F]]
    assert two.mask.table.shape == (2, 1, 2, 6)


def test_rows_that_meet_again_are_equal_again():
    cache = small()
    cache.append(*tokens(2), torch.tensor([[F, T], [T, T]]))
    assert not cache.rows_are_equal
    cache.append(*tokens(1), torch.tensor([[T], [F]]))
    assert cache.rows_are_equal
    assert cache.append(*tokens(1)).mask.hides_nothing
    all_real = small().append(*tokens(2), torch.ones(2, 2, dtype=torch.bool))
    assert all_real.mask.keep is None


def test_what_is_returned_is_a_view_of_the_buffers():
    cache = small()
    cache.append(*tokens(2))
    cached = cache.append(*tokens(1, value=2.0))
    assert cached.key.data_ptr() == cache._store.key.data_ptr()
    assert cached.key[0, 0, :, 0].tolist() == [1.0, 1.0, 2.0]


# ---------------------------------------------------------------------- ring
def test_a_ring_stays_small_and_remembers_its_window():
    spec = spec_of(window=(3, 0), positions=ROPE)
    cache = cache_of(spec, max_len=None, room=4)
    told = Beside(spec, cache)
    assert (cache.capacity, cache.is_ring) == (8, True)
    for step in range(50):
        assert told.say(1 + step % 3) == []
    assert cache._store.key.shape[2] == 8
    assert len(cache) == 99


def test_a_chunk_longer_than_the_room():
    spec = spec_of(window=(3, 0), positions=ROPE)
    for keep in (None, torch.arange(20) >= torch.tensor([[0], [7]])):
        told = Beside(spec, cache_of(spec, room=1))
        for new in (2, 20, 1, 20, 3):
            assert told.say(new, keep if new == 20 else None) == []
        assert told.cache._store.key.shape[2] == 5


def test_a_ring_drops_what_no_query_sees():
    cache = small(max_len=None, window=(1, 0), room=1)
    for value in range(5):
        cached = cache.append(*tokens(1, value=float(value)))
    assert cached.key[0, 0, :, 0].tolist() == [3.0, 4.0]
    assert cache._store.key[0, 0, :, 0].tolist() == [2.0, 3.0, 4.0]


def test_a_window_as_long_as_the_text_is_no_ring():
    cache = small(max_len=8, window=(100, 0))
    assert (cache.capacity, cache.is_ring) == (8, False)
    assert small(max_len=8, window=(2, 0), room=100).is_ring is False
    assert small(max_len=8, window=(2, 0), room=1).is_ring is True


def test_a_ring_ends_at_max_len():
    cache = small(max_len=8, window=(1, 0), room=1)
    for _step in range(4):
        cache.append(*tokens(2))
    with pytest.raises(UsageError, match="8 \\+ 1 tokens do not fit a cache of 8"):
        cache.append(*tokens(1))


# ---------------------------------------------------------------------- values are exact
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, (2, 0)])
def test_stored_values_are_the_given_ones(dtype, window):
    cache = KVCache(
        batch=2, num_kv_heads=3, head_dim=4, v_head_dim=5, max_len=16, window=window, room=2,
        dtype=dtype,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(1)
    k, v = (torch.randn(2, 3, 9, size, generator=draw).to(dtype) for size in (4, 5))
    keep = torch.tensor([[T] * 9, [F, T, T] * 3])
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        here = slice(start, stop)
        cached = cache.append(k[:, :, here], v[:, :, here], keep[:, here])
    for row in range(2):
        has = int(keep[row].sum())
        real_k, real_v = k[row][:, keep[row]], v[row][:, keep[row]]
        begin = int(torch.as_tensor(cache._store.rows.first).expand(2)[row])  # dropped by a ring
        assert torch.equal(cache._store.key[row, :, : has - begin], real_k[:, begin:])
        assert torch.equal(cache._store.value[row, :, : has - begin], real_v[:, begin:])
    assert cached.key.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_steps_are_the_rows_of_one_shot(dtype):
    """Each row of one shot is computed from the same stored numbers, so only sums may differ."""
    draw = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 9, 4, generator=draw).to(dtype) for _tensor in "qkv")
    whole = KVCache(batch=1, num_kv_heads=2, head_dim=4, max_len=16, dtype=dtype)
    once = whole.append(k, v)
    truth, _weights = run(make_call(q, once.key, once.value, mask=once.mask), "eager")
    steps = KVCache(batch=1, num_kv_heads=2, head_dim=4, max_len=16, dtype=dtype)
    for t in range(9):
        here = slice(t, t + 1)
        cached = steps.append(k[:, :, here], v[:, :, here])
        call = make_call(q[:, :, here], cached.key, cached.value, mask=cached.mask)
        context, _weights = run(call, "eager")
        # Four ulp at the scale of the values: rounding of weights and of the sum.
        allowed = 4 * torch.finfo(dtype).eps * v.abs().max().item()
        assert (context - truth[:, :, here]).abs().max().item() <= allowed


def test_what_a_row_no_longer_holds_cannot_come_back_as_nan():
    """Zero weight times a stale NaN would be NaN."""
    cache = small()
    cache.append(*tokens(4, value=math.nan))
    cache.truncate(1)
    cache.reset()
    keep = torch.tensor([[T, T, T], [F, F, T]])
    cache.append(*tokens(3), keep)
    k, v = tokens(1)
    cached = cache.append(k, v)
    context, _weights = run(make_call(k, cached.key, cached.value, mask=cached.mask), "eager")
    assert context.isfinite().all()
    ring = small(max_len=None, window=(1, 0), room=2)
    ring.append(*tokens(2, value=math.nan))
    ring.append(*tokens(4))
    assert ring._store.key.isfinite().all()
    assert ring._store.value.isfinite().all()


# ---------------------------------------------------------------------- going back, other rows
def test_truncate_forgets_the_newest():
    spec = spec_of(positions=ROPE)
    told = Beside(spec, cache_of(spec))
    told.say(6)
    told.truncate(4)
    assert told.say(3) == []
    told.truncate(torch.tensor([5, 2]))
    assert told.say(2) == []
    told.truncate(6)  # the shorter row stays as it is
    assert told.cache.lengths.tolist() == [6, 4]
    assert told.say(1) == []
    told.truncate(3)
    assert told.cache.rows_are_equal
    assert told.say(2) == []
    told.truncate(0)
    assert told.say(5, LEFT) == []


def test_drafts_that_were_not_accepted():
    """As many tokens as were appended last can be taken back, in a ring too."""
    spec = spec_of(window=(5, 0), positions=ROPE)
    told = Beside(spec, cache_of(spec, max_len=None, room=4))
    told.say(7)
    for step in range(20):
        draft = 1 + step % 5
        assert told.say(draft) == []
        told.truncate(len(told.cache) - draft + step % 2)
    assert told.say(5, LEFT) == []
    told.truncate(told.cache.lengths - LEFT.sum(1))
    assert told.say(2) == []


def test_reorder_is_a_choice_of_rows():
    spec = spec_of(positions=ROPE)
    told = Beside(spec, cache_of(spec, batch=3))
    told.say(4, torch.tensor([[T, T, T, T], [F, F, T, T], [F, T, T, F]]))
    told.reorder([2, 2, 0])
    assert told.say(3) == []
    told.reorder([1, 0, 1, 1, 2])
    assert told.cache.batch == 5
    assert told.say(2) == []
    told.reorder([4])
    assert told.say(2) == []


def test_reset_is_a_new_cache_in_the_same_memory():
    cache = small()
    place = cache._store.key.data_ptr()
    cache.append(*tokens(3), torch.tensor([[F, T, T], [T, T, T]]))
    cache.reset()
    assert same(state(cache), state(small()))
    assert cache._store.key.data_ptr() == place


@pytest.mark.parametrize("copied", [KVCache.clone, copy.deepcopy])
def test_copies_go_their_own_way(copied):
    cache = small()
    cache.append(*tokens(3), torch.tensor([[F, T, T], [T, T, T]]))
    before = state(cache)
    twin = copied(cache)
    assert same(before, state(twin))
    twin.append(*tokens(2, value=5.0))
    assert same(before, state(cache))
    assert len(twin) == 5


# ---------------------------------------------------------------------- modes of torch
def test_made_in_inference_mode_and_used_outside():
    with torch.inference_mode():
        cache = small()
        cache.append(*tokens(3), torch.tensor([[F, T, T], [T, T, T]]))
        twin = cache.clone()
        cache.reorder([1, 0])
    for one in (cache, twin, copy.deepcopy(cache)):
        one.append(*tokens(1))
        assert one.lengths.tolist() == ([3, 4] if one is twin else [4, 3])
        one.truncate(1)
        one.reorder([0, 0, 1])
        one.append(*tokens(1, batch=3))
        assert one.lengths.tolist() == [2, 2, 2]


def test_a_gradient_is_refused_before_anything_is_stored():
    cache = small()
    k, v = tokens(1)
    before = state(cache)
    with pytest.raises(UsageError) as caught:
        cache.append(k, v.requires_grad_())
    assert str(caught.value) == (
        "v needs a gradient, and a cache keeps none\n"
        "  where  KVCache.append(v)\n"
        "  why    buffers are written in place: the gradients of earlier steps would be wrong or "
        "lost\n"
        "  fix    with torch.inference_mode(): …, or no cache while training"
    )
    assert same(before, state(cache))
    with torch.no_grad():
        cached = cache.append(k, v)
    assert not cached.value.detach().requires_grad
    assert not cache._store.value.requires_grad


def test_the_meta_device_has_sizes_only():
    cache = small(device="meta")
    k, v = (x.to("meta") for x in tokens(3))
    cache.append(k, v)
    assert cache.append(k, v).key.shape == (2, 1, 6, 2)
    assert cache.next_positions(2).device.type == "meta"


@pytest.mark.parametrize("window", [None, (7, 0)])
@pytest.mark.parametrize("padded", [False, True])
def test_steps_compile_without_a_break_and_not_again_and_again(window, padded):
    torch._dynamo.reset()
    counter = CompileCounter()
    cache = small(max_len=64, window=window, room=8)
    expected = small(max_len=64, window=window, room=8)
    if padded:
        for one in (cache, expected):
            one.append(*tokens(3), torch.tensor([[F, T, T], [T, T, T]]))

    def step(k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
        positions = cache.next_positions(1)
        cached = cache.append(k, v)
        context, _weights = run(make_call(k, cached.key, cached.value, mask=cached.mask), "sdpa")
        return context * positions.sum()

    compiled = torch.compile(step, backend=counter, fullgraph=True)
    for t in range(20):
        k, v = tokens(1, value=float(t))
        assert torch.equal(compiled(k, v, cache), step(k, v, expected))
    assert counter.frame_count <= 4  # first tokens, then any; a ring that moves, then any
    assert same(state(cache), state(expected))
    torch._dynamo.reset()


# ---------------------------------------------------------------------- memory
def test_memory_is_what_the_formula_says():
    cache = KVCache(batch=1, num_kv_heads=3, head_dim=64, max_len=2048)
    assert cache.memory() == (
        "2 tensors × B 1 × Hkv 3 × 2048 × 64 × 4 bytes = 3.0 MiB\n"
        "one token of one row: 1536 bytes; the longest row has 0 of 2048"
    )
    assert cache.nbytes == 2 * 1 * 3 * 2048 * 64 * 4
    assert cache.nbytes == 2048 * cache.bytes_per_token
    ring = small(max_len=None, window=(3, 0), room=4, dtype=torch.bfloat16)
    ring.append(*tokens(2, dtype=torch.bfloat16))
    assert ring.memory() == (
        "B 2 × Hkv 1 × 8 × (Dk 2 + Dv 3) × 2 bytes = 160 bytes\n"
        "one token of one row: 10 bytes; the longest row has 2 of any number"
    )
    assert ring.nbytes == 2 * 8 * ring.bytes_per_token == 160


def test_memory_of_mistral_7b_with_and_without_its_window():
    """32 layers × 8 heads × 128: 4 GiB for 32k tokens, 512 MiB for a window of 4096."""
    spec = AttentionSpec(
        d_model=4096, num_heads=32, num_kv_heads=8, is_causal=True, window=(4095, 0)
    )
    device, dtype = torch.device("meta"), torch.bfloat16
    ring = KVCache.for_spec(spec, batch=1, dtype=dtype, device=device, room=0)
    assert 32 * ring.nbytes == 512 * 2**20
    full = spec.replace(window=None)
    cache = KVCache.for_spec(full, batch=1, max_len=2**15, dtype=dtype, device=device)
    assert 32 * cache.nbytes == 4 * 2**30
    usual = KVCache.for_spec(spec, batch=1, dtype=dtype, device=device)
    assert usual.nbytes / ring.nbytes == 1 + 128 / 4096


def test_repr_and_sizes():
    cache = small()
    cache.append(*tokens(3), torch.tensor([[F, T, T], [T, T, T]]))
    assert (
        repr(cache) == "KVCache(full, B 2, Hkv 1, Dk 2, Dv 3, 2 to 3 tokens, capacity 8, float32)"
    )
    assert (cache.batch, cache.capacity, cache.dtype, len(cache)) == (2, 8, torch.float32, 3)
    assert bool(small())  # an empty cache is a cache


# ---------------------------------------------------------------------- for a spec
def test_for_spec_takes_sizes_and_window():
    spec = spec_of(window=(3, 0))
    cache = KVCache.for_spec(spec, batch=2, dtype=torch.float16)
    assert repr(cache) == ("KVCache(ring, B 2, Hkv 2, Dk 4, Dv 3, 0 tokens, capacity 132, float16)")
    assert cache.max_len is None
    table = spec_of(positions=Learned(max_len=12))
    assert KVCache.for_spec(table, batch=1).capacity == 12
    assert KVCache.for_spec(table, batch=1, max_len=5).capacity == 5
    assert KVCache.for_spec(spec_of(positions=Alibi()), batch=1, max_len=7).capacity == 7


def test_for_spec_refuses_what_is_not_causal():
    with pytest.raises(SpecError) as caught:
        KVCache.for_spec(AttentionSpec(d_model=8, num_heads=2), batch=1, max_len=4)
    assert str(caught.value) == (
        "a cache needs a causal layer\n"
        "  where  KVCache.for_spec(AttentionSpec(is_causal=False))\n"
        "  why    without the causal rule, a new token changes what earlier ones see\n"
        "  fix    spec.replace(is_causal=True), or no cache"
    )


# ---------------------------------------------------------------------- errors
def test_overflow_says_all_numbers_and_stores_nothing():
    cache = small()
    cache.append(*tokens(6))
    before = state(cache)
    with pytest.raises(UsageError) as caught:
        cache.append(*tokens(3))
    assert str(caught.value) == (
        "6 + 3 tokens do not fit a cache of 8\n"
        "  where  KVCache.append(k, v), max_len=8\n"
        "  why    the longest row would have 9 tokens; nothing was stored\n"
        "  fix    max_len of at least 9, reset() for a new text, or a window, which forgets what "
        "it does not see"
    )
    assert same(before, state(cache))
    cache.append(*tokens(2))
    assert len(cache) == 8


def test_overflow_counts_real_tokens_only():
    cache = small()
    cache.append(*tokens(6), torch.tensor([[T] * 6, [F] * 3 + [T] * 3]))
    before = state(cache)
    cache.append(*tokens(5), torch.tensor([[F, F, F, T, T], [T] * 5]))  # 8 and 8
    assert cache.lengths.tolist() == [8, 8]
    cache.truncate(torch.tensor([6, 3]))
    assert same(before, state(cache))
    with pytest.raises(UsageError) as caught:
        cache.append(*tokens(3), torch.tensor([[T, T, T], [F, F, T]]))
    assert caught.value.what == "6 + 3 tokens do not fit a cache of 8"
    assert caught.value.why == "the longest row would have 9 tokens; nothing was stored"
    assert same(before, state(cache))
    with pytest.raises(UsageError, match="6 \\+ 4 tokens do not fit"):
        cache.append(*tokens(4))
    assert same(before, state(cache))


ONE = torch.ones(2, 1, 1, 2)
BAD_TOKENS = [
    (
        lambda k, v: (None, v),
        "k is a NoneType, not a tensor\n"
        "  where  KVCache.append(k)\n"
        "  fix    tensors of shape (B, H, T, D)",
    ),
    (
        lambda k, v: (k[0], v),
        "k is (1, 1, 2), the cache takes (2, 1, T, 2)\n"
        "  where  KVCache.append(k)\n"
        "  why    tensors are (batch, key/value heads, time, channels)\n"
        "  fix    transpose(1, 2) for (B, T, H, D) tensors; heads before they are repeated",
    ),
    (lambda k, v: (k[:1], v), "k is (1, 1, 1, 2), the cache takes (2, 1, T, 2)"),
    (lambda k, v: (k.repeat(1, 4, 1, 1), v), "k is (2, 4, 1, 2), the cache takes (2, 1, T, 2)"),
    (lambda k, v: (k, k), "v is (2, 1, 1, 2), the cache takes (2, 1, T, 3)"),
    (
        lambda k, v: (k, torch.cat([v, v], 2)),
        "k has 1 tokens and v has 2\n"
        "  where  k (2, 1, 1, 2), v (2, 1, 2, 3)\n"
        "  why    every key has one value",
    ),
    (
        lambda k, v: (k.double(), v),
        "k is torch.float64, the cache holds torch.float32\n"
        "  where  KVCache.append(k)\n"
        "  why    nothing is converted silently\n"
        "  fix    a cache with dtype=torch.float64",
    ),
    (
        lambda k, v: (k, v.to("meta")),
        "v is on meta, the cache is on cpu\n"
        "  where  KVCache.append(v)\n"
        "  fix    a cache with device='meta'",
    ),
]


@pytest.mark.parametrize(("bad", "text"), BAD_TOKENS)
def test_tokens_that_do_not_fit(bad, text):
    cache = small()
    cache.append(*tokens(2))
    before = state(cache)
    with pytest.raises((ShapeError, UsageError)) as caught:
        cache.append(*bad(*tokens(1)))
    shown = str(caught.value)
    assert shown == text if "\n" in text else shown.startswith(text + "\n")
    assert same(before, state(cache))


BAD_KEEPS = [
    (
        torch.ones(2, 5, dtype=torch.bool),
        "keep is (2, 5), not (2, 3)\n"
        "  where  KVCache.append(keep)\n"
        "  why    it says of each *new* token whether it is real, (B, T)\n"
        "  fix    keep[:, -3:], if it covers the earlier tokens too",
    ),
    ([[True]], "keep is list, not (2, 3)"),
    (
        torch.ones(2, 3),
        "keep has dtype torch.float32\n"
        "  where  KVCache.append(keep)\n"
        "  why    True = real, False = padding\n"
        "  fix    keep.bool() if 1 = real",
    ),
    (
        torch.ones(2, 3, dtype=torch.bool, device="meta"),
        "keep is on meta, the cache is on cpu\n"
        "  where  KVCache.append(keep)\n"
        "  fix    tensor.to('cpu')",
    ),
]


@pytest.mark.parametrize(("keep", "text"), BAD_KEEPS)
def test_keeps_that_do_not_fit(keep, text):
    cache = small()
    before = state(cache)
    with pytest.raises((ShapeError, UsageError)) as caught:
        cache.append(*tokens(3), keep)
    shown = str(caught.value)
    assert shown == text if "\n" in text else shown.startswith(text + "\n")
    assert same(before, state(cache))
    with pytest.raises((ShapeError, UsageError)) as caught:
        cache.next_positions(3, keep)
    assert str(caught.value) == shown.replace("append", "next_positions")


BAD_SIZES = [
    (
        {"batch": 0},
        "batch=0 is not a positive whole number\n  where  KVCache(batch=0)",
    ),
    ({"head_dim": 2.0}, "head_dim=2.0 is not a positive whole number"),
    ({"max_len": True}, "max_len=True is not a positive whole number"),
    (
        {"room": -1},
        "room=-1 is not a whole number from 0 up\n"
        "  where  KVCache(room=-1)\n"
        "  why    room is the number of slots of a ring beyond its window",
    ),
    (
        {"window": 4},
        "window=4 is not a pair of distances\n"
        "  where  KVCache(window=4)\n"
        "  fix    (left, right), inclusive; w keys that end at the query are (w - 1, 0)",
    ),
    ({"window": (-1, 0)}, "window=(-1, 0) is not a pair of distances"),
    (
        {"max_len": None},
        "max_len is missing\n"
        "  where  KVCache(max_len=None)\n"
        "  why    the buffers are made once, and no window limits what a query sees\n"
        "  fix    max_len = tokens of the prompt + tokens to generate",
    ),
    ({"max_len": None, "window": (None, 0)}, "max_len is missing"),
    (
        {"dtype": torch.int64},
        "a cache can't hold torch.int64\n"
        "  where  KVCache(dtype=torch.int64)\n"
        "  fix    torch.float64, torch.float32, torch.bfloat16, torch.float16",
    ),
]


@pytest.mark.parametrize(("sizes", "text"), BAD_SIZES)
def test_caches_that_cannot_be(sizes, text):
    with pytest.raises(UsageError) as caught:
        small(**sizes)
    shown = str(caught.value)
    assert shown == text if "\n" in text else shown.startswith(text + "\n")


def test_lengths_that_it_cannot_go_back_to():
    cache = small()
    cache.append(*tokens(3))
    bad = [4, -1, None, [1, 2], torch.tensor([3]), torch.tensor([1, 4]), torch.tensor([1.0, 2.0])]
    for length in bad:
        before = state(cache)
        with pytest.raises(UsageError) as caught:
            cache.truncate(length)
        assert same(before, state(cache))
    assert str(caught.value) == (
        "can't go back to [1.0, 2.0] tokens from 3\n"
        "  where  KVCache.truncate([1.0, 2.0])\n"
        "  why    a cache can only be cut\n"
        "  fix    a number up to len(cache), or one whole number per row, up to cache.lengths"
    )
    cache.append(*tokens(1), torch.tensor([[T], [F]]))
    with pytest.raises(UsageError, match="can't go back to 9 tokens from \\[4, 3\\]"):
        cache.truncate(9)


def test_a_ring_cannot_go_back_to_what_it_dropped():
    cache = small(max_len=None, window=(3, 0), room=1)
    for _step in range(3):
        cache.append(*tokens(2))
    assert cache._store.rows.first == 1
    with pytest.raises(UsageError) as caught:
        cache.truncate(3)
    assert str(caught.value) == (
        "can't go back to 3 tokens: the ring has dropped what they see\n"
        "  where  KVCache.truncate(3)\n"
        "  why    the next query sees 3 earlier tokens, from position 0, and the first one held "
        "is at 1\n"
        "  fix    more room, or clone() before the tokens that may be taken back"
    )
    cache.truncate(4)
    with pytest.raises(UsageError, match="can't go back to 2 tokens: the ring has dropped"):
        cache.truncate(torch.tensor([2, 4]))
    assert cache.lengths.tolist() == [4, 4]
    cache.truncate(0)
    assert len(cache) == 0


def test_rows_that_do_not_exist():
    cache = small()
    for indices in ([0, 2], [-1, 0], [], "ab", None, torch.tensor([0.0, 1.0]), [[0, 1]]):
        before = state(cache)
        with pytest.raises(UsageError) as caught:
            cache.reorder(indices)
        assert same(before, state(cache))
    assert str(caught.value) == (
        "rows [[0, 1]] are not all rows of a cache of 2\n"
        "  where  KVCache.reorder([[0, 1]])\n"
        "  why    row numbers are whole and go from 0 to 1"
    )
