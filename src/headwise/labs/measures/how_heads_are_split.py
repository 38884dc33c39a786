"""Views, strides and copies on the way from (B, T, 3·D) to heads and back."""

from __future__ import annotations

import dis
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headwise.errors import SpecError
from headwise.labs.judge import greater
from headwise.labs.lab import Verdict
from headwise.labs.parts.drawn import conditional, generator, parameters
from headwise.labs.parts.lesson import (
    LessonLayer,
    definition_of,
    gap,
    lesson_layer,
    normal,
    official,
    seeded,
)
from headwise.reference import Inputs, attend
from headwise.reference.setting import Setting, Trace
from headwise.spec import AttentionSpec
from headwise.verifier.faults import find_fault


@dataclass(frozen=True)
class Step:
    """One tensor on the way.

    Args:
        name: what was done.
        tensor: the result.
        copied: bytes that were copied to make it.
    """

    name: str
    tensor: Tensor
    copied: int

    def row(self) -> tuple[str, str, str, bool, int]:
        """name, shape, strides, contiguous, bytes copied."""
        t = self.tensor
        return (self.name, str(tuple(t.shape)), str(t.stride()), t.is_contiguous(), self.copied)


def copied(before: Tensor, after: Tensor) -> int:
    """Bytes of ``after`` if it has storage of its own, else 0."""
    shared = before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
    return 0 if shared else after.numel() * after.element_size()


def journey(d_model: int, heads: int, tokens: int, batch: int = 1) -> list[Step]:
    """Split into heads, weigh, merge: every tensor with what it cost. Entries count upwards."""
    width = d_model // heads
    fused = torch.arange(batch * tokens * 3 * d_model, dtype=torch.float32)
    fused = fused.view(batch, tokens, 3 * d_model)
    steps = [Step("x·Wᵀ, q k v side by side", fused, 0)]

    def then(name: str, tensor: Tensor) -> Tensor:
        steps.append(Step(name, tensor, copied(steps[-1].tensor, tensor)))
        return tensor

    q = then("chunk: q", fused.chunk(3, dim=-1)[0])
    viewed = then("view (B, T, H, d)", q.view(batch, tokens, heads, width))
    split = then("transpose (B, H, T, d)", viewed.transpose(1, 2))
    then("way back at once: transpose", split.transpose(1, 2))
    then("way back at once: view", split.transpose(1, 2).view(batch, tokens, d_model))
    weights = torch.full((batch, heads, tokens, tokens), 1.0 / tokens)
    context = weights @ fused.chunk(3, dim=-1)[2].view(batch, tokens, heads, width).transpose(1, 2)
    steps.append(Step("context = weights · v", context, 0))  # computed, so new anyway
    turned = then("transpose (B, T, H, d)", context.transpose(1, 2))
    whole = then("contiguous", turned.contiguous())
    then("view (B, T, D)", whole.view(batch, tokens, d_model))
    return steps


def view_raises(batch: int, tokens: int, heads: int, width: int) -> str:
    """The message of ``view`` after a transpose, or "" if it works without a copy."""
    split = torch.zeros(batch, heads, tokens, width).transpose(1, 2)
    try:
        split.view(batch, tokens, heads * width)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def places(tokens: int, heads: int) -> dict[str, list[list[float]]]:
    """Which token a head's row really holds, right and by a bare view: (H, T) of token numbers."""
    flat = torch.arange(tokens).repeat_interleave(heads).view(1, tokens, heads)  # one channel each
    right = flat.view(1, tokens, heads, 1).transpose(1, 2)
    wrong = flat.reshape(1, heads, tokens, 1)
    return {"right": right[0, :, :, 0].tolist(), "wrong": wrong[0, :, :, 0].tolist()}


def catalogue_splits(seed: int) -> dict[str, float]:
    """The split stage of the definition against a loop, and the catalogue's wrong splits."""
    g, spec = generator(seed), AttentionSpec(d_model=24, num_heads=4)
    p, x = parameters(spec, g), normal(g, 2, 5, 24)
    t = attend(spec, p, Inputs(x=x))
    looped = torch.empty(2, 4, 5, 6, dtype=torch.float64)
    merged = torch.empty(2, 5, 24, dtype=torch.float64)
    for head in range(4):
        for row in range(5):
            looped[:, head, row] = t.q_flat[:, row, 6 * head : 6 * head + 6]
            merged[:, row, 6 * head : 6 * head + 6] = t.context[:, head, row]
    found = {"split": gap(looped, t.q), "merge": gap(merged, t.merged)}
    for code in ("H01", "G01"):
        variant = next(iter(find_fault(code).variants(spec)))
        wrong = variant.run(spec, p, Inputs(x=x))
        found[f"{code}_off"] = gap(wrong.output, t.output)
        found[f"{code}_same_shape"] = float(wrong.output.shape == t.output.shape)
    stage = next(iter(find_fault("H01").variants(spec))).replace["split"]
    planted = Trace()
    planted.q_flat = torch.arange(5.0).repeat_interleave(24).view(1, 5, 24)  # who is it: the token
    planted.k_flat = (torch.arange(24.0) // 6).expand(1, 5, 24)  # which head's channel is it
    planted.v_flat = planted.q_flat
    stage(planted, Setting(spec, p, Inputs(x=x[:1])))
    found["tokens_in_head"] = float(planted.q[0, 0].unique().numel())
    found["heads_in_head"] = float(planted.k[0, 0].unique().numel())
    return found


def course_layer(seed: int) -> dict[str, float]:
    """The lesson's layer: division, fused projection, order of the blocks, weights it returns."""
    layer, x = lesson_layer(16, 4, seed=seed), normal(generator(seed), 2, 5, 16)
    spec, p = definition_of(layer)
    t = attend(spec, p, Inputs(x=x))
    with torch.no_grad():
        output, weights = layer(x)
        fused = layer.qkv(x)
        separate = torch.cat([x @ w.T for w in layer.qkv.weight.chunk(3)], -1)
        future = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
        orders = {}
        for order in ((0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1)):
            other = official(layer, order)(x, x, x, attn_mask=future, need_weights=False)[0]
            orders["".join("qkv"[i] for i in order)] = gap(other, output)
        with seeded(seed):
            counts = [
                sum(w.numel() for w in LessonLayer(64, heads).parameters())
                for heads in (1, 2, 4, 8)
            ]
        by_heads = [AttentionSpec(d_model=16, num_heads=h, is_causal=True) for h in (1, 2, 4, 8)]
        flat = [attend(s, p, Inputs(x=x)) for s in by_heads]
    return {
        "output": gap(output, t.output),
        "weights": gap(weights, t.weights),
        "fused": gap(fused, separate),
        "parameters": float(counts[0]),
        "parameters_spread": float(max(counts) - min(counts)),
        "four_squares": 4.0 * 64 * 64,
        "order_right": orders["qkv"],
        "order_wrong": min(v for k, v in orders.items() if k != "qkv"),
        "projection_by_heads": max(gap(f.q_flat, flat[0].q_flat) for f in flat),
        "output_by_heads": min(gap(f.output, flat[0].output) for f in flat[1:]),
        "chunk_contiguous": float(fused.chunk(3, -1)[1].is_contiguous()),
        "weights_kept_bytes": float(weights.numel() * weights.element_size()),
    }


def indivisible() -> str:
    """What the definition says about 10 channels in 3 heads."""
    try:
        AttentionSpec(d_model=10, num_heads=3)
    except SpecError as error:
        return str(error).splitlines()[0]
    return ""


def assert_survives() -> float:
    """1.0 if ``assert`` still raises when Python is started with -O."""
    code = compile("assert 10 % 3 == 0", "lesson", "exec", optimize=1)
    return float(any(step.opname.startswith("RAISE") for step in dis.get_instructions(code)))


def reshape_hides() -> dict[str, float]:
    """Merging without the transpose back: view raises, reshape copies and mixes."""
    split = torch.arange(24.0).view(1, 3, 2, 4).transpose(1, 2)  # (B, H, T, d), as after a split
    try:
        split.view(1, 3, 8)
        raised = 0.0
    except RuntimeError:
        raised = 1.0
    silent = split.reshape(1, 3, 8)
    right = split.transpose(1, 2).reshape(1, 3, 8)
    return {
        "view_raised": raised,
        "reshape_off": gap(silent, right),
        "reshape_copied": float(copied(split, silent)),
        "right_copied": float(copied(split, right)),
    }


def copy_times(
    lengths: Sequence[int], d_model: int, heads: int, repeats: int
) -> list[dict[str, float]]:
    """Best time of the merge with its copy, and of the same view where no copy is needed."""
    found = []
    for tokens in lengths:
        context = torch.zeros(1, heads, tokens, d_model // heads)
        ready = context.transpose(1, 2).contiguous().transpose(1, 2)  # as an untouched split lies
        times = {"copy": 1e9, "view": 1e9}
        for _ in range(repeats):
            for name, source in (("copy", context), ("view", ready)):
                start = time.perf_counter()
                source.transpose(1, 2).reshape(1, tokens, d_model)
                times[name] = min(times[name], time.perf_counter() - start)
        found.append({"tokens": float(tokens), "bytes": float(context.numel() * 4), **times})
    return found


def libraries(seed: int) -> dict[str, str] | None:
    """What a small LLaMA and a small GPT-2 keep per head, and the published sizes of LLaMA 7B."""
    try:
        from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaModel
    except ImportError:
        return None
    ids, tokens = (
        torch.tensor([[1, 2, 3, 4, 5]]),
        {"vocab_size": 8, "bos_token_id": 1, "eos_token_id": 2},
    )
    with seeded(seed), torch.no_grad():
        llama = LlamaModel(
            LlamaConfig(
                **tokens,
                hidden_size=32,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=4,
                num_key_value_heads=4,
            )
        ).eval()
        gpt2 = GPT2Model(
            GPT2Config(**tokens, n_embd=48, n_layer=1, n_head=4, n_positions=16)
        ).eval()
        found = {}
        for name, model in (("LLaMA", llama), ("GPT-2", gpt2)):
            with Queries() as queries:
                model(ids)
            found[name] = str(queries.shapes[0])
    full = LlamaConfig()
    found["LLaMA 7B"] = f"{full.hidden_size} = {full.num_attention_heads} × {full.head_dim}"
    return found


class Queries(TorchFunctionMode):
    """Inside the block: the shapes of the queries that reach PyTorch's attention function."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


# ------------------------------------------------------------------ verdicts
def judged_view(raises: Mapping[tuple[int, int, int, int], bool]) -> Verdict:
    """Whether ``view`` after the transpose always needs ``contiguous``.

    *holds* if it raises for all sizes, *under conditions* if for all but T = 1, H = 1 or heads
    of one channel, else *does not hold*.
    """
    general = [raised for (_b, *rest), raised in raises.items() if min(rest) > 1]
    if not general:
        return "not-enough-data"
    return conditional(all(general), all(raises.values()))


def judged_cost(copy: Sequence[float], view: Sequence[float]) -> Verdict:
    """Whether the copy takes measurably longer than the view: the ratio over lengths."""
    return greater([math.log(s) for s in copy], [math.log(s) for s in view])
