"""Where a layer keeps its weights: names first, then shapes, then numbers.

A ``Layout`` is a hypothesis: a way of reading a module's parameters as the definition's
``Parameters``. Several are proposed in order of likelihood; measurement decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import UsageError
from headwise.reference import Parameters
from headwise.spec import AttentionSpec
from headwise.texts import translate as _
from headwise.verifier.names import fused_order, role_of

Tensors = Mapping[str, Tensor]
Reader = Callable[[Tensors], Tensor]


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
class Matrix:
    """A weight found in a module: how to read it as out × in, and its bias."""

    label: str
    weight: str
    bias: str | None
    turn: Callable[[Tensor], Tensor]

    def parts(self, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        bias = None if self.bias is None else tensors[self.bias].flatten()
        return self.turn(tensors[self.weight]), bias

    @property
    def names(self) -> tuple[str, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


def same(w: Tensor) -> Tensor:
    """A weight that is stored out × in."""
    return w


def turned(w: Tensor) -> Tensor:
    """A weight that is stored in × out."""
    return w.transpose(0, 1)


# ------------------------------------------------------------------ what the module holds
def find_matrices(module: nn.Module) -> dict[str, list[list[Matrix]]]:
    """Weight matrices by role; per role a list of candidates, each with its orientations."""
    tensors = dict(module.named_parameters())
    modules = dict(module.named_modules())
    found: dict[str, list[list[Matrix]]] = {}
    for name, tensor in tensors.items():
        path, _dot, leaf = name.rpartition(".")
        if tensor.dim() < 2 or leaf == "bias":
            continue
        role = role_of(name)
        if role in ("q_norm", "k_norm", "sinks", "positions", "relative_bias"):
            continue
        if isinstance(modules.get(path), nn.Embedding) or _is_bias_name(leaf):
            continue
        bias = _bias_of(name, tensors)
        turns = _orientations(modules.get(path), leaf, tensor)
        candidates = [Matrix(label, name, bias, turn) for label, turn in turns]
        found.setdefault(role or "", []).append(candidates)
    return found


def _is_bias_name(leaf: str) -> bool:
    return leaf.startswith(("b_", "bias")) or leaf.endswith("_bias")


def _bias_of(name: str, tensors: Tensors) -> str | None:
    path, _dot, leaf = name.rpartition(".")
    prefix = f"{path}." if path else ""
    options = [leaf.replace("weight", "bias")]
    if leaf[:2] in ("W_", "w_"):
        options += ["b_" + leaf[2:], "B_" + leaf[2:], "b" + leaf[2:]]
    if leaf[:1] in ("W", "w") and len(leaf) == 2:
        options += ["b" + leaf[1:]]
    if leaf in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        return None  # nn.MultiheadAttention keeps these in in_proj_bias
    for option in options:
        if option != leaf and prefix + option in tensors:
            return prefix + option
    return None


def _orientations(
    owner: nn.Module | None, leaf: str, tensor: Tensor
) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    if tensor.dim() == 3:
        return [
            ("heads × in × size", lambda w: w.transpose(1, 2).flatten(0, 1)),
            ("in × heads × size", lambda w: w.flatten(1).transpose(0, 1)),
            ("heads × size × in", lambda w: w.flatten(0, 1)),
        ]
    if type(owner).__name__ == "Conv1D":
        return [("conv1d", turned)]
    if leaf == "weight" or leaf.endswith("_weight"):
        return (
            [("", same)]
            if isinstance(owner, nn.Linear) or leaf != "weight"
            else [
                ("", same),
                ("in × out", turned),
            ]
        )
    return [("in × out", turned), ("out × in", same)]


# ------------------------------------------------------------------ reading
def packed_indices(spec: AttentionSpec) -> Iterable[tuple[str, tuple[Tensor, Tensor, Tensor]]]:
    """Ways of packing q, k and v in the rows of one matrix: (name, rows of q, of k, of v)."""
    n = {
        "q": spec.num_heads * spec.head_dim,
        "k": spec.num_kv_heads * spec.head_dim,
        "v": spec.num_kv_heads * spec.v_head_dim,
    }
    for order in ("qkv", "qvk", "kqv", "kvq", "vqk", "vkq"):
        start, rows = 0, {}
        for letter in order:
            rows[letter] = torch.arange(start, start + n[letter])
            start += n[letter]
        name = "packed-chunks" if order == "qkv" else f"packed-chunks-{order}"
        yield name, (rows["q"], rows["k"], rows["v"])
    size = {
        "q": spec.group_size * spec.head_dim,
        "k": spec.head_dim,
        "v": spec.v_head_dim,
    }
    total = sum(size.values())
    per_head = "packed-per-head" if spec.group_size == 1 else "packed-grouped"
    block = torch.arange(spec.num_kv_heads * total).view(spec.num_kv_heads, total)
    for order in ("qkv", "qvk", "kqv", "kvq", "vqk", "vkq"):
        start, rows = 0, {}
        for letter in order:
            rows[letter] = block[:, start : start + size[letter]].flatten()
            start += size[letter]
        name = per_head if order == "qkv" else f"{per_head}-{order}"
        yield name, (rows["q"], rows["k"], rows["v"])
    if len(set(n.values())) == 1:
        cells = torch.arange(3 * n["q"])
        last = cells.view(-1, 3)
        yield "packed-per-channel", (last[:, 0], last[:, 1], last[:, 2])


def _rows(part: tuple[Tensor, Tensor | None], index: Tensor) -> tuple[Tensor, Tensor | None]:
    weight, bias = part
    return weight[index], None if bias is None else bias[index]


def _extras(module: nn.Module) -> tuple[dict[str, str], tuple[str, ...]]:
    """Parameters beside the four matrices, by the definition's name for them."""
    found: dict[str, str] = {}
    for name, tensor in module.named_parameters():
        role = role_of(name)
        if role in ("q_norm", "k_norm"):
            key = f"{role}_bias" if name.endswith("bias") else role
            found.setdefault(key, name)
        elif (role == "sinks" and tensor.dim() == 1) or (
            role in ("positions", "relative_bias") and tensor.dim() == 2
        ):
            found.setdefault(role, name)
    return found, tuple(found.values())


def candidates(module: nn.Module, spec: AttentionSpec) -> list[Layout]:
    """Layouts that fit the module's names and shapes, likeliest first."""
    matrices = find_matrices(module)
    shapes = {name: tuple(t.shape) for name, t in module.named_parameters()}
    values = {name: t.detach() for name, t in module.named_parameters()}
    extras, extra_names = _extras(module)
    found: list[Layout] = []

    def fits(m: Matrix, rows: int, columns: int | None = None) -> bool:
        shape = tuple(m.turn(values[m.weight]).shape)
        return shape[0] == rows and (columns is None or shape[1] == columns)

    n_q, n_k = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    n_v, n_o = spec.num_kv_heads * spec.v_head_dim, spec.num_heads * spec.v_head_dim

    def pick(role: str, rows: int, columns: int | None) -> list[Matrix]:
        return [m for group in matrices.get(role, []) for m in group if fits(m, rows, columns)]

    outs: list[Matrix | None] = list(pick_out(matrices, values, spec.d_model, n_o)) or [None]

    def add(name: str, parts: Callable[[Tensors], dict[str, Tensor | None]], out: Matrix | None,
            names: tuple[str, ...], *, fused: bool = False) -> None:  # fmt: skip
        def read(tensors: Tensors) -> Parameters:
            given = parts(tensors)
            if out is not None:
                given["o"], given["o_bias"] = out.parts(tensors)
            for key, full in extras.items():
                given[key] = tensors[full]
            return Parameters(**given)

        all_names = names + (out.names if out is not None else ()) + extra_names
        found.append(Layout(name, read, all_names, fused))

    for out in outs:
        for q, k, v in itertools.product(
            pick("q", n_q, spec.d_model),
            pick("k", n_k, spec.d_context),
            pick("v", n_v, spec.d_values),
        ):
            fused_bias = _torch_bias(shapes, q.weight)

            def separate(tensors: Tensors, q: Matrix = q, k: Matrix = k, v: Matrix = v,
                         fused_bias: str | None = fused_bias) -> dict[str, Tensor | None]:  # fmt: skip
                (wq, bq), (wk, bk), (wv, bv) = (m.parts(tensors) for m in (q, k, v))
                if fused_bias is not None:
                    bq, bk, bv = tensors[fused_bias].split((n_q, n_k, n_v))
                return dict(q=wq, k=wk, v=wv, q_bias=bq, k_bias=bk, v_bias=bv)

            label = q.label and f" ({q.label})"
            extra = () if fused_bias is None else (fused_bias,)
            add(f"separate{label}", separate, out, q.names + k.names + v.names + extra)
        for group in matrices.get("qkv", []):
            for m in group:
                if not fits(m, n_q + n_k + n_v, spec.d_model):
                    continue
                orders = list(packed_indices(spec))
                spelled = fused_order(m.weight)
                if spelled not in (None, "qkv"):
                    orders.sort(key=lambda item: not item[0].endswith(str(spelled)))
                for name, index in orders:

                    def packed(tensors: Tensors, m: Matrix = m,
                               index: tuple[Tensor, Tensor, Tensor] = index) -> dict[str, Tensor | None]:  # fmt: skip
                        whole = m.parts(tensors)
                        (wq, bq), (wk, bk), (wv, bv) = (_rows(whole, i) for i in index)
                        return dict(q=wq, k=wk, v=wv, q_bias=bq, k_bias=bk, v_bias=bv)

                    label = m.label and f" ({m.label})"
                    add(name + label, packed, out, m.names, fused=True)
        for q in pick("q", n_q, spec.d_model):
            for kv in pick("kv", n_k + n_v, spec.d_context):
                for name, k_rows, v_rows in _kv_indices(spec):

                    def half_packed(tensors: Tensors, q: Matrix = q, kv: Matrix = kv,
                                    k_rows: Tensor = k_rows, v_rows: Tensor = v_rows) -> dict[str, Tensor | None]:  # fmt: skip
                        wq, bq = q.parts(tensors)
                        whole = kv.parts(tensors)
                        (wk, bk), (wv, bv) = _rows(whole, k_rows), _rows(whole, v_rows)
                        return dict(q=wq, k=wk, v=wv, q_bias=bq, k_bias=bk, v_bias=bv)

                    add(name, half_packed, out, q.names + kv.names, fused=True)
    if not found:
        found = _by_shape(matrices, values, spec, extras, extra_names)
    return found


def pick_out(
    matrices: Mapping[str, list[list[Matrix]]], values: Tensors, d_model: int, n_o: int
) -> Iterable[Matrix]:
    """Candidates for the output projection, (Dm, Hq·Dv)."""
    for group in matrices.get("o", []):
        for m in group:
            weight = values[m.weight]
            if weight.dim() == 3:
                # heads × size × out, or out × heads × size
                if weight.shape[0] * weight.shape[1] == n_o and weight.shape[2] == d_model:
                    yield Matrix("heads × size × out", m.weight, m.bias,
                                 lambda w: w.flatten(0, 1).transpose(0, 1))  # fmt: skip
                elif weight.shape[0] == d_model:
                    yield Matrix("out × heads × size", m.weight, m.bias, lambda w: w.flatten(1))
                return
            if tuple(m.turn(weight).shape) == (d_model, n_o):
                yield m


def _torch_bias(shapes: Mapping[str, tuple[int, ...]], q_name: str) -> str | None:
    if not q_name.endswith("q_proj_weight"):
        return None
    name = q_name.removesuffix("q_proj_weight") + "in_proj_bias"
    return name if name in shapes else None


def _kv_indices(spec: AttentionSpec) -> Iterable[tuple[str, Tensor, Tensor]]:
    n_k, n_v = spec.num_kv_heads * spec.head_dim, spec.num_kv_heads * spec.v_head_dim
    yield "q, packed kv", torch.arange(n_k), torch.arange(n_k, n_k + n_v)
    block = torch.arange(n_k + n_v).view(spec.num_kv_heads, -1)
    yield "q, kv per head", block[:, : spec.head_dim].flatten(), block[:, spec.head_dim :].flatten()
    yield "q, packed vk", torch.arange(n_v, n_v + n_k), torch.arange(n_v)


def _by_shape(
    matrices: Mapping[str, list[list[Matrix]]],
    values: Tensors,
    spec: AttentionSpec,
    extras: Mapping[str, str],
    extra_names: tuple[str, ...],
) -> list[Layout]:
    """When names say nothing: matrices in order of registration, then every other assignment."""
    every = [group[0] for groups in matrices.values() for group in groups]
    order = list(values)
    every.sort(key=lambda m: order.index(m.weight))
    n_q, n_k = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    n_v, n_o = spec.num_kv_heads * spec.v_head_dim, spec.num_heads * spec.v_head_dim
    want = {
        "q": (n_q, spec.d_model),
        "k": (n_k, spec.d_context),
        "v": (n_v, spec.d_values),
        "o": (spec.d_model, n_o),
    }

    def shape(m: Matrix) -> tuple[int, ...]:
        return tuple(m.turn(values[m.weight]).shape)

    found = []
    for chosen in itertools.permutations(every, 4) if 4 <= len(every) <= 6 else ():
        if all(shape(m) == want[role] for m, role in zip(chosen, "qkvo", strict=True)):
            found.append(_assigned(dict(zip("qkvo", chosen, strict=True)), extras, extra_names))
    fused = [m for m in every if shape(m) == (n_q + n_k + n_v, spec.d_model)]
    outs: list[Matrix | None] = [m for m in every if shape(m) == want["o"] and m not in fused]
    for m in fused:
        for out in outs or [None]:
            for name, index in packed_indices(spec):
                found.append(_packed(name, m, out, index, extras, extra_names))
    return found


def _assigned(
    roles: Mapping[str, Matrix], extras: Mapping[str, str], extra_names: tuple[str, ...]
) -> Layout:
    def read(tensors: Tensors) -> Parameters:
        given: dict[str, Any] = {key: tensors[full] for key, full in extras.items()}
        for role, m in roles.items():
            given[role], given[f"{role}_bias"] = m.parts(tensors)
        return Parameters(**given)

    names = tuple(n for m in roles.values() for n in m.names)
    label = ", ".join(f"{role}={m.weight}" for role, m in roles.items())
    return Layout(f"by shape: {label}", read, names + extra_names)


def _packed(
    name: str,
    m: Matrix,
    out: Matrix | None,
    index: tuple[Tensor, Tensor, Tensor],
    extras: Mapping[str, str],
    extra_names: tuple[str, ...],
) -> Layout:
    def read(tensors: Tensors) -> Parameters:
        given: dict[str, Any] = {key: tensors[full] for key, full in extras.items()}
        whole = m.parts(tensors)
        for role, rows in zip("qkv", index, strict=True):
            given[role], given[f"{role}_bias"] = _rows(whole, rows)
        if out is not None:
            given["o"], given["o_bias"] = out.parts(tensors)
        return Parameters(**given)

    names = m.names + (out.names if out is not None else ()) + extra_names
    return Layout(name, read, names, fused=True)


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

    def full_name(attribute: str, leaf: str | None) -> str | None:
        for option in ([f"{attribute}.{leaf}"] if leaf else []) + [attribute]:
            if option in tensors and (leaf != "bias" or option != attribute):
                return option
        return None

    def need(role: str) -> str:
        attribute = weights.get(role, role)
        name = full_name(attribute, "weight")
        if name is None:
            raise UsageError(
                _("the layer has no parameter {name!r}, declared to hold {role}").format(
                    name=attribute, role=role
                ),
                where='HEADWISE["weights"]',
                fix=", ".join(tensors) or _("it has no parameters at all"),
            )
        return name

    extras = {
        role: need(role)
        for role in ("sinks", "q_norm", "k_norm", "positions", "relative_bias")
        if role in weights
    }
    for role in ("q_norm", "k_norm"):
        if role in extras and full_name(weights[role], "bias"):
            extras[f"{role}_bias"] = str(full_name(weights[role], "bias"))
    if kind == "torch-mha":
        return _torch_layout(weights.get("qkv", ""), tensors, spec)
    if kind == "per-head-arrays":
        roles = {}
        for role in "qkvo":
            bias = weights.get(f"{role}_bias")
            turn = _orientations(None, "", tensors[need(role)])[0][1]
            if role == "o":
                turn = lambda w: w.flatten(0, 1).transpose(0, 1)  # noqa: E731
            roles[role] = Matrix("", need(role), bias if bias in tensors else None, turn)
        layout = _assigned(roles, extras, tuple(extras.values()))
        return Layout(kind, layout.read, layout.names)
    if kind == "separate":
        roles = {
            role: Matrix("", need(role), full_name(weights.get(role, role), "bias"), same)
            for role in "qkvo"
            if role != "o" or "o" in weights
        }
        layout = _assigned(roles, extras, tuple(extras.values()))
        return Layout(kind, layout.read, layout.names)
    turn = turned if kind == "conv1d" else same
    fused = Matrix("", need("qkv"), full_name(weights.get("qkv", "qkv"), "bias"), turn)
    out = None
    if "o" in weights:
        out = Matrix("", need("o"), full_name(weights["o"], "bias"), turn)
    index = dict(packed_indices(spec))
    packing = FUSED_LAYOUTS[kind]
    if packing == "packed-per-head" and spec.group_size > 1:
        packing = "packed-grouped"
    if packing == "packed-grouped" and spec.group_size == 1:
        packing = "packed-per-head"
    return _packed(kind, fused, out, index[packing], extras, tuple(extras.values()))


def _torch_layout(attribute: str, tensors: Tensors, spec: AttentionSpec) -> Layout:
    prefix = f"{attribute}." if attribute and f"{attribute}.out_proj.weight" in tensors else ""
    n = (
        spec.num_heads * spec.head_dim,
        spec.num_kv_heads * spec.head_dim,
        spec.num_kv_heads * spec.v_head_dim,
    )

    def read(given: Tensors) -> Parameters:
        parts: dict[str, Any] = {}
        if prefix + "in_proj_weight" in given:
            parts["q"], parts["k"], parts["v"] = given[prefix + "in_proj_weight"].split(n)
        else:
            for role in "qkv":
                parts[role] = given[f"{prefix}{role}_proj_weight"]
        if prefix + "in_proj_bias" in given:
            biases = given[prefix + "in_proj_bias"].split(n)
            parts["q_bias"], parts["k_bias"], parts["v_bias"] = biases
        parts["o"] = given[prefix + "out_proj.weight"]
        parts["o_bias"] = given.get(prefix + "out_proj.bias")
        return Parameters(**parts)

    names = tuple(n for n in tensors if n.startswith(prefix))
    return Layout("torch-mha", read, names, fused=prefix + "in_proj_weight" in tensors)
