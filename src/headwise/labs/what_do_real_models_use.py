"""Lab 22: what do the models that the course names use, GPT, LLaMA and Mistral?

Tiny instances with random weights are read from configurations of their families, compared with
the definition and sent through files; sizes of the published models are cited and their costs
computed. Their weights are too large for a lab.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headwise.labs.figures.what_do_real_models_use import CONTEXTS, GIB, charts, shape, sheets
from headwise.labs.judge import all_of, stated, within
from headwise.labs.lab import Lab, LabResult, Outcome, Phrase, Progress, Verdict, register
from headwise.labs.measures.what_do_real_models_use import (
    CONFIGS,
    LAYERS,
    PUBLISHED,
    SHIFT,
    Conv1d,
    Instance,
    Published,
    Rolling,
    conv1d,
    measure_instance,
    published,
    rolling,
)
from headwise.labs.parts.drawn import outcome
from headwise.labs.parts.small import one_thread
from headwise.texts import mark as N_


# ------------------------------------------------------------------ judges
def exact(instances: Sequence[Instance]) -> Verdict:
    """Whether layers equal the definition, and files give the same model back."""
    if not instances:
        return "not-enough-data"
    return all_of(
        *(within(one.gap, one.allowed) for one in instances),
        *(stated(one.reloaded == 0.0) for one in instances),
    )


def absolute(one: Instance) -> Verdict:
    """Whether positions are a learned table, so that a shift of all of them is noticed."""
    is_table = one.learned_positions > 0 and not one.rope
    return stated(is_table and one.shift > one.shift_allowed)


def relative(one: Instance) -> Verdict:
    """Whether positions are rotary alone, so that a shift of all of them goes unnoticed."""
    is_rotary = one.learned_positions == 0 and one.rope
    return stated(is_rotary and one.shift <= one.shift_allowed)


def transposed(found: Conv1d) -> Verdict:
    """Whether matrices lie as (in, out), and reading a square one otherwise is noticed."""
    return all_of(within(found.gap, found.allowed), stated(found.misread > found.allowed))


def shared(full: Instance, grouped: Instance) -> Verdict:
    """Whether sharing key/value heads shrinks stored keys and the cache by the same factor."""
    group = grouped.num_heads // grouped.num_kv_heads
    return stated(
        group > 1
        and full.num_kv_heads == full.num_heads == grouped.num_heads
        and full.k_shape[0] == group * grouped.k_shape[0]
        and full.cache_bytes == group * grouped.cache_bytes
    )


def stops(found: Rolling) -> Verdict:
    """Whether the cache stops growing, as its formula says, and nothing is lost by it.

    *not enough data* if the text never got beyond the ring.
    """
    if found.seen <= found.held or len(found.tokens) < 3:
        return "not-enough-data"
    is_flat = found.ring[-1] == found.ring[-2] and found.full[-1] > found.full[-2]
    is_formula = found.ring == found.ring_formula and found.full == found.full_formula
    return all_of(stated(is_flat and is_formula), within(found.gap, found.allowed))


def reaches(found: Rolling) -> Verdict:
    """Whether the window of all layers together is where influence ends."""
    return stated(found.outside == 0.0 < found.inside)


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Build, compare, save and load, generate past the window, compute."""
    with one_thread(), torch.no_grad():
        instances = {}
        for index, name in enumerate(CONFIGS):
            progress(N_("tiny models"), 0.7 * index / len(CONFIGS))
            instances[name] = measure_instance(name, seed + 10 * index)
        progress(N_("how they are stored"), 0.7)
        stored = conv1d(seed)
        progress(N_("a text past the window"), 0.8)
        ring = rolling(int(params["tokens"]), int(params["room"]), seed)
    models = {key: published(key, CONTEXTS) for key in PUBLISHED}
    progress(N_("done"), 1.0)
    outcomes = [
        about_gpt(instances["GPT-2"], stored, models),
        about_llama(instances, models),
        about_mistral(instances["Mistral"], ring, models["mistral-7b"]),
    ]
    every, sizes = list(instances.values()), list(models.values())
    return LabResult(
        lab=LAB.name,
        params=dict(params),
        seed=seed,
        verdict=all_of(*(o.verdict for o in outcomes)),
        conclusion=conclusion(instances, ring, models),
        outcomes=outcomes,
        charts=charts(every, ring, sizes),
        sheets=sheets(every, stored, ring, sizes),
    )


def conclusion(
    instances: Mapping[str, Instance], ring: Rolling, models: Mapping[str, Published]
) -> list[Phrase]:
    """The answer in a few sentences."""
    mistral = models["mistral-7b"]
    return [
        Phrase(
            N_(
                "GPT-2 adds a learned table of positions and every head has keys of its own; LLaMA "
                "and Mistral rotate queries and keys, and the larger or later ones share "
                "key/value heads; Mistral sees a window."
            )
        ),
        Phrase(
            N_(
                "{count} tiny random instances equal the definition within {gap:.1g} and come back "
                "from their files unchanged."
            ),
            {"count": len(instances), "gap": max(one.gap for one in instances.values())},
        ),
        Phrase(
            N_(
                "With the window the cache stops at {held} tokens here, after {seen} were seen. At "
                "full size Mistral 7B keeps {gib:.2g} GiB at 4,096 tokens and at any later one, "
                "16 bit; the full weights ({parameters:,} numbers) were not run."
            ),
            {
                "held": ring.held,
                "seen": ring.seen,
                "gib": (mistral.caches[4096] or 0) / GIB,
                "parameters": mistral.parameters,
            },
        ),
    ]


# ------------------------------------------------------------------ outcomes
def about_gpt(one: Instance, stored: Conv1d, models: Mapping[str, Published]) -> Outcome:
    """S5."""
    return outcome(
        "S5",
        all_of(exact([one]), absolute(one), transposed(stored), stated(stored.is_bounded)),
        "shift",
        N_(
            "a tiny random GPT-2 equals the definition within {gap:.1g} and its files give it back "
            "bit for bit. It rotates nothing: its table has {rows} positions, a shift by {shift} "
            "changes the logits by {changed:.2g}, and a longer text is refused. Queries, keys and "
            "values lie in one {packed} matrix as (in, out), equal to our three within "
            "{split:.1g}; a square matrix read as nn.Linear stores it raises no error and changes "
            "the logits by {misread:.2g}. At full size: {small} {count:,} parameters, {heads} heads"
        ),
        {
            "gap": one.gap,
            "rows": one.learned_positions,
            "shift": SHIFT,
            "changed": one.shift,
            "packed": shape(stored.packed),
            "split": stored.gap,
            "misread": stored.misread,
            "small": models["gpt2"].name,
            "count": models["gpt2"].parameters,
            "heads": models["gpt2"].num_heads,
        },
    )


def about_llama(instances: Mapping[str, Instance], models: Mapping[str, Published]) -> Outcome:
    """S6."""
    kinds = [one for name, one in instances.items() if name.startswith("LLaMA")]
    full, grouped = instances["LLaMA"], instances["LLaMA GQA"]
    big, first, third = (models[key] for key in ("llama-2-70b", "llama-7b", "llama-3-8b"))
    return outcome(
        "S6",
        all_of(exact(kinds), *(relative(one) for one in kinds), shared(full, grouped)),
        "instances",
        N_(
            "{count} tiny random LLaMAs (all heads, shared heads, version 3 with its scaled "
            "frequencies) equal the definition within {gap:.1g} and come back from their files; a "
            "shift of all positions by {shift} moves them by {moved:.1g}. {kv} key/value heads for "
            "{heads} heads store keys of {k} instead of {all_k} and {bytes} cache bytes per token "
            "instead of {all_bytes}. Cited sizes: {first} {first_kv} of {first_heads}, {big} "
            "{big_kv} of {big_heads}, {third} {third_kv} of {third_heads}; the weights of "
            "{parameters:,} numbers can't be had here"
        ),
        {
            "count": len(kinds),
            "gap": max(one.gap for one in kinds),
            "shift": SHIFT,
            "moved": max(one.shift for one in kinds),
            "kv": grouped.num_kv_heads,
            "heads": grouped.num_heads,
            "k": shape(grouped.k_shape),
            "all_k": shape(full.k_shape),
            "bytes": grouped.cache_bytes,
            "all_bytes": full.cache_bytes,
            "first": first.name,
            "first_kv": first.num_kv_heads,
            "first_heads": first.num_heads,
            "big": big.name,
            "big_kv": big.num_kv_heads,
            "big_heads": big.num_heads,
            "third": third.name,
            "third_kv": third.num_kv_heads,
            "third_heads": third.num_heads,
            "parameters": first.parameters,
        },
    )


def about_mistral(one: Instance, ring: Rolling, full: Published) -> Outcome:
    """S7."""
    return outcome(
        "S7",
        all_of(
            exact([one]),
            relative(one),
            stated(one.num_kv_heads < one.num_heads),
            stops(ring),
            reaches(ring),
        ),
        "cache-stops",
        N_(
            "a tiny random Mistral ({kv} key/value heads for {heads}, window {window}) equals the "
            "definition within {gap:.1g}. Its ring holds {held} tokens and {ring} bytes after "
            "{seen} tokens, as the formula says, instead of {all}; the logits equal those of the "
            "whole text within {decoded:.1g}. Through {layers} layers a token acts over {reach} "
            "places and no further: changing all beyond moves the last logits by {outside:.1g}, "
            "changing the one at that distance by {inside:.1g}. {name}, 16 bit: {at:,} bytes at "
            "4,096 tokens and {later:,} at 32,768"
        ),
        {
            "kv": one.num_kv_heads,
            "heads": one.num_heads,
            "window": one.window,
            "gap": one.gap,
            "held": ring.held,
            "ring": ring.ring[-1],
            "seen": ring.seen,
            "all": ring.full[-1],
            "decoded": ring.gap,
            "layers": LAYERS,
            "reach": ring.reach,
            "outside": ring.outside,
            "inside": ring.inside,
            "name": full.name,
            "at": full.caches[4096],
            "later": full.caches[32768],
        },
    )


LAB = register(
    Lab(
        name="what-do-real-models-use",
        number=22,
        question=N_("What do real models use: GPT, LLaMA, Mistral?"),
        hypothesis=N_(
            "One layer with other settings is the attention of all of them: learned or rotary "
            "positions, own or shared key/value heads, everything or a window."
        ),
        varied=N_("the family: positions, key/value heads, window, how files store it"),
        fixed=N_("three layers, random weights from the seed, float64"),
        needs=("does-order-matter", "how-many-kv-heads", "does-the-cache-change-anything"),
        claims=("S5", "S6", "S7"),
        quick={"tokens": 64, "room": 3},
        full={"tokens": 512, "room": 16},
        minutes=(0.1, 0.2),
        least={"tokens": 16},
        run=run,
    )
)
