"""Runs ``explain`` on ten sentences for each real model and writes what came out.

    python scripts/explain_reports.py smollm2-135m minilm

Writes docs/explain-MODEL.md. The models have to be there (``headwise models pull``). Takes minutes.
"""

from __future__ import annotations

import math
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

import headwise
from headwise.explain.agreement import Agreement
from headwise.explain.asking import ask
from headwise.explain.effects import Effects
from headwise.explain.explanation import Explanation, compared, explain
from headwise.explain.method import METHODS, Settings
from headwise.explain.page_labels import LABELS
from headwise.explain.trust import Sampling, agreements
from headwise.files import write_whole
from headwise.integrations.loading import load

DOCS = Path(__file__).resolve().parent.parent / "docs"
SEED = 0
SETTINGS = Settings(steps=32, batch=8, seed=SEED)

SENTENCES: Mapping[str, tuple[str, ...]] = {
    "smollm2-135m": (
        "Paris is the capital of France, Rome is the capital of Italy, and Berlin is the capital "
        "of",
        "When Mary and John went to the store, John gave a drink to",
        "The trophy did not fit into the brown suitcase because the suitcase was too",
        "She opened the window because the room was hot, and then she felt the cold",
        "The keys to the old cabinet in the kitchen are on the",
        "One, two, three, four, five, six, seven, eight,",
        "The doctor told the patient that the medicine would make the pain go",
        "In the morning the farmer milked the cow, fed the chickens and collected the",
        "Water freezes at zero degrees and boils at one hundred degrees",
        "The opposite of hot is cold, the opposite of big is small, and the opposite of light is",
    ),
    "minilm": (
        "The trophy did not fit into the brown suitcase because it was too large.",
        "A man is playing a guitar on the stage in front of a large crowd.",
        "The stock market fell sharply after the central bank raised interest rates.",
        "She did not like the film, although the actors were very good.",
        "Scientists have found water in the rocks of an old crater on Mars.",
        "The recipe needs two eggs, a cup of flour and a pinch of salt.",
        "Our train to the coast was late because of heavy snow in the mountains.",
        "Never leave a small child alone near a swimming pool or a pond.",
        "The new version of the program reads files twice as fast as the old one.",
        "Dogs are loyal animals, while cats are known to be independent.",
    ),
}


def run(model: str) -> str:
    """The report of one model as Markdown."""
    subject = load(model)
    found: list[Explanation] = []
    for text in SENTENCES[model]:
        question = ask(subject, subject.read(text))
        found.append(explain(subject, text, question, settings=SETTINGS, with_curves=False))
        print(f"{model}: {len(found)}/{len(SENTENCES[model])}", file=sys.stderr)
    lines = [*_head(model, found), *_methods(found), *_layers(found), *_heads(found)]
    for index, each in enumerate(found, 1):
        lines += _sentence(index, each)
    return "\n".join(lines) + "\n"


def _head(model: str, found: Sequence[Explanation]) -> list[str]:
    s = found[0].subject
    kind = (
        "the logit of its most likely next token"
        if s.kind == "causal"
        else ("the norm of its mean embedding")
    )
    seconds = statistics.median(e.elapsed_s for e in found)
    return [
        f"# What {model} looks at, and whether its maps may be believed",
        "",
        "Written by `scripts/explain_reports.py`; every number was measured in that run.",
        "",
        f"- {s.name}: {s.model_type}, {s.num_layers} layers, {s.num_heads} heads over "
        f"{s.num_kv_heads} for keys and values, {s.dtype}",
        f"- headwise {headwise.__version__}, torch {torch.__version__.split('+')[0]}, "
        f"Python {platform.python_version()}, seed {SEED}, {SETTINGS.steps} steps of integrated "
        "gradients",
        f"- ten sentences; asked of each: {kind}",
        f"- median time per sentence: {seconds:.0f} s on a busy machine, for all methods",
        "- compared with: the fall of the target when a token is hidden from the attention of all "
        "others, in every layer; Spearman's rank correlation. Maps without signs are compared with "
        "the size of the fall.",
        "",
    ]


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):+.2f} ± {spread:.2f}"


def _counts(found: Sequence[Agreement]) -> str:
    codes = [each.code.value for each in found]
    return ", ".join(
        f"{LABELS[f'verdict.{code}']} {codes.count(code)}" for code in dict.fromkeys(codes)
    )


def _methods(found: Sequence[Explanation]) -> list[str]:
    lines = [
        "## Agreement with interventions per method",
        "",
        "Mean over the sentences, and standard deviation.",
        "",
        "| map | Spearman | Kendall | verdicts |",
        "| --- | --- | --- | --- |",
    ]
    for name in METHODS:
        each = [e.trust.maps[name] for e in found if e.trust and name in e.trust.maps]
        if each:
            rho = [a.spearman for a in each if a.spearman is not None]
            tau = [a.kendall for a in each if a.kendall is not None]
            label = METHODS[name].label
            lines.append(f"| {label} | {_mean(rho)} | {_mean(tau)} | {_counts(each)} |")
    return [*lines, ""]


def _layers(found: Sequence[Explanation]) -> list[str]:
    names = [n for n, a in found[0].found.items() if a.layers is not None]
    table: dict[str, list[list[float]]] = {}
    for e in found:
        assert e.trust is not None
        effects = Effects(
            e.found["hidden"].scores.cpu(),  # type: ignore[union-attr]
            allowed=e.trust.noise,
            keep=compared(e.subject, e.text, e.question),
        )
        for name in names:
            layers = e.found[name].layers
            assert layers is not None
            rows = agreements(
                layers.cpu(),
                effects,
                is_signed=e.found[name].is_signed,
                precision=torch.float32,
                sampling=Sampling(permutations=200, resamples=50, seed=SEED),
            )
            into = table.setdefault(name, [[] for _row in rows])
            for index, row in enumerate(rows):
                if row.spearman is not None:
                    into[index].append(row.spearman)
    lines = [
        "## Agreement with interventions per method and layer",
        "",
        "Spearman, mean over the sentences ± standard deviation. Heads are averaged (weights), or "
        "their vectors or effects are added (the others). Rollout: after this layer.",
        "",
        "| layer | " + " | ".join(METHODS[name].label for name in names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    count = len(next(iter(table.values())))
    lines += [
        f"| {layer} | " + " | ".join(_mean(table[name][layer]) for name in names) + " |"
        for layer in range(count)
    ]
    return [*lines, ""]


def _heads(found: Sequence[Explanation]) -> list[str]:
    lines = ["## Single heads", ""]
    heads = [a for e in found if e.trust for row in e.trust.heads for a in row]
    lines.append(f"Verdicts of {len(heads)} maps (heads × sentences): {_counts(heads)}.")
    patterns: dict[str, int] = {}
    for e in found:
        for row in e.detected:
            for head in row:
                for d in head:
                    patterns[d.name] = patterns.get(d.name, 0) + bool(d.is_found)
    shown = ", ".join(f"{name} {count}" for name, count in patterns.items() if count)
    lines += ["", f"Patterns that the detectors name (heads × sentences): {shown or 'none'}.", ""]
    return lines


def _sentence(index: int, e: Explanation) -> list[str]:
    assert e.trust is not None
    hidden = e.found["hidden"].scores
    assert hidden is not None
    order = hidden.abs().argsort(descending=True)[:4].tolist()
    strongest = ", ".join(f"`{e.text.shown[i].strip()}` {float(hidden[i]):+.2f}" for i in order)
    lines = [
        f"## {index}. {e.text.text}",
        "",
        f"{len(e.text)} tokens; {e.question_words}: {e.value:.4g}. Hiding a token moves it most "
        f"for {strongest}. Effects below {e.trust.noise:.1e} are rounding.",
        "",
        "| map | Spearman | interval | chance alone | p | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, a in e.trust.maps.items():
        lines.append(
            f"| {METHODS[name].label} | {_one(a.spearman)} | {_span(a.interval)} | "
            f"{_span(a.null)} | {'-' if a.p is None else f'{a.p:.2g}'} | {a.words} |"
        )
    lines.append("")
    figures = e.found["integrated"].figures
    parts = e.found.get("decomposition")
    lines.append(
        f"Integrated gradients: completeness gap {figures['gap']:.2g} of a change of "
        f"{figures['change']:.4g}."
        + (f" Taken apart: gap {parts.figures['gap']:.1e}." if parts is not None else "")
    )
    errors = [
        f"{METHODS[name].label} at `{e.text.shown[error.token].strip()}` ({error.share:.0%})"
        for name, each in e.trust.sign_errors.items()
        for error in each
    ]
    if errors:
        lines.append("Sign errors: " + "; ".join(errors) + ".")
    lines += [f"{note}" for note in e.notes]
    return [*lines, ""]


def _one(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _span(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:+.2f} to {ends[1]:+.2f}"


def main(names: Sequence[str]) -> int:
    """Write the report of every named model."""
    for name in names or SENTENCES:
        write_whole(DOCS / f"explain-{name}.md", run(name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
