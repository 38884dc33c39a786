"""``nn.MultiheadAttention`` to ``MultiHeadAttention`` and back: the same tensors, the same outputs.

Two conventions differ and are the caller's: ours is always (batch, time, channels), which is
``batch_first=True`` there; and its boolean masks mean *ignore*, see ``from_convention``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.errors import UsageError
from headwise.spec import AttentionSpec
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.attend.module import MultiHeadAttention


def spec_of(module: nn.MultiheadAttention) -> AttentionSpec:
    """What an ``nn.MultiheadAttention`` is, as a spec.

    Raises:
        UsageError: for another module, and for options that add keys of their own.

    Example:
        >>> spec = spec_of(nn.MultiheadAttention(8, 2, kdim=5, vdim=3))
        >>> spec.d_context, spec.d_values, spec.biases
        (5, 3, 'qkvo')
    """
    if not isinstance(module, nn.MultiheadAttention):
        raise UsageError(
            _("{kind} is not torch.nn.MultiheadAttention").format(kind=type(module).__name__),
            where="MultiHeadAttention.from_torch(module)",
            fix=_("MultiHeadAttention(spec), and load_state_dict with its names"),
        )
    options = {
        "add_bias_kv": module.bias_k is not None or module.bias_v is not None,
        "add_zero_attn": bool(module.add_zero_attn),
    }
    for option, is_on in options.items():
        if is_on:
            raise UsageError(
                _("{option}=True can't be expressed").format(option=option),
                where="MultiHeadAttention.from_torch(module)",
                why=_("it adds a key that is no token"),
                fix=_("a layer without it; sinks are the nearest thing here"),
            )
    biases = "qkv" if module.in_proj_bias is not None else ""
    biases += "o" if module.out_proj.bias is not None else ""
    return AttentionSpec(
        d_model=module.embed_dim,
        num_heads=module.num_heads,
        d_context=module.kdim,
        d_values=module.vdim,
        dropout=float(module.dropout),
        biases=biases,
    )


def state_of(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    """Its parameters under our names: views, nothing is copied."""
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.detach().chunk(3)
    else:
        separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        weights = tuple(weight.detach() for weight in separate)
    found = dict(zip(("q_proj.weight", "k_proj.weight", "v_proj.weight"), weights, strict=True))
    if module.in_proj_bias is not None:
        biases = module.in_proj_bias.detach().chunk(3)
        found |= dict(zip(("q_proj.bias", "k_proj.bias", "v_proj.bias"), biases, strict=True))
    for name, value in module.out_proj.named_parameters():
        found[f"out_proj.{name}"] = value.detach()
    return found


def to_torch(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """The same layer as ``nn.MultiheadAttention`` with ``batch_first=True``.

    Raises:
        UsageError: for whatever it can't express, all of it named.
    """
    spec = layer.spec
    refused = _beyond(spec)
    if refused:
        raise UsageError(
            _("nn.MultiheadAttention can't express {parts}").format(parts=", ".join(refused)),
            where="MultiHeadAttention.to_torch()",
            why=_(
                "it has one size of head, d_model / num_heads, and no positions; masks are given"
            ),
            fix=_("keep this layer, or a spec without them"),
        )
    weight = layer.q_proj.weight
    made = nn.MultiheadAttention(
        spec.d_model,
        spec.num_heads,
        dropout=spec.dropout,
        bias=bool(spec.biases),
        kdim=spec.d_context,
        vdim=spec.d_values,
        batch_first=True,
        device=weight.device,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        for name, target in state_of(made).items():
            target.copy_(layer.get_parameter(name))
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(_need_grad(layer, name))
    return made.train(layer.training)


def _beyond(spec: AttentionSpec) -> list[str]:
    """What of a spec has no place in ``nn.MultiheadAttention``."""
    plain = AttentionSpec(
        d_model=spec.d_model,
        num_heads=spec.num_heads,
        head_dim=spec.d_model // spec.num_heads or 1,
        d_context=spec.d_context,
        d_values=spec.d_values,
        dropout=spec.dropout,
        biases="qkvo" if set(spec.biases) == set("qkvo") else "",
    )
    names = (
        "num_kv_heads", "head_dim", "v_head_dim", "is_causal", "window", "positions", "scale",
        "softcap", "sinks", "qk_norm",
    )  # fmt: skip
    found = [
        f"{name}={getattr(spec, name)!r}"
        for name in names
        if getattr(spec, name) != getattr(plain, name)
    ]
    if spec.d_model % spec.num_heads and f"head_dim={spec.head_dim!r}" not in found:
        found.append(f"head_dim={spec.head_dim!r}")
    if set(spec.biases) != set(plain.biases):
        found.append(f"biases={spec.biases!r}")
    return found


def needs_grad(module: nn.MultiheadAttention, name: str) -> bool:
    """Whether what a parameter of ours comes from needs gradients."""
    if name.startswith("out_proj"):
        return module.get_parameter(name).requires_grad
    if name.endswith("bias"):
        return module.in_proj_bias.requires_grad
    packed = module.in_proj_weight
    separate = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    source = packed if packed is not None else separate["qkv".index(name[0])]
    return bool(source.requires_grad)


def _need_grad(layer: MultiHeadAttention, name: str) -> bool:
    """Whether one of our parameters that a name of torch's holds needs gradients."""
    kind = "bias" if name.endswith("bias") else "weight"
    if name.startswith("out_proj"):
        parts = ["out_proj"]
    else:
        parts = [f"{letter}_proj" for letter in "qkv" if name.startswith((f"{letter}_", "in_"))]
    return any(layer.get_parameter(f"{part}.{kind}").requires_grad for part in parts)
