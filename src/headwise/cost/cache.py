"""The KV cache: bytes that keys and values of earlier tokens take."""

from __future__ import annotations

from collections.abc import Mapping

from headwise.cost.expression import Expression, Size, minimum
from headwise.cost.figure import Figure
from headwise.cost.sizes import DTYPES, Letters, bytes_of, checked
from headwise.errors import UsageError
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.texts import translate as _

_ROLLING = N_("a rolling cache keeps the window alone: the token itself and l before it")
_PER_TOKEN = N_("keys and values of one token; query heads don't enter")


def kv_cache(
    spec: AttentionSpec,
    *,
    batch: int = 1,
    context: int,
    dtype: str = "bfloat16",
    layers: int = 1,
    rolling: bool = True,
    room: int = 0,
) -> Figure:
    """Bytes of the KV cache: ``L·B·slots·per_token``, ``per_token = Hkv·(Dk + Dv)·s``.

    With Dk = Dv this is the well-known ``2·L·Hkv·Dk·s`` per token. Stored numbers only; an
    allocator may round up.

    Args:
        spec: the layer.
        batch: B, sequences that are cached.
        context: T, tokens per sequence.
        dtype: of the cache.
        layers: L, how many layers of this kind.
        rolling: keep only what a causal window can still see; without, all T tokens.
        room: slots of a rolling cache beyond its window; ``KVCache`` has 128, so that it moves
            tokens once in a while instead of at every step.

    Example:
        >>> spec = AttentionSpec(d_model=8192, num_heads=64, num_kv_heads=8, is_causal=True)
        >>> cache = kv_cache(spec, context=4096, layers=80)
        >>> cache.receipt()
        'L·B·T·per_token = 80·1·4096·4096 = 1,342,177,280 byte'
        >>> cache.part("per_token").receipt()
        'Hkv·(Dk + Dv)·s = 8·(128 + 128)·2 = 4096 byte'
    """
    z = Letters(spec, batch=batch, q_len=checked("context", context))
    width = z.Hkv * (z.Dk + z.Dv)
    per_token = Figure("per_token", width * bytes_of(dtype), "byte", note=_PER_TOKEN)
    slots: Expression = z.Tq
    left = spec.window[0] if spec.window and spec.is_causal else None
    note = ""
    if rolling and left is not None:
        window = Size("l", left) + 1 + room if room else Size("l", left) + 1
        slots = Figure("slots", minimum(z.Tq, window), "token", note=_ROLLING)
        note = _ROLLING
    count = Size("L", checked("layers", layers))
    formula = count * z.B * slots * per_token
    return Figure("kv_cache", formula, "byte", note=note)


def per_dtype(
    spec: AttentionSpec, *, batch: int = 1, context: int, layers: int = 1
) -> Mapping[str, Figure]:
    """The cache in every dtype.

    Example:
        >>> spec = AttentionSpec(d_model=64, num_heads=4)
        >>> {name: figure.value for name, figure in per_dtype(spec, context=10).items()}
        {'float64': 10240, 'float32': 5120, 'bfloat16': 2560, 'float16': 2560, 'float8': 1280,
         'int8': 1280, 'int4': 640}
    """
    return {
        dtype: kv_cache(spec, batch=batch, context=context, dtype=dtype, layers=layers)
        for dtype in DTYPES
    }


def with_kv_heads(spec: AttentionSpec, layout: str | int) -> AttentionSpec:
    """The layer with another number of key/value heads, everything else as it is.

    Args:
        spec: the layer.
        layout: ``mha``, ``mqa``, ``gqa-8``, or the number itself.

    Raises:
        SpecError: if the heads can't be shared evenly, with both numbers.
        UsageError: if the layout is written in another way.

    Example:
        >>> spec = AttentionSpec(d_model=8192, num_heads=64)
        >>> [with_kv_heads(spec, name).num_kv_heads for name in ("mha", "gqa-8", "mqa", 4)]
        [64, 8, 1, 4]
    """
    word = str(layout).lower()
    if word in ("mha", "mqa"):
        return spec.replace(num_kv_heads=spec.num_heads if word == "mha" else 1)
    number = word.removeprefix("gqa-").removeprefix("gqa")
    if not number.isdigit() or int(number) < 1:
        raise UsageError(
            _("{name!r} is no layout of heads").format(name=layout),
            where=f"--compare {layout}",
            fix=_("mha, mqa, gqa-N, or the number of key/value heads"),
        )
    return spec.replace(num_kv_heads=int(number))


def layout_name(spec: AttentionSpec) -> str:
    """``MHA``, ``MQA`` or ``GQA-8``.

    Example:
        >>> layout_name(AttentionSpec(d_model=64, num_heads=8, num_kv_heads=2))
        'GQA-2'
    """
    if spec.num_kv_heads == spec.num_heads:
        return "MHA"
    return "MQA" if spec.num_kv_heads == 1 else f"GQA-{spec.num_kv_heads}"
