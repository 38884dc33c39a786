"""The figures of a whole model: layers added up, with what lies around attention."""

from __future__ import annotations

from headwise.cost.cache import kv_cache
from headwise.cost.expression import Expression, Size, Sum, times
from headwise.cost.figure import Figure
from headwise.cost.models import Block, Model, model_parameters
from headwise.cost.products import Direction, feed_forward_flops, flops
from headwise.cost.saved import Keeping, activations, block_activations
from headwise.cost.sizes import Letters, bytes_of
from headwise.cost.traffic import Algorithm, bytes_moved, layer_traffic
from headwise.cost.weights import parameters, total
from headwise.texts import mark as N_

_LOGITS = N_("one product with the vocabulary for every token")
_LOSS = N_("its input, and the logits in float32, which the loss keeps")
_TWICE = N_("every product has two of the same size behind it, one for each of its operands")
_READ = N_("every parameter once, except the embedding that is only looked up")


def model_flops(
    model: Model,
    *,
    batch: int = 1,
    q_len: int,
    kv_len: int | None = None,
    saving: bool = False,
    direction: Direction = "forward",
    recompute: bool = False,
) -> Figure:
    """FLOPs of a model; with ``kv_len`` those of a step whose earlier tokens are cached.

    Args:
        model: the model.
        batch, q_len: B, Tq.
        kv_len: Tk, tokens that are cached and those of the step; None = q_len, nothing is cached.
        saving, recompute: as `headwise.cost.flops`.
        direction: ``forward``, ``backward`` or ``both`` (a training step).

    Example:
        >>> from headwise.cost.architectures import find_architecture
        >>> model = find_architecture("gpt2").model()
        >>> found = model_flops(model, q_len=1024)
        >>> found.receipt()
        'L·block + head = 12·17,716,740,096 + 79,047,426,048 = 291,648,307,200 FLOP'
    """
    terms: list[Expression] = []
    for block in model.blocks:
        if kv_len is not None and block.stack == "encoder":
            continue  # the encoder has run before
        one = _block_flops(
            block, batch=batch, q_len=q_len, kv_len=kv_len, saving=saving,
            direction=direction, recompute=recompute,
        )  # fmt: skip
        terms.append(Size("L", block.count) * one)
    z = Letters(model.spec, batch=batch, q_len=q_len, kv_len=kv_len)
    passes = {"forward": 1, "backward": 2, "both": 3}[direction]
    if model.head in ("tied", "untied"):
        head = 2 * passes * z.B * z.Tq * z.Dm * Size("V", model.vocabulary)
        terms.append(Figure("head", head, "FLOP", note=_LOGITS))
    if model.head == "pooler":
        terms.append(Figure("pooler", 2 * passes * z.B * z.Dm * z.Dm, "FLOP"))
    name = {"forward": "forward", "backward": "backward", "both": "training_step"}[direction]
    return Figure(name, Sum(tuple(terms)), "FLOP", note="" if passes == 1 else _TWICE)


def _block_flops(
    block: Block,
    *,
    batch: int,
    q_len: int,
    kv_len: int | None,
    saving: bool,
    direction: Direction,
    recompute: bool,
) -> Figure:
    parts = [
        flops(
            block.attention, batch=batch, q_len=q_len, kv_len=kv_len, saving=saving,
            new_keys=None if kv_len is None else q_len, direction=direction, recompute=recompute,
        )
    ]  # fmt: skip
    z = Letters(block.attention, batch=batch, q_len=q_len, kv_len=kv_len)
    if block.cross is not None:
        other = flops(
            block.cross, batch=batch, q_len=q_len, kv_len=kv_len, direction=direction,
            new_keys=None if kv_len is None else 0, recompute=recompute,
        )  # fmt: skip
        parts.append(Figure("cross_attention", other.formula, "FLOP"))
    if block.ffn is not None:
        width = Size("F", block.ffn.width)
        plain = feed_forward_flops(z.Dm, width, z.B * z.Tq, gated=block.ffn.gated)
        passes = {"forward": 1, "backward": 2, "both": 3}[direction]
        part = plain
        if passes > 1:
            part = Figure(f"feed_forward_{direction}", passes * plain, "FLOP", note=_TWICE)
        parts.append(part)
    return total("block" if block.stack == "decoder" else "encoder_block", parts, "FLOP")


def model_cache(
    model: Model, *, batch: int = 1, context: int, dtype: str = "bfloat16", rolling: bool = True
) -> Figure:
    """Bytes of the KV cache of a model, all layers.

    Example:
        >>> from headwise.cost.architectures import find_architecture
        >>> model = find_architecture("mistral-7b").model()
        >>> [model_cache(model, context=32768, rolling=r).value // 2**20 for r in (False, True)]
        [4096, 512]
    """
    parts = []
    last = model.blocks[-1].stack
    for block in model.blocks:
        if block.stack != last:
            continue
        parts.append(
            kv_cache(
                block.attention, batch=batch, context=context, dtype=dtype,
                layers=block.count, rolling=rolling,
            )
        )  # fmt: skip
        if block.cross is not None:
            other = kv_cache(
                block.cross, batch=batch, context=context, dtype=dtype, layers=block.count
            )
            parts.append(Figure("cross_cache", other.formula, "byte", note=_CROSS))
    note = "" if model.spec.is_causal else _NOT_CAUSAL
    if len(parts) == 1:
        return Figure("kv_cache", parts[0].formula, "byte", note=parts[0].note or note)
    renamed = [
        Figure(f"{part.name}_{index}", part.formula, "byte", note=part.note)
        for index, part in enumerate(parts, 1)
    ]
    return total("kv_cache", renamed, "byte", note=note)


_CROSS = N_("keys and values of the other sequence, of the same length")
_NOT_CAUSAL = N_(
    "not causal: the keys and values of earlier tokens change with every later one, so that a "
    "cache can't be used to generate"
)


def model_activations(
    model: Model,
    *,
    batch: int = 1,
    q_len: int,
    dtype: str = "bfloat16",
    keeping: Keeping = "naive",
) -> Figure:
    """Bytes that a training step keeps between its forward and its backward pass.

    Example:
        >>> from headwise.cost.architectures import find_architecture
        >>> model = find_architecture("gpt2").model()
        >>> [
        ...     model_activations(model, q_len=1024, keeping=k).value // 2**20
        ...     for k in ("naive", "tiled", "recomputed")
        ... ]
        [1685, 522, 215]
    """
    terms: list[Expression] = []
    for block in model.blocks:
        if block.ffn is None:
            one = activations(
                block.attention, batch=batch, q_len=q_len, dtype=dtype, keeping=keeping
            )
        else:
            one = block_activations(
                block.attention, ffn_width=block.ffn.width, gated=block.ffn.gated,
                norms=block.norms, batch=batch, q_len=q_len, dtype=dtype, keeping=keeping,
            )  # fmt: skip
        terms.append(Size("L", block.count) * one)
        if block.cross is not None and keeping != "recomputed":
            other = activations(block.cross, batch=batch, q_len=q_len, dtype=dtype, keeping=keeping)
            cross = Figure("cross_attention", other.formula, "byte")
            terms.append(Size("L", block.count) * cross)
    if model.head in ("tied", "untied"):
        z = Letters(model.spec, batch=batch, q_len=q_len)
        head = z.B * z.Tq * (z.Dm * bytes_of(dtype) + 4 * Size("V", model.vocabulary))
        terms.append(Figure("head", head, "byte", note=_LOSS))
    return Figure(f"activations_{keeping}", Sum(tuple(terms)), "byte")


def weights_read(model: Model, dtype: str) -> Figure:
    """Bytes of the parameters that every pass reads."""
    stored = model_parameters(model)
    count: Expression = stored
    if model.head != "tied" and model.vocabulary:
        count = stored - stored.part("embedding")
    return Figure("weights", count * bytes_of(dtype), "byte", note=_READ)


def model_traffic(
    model: Model,
    *,
    batch: int = 1,
    q_len: int,
    dtype: str = "bfloat16",
    algorithm: Algorithm = "naive",
    direction: Direction = "forward",
    fast_memory: int = 196608,
) -> Figure:
    """Bytes moved by a model in a pass over ``q_len`` tokens.

    Weights once per pass, the inputs and results of the products, and what scores, softmax and
    aggregate move (`headwise.cost.bytes_moved`). Norms, activations functions and residual sums are
    taken to be fused with the products beside them.
    """
    s = bytes_of(dtype)
    passes = {"forward": 1, "backward": 2, "both": 3}[direction]
    terms: list[Expression] = []
    for block in model.blocks:
        parts = []
        for name, spec in (("attention", block.attention), ("cross_attention", block.cross)):
            if spec is None:
                continue
            z = Letters(spec, batch=batch, q_len=q_len)
            core = bytes_moved(
                spec, batch=batch, q_len=q_len, dtype=dtype, algorithm=algorithm,
                direction=direction, fast_memory=fast_memory,
            )  # fmt: skip
            core = Figure("core", core.formula, "byte", source=core.source)
            layer = layer_traffic(z, s, weights=parameters(spec), core=core, passes=passes)
            parts.append(Figure(name, layer.formula, "byte"))
        if block.ffn is not None:
            z = Letters(block.attention, batch=batch, q_len=q_len)
            width = Size("F", block.ffn.width)
            count = 3 if block.ffn.gated else 2
            weights = count * z.Dm * width
            flat = z.B * z.Tq * (2 * z.Dm + count * width)
            formula = times(passes, (weights + flat) * s)
            parts.append(Figure("feed_forward", formula, "byte"))
        one = total("block" if block.stack == "decoder" else "encoder_block", parts, "byte")
        terms.append(Size("L", block.count) * one)
    if model.head in ("tied", "untied"):
        z = Letters(model.spec, batch=batch, q_len=q_len)
        rows = Size("V", model.vocabulary)
        formula = times(passes, (rows * z.Dm + z.B * z.Tq * (z.Dm + rows)) * s)
        terms.append(Figure("head", formula, "byte"))
    return Figure(f"bytes_{algorithm}", Sum(tuple(terms)), "byte")


def flops_by_part(
    model: Model, *, batch: int = 1, q_len: int, saving: bool = False
) -> dict[str, Figure]:
    """Forward FLOPs of a model by stage of attention, feed-forward part and head, all layers.

    Example:
        >>> from headwise.cost.architectures import find_architecture
        >>> model = find_architecture("gpt2").model()
        >>> {name: figure.value for name, figure in flops_by_part(model, q_len=1024).items()}
        {'projection': 43486543872, 'scores': 19327352832, 'aggregate': 19327352832,
         'output': 14495514624, 'feed_forward': 115964116992, 'head': 79047426048}
    """
    whole = model_flops(model, batch=batch, q_len=q_len, saving=saving)
    terms: dict[str, list[Expression]] = {}
    for block, one in zip(model.blocks, whole.parts[: len(model.blocks)], strict=True):
        count = Size("L", block.count)
        for part in one.parts:
            inside = [part] if part.name == "feed_forward" else part.parts
            for stage in inside:
                terms.setdefault(stage.name, []).append(count * stage)
    for part in whole.parts[len(model.blocks) :]:
        terms.setdefault(part.name, []).append(part)
    return {name: Figure(name, Sum(tuple(found)), "FLOP") for name, found in terms.items()}
