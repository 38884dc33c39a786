"""The flow chart as one trace: each step, its dependents, where positions enter, what is left."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.labs.catalogue import MODULES
from headwise.labs.judge import stated
from headwise.labs.lab import Verdict
from headwise.labs.parts.drawn import allowance, conditional, generator, parameters
from headwise.labs.parts.lesson import definition_of, gap, lesson_layer, normal, padding, seeded
from headwise.reference import STAGE_FUNCTIONS, Inputs, StageFunction, Trace, attend
from headwise.reference.setting import Setting
from headwise.spec import AttentionSpec, Rope, Sinusoidal
from headwise.stages import STAGES

SECTIONS = {
    "A": ("A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A9", "A10"),
    "B": ("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9", "B10", "B11", "B12", "B13", "B14",
          "B15", "B16"),
}  # fmt: skip
"""The sections of the course's two files: B1 to B7 are its seven supplements."""


def flow(seed: int) -> tuple[AttentionSpec, Any, Inputs, Trace]:
    """A causal layer with positions added to the input, as in the course's chart."""
    spec = AttentionSpec(d_model=8, num_heads=2, is_causal=True, positions=Sinusoidal())
    g = generator(seed)
    p, inputs = parameters(spec, g), Inputs(x=normal(g, 1, 4, 8))
    return spec, p, inputs, attend(spec, p, inputs)


def steps(seed: int) -> list[dict[str, Any]]:
    """Every tensor of the trace, with shape and numbers, under the course's name for its step."""
    _spec, _p, _inputs, t = flow(seed)
    names = (
        ("x_q", "X with positions"), ("q_flat", "Q = X·W_Q"), ("k_flat", "K = X·W_K"),
        ("v_flat", "V = X·W_V"), ("q", "split Q"), ("k", "split K"), ("v", "split V"),
        ("scores", "S = Q·Kᵀ/√d_k"), ("masked_scores", "S + M"), ("row_max", "row maximum"),
        ("shifted_scores", "minus row maximum"), ("weights", "A = softmax"), ("context", "A·V"),
        ("merged", "concatenate"), ("output", "· W_O"),
    )  # fmt: skip
    found = []
    for number, (name, step) in enumerate(names, 1):
        z = getattr(t, name)
        finite = z[z.isfinite()]
        found.append(
            {
                "number": number,
                "step": step,
                "tensor": name,
                "shape": str(tuple(z.shape)),
                "smallest": float(finite.min()),
                "largest": float(finite.max()),
                "hidden": int((z == -math.inf).sum()),
                "first": " ".join(f"{v:.3f}" for v in z.flatten()[:4].tolist()),
            }
        )
    return found


def by_formula(seed: int) -> dict[str, float]:
    """Each step computed once more from the step before, by plain formulas: the difference."""
    spec, p, inputs, t = flow(seed)
    x = inputs.x
    assert x is not None
    place = torch.arange(4.0, dtype=torch.float64)[:, None]
    rate = 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    table = torch.stack([(place * rate).sin(), (place * rate).cos()], -1).flatten(1)
    hidden = torch.zeros(4, 4, dtype=torch.float64).masked_fill(
        torch.ones(4, 4, dtype=torch.bool).triu(1), -math.inf
    )
    heads = torch.stack([t.q_flat[:, :, 4 * h : 4 * h + 4] for h in range(2)], 1)
    assert t.row_max is not None and t.shifted_scores is not None
    exponentials = t.shifted_scores.exp()
    masked = t.scores + hidden
    found = {
        "input": gap(x + table, t.x_q),
        "projection": max(
            gap(torch.einsum("btd,od->bto", t.x_q, w), z)
            for w, z in ((p.q, t.q_flat), (p.k, t.k_flat), (p.v, t.v_flat))
        ),
        "split": gap(heads, t.q),
        "scores": gap(torch.einsum("bhid,bhjd->bhij", t.q, t.k) / math.sqrt(4), t.scores),
        "mask": float(not torch.equal(masked, t.masked_scores)),
        "row maximum": gap(t.masked_scores.max(-1, keepdim=True).values, t.row_max),
        "softmax": gap(masked.softmax(-1), t.weights),
        "aggregate": gap(torch.einsum("bhij,bhjd->bhid", t.weights, t.v), t.context),
        "merge": gap(torch.cat([t.context[:, 0], t.context[:, 1]], -1), t.merged),
        "output": gap(t.merged @ p.o.T, t.output),
        "allowed": allowance(spec, t, t.output, t.scores),
        "largest_exponential": float(exponentials.max()),
        "largest_shifted": float(t.shifted_scores.max()),
        "row_sums": float((t.weights.sum(-1) - 1).abs().max()),
    }
    whole = F.scaled_dot_product_attention(t.q, t.k, t.v, is_causal=True)
    found["torch"] = gap(whole.transpose(1, 2).flatten(2) @ p.o.T, t.output)
    found["mask_after_maximum"] = late_mask()
    return found


def late_mask() -> float:
    """float32, the largest score hidden and far above: 1.0 if the wrong order gives NaN."""
    scores = torch.tensor([0.0, 1.0, 200.0])
    seen = torch.tensor([1.0, 1.0, 0.0])
    early = (scores - scores.max()).exp() * seen  # maximum first, then the mask
    return float((early / early.sum()).isnan().any())


def dependence(seed: int) -> list[list[float]]:
    """Row r, column c: by how much stage c changes if stage r is replaced by a disturbed one."""
    spec, p, inputs, right = flow(seed)
    rows = []
    for index, stage in enumerate(STAGES):
        wrong = attend(
            spec, p, inputs, replace={stage.name: disturbed(STAGE_FUNCTIONS[stage.name], index)}
        )
        row = []
        for other in STAGES:
            gaps = []
            for name in other.tensors:
                a, b = getattr(wrong, name), getattr(right, name)
                same = (a == b) | (a.isinf() & b.isinf())
                gaps.append(float(torch.where(same, 0.0, (a - b).abs()).max()))
            row.append(max(gaps))
        rows.append(row)
    return rows


def disturbed(function: StageFunction, index: int) -> StageFunction:
    """The stage with noise on every tensor that it makes."""

    def stage(t: Trace, s: Setting) -> None:
        function(t, s)
        g = generator(1000 + index)
        for name in STAGES[index].tensors:
            z = getattr(t, name)
            setattr(t, name, z + 0.1 * torch.randn(z.shape, generator=g, dtype=z.dtype))
        if STAGES[index].name == "input":
            t.x_v = t.x_kv

    return stage


# ------------------------------------------------------------------ what the chart leaves out
def left_out(seed: int) -> dict[str, float]:
    """Parts of real layers that the chart does not name, and how much each changes the output."""
    base = AttentionSpec(d_model=8, num_heads=2, is_causal=True)
    g = generator(seed)
    full = AttentionSpec(d_model=8, num_heads=2, is_causal=True, biases="qkvo")
    p, x = parameters(full, g), normal(g, 2, 4, 8)
    bare = attend(base, p_without_bias := strip(p), Inputs(x=x))
    keep = ~padding([4, 2], 4, left=True)
    factors = (torch.rand(2, 2, 4, 4, generator=g) < 0.8).double() / 0.8
    shared = strip(p, rows=4)
    changes = {
        "bias": attend(full, p, Inputs(x=x)),
        "padding mask": attend(base, p_without_bias, Inputs(x=x, keep=keep)),
        "dropout": attend(base.replace(dropout=0.2), p_without_bias, Inputs(x=x, dropout=factors)),
        "grouped heads": attend(base.replace(num_kv_heads=1), shared, Inputs(x=x)),
        "rotation after the split": attend(
            base.replace(positions=Rope(pairs="halves")), p_without_bias, Inputs(x=x)
        ),
        "cross attention": attend(
            base.replace(is_causal=False), p_without_bias, Inputs(x=x, context=normal(g, 2, 4, 8))
        ),
    }
    real = keep.new_ones(2, 4)
    real[1, :2] = False
    return {name: gap(t.output[real], bare.output[real]) for name, t in changes.items()}


def strip(p: Any, rows: int | None = None) -> Any:
    """Parameters without biases, keys and values cut to their first ``rows``."""
    from headwise.reference import Parameters

    return Parameters(q=p.q, k=p.k[:rows], v=p.v[:rows], o=p.o)


def encoder_padding(seed: int) -> float:
    """How much an encoder's padding mask changes its real rows: M is not for decoders only."""
    g, spec = generator(seed), AttentionSpec(d_model=8, num_heads=2)
    p, x = parameters(spec, g), normal(g, 1, 5, 8)
    keep = ~padding([3], 5)
    masked = attend(spec, p, Inputs(x=x, keep=keep)).output
    return gap(masked[:, :3], attend(spec, p, Inputs(x=x)).output[:, :3])


def three_kinds(seed: int) -> dict[str, float]:
    """Encoder, decoder and cross attention by one definition, against nn.MultiheadAttention."""
    with seeded(seed):
        layer = nn.MultiheadAttention(16, 4, batch_first=True).double()
        nn.init.normal_(layer.in_proj_bias)
        nn.init.normal_(layer.out_proj.bias)
    from headwise.reference import Parameters

    w, b = layer.in_proj_weight.detach().chunk(3), layer.in_proj_bias.detach().chunk(3)
    p = Parameters(
        q=w[0], k=w[1], v=w[2], o=layer.out_proj.weight.detach(),
        q_bias=b[0], k_bias=b[1], v_bias=b[2], o_bias=layer.out_proj.bias.detach(),
    )  # fmt: skip
    g, spec = generator(seed), AttentionSpec(d_model=16, num_heads=4, biases="qkvo")
    x, context = normal(g, 2, 5, 16), normal(g, 2, 7, 16)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    with torch.no_grad():
        official: dict[str, Tensor] = {
            "encoder": layer(x, x, x)[0],
            "decoder": layer(x, x, x, attn_mask=future)[0],
            "cross": layer(x, context, context)[0],
        }
    ours = {
        "encoder": attend(spec, p, Inputs(x=x)),
        "decoder": attend(spec.replace(is_causal=True), p, Inputs(x=x)),
        "cross": attend(spec, p, Inputs(x=x, context=context)),
    }
    return {name: gap(ours[name].output, official[name]) for name in ours}


def minimal(seed: int) -> dict[str, float]:
    """The lesson's layer as it is, against the definition; and its scale."""
    layer, x = lesson_layer(16, 4, seed=seed), normal(generator(seed), 2, 5, 16)
    spec, p = definition_of(layer)
    t = attend(spec, p, Inputs(x=x))
    with torch.no_grad():
        output, _weights = layer(x)
        q, k, _v = layer.heads(x)
        raw, scaled = q @ k.transpose(-2, -1), layer.scores(q, k)
    seen = scaled.isfinite()
    ratio = raw[seen] / scaled[seen]
    return {
        "layer": gap(output, t.output),
        "ratio_low": float(ratio.min()),
        "ratio_high": float(ratio.max()),
        "root": math.sqrt(4),
    }


# ------------------------------------------------------------------ where positions enter
def positions_enter(seed: int) -> dict[str, float] | None:
    """Move all positions of a small GPT-2 and a small LLaMA: what changes, X, V or only Q and K?"""
    try:
        from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaModel
    except ImportError:
        return None
    tokens = {"vocab_size": 8, "bos_token_id": 1, "eos_token_id": 2}
    with seeded(seed):
        gpt2 = GPT2Model(GPT2Config(**tokens, n_embd=32, n_layer=1, n_head=4, n_positions=32))
        llama = LlamaModel(
            LlamaConfig(
                **tokens,
                hidden_size=32,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=4,
                num_key_value_heads=4,
            )
        )
    ids, near = torch.tensor([[1, 2, 3, 4, 5]]), torch.arange(5)[None]
    far = near * 3
    found: dict[str, float] = {}
    models: tuple[tuple[str, Any, Any], ...] = (
        ("gpt2", gpt2, gpt2.h[0].attn.c_attn),
        ("llama", llama, llama.layers[0].self_attn.q_proj),
    )
    for name, model, first in models:
        model.eval()
        seen: list[Tensor] = []
        hook = first.register_forward_hook(keeper(seen))
        with torch.no_grad():
            a = model(ids, position_ids=near).last_hidden_state
            b = model(ids, position_ids=far).last_hidden_state
        hook.remove()
        found[f"{name}_projection"] = gap(seen[0], seen[1])
        found[f"{name}_output"] = gap(a, b)
    return found


def keeper(seen: list[Tensor]) -> Callable[..., None]:
    """A hook that keeps what a module returns."""

    def hook(_module: Any, _args: Any, output: Tensor) -> None:
        seen.append(output)

    return hook


# ------------------------------------------------------------------ coverage of the course
def coverage() -> dict[str, list[str]]:
    """Labs that measure a claim of each section of the course, by section."""
    from headwise.labs.lab import in_order

    for name in MODULES:
        if importlib.util.find_spec(f"headwise.labs.{name}") is not None:
            importlib.import_module(f"headwise.labs.{name}")
    labs = in_order()
    return {
        section: [lab.name for lab in labs if any(c.split(".")[0] == section for c in lab.claims)]
        for sections in SECTIONS.values()
        for section in sections
    }


# ------------------------------------------------------------------ verdicts
def judged_order(changes: Sequence[Sequence[float]]) -> Verdict:
    """Whether replacing a step changes it and exactly the later ones.

    Args:
        changes: row r, column c: change of step c when step r is replaced.
    """
    if not changes:
        return "not-enough-data"
    before = all(changes[r][c] == 0.0 for r in range(len(changes)) for c in range(r))
    after = all(changes[r][c] > 0.0 for r in range(len(changes)) for c in range(r, len(changes)))
    return stated(before and after)


def judged_complete(parts: Mapping[str, float]) -> Verdict:
    """Whether the chart is complete: *under conditions* as soon as a part it lacks matters."""
    if not parts:
        return "not-enough-data"
    return conditional(True, all(change == 0.0 for change in parts.values()))


def judged_entry(found: Mapping[str, float] | None) -> Verdict:
    """Whether positions are part of X: everywhere, in some models, nowhere, or not measured."""
    if found is None:
        return "not-enough-data"
    at_input = [found["gpt2_projection"] > 0.0, found["llama_projection"] > 0.0]
    return conditional(any(at_input), all(at_input))


def judged_coverage(found: Mapping[str, Sequence[str]]) -> Verdict:
    """Whether every section has a lab."""
    return stated(bool(found) and all(found.values()))
