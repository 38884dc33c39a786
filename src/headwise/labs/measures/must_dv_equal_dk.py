"""Values of another width: numbers, errors, sizes, what a width can carry, and published sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.errors import ShapeError
from headwise.labs.parts.drawn import allowance, generator, parameters
from headwise.labs.parts.lesson import gap, normal, seeded
from headwise.reference import Inputs, Parameters, attend
from headwise.spec import AttentionSpec


# ------------------------------------------------------------------ does it compute
def unequal_widths(seed: int) -> dict[str, float]:
    """Dv ≠ Dk in the definition and in PyTorch's function: forward, gradients, shapes."""
    g = generator(seed)
    spec = AttentionSpec(d_model=24, num_heads=3, head_dim=8, v_head_dim=5, is_causal=True)
    q, k, v = normal(g, 2, 3, 6, 8), normal(g, 2, 3, 6, 8), normal(g, 2, 3, 6, 5)
    upstream = normal(g, 2, 3, 6, 5)
    ours = [z.clone().requires_grad_() for z in (q, k, v)]
    theirs = [z.clone().requires_grad_() for z in (q, k, v)]
    t = attend(spec, Parameters(), Inputs(q=ours[0], k=ours[1], v=ours[2]))
    other = F.scaled_dot_product_attention(theirs[0], theirs[1], theirs[2], is_causal=True)
    slopes = torch.autograd.grad((t.context * upstream).sum(), ours)
    others = torch.autograd.grad((other * upstream).sum(), theirs)
    layer = attend(spec, parameters(spec, g), Inputs(x=normal(g, 2, 6, 24)))
    return {
        "forward": gap(t.context.detach(), other.detach()),
        "gradient": max(gap(a, b) for a, b in zip(slopes, others, strict=True)),
        "allowed": 4.0 * allowance(spec, t, t.context.detach()),
        "context_width": float(t.context.shape[-1]),
        "merged_width": float(layer.merged.shape[-1]),
        "output_width": float(layer.output.shape[-1]),
        "score_shape_changes": float(t.scores.shape[-1] != 6),
    }


def refused() -> dict[str, str]:
    """What is said about q and k of unequal width, by the definition and by PyTorch."""
    spec = AttentionSpec(d_model=8, num_heads=1)
    q, k = torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 3, 7)
    said = {"definition": "", "torch": ""}
    try:
        attend(spec, Parameters(), Inputs(q=q, k=k, v=k))
    except ShapeError as error:
        said["definition"] = str(error).splitlines()[0]
    try:
        q @ k.transpose(-2, -1)
    except RuntimeError as error:
        said["torch"] = str(error).splitlines()[0]
    return said


def official(seed: int) -> dict[str, float]:
    """``nn.MultiheadAttention`` with kdim and vdim: input widths, the head size stays D/H."""
    with seeded(seed):
        layer = nn.MultiheadAttention(16, 4, kdim=12, vdim=20, batch_first=True)
    rows = layer.v_proj_weight.shape[0]
    return {"head_dim": float(layer.head_dim), "value_rows_per_head": rows / 4}


def residual(width: int, heads: int, d_model: int) -> dict[str, float]:
    """Whether x + attention works without and with W_O."""
    x, merged = torch.zeros(2, d_model), torch.zeros(2, heads * width)
    found = {"with": float((x + merged @ torch.zeros(d_model, heads * width).T).shape[-1])}
    try:
        found["without"] = float((x + merged).shape[-1])
    except RuntimeError:
        found["without"] = 0.0
    return found


# ------------------------------------------------------------------ what it costs, what it carries
def sizes(widths: Sequence[int], d_model: int, heads: int) -> list[dict[str, int]]:
    """Parameters and cache bytes per token (16 bit) by d_v, counted on real tensors."""
    found = []
    for width in widths:
        spec = AttentionSpec(d_model=d_model, num_heads=heads, v_head_dim=width)
        p = parameters(spec, generator(0))
        t = attend(spec, p, Inputs(x=torch.zeros(1, 1, d_model, dtype=torch.float64)))
        found.append(
            {
                "d_v": width,
                "parameters": sum(w.numel() for _n, w in p.items()),
                "formula": 2 * heads * d_model * (spec.head_dim + width),
                "cache_bytes": 2 * (t.k.numel() + t.v.numel()),
                "merged": t.merged.shape[-1],
            }
        )
    return found


def missed(width: int, seed: int, params: Mapping[str, Any]) -> list[float]:
    """Share of the payload's variance that one head with d_v = ``width`` fails to hand over.

    Each token has a name and a payload of ``payload`` independent numbers; a token asks for another
    one's payload by name. No linear map through d_v numbers can miss less than 1 − d_v/payload.
    """
    runs, tokens, payload, d_k = params["seeds"], 6, params["payload"], 8
    g = generator(seed)
    shapes = {
        "q": (tokens, d_k), "k": (tokens, d_k), "v": (payload, width), "o": (width, payload),
    }  # fmt: skip
    w = {
        n: (torch.randn(runs, *s, generator=g) * s[0] ** -0.5).requires_grad_()
        for n, s in shapes.items()
    }

    def loss(batch: int) -> Tensor:
        order = torch.rand(runs, batch, tokens, generator=g).argsort(-1)
        name = F.one_hot(order, tokens).float()
        asked = name.roll(-1, dims=2)  # every token asks for its right neighbour, by name
        content = torch.randn(runs, batch, tokens, payload, generator=g)
        q, k, v = asked @ w["q"][:, None], name @ w["k"][:, None], content @ w["v"][:, None]
        read = (q @ k.transpose(-2, -1)).softmax(-1) @ v @ w["o"][:, None]
        missing: Tensor = (read - content.roll(-1, dims=2)).square().mean((1, 2, 3))
        return missing

    optimiser = torch.optim.Adam(list(w.values()), lr=0.03)
    for step in range(params["steps"]):
        optimiser.param_groups[0]["lr"] = 0.03 * (1 - step / params["steps"])
        optimiser.zero_grad()
        loss(params["batch"]).sum().backward()
        optimiser.step()
    with torch.no_grad():
        return loss(500).tolist()


# ------------------------------------------------------------------ published sizes
@dataclass(frozen=True)
class Published:
    """Sizes of a published model.

    Args:
        name: of the model.
        d_model, heads, d_k, d_v: as published.
        source: where it says so.
    """

    name: str
    d_model: int
    heads: int
    d_k: int
    d_v: int
    source: str

    @property
    def usual(self) -> bool:
        """d_k = d_v = d_model / heads."""
        return self.d_k == self.d_v and self.d_k * self.heads == self.d_model


PUBLISHED = (
    Published("Transformer base", 512, 8, 64, 64, "Vaswani et al. 2017, table 3"),
    Published("Transformer big", 1024, 16, 64, 64, "Vaswani et al. 2017, table 3"),
    Published("BERT base", 768, 12, 64, 64, "Devlin et al. 2019, section 3"),
    Published("GPT-2 small", 768, 12, 64, 64, "openai/gpt-2, hparams.json of 124M"),
    Published("LLaMA 7B", 4096, 32, 128, 128, "Touvron et al. 2023, table 2"),
    Published("Mistral 7B", 4096, 32, 128, 128, "Jiang et al. 2023, table 1"),
    Published("T5 11B", 1024, 128, 128, 128, "Raffel et al. 2020, section 3.5"),
    Published("Gemma 7B", 3072, 16, 256, 256, "Gemma team 2024, table 1"),
    Published("Mistral NeMo 12B", 5120, 32, 128, 128, "config.json of Mistral-Nemo-Base-2407"),
    Published(
        "DeepSeek-V3", 7168, 128, 192, 128, "DeepSeek-AI 2024, section 4.2 (128 + 64 rotary)"
    ),
)
