"""Faults of splitting, grouping and merging heads: H and G."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from headwise.reference import Inputs, Parameters, StageFunction, Trace, attend
from headwise.reference.definition import merge_heads, split_heads
from headwise.reference.setting import Setting
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, one, register


# ------------------------------------------------------------------ split
def bare_view(flat: Tensor, heads: int) -> Tensor:
    """(B, T, H·D) viewed as (B, H, T, D): each head holds a slab of time."""
    b, t, width = flat.shape
    return flat.reshape(b, heads, t, width // heads)


def channel_major(flat: Tensor, heads: int) -> Tensor:
    """(B, T, H·D) read as (B, T, D, H)."""
    cut: Tensor = flat.unflatten(-1, (-1, heads))
    return cut.permute(0, 3, 1, 2)


def split_with(cut: str, names: str = "qkv") -> StageFunction:
    """The split stage with another way of cutting some of q, k and v."""
    cutter = {"view": bare_view, "channels": channel_major}[cut]

    def stage(t: Trace, s: Setting) -> None:
        split_heads(t, s)
        if s.inputs.x is not None:
            for name in names:
                heads = s.spec.num_heads if name == "q" else s.spec.num_kv_heads
                setattr(t, name, cutter(getattr(t, f"{name}_flat"), heads))

    return stage


def merge_bare(t: Trace, s: Setting) -> None:
    """(B, H, T, D) viewed as (B, T, H·D)."""
    if s.inputs.x is not None:
        b, _h, q_len, _d = t.context.shape
        t.merged = t.context.reshape(b, q_len, -1)


def merge_channel_major(t: Trace, s: Setting) -> None:
    """(B, H, T, D) merged as (D, H)."""
    if s.inputs.x is not None:
        t.merged = t.context.permute(0, 2, 3, 1).flatten(2)


def split_without_transpose(spec: AttentionSpec) -> Iterable[Variant]:
    yield Variant("split", {"split": split_with("view")})
    yield Variant("split and merge", {"split": split_with("view"), "merge": merge_bare})
    for name in "qkv":
        yield Variant(name, {"split": split_with("view", name)})
    yield Variant("kv", {"split": split_with("view", "kv")})


def head_dim_major(spec: AttentionSpec) -> Iterable[Variant]:
    yield Variant("split", {"split": split_with("channels")})
    yield Variant(
        "split and merge", {"split": split_with("channels"), "merge": merge_channel_major}
    )
    for name in ("q", "k", "v", "qk", "kv"):
        yield Variant(name, {"split": split_with("channels", name)})


# ------------------------------------------------------------------ grouped heads
def sharing(index: Tensor, names: str = "kv") -> Variant:
    """Query head h reads key/value head index[h]."""

    def stage(t: Trace, s: Setting) -> None:
        split_heads(t, s)
        t.share = lambda kv: kv[:, index]

    return Variant("", {"split": stage})


def tiled(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.group_size > 1 and spec.num_kv_heads > 1:
        yield sharing(torch.arange(spec.num_heads) % spec.num_kv_heads)


def wrong_divisor(spec: AttentionSpec) -> Iterable[Variant]:
    index = torch.arange(spec.num_heads) // spec.num_kv_heads
    if spec.group_size > 1 and int(index.max()) < spec.num_kv_heads:
        yield sharing(index)


def repeated_along_time(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.group_size == 1:
        return
    r = spec.group_size

    def slabs(kv: Tensor) -> Tensor:
        b, _g, t, d = kv.shape
        return kv.repeat_interleave(r, dim=2).reshape(b, -1, t, d)

    def rows(kv: Tensor) -> Tensor:
        b, _g, t, d = kv.shape
        flat = kv.transpose(1, 2).repeat(1, r, 1, 1)
        return flat.reshape(b, t, -1, d).transpose(1, 2)

    for label, share in (("each token repeated", slabs), ("the sequence repeated", rows)):

        def stage(t: Trace, s: Setting, share=share) -> None:  # type: ignore[no-untyped-def]
            split_heads(t, s)
            t.share = share

        yield Variant(label, {"split": stage})


# ------------------------------------------------------------------ batch
def unpacked_heads_first(x: Tensor) -> Tensor:
    """A flat (batch · head) axis unpacked as (head, batch)."""
    b, h = x.shape[:2]
    return x.reshape(h, b, *x.shape[2:]).transpose(0, 1)


def batch_head_order(spec: AttentionSpec) -> Iterable[Variant]:
    def merge(t: Trace, s: Setting) -> None:
        t.context = unpacked_heads_first(t.context)
        merge_heads(t, s)

    def merge_packed(t: Trace, s: Setting) -> None:
        context = t.context  # packed as (head, batch), unpacked as (batch, head)
        t.context = context.transpose(0, 1).reshape(context.shape)
        merge_heads(t, s)

    yield Variant("merge", {"merge": merge})
    yield Variant("packed heads first", {"merge": merge_packed})


def over_batch(spec: AttentionSpec, parameters: Parameters, inputs: Inputs) -> Trace:
    """Attention with the batch and the time axis exchanged."""

    def turned(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.transpose(0, 1)

    trace = attend(
        spec,
        parameters,
        inputs.replace(
            x=turned(inputs.x),
            context=turned(inputs.context),
            values=turned(inputs.values),
            keep=None,
            query_keep=None,
            mask=None,
        ),
    )
    trace.output = trace.output.transpose(0, 1)
    return trace


def attends_over_batch(spec: AttentionSpec) -> Iterable[Variant]:
    yield Variant("", around=over_batch)


register(
    Fault(
        code="H01",
        name="split-without-transpose",
        shown_by=("plain",),
        what=N_("the heads are split by a bare view, so each head holds a slab of time"),
        why=N_(
            "memory holds, token by token, the channels of all heads. Viewed as (B, H, T, D), a "
            "head gets a stretch of time in which several heads are mixed, and a causal mask hides "
            "the wrong tokens. Shapes are right and the layer trains"
        ),
        fix=N_("view as (B, T, H, D) first, then exchange axes 1 and 2"),
        bad="q = self.q_proj(x).view(B, H, T, D)",
        good="q = self.q_proj(x).view(B, T, H, D).transpose(1, 2)",
        variants=split_without_transpose,
    ),
    Fault(
        code="H02",
        name="head-dim-major-split",
        shown_by=("one",),
        what=N_("the channels are split as (head_dim, heads) instead of (heads, head_dim)"),
        why=N_(
            "a head gets every H-th channel instead of a block of its own. A layer trained this "
            "way works; with the weights of a checkpoint every head is a mixture of all"
        ),
        fix=N_("split the channels as (heads, head_dim): the head is the slower axis"),
        bad="q = self.q_proj(x).view(B, T, D, H).permute(0, 3, 1, 2)",
        good="q = self.q_proj(x).view(B, T, H, D).transpose(1, 2)",
        variants=head_dim_major,
    ),
    Fault(
        code="H03",
        name="kv-heads-tiled",
        rank=40,
        shown_by=("one",),
        what=N_("grouped heads are tiled 0 1 0 1 instead of repeated 0 0 1 1"),
        why=N_(
            "query head h reads key/value head h mod Hkv instead of that of its group. Layers with "
            "one key/value head, or with one for each query head, agree, so only grouped "
            "checkpoints turn into noise"
        ),
        fix=N_("repeat each key/value head in place: repeat_interleave over the head axis"),
        bad="k = k_grouped.repeat(1, H // Hkv, 1, 1)",
        good="k = k_grouped.repeat_interleave(H // Hkv, dim=1)",
        variants=tiled,
    ),
    Fault(
        code="H04",
        name="kv-head-wrong-divisor",
        shown_by=("one",),
        what=N_("query head h reads key/value head h // num_kv_heads"),
        why=N_(
            "the divisor has to be the size of a group, num_heads / num_kv_heads. With "
            "num_kv_heads in its place some key/value heads are read too often and others never; "
            "if the two numbers happen to be equal, nothing shows"
        ),
        fix=N_("divide by the size of a group: h // (num_heads // num_kv_heads)"),
        bad="k = k_grouped[:, torch.arange(H) // Hkv]",
        good="k = k_grouped[:, torch.arange(H) // (H // Hkv)]",
        variants=wrong_divisor,
    ),
    Fault(
        code="H05",
        name="kv-repeated-along-time",
        shown_by=("plain",),
        what=N_("keys and values are repeated along time instead of the head axis"),
        why=N_(
            "the copies lie along time, and the reshape cuts them at the wrong places: a head "
            "reads other tokens or another head's keys. The number of elements fits, so nothing "
            "raises"
        ),
        fix=N_("repeat over the head axis, which is axis 1 of (B, Hkv, T, D)"),
        bad="k = k_grouped.repeat_interleave(H // Hkv, dim=2).reshape(B, H, T, D)",
        good="k = k_grouped.repeat_interleave(H // Hkv, dim=1)",
        variants=repeated_along_time,
    ),
    Fault(
        code="H06",
        name="batch-head-order",
        shown_by=("batch > 1",),
        what=N_("a flat batch·head axis is unpacked as (head, batch)"),
        why=N_(
            "heads of different samples are put together, so a sample's output depends on the "
            "others of its batch. A batch of one is right, which is how this passes a quick test"
        ),
        fix=N_("unpack a flat axis in the order in which it was packed"),
        bad="out = flat.view(H, B, T, D).transpose(0, 1)  # packed as B * H",
        good="out = flat.view(B, H, T, D)",
        variants=batch_head_order,
    ),
    Fault(
        code="H07",
        name="attends-over-batch",
        undeclared="convention",
        point="batch_first",
        shown_by=("plain",),
        what=N_("the batch and the time axis are exchanged (batch_first)"),
        why=N_(
            "a token attends to the same place of the other samples instead of to its own "
            "sequence: the result depends on what else is in the batch. nn.MultiheadAttention "
            "reads (T, B, D) unless it is told otherwise"
        ),
        fix=N_("give the axes in the order that the layer reads, or set batch_first=True"),
        bad=(
            "layer = nn.MultiheadAttention(d_model, H)  # reads (T, B, D)\n"
            "output, _ = layer(x, x, x)  # x is (B, T, D)"
        ),
        good=(
            "layer = nn.MultiheadAttention(d_model, H, batch_first=True)\n"
            "output, _ = layer(x, x, x)"
        ),
        variants=attends_over_batch,
    ),
    Fault(
        code="G01",
        name="merge-without-transpose",
        shown_by=("plain",),
        what=N_("the heads are merged by a bare view, which mixes time and heads"),
        why=N_(
            "a token's output is put together from pieces of other tokens and heads. Shapes are "
            "right, a single head is right, and simple tasks still train"
        ),
        fix=N_("exchange axes 1 and 2 first, then flatten heads and channels"),
        bad="merged = out.reshape(B, T, H * D)  # out is (B, H, T, D)",
        good="merged = out.transpose(1, 2).reshape(B, T, H * D)",
        variants=one("merge", merge_bare),
    ),
    Fault(
        code="G02",
        name="merge-head-dim-major",
        shown_by=("one",),
        what=N_("the heads are merged as (head_dim, heads) instead of (heads, head_dim)"),
        why=N_(
            "W_O expects the channels of a head next to each other and gets them interleaved. A "
            "layer trained this way works; with the weights of a checkpoint the output is noise"
        ),
        fix=N_("merge as (heads, head_dim): the head is the slower axis"),
        bad="merged = out.permute(0, 2, 3, 1).flatten(2)",
        good="merged = out.permute(0, 2, 1, 3).flatten(2)",
        variants=one("merge", merge_channel_major),
    ),
)
