"""Keeps docs/architectures.md in step with what the installed transformers and our code give.

    python scripts/architectures.py write      measure every type and write the page
    python scripts/architectures.py check      exit 1 if anything but rounding differs

Every text type of transformers is tried once. A check compares everything but the measured
differences, which depend on the machine.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architectures.md"
SEED = 0

NO_SOFTMAX = "no softmax over keys: another mixer"
OWN_CODE = "attention code of its own, not the AttentionInterface"
MORE_THAN_TEXT = "reads more than text"
TWO_SEQUENCES = "reads one sequence and writes another"
TOO_LARGE = "not made tiny by the sizes known here"
NOT_BUILT = "not built or run from the sizes known here"
UNEVEN = "layers with different numbers of heads"
NOT_LISTED = "watched, but no whole explanation: {error}"

INTRODUCTION = """\
# Architectures

<!-- Made by scripts/architectures.py, which measures every line. -->

`headwise explain hf:TYPE "some text"` explains a tiny random model of a type. The {count} types
below are held to it by tests/integrations/test_architectures.py: while weights are captured the
outputs are those of the model's own eager attention, bit for bit; the weights are those that the
eager model returns, where it returns any; and the methods weights, rollout, gradient-input,
gradient-weights, hidden and ablation-zero give finite numbers.

Measured with transformers {transformers}, torch {torch}, CPU, {dtype}, seed {seed}, on the text
"{text}". Outputs are logits, or hidden states of an encoder.

- **layers**: attention calls watched in one run, of the layers of the tiny configuration.
- **heads**: query heads over key/value heads.
- **capture**: largest difference of the outputs, watched from the implementation the model comes
  with (sdpa for most), over the largest output. From eager it is 0 in every row.
- **fast**: the same for `attn_implementation="headwise"` from eager, when nothing is watched; or
  why the model's own function stays in use.
- **W_O**: layers whose output projection was found. Some models gate or normalise the heads before
  it, and then there is none that takes them as they are.
- **sum**: distance of the decomposition's sum from the target, over the target. Layers after a
  norm whose output feeds the next block (BERT), experts and gates make it large: those parts are
  not a sum, and the tool says so with this figure. "none" is explained below the table.
"""


def main() -> int:
    """Write or check the page."""
    if len(sys.argv) != 2 or sys.argv[1] not in {"write", "check"}:
        sys.exit(__doc__)
    made = page()
    if sys.argv[1] == "write":
        PAGE.write_text(made, encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
        return 0
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if without_figures(old) == without_figures(made):
        return 0
    print("docs/architectures.md is not up to date: run python scripts/architectures.py write")
    return 1


def without_figures(text: str) -> str:
    """The page without measured differences."""
    return re.sub(r"\d\.\de[+-]\d\d", "#", text)


def page() -> str:
    """The text of the page."""
    import torch
    import transformers

    from headwise.integrations.architectures import ARCHITECTURES, MISSING
    from headwise.integrations.measured import TEXT, measured
    from headwise.integrations.tiny import tiny

    torch.set_num_threads(1)
    rows = [measured(tiny(name, seed=SEED)) for name in ARCHITECTURES]
    refused = survey(set(ARCHITECTURES))
    parts = [
        INTRODUCTION.format(
            count=len(rows),
            transformers=transformers.__version__,
            torch=torch.__version__.split("+")[0],
            dtype="float32",
            seed=SEED,
            text=TEXT,
        ),
        table(rows),
        "## Where no sum is given\n\n" + no_sum(rows),
        "## Methods that a type can't have\n",
        "".join(
            f"- {name}: {', '.join(methods)}: {reason}.\n"
            for name, (methods, reason) in MISSING.items()
        ),
        counts(refused),
    ]
    return "\n".join(parts)


def table(rows: list[Any]) -> str:
    """One line per type."""
    lines = [
        "| type | class | predicts | layers | heads | shows | capture | fast | W_O | sum |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        fast = "; ".join(row.fallbacks) or figure(row.fast_gap / row.scale)
        total = "none" if row.gap is None else figure(row.gap)
        cells = (
            row.type,
            row.class_name,
            row.kind,
            f"{row.layers} of {row.config_layers}",
            f"{row.heads}/{row.kv_heads}",
            ", ".join(row.shows),
            figure(row.from_plain / row.scale),
            re.sub(r"\d+\.?\d*(e-\d+)? apart, rounding explains \S+", "", fast).strip(" :"),
            f"{row.projections} of {row.layers}",
            total,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def figure(value: float) -> str:
    """A difference, always in one form."""
    return f"{value:.1e}"


def no_sum(rows: list[Any]) -> str:
    """Reasons why a target is not taken apart, with the types."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.gap is None:
            reason = row.why_no_gap.replace(f"hf:{row.type}", "it")
            by_reason.setdefault(reason, []).append(row.type)
    return "".join(f"- {reason}: {', '.join(types)}.\n" for reason, types in by_reason.items())


# ------------------------------------------------------------------------------------ refused
def survey(listed: set[str]) -> dict[str, list[str]]:
    """Reason to types, of every text type that is not listed."""
    found: dict[str, list[str]] = {}
    for name in text_types():
        if name not in listed:
            found.setdefault(reason_of(name), []).append(name)
    return found


def text_types() -> list[str]:
    """Types with a causal or masked language model, a text encoder or a sequence classifier."""
    from transformers.models.auto import modeling_auto as auto

    tables = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )
    return list(dict.fromkeys(name for table in tables for name in table))


def reason_of(name: str) -> str:
    """Why a type is not explained, tried."""
    from headwise.errors import TargetError, UsageError
    from headwise.explain.explanation import explain
    from headwise.integrations.measured import TEXT, question_of
    from headwise.integrations.tiny import tiny

    try:
        subject = tiny(name, seed=SEED)
    except UsageError as error:
        return MORE_THAN_TEXT if MORE_THAN_TEXT in error.what else TWO_SEQUENCES
    except TargetError as error:
        if "no attention that can be watched" in error.what:
            return OWN_CODE if has_softmax(name) else NO_SOFTMAX
        if "different numbers of heads" in error.what:
            return UNEVEN
        return TOO_LARGE if TOO_LARGE in error.what else NOT_BUILT
    try:
        explain(subject, TEXT, question_of(subject), with_curves=False)
    except Exception as error:  # noqa: BLE001 - whatever it is goes into the page
        return NOT_LISTED.format(error=str(error).splitlines()[0])
    return "explained, and not listed"


def has_softmax(name: str) -> bool:
    """A softmax over a tensor with heads (4 axes), or a fused kernel, is computed in one run."""
    import torch
    import torch.nn.functional as F
    from torch.overrides import TorchFunctionMode

    from headwise.integrations.library import quiet
    from headwise.integrations.measured import forward
    from headwise.integrations.tiny import build, fill, model_class_of

    class Watch(TorchFunctionMode):
        found = False

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if func is F.scaled_dot_product_attention:
                self.found = True
            if func in {F.softmax, torch.softmax, torch.Tensor.softmax}:
                given = args[0] if args else (kwargs or {}).get("input")
                self.found |= given is not None and given.ndim >= 3
            return func(*args, **(kwargs or {}))

    with quiet(), torch.no_grad(), Watch() as watch:
        model = build(name, model_class_of(name)[0], torch.float32)
        fill(model)
        forward(model, torch.arange(3, 12)[None])
    return watch.found


def counts(refused: dict[str, list[str]]) -> str:
    """What became of every text type."""
    number = Counter({reason: len(types) for reason, types in refused.items()})
    total = len(text_types())
    inside = total - sum(number.values())
    lines = [
        "## All text types of transformers\n",
        f"{total} types have a causal or masked language model, a text encoder or a sequence "
        f"classifier. {inside} of them are listed above, and the others were tried too:\n",
        "| types | why not | which |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {count} | {reason} | {', '.join(sorted(refused[reason]))} |"
        for reason, count in number.most_common()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
