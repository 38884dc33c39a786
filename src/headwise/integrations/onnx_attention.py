"""ONNX's operators Attention and RotaryEmbedding, opset 23 to 25, computed by `headwise.attend`.

What the operator calls it, and what it is here::

    Q, K, V with 3 axes        (B, T, H·D); heads become an axis, and are merged again at the end
    past_key, past_value       stand before the new keys and values
    attn_mask, bool            Custom, True = may look; keys missing at its end are hidden
    attn_mask, float           is added: -inf is Custom, all other numbers are the bias
    is_causal                  Causal  ⎫ from the slot of the first query, which is
    left_window_size, right_…  Window  ⎭   0 without a cache
                                           the number of cached keys with past_key
                                           nonpad_kv_seqlen - Tq with nonpad_kv_seqlen, per sample
    nonpad_kv_seqlen           Padding on the right
    scale, softcap             scale, softcap; a softcap of 0 is none
    softmax_precision          DOUBLE computes in float64; all others are float32 here, or float64
                               for float64 inputs: never less than what is asked
    qk_matmul_output_mode      0 raw_scores   1 capped_scores   2 masked_scores   3 weights

Inputs have the names of the operator's schema, so a node is run by
``attention(**inputs, **attributes)``.

Source: the schemas of onnx 1.23 (``onnx.defs.get_schema("Attention", 25)``). Two points are ours:
an integer ``attn_mask``, on which the text is silent, is refused, and so is one with a single entry
for several keys, which can mean "for all keys" and "for the first one".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headwise import attend
from headwise.attend.positions import rotate
from headwise.errors import MaskError, ShapeError, UsageError
from headwise.masks import Causal, Custom, Mask, Padding, Window, from_convention
from headwise.masks.mask import Alignment
from headwise.texts import translate as _

_DOUBLE = 11
_PRECISIONS = {1: "FLOAT", 10: "FLOAT16", _DOUBLE: "DOUBLE", 16: "BFLOAT16"}
_STAGES = ("raw_scores", "capped_scores", "masked_scores", "weights")
_WHERE = "onnx_attention.attention(...)"


class Outputs(NamedTuple):
    """What the operator returns.

    Args:
        Y: (B, Hq, Tq, Dv), or (B, Tq, Hq·Dv) for inputs with three axes; dtype of Q.
        present_key: (B, Hkv, Tk, Dk), the keys that were looked at, cached ones included.
        present_value: (B, Hkv, Tk, Dv).
        qk_matmul_output: (B, Hq, Tq, Tk), dtype of Q; None unless it was asked for.
    """

    Y: Tensor
    present_key: Tensor
    present_value: Tensor
    qk_matmul_output: Tensor | None


def attention(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    with_qk_matmul_output: bool = False,
    backend: str | None = None,
) -> Outputs:
    """The operator Attention.

    Args:
        Q: (B, Hq, Tq, Dk), or (B, Tq, Hq·Dk) with ``q_num_heads`` and ``kv_num_heads``.
        K: (B, Hkv, Tk, Dk), or (B, Tk, Hkv·Dk); Hkv divides Hq.
        V: (B, Hkv, Tk, Dv), or (B, Tk, Hkv·Dv).
        attn_mask: broadcasts to (B, Hq, Tq, Tk), and may be shorter on the key axis: bool, True =
            may look, or floats that are added to the scores.
        past_key: (B, Hkv, Tp, Dk), cached keys; Tk above is then Tp + the new ones.
        past_value: (B, Hkv, Tp, Dv).
        nonpad_kv_seqlen: (B,) whole numbers, how many of the keys are real; not with ``past_key``.
        is_causal: whether later keys are hidden.
        left_window_size: keys before the query that it sees, -1 = all.
        right_window_size: keys after it, -1 = all.
        scale: factor of the scores; None = 1/√Dk.
        softcap: scores become cap·tanh(scores/cap) before mask and bias; 0 = not.
        softmax_precision: number of an ONNX type: 1, 10, 11 or 16.
        q_num_heads: Hq; for four axes it may be left out.
        kv_num_heads: Hkv, likewise.
        qk_matmul_output_mode: which scores the fourth output holds, see the top of this module.
        with_qk_matmul_output: whether the fourth output is wanted; it costs a second computation.
        backend: as for `headwise.attend.attention`.

    Returns:
        `Outputs`. A query that sees nothing has a row of zeros in ``Y`` and in mode 3.

    Raises:
        ShapeError: axes or numbers of heads that do not fit.
        MaskError: a mask that is neither bool nor float, contains NaN or +inf, or does not fit.
        UsageError: attributes outside of their range, or inputs that exclude each other.

    Example:
        One new token after two cached ones sees all three, though it is causal:

        >>> q = k = torch.zeros(1, 1, 1, 2)
        >>> past = torch.zeros(1, 1, 2, 2)
        >>> values = torch.tensor([3.0, 6.0]).view(1, 1, 2, 1)
        >>> new = torch.tensor([9.0]).view(1, 1, 1, 1)
        >>> out = attention(q, k, new, past_key=past, past_value=values, is_causal=1)
        >>> round(out.Y.item(), 4), tuple(out.present_key.shape)
        (6.0, (1, 1, 3, 2))
    """
    _check_attributes(left_window_size, right_window_size, softmax_precision, qk_matmul_output_mode)
    _check_cache(past_key, past_value, nonpad_kv_seqlen)
    merged = Q.ndim == 3
    query, key, value = _with_heads(Q, K, V, q_num_heads, kv_num_heads)
    if past_key is not None and past_value is not None:
        key = _append("past_key", past_key, key)
        value = _append("past_value", past_value, value)
    present_key, present_value = key, value

    q_len, kv_len = query.shape[2], key.shape[2]
    offset: int | list[int] = 0 if past_key is None else past_key.shape[2]
    rules: list[Mask | None] = []
    if nonpad_kv_seqlen is not None:
        rules.append(Padding.from_lengths(nonpad_kv_seqlen, kv_len))
        offset = [int(length) - q_len for length in nonpad_kv_seqlen]
    window = (left_window_size, right_window_size)
    rules.append(_by_position(bool(is_causal), window, q_len, kv_len, offset))
    bias = None
    if attn_mask is not None:
        table, bias = _split(attn_mask, query, kv_len)
        rules.append(table)
    mask: Mask | None = None
    for rule in rules:
        if rule is not None:
            mask = rule if mask is None else mask & rule

    dtype = torch.float64 if softmax_precision == _DOUBLE else query.dtype
    for other in (key, value, bias):  # V may have a type of its own, and so may the mask
        dtype = dtype if other is None else torch.promote_types(dtype, other.dtype)
    tensors = (query.to(dtype), key.to(dtype), value.to(dtype))
    cap = softcap if softcap > 0 else None
    context = attend.attention(
        *tensors, mask=mask, bias=bias, scale=scale, softcap=cap, backend=backend
    )
    assert isinstance(context, Tensor)  # no weights were asked for
    y, scores = context.to(Q.dtype), None
    if with_qk_matmul_output:
        stages = attend.stages(*tensors, mask=mask, bias=bias, scale=scale, softcap=cap)
        scores = getattr(stages, _STAGES[qk_matmul_output_mode]).to(Q.dtype)
    if merged:
        y = _merge_heads(y)
    return Outputs(y, present_key, present_value, scores)


def rotary_embedding(
    X: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    rotary_embedding_dim: int = 0,
    num_heads: int = 0,
) -> Tensor:
    """The operator RotaryEmbedding.

    Args:
        X: (B, H, T, D), or (B, T, H·D) with ``num_heads``.
        cos_cache: (positions, n) with ``position_ids``, else (B, T, n); n is half of the channels
            that are turned.
        sin_cache: the same shape.
        position_ids: (B, T), rows of the tables.
        interleaved: 1 turns neighbours (2i, 2i + 1), 0 turns halves (i, i + n).
        rotary_embedding_dim: how many channels of a head are turned; 0 = all.
        num_heads: H, needed for three axes.

    Returns:
        Shape and dtype of X.

    Raises:
        ShapeError: sizes that do not fit, or a position outside of the tables.

    Example:
        >>> x = torch.tensor([5.0, 0.0]).view(1, 1, 1, 2)
        >>> quarter = torch.tensor([[0.0]]), torch.tensor([[1.0]])  # cosine and sine of position 0
        >>> rotary_embedding(x, *quarter, torch.tensor([[0]])).flatten().tolist()
        [0.0, 5.0]
    """
    where = "onnx_attention.rotary_embedding(...)"
    merged = X.ndim == 3
    x = _split_heads(X, num_heads, "X", "num_heads", where).transpose(1, 2) if merged else X
    channels = rotary_embedding_dim or x.shape[-1]
    for name, table in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        if 2 * table.shape[-1] != channels:
            raise ShapeError(
                _("{name} holds {has} angles, but {channels} channels are turned").format(
                    name=name, has=table.shape[-1], channels=channels
                ),
                where=where,
                why=_("a pair of channels has one angle"),
                fix=_("{count} angles for each position").format(count=channels // 2),
            )
    if position_ids is not None:
        positions = cos_cache.shape[0]
        if position_ids.numel() and not 0 <= int(position_ids.min()) <= int(
            position_ids.max()
        ) < min(positions, sin_cache.shape[0]):
            raise ShapeError(
                _("position_ids run from {low} to {high}").format(
                    low=int(position_ids.min()), high=int(position_ids.max())
                ),
                where=where,
                why=_("the tables have positions 0 to {last}").format(last=positions - 1),
                fix=_("longer tables"),
            )
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    turned = rotate(x, cos_cache, sin_cache, pairs="neighbours" if interleaved else "halves")
    return _merge_heads(turned) if merged else turned


# -- the parts of an attention call -------------------------------------------------------------


def _with_heads(
    Q: Tensor, K: Tensor, V: Tensor, q_num_heads: int | None, kv_num_heads: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as (B, H, T, D)."""
    ranks = (Q.ndim, K.ndim, V.ndim)
    if ranks not in {(3, 3, 3), (4, 4, 4)}:
        raise ShapeError(
            _("Q, K and V have {ranks} axes").format(ranks=", ".join(map(str, ranks))),
            where=_WHERE,
            why=_("all three have three axes (B, T, H·D), or all have four (B, H, T, D)"),
            fix=_("the same layout for the three of them"),
        )
    named = (("Q", Q, "q_num_heads", q_num_heads), ("K", K, "kv_num_heads", kv_num_heads))
    if Q.ndim == 4:
        for name, tensor, attribute, heads in named:
            if heads is not None and heads != tensor.shape[1]:
                raise ShapeError(
                    _("{attribute}={heads}, but {name} has {has} heads").format(
                        attribute=attribute, heads=heads, name=name, has=tensor.shape[1]
                    ),
                    where=_WHERE,
                    why=_("with four axes the heads are an axis of their own"),
                    fix=_("leave {attribute} away").format(attribute=attribute),
                )
        return Q, K, V
    query, key, value = (
        _split_heads(tensor, heads, name, attribute, _WHERE).transpose(1, 2)
        for name, tensor, attribute, heads in (*named, ("V", V, "kv_num_heads", kv_num_heads))
    )
    return query, key, value


def _split_heads(x: Tensor, heads: int | None, name: str, attribute: str, where: str) -> Tensor:
    """(B, T, H·D) as (B, T, H, D)."""
    if not heads or heads < 0 or x.shape[-1] % heads:
        raise ShapeError(
            _("{name} has three axes and {attribute}={heads}").format(
                name=name, attribute=attribute, heads=heads
            ),
            where=where,
            why=_("its {width} channels are split evenly into heads").format(width=x.shape[-1]),
            fix=_("{attribute}: a divisor of {width}").format(
                attribute=attribute, width=x.shape[-1]
            ),
        )
    split: Tensor = x.unflatten(-1, (heads, -1))
    return split


def _merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, D) as (B, T, H·D)."""
    return x.transpose(1, 2).flatten(2)


def _append(name: str, past: Tensor, new: Tensor) -> Tensor:
    """The cached tokens and the new ones, (B, H, Tp + T, D)."""
    B, H, _T, D = new.shape
    if past.ndim != 4 or (past.shape[0], past.shape[1], past.shape[3]) != (B, H, D):
        raise ShapeError(
            _("{name} has shape {shape}, not {wanted}").format(
                name=name, shape=tuple(past.shape), wanted=f"({B}, {H}, *, {D})"
            ),
            where=_WHERE,
            why=_("cached and new tokens differ in their number alone"),
            fix=_("four axes (B, Hkv, Tp, D), also where K and V have three"),
        )
    return torch.cat([past, new], dim=2)


def _by_position(
    causal: bool,
    window: tuple[int, int],
    q_len: int,
    kv_len: int,
    offset: int | list[int],
) -> Mask | None:
    """The causal rule and the window, with the first query at slot ``offset`` of each sample."""
    left, right = (None if distance == -1 else distance for distance in window)
    windowed = left is not None or right is not None
    if not causal and not windowed:
        return None

    def rules(alignment: Alignment) -> Mask:
        near = Window(left, right, alignment)
        if not causal:
            return near
        return Causal(alignment) & near if windowed else Causal(alignment)

    offsets = {offset} if isinstance(offset, int) else set(offset)
    if offsets == {kv_len - q_len}:
        return rules("end")
    if offsets == {0}:
        return rules("start")
    # Elsewhere, or not at one place for all samples: ask the rule by slots.
    first = torch.tensor(offset).reshape(-1, 1, 1, 1)
    rule = rules("end")
    table = rule.allows(first + torch.arange(q_len)[:, None], torch.arange(kv_len))
    return Custom(table, name=" & ".join(part.name for part in rule.rules()))


def _split(attn_mask: Tensor, query: Tensor, kv_len: int) -> tuple[Mask | None, Tensor | None]:
    """Who may look, and what is added to the scores; None where it makes no difference."""
    batch, num_heads, q_len = query.shape[:3]
    sizes = {"q_len": q_len, "kv_len": kv_len, "batch": batch, "num_heads": num_heads}
    if attn_mask.dtype == torch.bool:
        return from_convention("onnx-bool", attn_mask, **sizes), None
    if not attn_mask.is_floating_point():
        raise MaskError(
            _("attn_mask has dtype {dtype}").format(dtype=attn_mask.dtype),
            where=_WHERE,
            why=_("a mask is bool (True = may look) or floats that are added to the scores"),
            fix=_("attn_mask.bool() if 1 means look"),
        )
    hidden = attn_mask.isneginf()
    if not bool((attn_mask.isfinite() | hidden).all()):
        raise MaskError(
            _("attn_mask contains NaN or +inf"),
            where=_WHERE,
            why=_("added to the scores it makes NaN of every row it touches"),
            fix=_("-inf hides a key; finite numbers shift its score"),
        )
    table = from_convention("onnx-bool", ~hidden, **sizes)
    shifts = bool((attn_mask.masked_fill(hidden, 0) != 0).any())
    bias = attn_mask.masked_fill(hidden, 0.0) if shifts else None
    if bias is not None:
        bias = torch.nn.functional.pad(bias, (0, kv_len - bias.shape[-1]))
    complete = attn_mask.shape[-1] == kv_len and not bool(hidden.any())
    return (None if complete else table), bias


# -- refusals -----------------------------------------------------------------------------------


def _check_attributes(left: int, right: int, precision: int | None, mode: int) -> None:
    """Values that no version of the operator knows."""
    for name, distance in (("left_window_size", left), ("right_window_size", right)):
        if distance < -1:
            raise UsageError(
                _("{name}={distance} is not a distance").format(name=name, distance=distance),
                where=_WHERE,
                why=_("distances are whole numbers from 0 up, and -1 is no limit"),
                fix=f"{name}=-1",
            )
    if precision is not None and precision not in _PRECISIONS:
        raise UsageError(
            _("softmax_precision={precision} is not a type the softmax can have").format(
                precision=precision
            ),
            where=_WHERE,
            why=_("it is the number of an ONNX type"),
            fix=", ".join(f"{number} ({name})" for number, name in _PRECISIONS.items()),
        )
    if mode not in range(len(_STAGES)):
        raise UsageError(
            _("qk_matmul_output_mode={mode} is not known").format(mode=mode),
            where=_WHERE,
            why=_("it names a point between the product of queries and keys and the softmax"),
            fix=", ".join(f"{number} ({name})" for number, name in enumerate(_STAGES)),
        )


def _check_cache(
    past_key: Tensor | None, past_value: Tensor | None, nonpad_kv_seqlen: Tensor | None
) -> None:
    """Half a cache, or two kinds of cache."""
    if (past_key is None) != (past_value is None):
        raise UsageError(
            _("past_key and past_value come together, and one is missing"),
            where=_WHERE,
            why=_("each cached key has its value"),
            fix=_("both, or none of them"),
        )
    if past_key is not None and nonpad_kv_seqlen is not None:
        raise UsageError(
            _("past_key and nonpad_kv_seqlen exclude each other"),
            where=_WHERE,
            why=_(
                "past_key is joined with the new keys here, "
                "nonpad_kv_seqlen says that K holds the whole cache already"
            ),
            fix=_("one of the two"),
        )
