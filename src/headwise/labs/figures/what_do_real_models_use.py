"""Charts and sheets of the lab on real models."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.labs.lab import Chart, Phrase, Series, Sheet
from headwise.labs.measures.what_do_real_models_use import Conv1d, Instance, Published, Rolling
from headwise.labs.parts.tables import table
from headwise.texts import mark as N_

GIB = 2**30
CONTEXTS = (1024, 4096, 8192, 16384, 32768)
DRAWN = ("LLaMA-2 70B", "LLaMA-3 8B", "Mistral 7B", "SmolLM2 135M")


def charts(
    instances: Sequence[Instance], rolling: Rolling, models: Sequence[Published]
) -> list[Chart]:
    """All charts."""
    return [ring_chart(rolling), shift_chart(instances), full_size_chart(models)]


def ring_chart(found: Rolling) -> Chart:
    """Bytes of a cache against the length of the text, with a window and without."""
    return Chart(
        "cache-stops",
        "line",
        Phrase(
            N_(
                "The ring stops at {ring} bytes; after {count} tokens all keys and values would "
                "take {full}"
            ),
            {"ring": found.ring[-1], "count": found.tokens[-1], "full": found.full[-1]},
        ),
        Phrase(N_("tokens")),
        Phrase(N_("bytes of a tiny Mistral's cache")),
        Phrase(
            N_(
                "Two lines against the number of tokens: one keeps rising, the other is flat once "
                "the window is full. Points of the formula lie on both."
            )
        ),
        (
            Series(Phrase(N_("without the window")), found.tokens, found.full),
            Series(Phrase(N_("with the window")), found.tokens, found.ring),
            Series(
                Phrase(N_("formula, without")), found.tokens, found.full_formula, style="points"
            ),
            Series(Phrase(N_("formula, with")), found.tokens, found.ring_formula, style="points"),
        ),
        log_x=True,
        log_y=True,
    )


def shift_chart(instances: Sequence[Instance]) -> Chart:
    """What happens when all positions grow."""
    rotated = max((one.shift for one in instances if one.rope), default=0.0)
    learned = max((one.shift for one in instances if not one.rope), default=0.0)
    return Chart(
        "shift",
        "bar",
        Phrase(
            N_("All positions further on: learned ones change {learned:.2g}, rotary {rotated:.1g}"),
            {"learned": learned, "rotated": rotated},
        ),
        Phrase(N_("tiny model")),
        Phrase(N_("largest change of the result")),
        Phrase(N_("Bars: a learned table changes the result, rotary positions leave it alone.")),
        (
            Series(
                Phrase(N_("measured")), [one.name for one in instances],
                [one.shift for one in instances],
            ),
            Series(
                Phrase(N_("rounding allows")), [one.name for one in instances],
                [one.shift_allowed for one in instances],
            ),
        ),
        log_y=True,
    )  # fmt: skip


def full_size_chart(models: Sequence[Published]) -> Chart:
    """Caches at full size, by formula."""
    drawn = [one for one in models if one.name in DRAWN]
    return Chart(
        "full-size",
        "line",
        Phrase(N_("At full size, by formula: the line of Mistral 7B bends at its window")),
        Phrase(N_("tokens")),
        Phrase(N_("cache, 16 bit (GiB)")),
        Phrase(
            N_(
                "Cache against length for published models, each up to the context that it was "
                "made for."
            )
        ),
        tuple(
            Series(
                Phrase(one.name),
                [c for c, size in one.caches.items() if size is not None],
                [size / GIB for size in one.caches.values() if size is not None],
            )
            for one in drawn
        ),
        log_x=True,
        log_y=True,
    )


# ------------------------------------------------------------------ sheets
def sheets(
    instances: Sequence[Instance], stored: Conv1d, rolling: Rolling, models: Sequence[Published]
) -> list[Sheet]:
    """All sheets."""
    return [
        table(
            "instances",
            N_("Tiny random instances, read from the configurations of their families"),
            {
                "model": N_("model"), "heads": N_("heads"), "kv": N_("key/value heads"),
                "head_dim": N_("size of a head"), "positions": N_("positions"),
                "window": N_("window"), "parameters": N_("parameters"),
                "q": N_("stored query matrix"), "k": N_("stored key matrix"),
                "cache": N_("cache bytes per token, 64 bit"),
            },
            [
                (
                    one.name, one.num_heads, one.num_kv_heads, one.head_dim,
                    "rotary" if one.rope else f"learned, {one.learned_positions}", one.window,
                    one.parameters, shape(one.q_shape), shape(one.k_shape), one.cache_bytes,
                )
                for one in instances
            ],
        ),
        table(
            "exactness",
            N_("How exact they are, and what a shift of all positions does"),
            {
                "model": N_("model"), "gap": N_("from the definition"), "allowed": N_("allowed"),
                "reloaded": N_("after saving and loading"), "shift": N_("after the shift"),
                "shift_allowed": N_("rounding allows"),
            },
            [
                (one.name, one.gap, one.allowed, one.reloaded, one.shift, one.shift_allowed)
                for one in instances
            ],
        ),
        table(
            "storage",
            N_("GPT-2's Conv1D: matrices lie as (in, out)"),
            {"quantity": N_("quantity"), "value": N_("value")},
            [
                ("packed matrix of queries, keys and values", shape(stored.packed)),
                ("x·W + b against our projections", stored.gap),
                ("allowed", stored.allowed),
                ("square matrix read as (out, in): change of the logits", stored.misread),
                ("text beyond the table refused", stored.is_bounded),
            ],
        ),
        table(
            "ring",
            N_("Bytes of a tiny Mistral's cache"),
            {
                "tokens": N_("tokens"), "ring": N_("with the window"), "formula": N_("formula"),
                "full": N_("without the window"), "full_formula": N_("formula"),
            },
            list(
                zip(
                    rolling.tokens, rolling.ring, rolling.ring_formula, rolling.full,
                    rolling.full_formula, strict=True,
                )
            ),
        ),
        table(
            "published-sizes",
            N_("Published models: sizes are cited, bytes follow by formula"),
            {
                "model": N_("model"), "layers": N_("layers"), "heads": N_("heads"),
                "kv": N_("key/value heads"), "head_dim": N_("size of a head"),
                "positions": N_("positions"), "window": N_("window"),
                "parameters": N_("parameters"), "per_token": N_("cache bytes per token, 16 bit"),
                "source": N_("source"),
            },
            [
                (
                    m.name, m.layers, m.num_heads, m.num_kv_heads, m.head_dim, m.positions,
                    m.window, m.parameters, m.per_token, m.source,
                )
                for m in models
            ],
        ),
    ]  # fmt: skip


def shape(sizes: Sequence[int]) -> str:
    """A shape as people write it.

    Example:
        >>> shape((24, 72))
        '24 × 72'
    """
    return " × ".join(map(str, sizes))
