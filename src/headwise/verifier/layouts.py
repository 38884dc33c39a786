"""Where a layer keeps its weights: names first, then shapes, then numbers.

A ``Layout`` is a hypothesis: a way of reading a module's parameters as the definition's
``Parameters``. Several are proposed in order of likelihood; measurement decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import UsageError
from headwise.reference import Parameters
from headwise.spec import AttentionSpec, RelativeBias
from headwise.texts import translate as _
from headwise.verifier.names import fused_order, role_of

Tensors = Mapping[str, Tensor]
Turn = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """A way of reading a module's parameters.

    Args:
        name: printed, e.g. ``packed-chunks``.
        read: parameters by their full names → the definition's parameters. Differentiable.
        names: which full names it reads.
        fused: q, k and v come from one matrix.
    """

    name: str
    read: Callable[[Tensors], Parameters]
    names: tuple[str, ...] = ()
    fused: bool = False


EMPTY = Layout("none", lambda tensors: Parameters())


@dataclass(frozen=True)
class Part:
    """Where one of q, k, v and o lives: a weight, how it is stored, and which of its rows.

    Args:
        weight: full name.
        bias: full name of the bias, or None.
        turn: makes the weight out × in.
        rows: which rows belong to the part; None = all.
        bias_rows: the same for the bias, where it is packed differently; None = as ``rows``.
        label: how the weight is stored, if not plainly out × in.
    """

    weight: str
    bias: str | None
    turn: Turn
    rows: Tensor | None = None
    bias_rows: Tensor | None = None
    label: str = ""

    def read(self, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """(weight out × in, bias or None) from the module's parameters."""
        weight = self.turn(tensors[self.weight])
        weight = weight if self.rows is None else weight[self.rows]
        if self.bias is None:
            return weight, None
        bias = tensors[self.bias].flatten()
        rows = self.rows if self.bias_rows is None else self.bias_rows
        return weight, bias if rows is None else bias[rows]

    def take(self, rows: Tensor) -> Part:
        """Some rows of this part."""
        return Part(self.weight, self.bias, self.turn, rows, label=self.label)

    @property
    def names(self) -> tuple[str, ...]:
        """Full names of what it reads."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


def same(w: Tensor) -> Tensor:
    """A weight that is stored out × in."""
    return w


def turned(w: Tensor) -> Tensor:
    """A weight that is stored in × out."""
    return w.transpose(0, 1)


def layout(
    name: str, parts: Mapping[str, Part], extras: Mapping[str, str], *, fused: bool = False
) -> Layout:
    """A layout from the parts of q, k, v and o, and the names of further parameters."""

    def read(tensors: Tensors) -> Parameters:
        given: dict[str, Any] = {key: tensors[full] for key, full in extras.items()}
        for role, part in parts.items():
            given[role], given[f"{role}_bias"] = part.read(tensors)
        return Parameters(**given)

    names = dict.fromkeys(n for part in parts.values() for n in part.names)
    return Layout(name, read, (*names, *extras.values()), fused)


# ------------------------------------------------------------------ sizes and packing orders
@dataclass(frozen=True)
class Sizes:
    """Rows of the projections of a spec."""

    spec: AttentionSpec

    @property
    def rows(self) -> dict[str, int]:
        """Rows of q, k and v."""
        s = self.spec
        return {
            "q": s.num_heads * s.head_dim,
            "k": s.num_kv_heads * s.head_dim,
            "v": s.num_kv_heads * s.v_head_dim,
        }

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Out × in of q, k, v and o."""
        s, n = self.spec, self.rows
        return {
            "q": (n["q"], s.d_model),
            "k": (n["k"], s.d_context),
            "v": (n["v"], s.d_values),
            "o": (s.d_model, s.num_heads * s.v_head_dim),
        }

    @property
    def fused(self) -> int:
        """Rows of one matrix for q, k and v."""
        return sum(self.rows.values())


Rows = dict[str, Tensor]
ORDERS = ("qkv", "qvk", "kqv", "kvq", "vqk", "vkq")


def packed_rows(spec: AttentionSpec) -> Iterator[tuple[str, Rows]]:
    """Ways of packing q, k and v in the rows of one matrix, likeliest first: (name, rows)."""
    n = Sizes(spec).rows
    for order in ORDERS:
        start, rows = 0, {}
        for letter in order:
            rows[letter] = torch.arange(start, start + n[letter])
            start += n[letter]
        yield ("packed-chunks" if order == "qkv" else f"packed-chunks-{order}"), rows
    size = {
        "q": spec.group_size * spec.head_dim,
        "k": spec.head_dim,
        "v": spec.v_head_dim,
    }
    name = "packed-per-head" if spec.group_size == 1 else "packed-grouped"
    block = torch.arange(sum(n.values())).view(spec.num_kv_heads, -1)
    for order in ORDERS:
        start, rows = 0, {}
        for letter in order:
            rows[letter] = block[:, start : start + size[letter]].flatten()
            start += size[letter]
        yield (name if order == "qkv" else f"{name}-{order}"), rows
    if len(set(n.values())) == 1:
        last = torch.arange(3 * n["q"]).view(-1, 3)
        yield "packed-per-channel", {"q": last[:, 0], "k": last[:, 1], "v": last[:, 2]}


def half_packed_rows(spec: AttentionSpec) -> Iterator[tuple[str, Rows]]:
    """Ways of packing k and v in the rows of one matrix."""
    n_k, n_v = Sizes(spec).rows["k"], Sizes(spec).rows["v"]
    yield "q, packed kv", {"k": torch.arange(n_k), "v": torch.arange(n_k, n_k + n_v)}
    block = torch.arange(n_k + n_v).view(spec.num_kv_heads, -1)
    cut = spec.head_dim
    yield "q, kv per head", {"k": block[:, :cut].flatten(), "v": block[:, cut:].flatten()}
    yield "q, packed vk", {"k": torch.arange(n_v, n_v + n_k), "v": torch.arange(n_v)}


# ------------------------------------------------------------------ what the module holds
EXTRAS = ("q_norm", "k_norm", "sinks", "positions", "relative_bias")


def find_parts(module: nn.Module) -> dict[str, list[list[Part]]]:
    """Weights by the role that their name says, "" for none; each with its ways of storage."""
    tensors = dict(module.named_parameters())
    modules = dict(module.named_modules())
    found: dict[str, list[list[Part]]] = {}
    for name, tensor in tensors.items():
        path, _dot, leaf = name.rpartition(".")
        owner, role = modules.get(path), role_of(name)
        if tensor.dim() < 2 or _is_bias(leaf) or role in EXTRAS or isinstance(owner, nn.Embedding):
            continue
        bias = _bias_of(name, tensors)
        options = [
            Part(name, bias, turn, label=label)
            for label, turn in _storages(owner, leaf, tensor, out=role == "o")
        ]
        found.setdefault(role or "", []).append(options)
    return found


def _is_bias(leaf: str) -> bool:
    return leaf.startswith(("b_", "bias")) or leaf.endswith(("_bias", "bias"))


def _bias_of(name: str, tensors: Tensors) -> str | None:
    path, _dot, leaf = name.rpartition(".")
    prefix = f"{path}." if path else ""
    if leaf in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        packed = prefix + "in_proj_bias"  # nn.MultiheadAttention packs only the biases here
        return packed if packed in tensors else None
    options = [leaf.replace("weight", "bias")]
    if leaf[:2] in ("W_", "w_"):
        options += ["b_" + leaf[2:], "B_" + leaf[2:], "b" + leaf[2:]]
    if leaf[:1] in ("W", "w") and len(leaf) == 2:
        options += ["b" + leaf[1:]]
    return next((prefix + o for o in options if o != leaf and prefix + o in tensors), None)


def _storages(
    owner: nn.Module | None, leaf: str, tensor: Tensor, *, out: bool
) -> list[tuple[str, Turn]]:
    """Ways in which a weight may be stored, likeliest first."""
    if tensor.dim() == 3 and out:
        return [
            ("heads × size × out", lambda w: w.flatten(0, 1).transpose(0, 1)),
            ("out × heads × size", lambda w: w.flatten(1)),
        ]
    if tensor.dim() == 3:
        return [
            ("heads × in × size", lambda w: w.transpose(1, 2).flatten(0, 1)),
            ("in × heads × size", lambda w: w.flatten(1).transpose(0, 1)),
            ("heads × size × in", lambda w: w.flatten(0, 1)),
        ]
    if type(owner).__name__ == "Conv1D":
        return [("conv1d", turned)]
    if isinstance(owner, nn.Linear) or leaf.endswith("_weight"):
        return [("", same)]
    if leaf == "weight":
        return [("", same), ("in × out", turned)]
    return [("in × out", turned), ("out × in", same)]


def _extras(module: nn.Module) -> dict[str, str]:
    """Parameters beside the four matrices, by the definition's name for them."""
    found: dict[str, str] = {}
    for name, tensor in module.named_parameters():
        role = role_of(name)
        if role in ("q_norm", "k_norm"):
            found.setdefault(f"{role}_bias" if name.endswith("bias") else role, name)
        elif (role == "sinks" and tensor.dim() == 1) or (
            role in ("positions", "relative_bias") and tensor.dim() == 2
        ):
            found.setdefault(role, name)
    return found


# ------------------------------------------------------------------ proposing
def candidates(module: nn.Module, spec: AttentionSpec) -> list[Layout]:
    """Layouts that fit the module's names and shapes, likeliest first."""
    tensors = {name: t.detach() for name, t in module.named_parameters()}
    parts, sizes, extras = find_parts(module), Sizes(spec), _extras(module)
    if isinstance(spec.positions, RelativeBias) and "relative_bias" not in extras:
        table = extras.get("positions")  # the only table of such a layer, whatever its name
        if table is not None and tuple(tensors[table].shape)[1:] == (spec.num_heads,):
            extras["relative_bias"] = extras.pop("positions")

    def pick(role: str, shape: tuple[int, int]) -> list[Part]:
        options = (p for group in parts.get(role, []) for p in group)
        return [p for p in options if tuple(p.turn(tensors[p.weight]).shape) == shape]

    by_name = {role: pick(role, sizes.shapes[role]) for role in "qkvo"}
    by_name["qkv"] = pick("qkv", (sizes.fused, spec.d_model))
    kv_rows = sizes.rows["k"] + sizes.rows["v"]
    by_name["kv"] = pick("kv", (kv_rows, spec.d_context))
    found = list(_named(by_name, spec, extras))
    if found:
        return found
    order = list(tensors)
    every = sorted((g[0] for groups in parts.values() for g in groups),
                   key=lambda p: order.index(p.weight))  # fmt: skip
    return list(_shaped(every, tensors, spec, extras))


def _named(
    parts: Mapping[str, list[Part]], spec: AttentionSpec, extras: Mapping[str, str]
) -> Iterator[Layout]:
    """Layouts from parts whose names say what they are."""
    outs: list[dict[str, Part]] = [{"o": p} for p in parts["o"]] or [{}]
    for out in outs:
        for q, k, v in itertools.product(parts["q"], parts["k"], parts["v"]):
            label = f"separate ({q.label})" if q.label else "separate"
            yield layout(label, {**_torch_biases({"q": q, "k": k, "v": v}, spec), **out}, extras)
        for whole in parts["qkv"]:
            spelled = fused_order(whole.weight) or "qkv"
            orders = list(packed_rows(spec))
            if spelled != "qkv":
                orders.sort(key=lambda item: not item[0].endswith(spelled))
            for name, rows in orders:
                label = f"{name} ({whole.label})" if whole.label else name
                cut = {role: whole.take(rows[role]) for role in "qkv"}
                yield layout(label, {**cut, **out}, extras, fused=True)
        for q, kv in itertools.product(parts["q"], parts["kv"]):
            for name, rows in half_packed_rows(spec):
                cut = {"q": q, "k": kv.take(rows["k"]), "v": kv.take(rows["v"])}
                yield layout(name, {**cut, **out}, extras, fused=True)


def _torch_biases(parts: dict[str, Part], spec: AttentionSpec) -> dict[str, Part]:
    """Separate weights whose biases are packed in one vector, as in nn.MultiheadAttention."""
    if not all((p.bias or "").endswith("in_proj_bias") for p in parts.values()):
        return parts
    _name, rows = next(packed_rows(spec))
    return {
        role: Part(p.weight, p.bias, p.turn, None, rows[role], p.label) for role, p in parts.items()
    }


def _shaped(
    every: list[Part], tensors: Tensors, spec: AttentionSpec, extras: Mapping[str, str]
) -> Iterator[Layout]:
    """When names say nothing: matrices in order of registration, then every other assignment."""
    sizes = Sizes(spec)
    shape = {p.weight: tuple(p.turn(tensors[p.weight]).shape) for p in every}
    for chosen in itertools.permutations(every, 4) if 4 <= len(every) <= 6 else ():
        if all(shape[p.weight] == sizes.shapes[r] for p, r in zip(chosen, "qkvo", strict=True)):
            parts = dict(zip("qkvo", chosen, strict=True))
            label = ", ".join(f"{role}={p.weight}" for role, p in parts.items())
            yield layout(f"by shape: {label}", parts, extras)
    fused = [p for p in every if shape[p.weight] == (sizes.fused, spec.d_model)]
    for whole in fused:
        rest = [p for p in every if p is not whole and shape[p.weight] == sizes.shapes["o"]]
        for out in [{"o": p} for p in rest] or [{}]:
            for name, rows in packed_rows(spec):
                cut = {role: whole.take(rows[role]) for role in "qkv"}
                yield layout(name, {**cut, **out}, extras, fused=True)


# ------------------------------------------------------------------ declared
FUSED_LAYOUTS = {
    "packed-chunks": "packed-chunks",
    "packed-chunks-qvk": "packed-chunks-qvk",
    "packed-per-head": "packed-per-head",
    "packed-grouped": "packed-grouped",
    "conv1d": "packed-chunks",
}
LAYOUTS = ("separate", *FUSED_LAYOUTS, "per-head-arrays", "torch-mha", "none")


def declared_layout(module: Any, spec: AttentionSpec, weights: Mapping[str, str]) -> Layout:
    """The layout that ``HEADWISE["weights"]`` states: a layout's name and attributes by role.

    Raises:
        UsageError: an unknown layout, or an attribute that the module lacks.
    """
    kind = weights.get("layout", "separate")
    if kind not in LAYOUTS:
        raise UsageError(
            _("unknown weight layout {kind!r}").format(kind=kind), fix=", ".join(LAYOUTS)
        )
    if kind == "none":
        return EMPTY
    tensors = dict(module.named_parameters())

    def name_of(attribute: str, leaf: str) -> str | None:
        options = [f"{attribute}.{leaf}"] + ([attribute] if leaf == "weight" else [])
        return next((option for option in options if option in tensors), None)

    def need(role: str) -> str:
        attribute = weights.get(role, role)
        name = name_of(attribute, "weight")
        if name is None:
            raise UsageError(
                _("the layer has no parameter {name!r}, declared to hold {role}").format(
                    name=attribute, role=role
                ),
                where='HEADWISE["weights"]',
                fix=", ".join(tensors) or _("it has no parameters at all"),
            )
        return name

    def part(role: str, turn: Turn) -> Part:
        return Part(need(role), name_of(weights.get(role, role), "bias"), turn)

    extras = {role: need(role) for role in EXTRAS if role in weights}
    for role in ("q_norm", "k_norm"):
        bias = name_of(weights[role], "bias") if role in extras else None
        if bias is not None:
            extras[f"{role}_bias"] = bias
    out = "o" in weights
    if kind == "torch-mha":
        return _torch_layout(weights.get("qkv", ""), tensors, spec)
    if kind == "per-head-arrays":
        parts = {}
        for role in "qkvo":
            weight, bias = need(role), weights.get(f"{role}_bias")
            turn = _storages(None, "", tensors[weight], out=role == "o")[0][1]
            parts[role] = Part(weight, bias if bias in tensors else None, turn)
        return layout(kind, parts, extras)
    if kind == "separate":
        return layout(kind, {r: part(r, same) for r in "qkvo" if r != "o" or out}, extras)
    turn = turned if kind == "conv1d" else same
    name = FUSED_LAYOUTS[kind]
    if name in ("packed-per-head", "packed-grouped"):
        name = "packed-per-head" if spec.group_size == 1 else "packed-grouped"
    rows, whole = dict(packed_rows(spec))[name], part("qkv", turn)
    cut = {role: whole.take(rows[role]) for role in "qkv"}
    return layout(kind, {**cut, **({"o": part("o", turn)} if out else {})}, extras, fused=True)


def _torch_layout(attribute: str, tensors: Tensors, spec: AttentionSpec) -> Layout:
    """The weights of an nn.MultiheadAttention, the module itself or an attribute of it."""
    prefix = f"{attribute}." if f"{attribute}.out_proj.weight" in tensors else ""

    def there(name: str) -> str | None:
        return prefix + name if prefix + name in tensors else None

    bias, whole = there("in_proj_bias"), there("in_proj_weight")
    out = Part(prefix + "out_proj.weight", there("out_proj.bias"), same)
    if whole is not None:
        _name, rows = next(packed_rows(spec))
        parts = {role: Part(whole, bias, same, rows[role]) for role in "qkv"}
    else:
        separate = {r: Part(f"{prefix}{r}_proj_weight", bias, same) for r in "qkv"}
        parts = _torch_biases(separate, spec)
    return layout("torch-mha", {**parts, "o": out}, {}, fused=whole is not None)
