"""The converted masks in the APIs they are for: a hidden key must not move the output at all."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from headwise.masks import (
    Causal,
    Custom,
    Mask,
    Padding,
    Window,
    from_convention,
    to_convention,
    window_from_key_count,
)

B, H, TQ, TK, D = 2, 3, 4, 5, 8
KEEP = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
PER_HEAD = Custom(torch.rand(B, H, TQ, TK, generator=torch.Generator().manual_seed(3)) > 0.4)
# Every query sees its own first key at least, so that no API meets an empty row.
SAFE = Custom(torch.eye(TK, dtype=torch.bool)[[1, 1, 2, 3]])
MASKS = {
    "padding": Padding(KEEP),
    "causal": Causal(),
    "causal and padding": Causal() & Padding(KEEP),
    "window": Causal() & Window(1, 0),
    "per head": PER_HEAD | SAFE,
}


def inputs(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def run_sdpa(raw: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return sdpa(inputs(B, H, TQ, D), k, v, attn_mask=raw)


def influence(run, keep: torch.Tensor) -> tuple[bool, bool]:
    """Whether hidden keys move the output, and whether every visible one does.

    Args:
        run: (k, v) -> (B, H, Tq, D), a function of keys and values.
        keep: (B, H, Tq, Tk).
    """
    k, v = inputs(B, H, TK, D, seed=1), inputs(B, H, TK, D, seed=2)
    plain = run(k, v)
    assert not plain.isnan().any()
    hidden_moves, visible_moves = False, True
    for j in range(TK):
        other_k, other_v = k.clone(), v.clone()
        other_k[:, :, j] += 1.0
        other_v[:, :, j] += 1.0
        moved = (run(other_k, other_v) != plain).any(-1)
        hidden_moves |= bool(moved[~keep[..., j]].any())
        visible_moves &= bool(moved[keep[..., j]].all())
    return hidden_moves, visible_moves


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", ["torch-sdpa", "onnx-bool", "onnx-additive", "hf-4d-additive"])
def test_sdpa(name: str, mask: Mask):
    sizes = {"q_len": TQ, "kv_len": TK, "batch": B, "num_heads": H}
    raw = to_convention(name, mask, **sizes, dtype=torch.float64)
    keep = mask.dense(TQ, TK, batch=B).expand(B, H, TQ, TK)
    assert influence(lambda k, v: run_sdpa(raw, k, v), keep) == (False, True)


def test_influence_notices_the_wrong_polarity():
    mask = MASKS["causal and padding"]
    raw = to_convention("torch-sdpa", mask, q_len=TQ, kv_len=TK, batch=B)
    raw = ~raw | SAFE.dense(TQ, TK)
    keep = mask.dense(TQ, TK, batch=B).expand(B, H, TQ, TK)
    assert influence(lambda k, v: run_sdpa(raw, k, v), keep) == (True, False)


def test_influence_notices_a_0_1_mask_that_is_added():
    """What SDPA does silently with the mask that ``from_convention`` refuses."""
    keep = Padding(KEEP).dense(TQ, TK, batch=B)
    hidden_moves, _ = influence(
        lambda k, v: run_sdpa(keep.double(), k, v), keep.expand(B, H, TQ, TK)
    )
    assert hidden_moves


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_mha_weights(mask: Mask, need_weights: bool):
    layer = torch.nn.MultiheadAttention(H * D, H, batch_first=True, dtype=torch.float64)
    layer.in_proj_bias.data = inputs(3 * H * D, seed=5)
    sizes = {"q_len": TQ, "kv_len": TK, "batch": B, "num_heads": H}
    raw = to_convention("torch-mha-attn", mask, **sizes)
    x, context = inputs(B, TQ, H * D), inputs(B, TK, H * D, seed=1)
    out, weights = layer(
        x, context, context, attn_mask=raw, need_weights=need_weights, average_attn_weights=False
    )
    assert not out.isnan().any()
    keep = mask.dense(TQ, TK, batch=B).expand(B, H, TQ, TK)
    if need_weights:
        assert torch.equal(weights != 0, keep)
    for j in range(TK):
        other = context.clone()
        other[:, j] += 1.0
        moved = layer(x, other, other, attn_mask=raw, need_weights=need_weights)[0] != out
        sees = keep[..., j].any(1)
        assert not moved[~sees].any()
        assert moved[sees].any(-1).all()


@pytest.mark.parametrize("train", [True, False])
def test_mha_key_padding(train: bool):
    layer = torch.nn.MultiheadAttention(H * D, H, batch_first=True, dtype=torch.float64)
    layer.train(train)
    raw = to_convention("torch-mha-key-padding", Padding(KEEP), q_len=TQ, kv_len=TK, batch=B)
    x, context = inputs(B, TQ, H * D), inputs(B, TK, H * D, seed=1)
    weights = layer(x, context, context, key_padding_mask=raw, average_attn_weights=False)[1]
    assert torch.equal(weights != 0, KEEP.bool()[:, None, None].expand(B, H, TQ, TK))
    wrong = layer(x, context, context, key_padding_mask=~raw, average_attn_weights=False)[1]
    assert not torch.equal(wrong != 0, KEEP.bool()[:, None, None].expand(B, H, TQ, TK))


def test_is_causal_of_sdpa_starts_at_the_first_key():
    q, k = inputs(1, 1, 2, D), inputs(1, 1, TK, D, seed=1)
    ours = Causal(alignment="start").dense(2, TK)
    theirs = sdpa(q, k, k, is_causal=True)
    assert torch.allclose(theirs, sdpa(q, k, k, attn_mask=ours), rtol=0, atol=1e-14)  # a few ulp
    end = Causal().dense(2, TK)
    assert not torch.allclose(theirs, sdpa(q, k, k, attn_mask=end), rtol=0, atol=1e-3)


def test_causal_lower_right_of_torch_is_our_default():
    from torch.nn.attention.bias import causal_lower_right

    q, k = inputs(1, 1, 2, D), inputs(1, 1, TK, D, seed=1)
    theirs = sdpa(q, k, k, attn_mask=causal_lower_right(2, TK))
    ours = sdpa(q, k, k, attn_mask=Causal().dense(2, TK))
    assert torch.allclose(theirs, ours, rtol=0, atol=1e-14)  # same mask, a few ulp of rounding


def test_masks_that_transformers_makes():
    masking = pytest.importorskip("transformers.masking_utils")
    padding = KEEP.bool()
    functions = {
        "causal": (masking.causal_mask_function, Causal()),
        "window": (
            masking.sliding_window_causal_mask_function(2),
            Causal() & Window(*window_from_key_count(2)),
        ),
    }
    for function, ours in functions.values():
        theirs = masking.sdpa_mask(
            batch_size=B,
            q_length=TQ,
            kv_length=TK,
            q_offset=TK - TQ,
            mask_function=function,
            attention_mask=padding,
            allow_is_causal_skip=False,
        )
        wanted = (ours & Padding(KEEP)).dense(TQ, TK, batch=B)
        read = from_convention("hf-4d-bool", theirs, q_len=TQ, kv_len=TK, batch=B, num_heads=H)
        assert torch.equal(read.dense(TQ, TK, batch=B), wanted)
        added = torch.zeros_like(theirs, dtype=torch.float32).masked_fill(
            ~theirs, torch.finfo(torch.float32).min
        )
        read = from_convention("hf-4d-additive", added, q_len=TQ, kv_len=TK, batch=B)
        assert torch.equal(read.dense(TQ, TK, batch=B), wanted)


def test_positional_masks_serve_flex_attention():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    mask = Causal() & Window(2, 0) | Custom(lambda q, k: (q < 9) & (k < 1))
    block = flex.create_block_mask(
        lambda b, h, q, k: mask.allows(q, k), None, None, 16, 16, device="cpu", BLOCK_SIZE=16
    )
    dense = flex.create_mask(lambda b, h, q, k: mask.allows(q, k), None, None, 16, 16, device="cpu")
    assert torch.equal(dense, mask.dense(16, 16))
    assert block.kv_num_blocks.item() == 1


def onnx_attention(q: torch.Tensor, k: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
    """One Attention node of opset 24, run by onnx's own evaluator."""
    onnx = pytest.importorskip("onnx")
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
    feeds = {"Q": q.float().numpy(), "K": k.float().numpy(), "M": raw.numpy()}
    kinds = {"M": onnx.TensorProto.BOOL if raw.dtype == torch.bool else onnx.TensorProto.FLOAT}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Attention", ["Q", "K", "K", "M"], ["Y"])],
        "attention",
        [
            onnx.helper.make_tensor_value_info(
                name, kinds.get(name, onnx.TensorProto.FLOAT), value.shape
            )
            for name, value in feeds.items()
        ],
        [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)],
    )
    opset = [onnx.helper.make_opsetid("", 24)]
    model = onnx.helper.make_model(graph, opset_imports=opset)
    return torch.from_numpy(evaluator(model).run(None, feeds)[0])


@pytest.mark.parametrize("name", ["onnx-bool", "onnx-additive"])
def test_onnx(name: str):
    q, k = inputs(B, H, TQ, D), inputs(B, H, TK, D, seed=1)
    sizes = {"q_len": TQ, "kv_len": TK, "batch": B, "num_heads": H}
    written = to_convention(name, MASKS["causal and padding"], **sizes)
    short = written[..., :-2]
    for raw in (written, short):
        keep = from_convention(name, raw, **sizes).dense(TQ, TK, batch=B)
        wanted = sdpa(q, k, k, attn_mask=keep)
        # Float32 against float64, sums of 8 and 5 terms of size 1: some 1e-7 each.
        assert torch.allclose(onnx_attention(q, k, raw).double(), wanted, rtol=0, atol=2e-6)
