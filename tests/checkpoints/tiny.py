"""Tiny official models with random parameters, and what they give, to compare with."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints.source import TensorInfo
from headwise.numerics import eps, largest, low_precision_allowance
from headwise.verifier.lift import Lift

VOCABULARY, LAYERS = 53, 3
_ROTARY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 41,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "rope_theta": 500.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_QWEN = {key: value for key, value in _ROTARY.items() if key != "head_dim"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2",
        {"vocab_size": VOCABULARY, "n_embd": 24, "n_head": 3, "n_layer": LAYERS, "n_inner": 37}
        | {"n_positions": 40, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "gpt2-by-layer": (
        "GPT2",
        {"vocab_size": VOCABULARY, "n_embd": 24, "n_head": 2, "n_layer": LAYERS}
        | {
            "n_positions": 40,
            "scale_attn_by_inverse_layer_idx": True,
            "activation_function": "gelu",
        }
        | {"tie_word_embeddings": False},
    ),
    "llama": ("Llama", _ROTARY),
    "llama-biases": (
        "Llama",
        _ROTARY | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama-linear": ("Llama", _ROTARY | {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "llama-3": ("Llama", _ROTARY | {"rope_scaling": LLAMA3}),
    "mistral": ("Mistral", _ROTARY | {"sliding_window": 5}),
    "qwen2": ("Qwen2", _QWEN),
    "qwen2-window": (
        "Qwen2",
        _QWEN | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "bert": (
        "Bert",
        {"vocab_size": VOCABULARY, "hidden_size": 24, "num_attention_heads": 3}
        | {"num_hidden_layers": LAYERS, "intermediate_size": 37, "max_position_embeddings": 40}
        | {"type_vocab_size": 3},
    ),
}
CASES["bert-unpooled"] = "Bert", CASES["bert"][1] | {"attention_probs_dropout_prob": 0.0}
CAUSAL = [name for name in CASES if not name.startswith("bert")]
GGUF = [name for name in CASES if name not in ("gpt2-by-layer", "qwen2-window", "bert")]
TEXT_LEN = 13
"""More tokens than any window above."""


def official(name: str, *, seed: int = 0) -> Any:
    """A model of transformers in float64, its angles too, with all parameters drawn anew."""
    import transformers

    kind, fields = CASES[name]
    config = getattr(transformers, f"{kind}Config")(
        **fields, bos_token_id=0, eos_token_id=0, attn_implementation="eager"
    )
    body = "Model" if kind == "Bert" else "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    with warnings.catch_warnings(), Lift(tables=True):
        warnings.simplefilter("ignore")
        model = getattr(transformers, f"{kind}{body}")(config).double().eval()
    if name == "bert-unpooled":
        model.pooler = None
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, value in model.named_parameters():
            noise = 0.3 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
            gain = path.endswith("weight") and value.dim() == 1  # of a norm
            value.copy_(1 + noise if gain else noise)
    return model


def text(*, batch: int = 2, seed: int = 1) -> Tensor:
    """(batch, TEXT_LEN) tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, TEXT_LEN), generator=generator)


@dataclass
class Run:
    """What a model gives: results by name, gradients by the names of transformers."""

    found: dict[str, Tensor] = field(default_factory=dict)


def run_official(model: Any, ids: Tensor, keep: Tensor, weight: Tensor, **more: Tensor) -> Run:
    """Result, gradients of a weighted sum of it, and the gradient of the embeddings."""
    positions = (keep.long().cumsum(1) - 1).clamp(min=0)
    model.zero_grad()
    x = model.get_input_embeddings()(ids)
    x.retain_grad()
    found = model(
        inputs_embeds=x, attention_mask=keep.long(), position_ids=positions, use_cache=False, **more
    )
    result = found.logits if hasattr(found, "logits") else found.last_hidden_state
    (result * keep[..., None] * weight.to(result.dtype)).sum().backward()
    run = Run({"result": result.detach() * keep[..., None], "embeddings": x.grad})
    run.found |= {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return run


@dataclass
class Truth:
    """What transformers gives in float64, and what float64 may differ from it."""

    run: Run
    allowed: dict[str, float]


def truth(model: Any, ids: Tensor, keep: Tensor, weight: Tensor, **more: Tensor) -> Truth:
    """Run transformers in float64 with its casts dropped, and in float32 as it is.

    To first order rounding is proportional to eps, so the errors of the same code in float32, by
    two implementations of attention, say what float64 does to these values. As everywhere twice
    that is allowed, and once more, since what is compared with was rounded in float64 itself.
    """
    with Lift():
        exact = run_official(model, ids, keep, weight, **more)
    errors = dict.fromkeys(exact.found, 0.0)
    for attention in ("eager", "sdpa"):
        single = copy.deepcopy(model).float()
        single.set_attn_implementation(attention)
        rough = run_official(single, ids, keep, weight, **more)
        for name, value in exact.found.items():
            errors[name] = max(errors[name], largest([rough.found[name].double() - value]))
    finer = 1.5 * eps(torch.float64) / eps(torch.float32)
    allowed = {
        name: low_precision_allowance(finer * error, torch.float64, largest([exact.found[name]]))
        for name, error in errors.items()
    }
    return Truth(exact, allowed)


class Memory:
    """A checkpoint that is no file."""

    format = "safetensors"

    def __init__(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        self.path = Path("memory")
        self.held, self.config = dict(tensors), dict(config)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        names = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16"}
        return {
            name: TensorInfo(name, tuple(value.shape), names.get(value.dtype, "I64"))
            for name, value in self.held.items()
        }

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        value = self.held[name].detach()
        return value.to(value.dtype if dtype is None else dtype, copy=True)

    def close(self) -> None:
        pass


def source_of(model: Any) -> Memory:
    """An official model as a checkpoint."""
    return Memory(model.state_dict(), model.config.to_dict())
