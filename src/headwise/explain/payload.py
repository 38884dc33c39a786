"""An explanation as plain data: what the page and ``--json`` show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from headwise import __version__
from headwise.explain.detectors import DETECTORS
from headwise.explain.explanation import AFTER, REFERENCE, Explanation, Trust, top_of
from headwise.explain.method import METHODS, PROMISES, Attribution
from headwise.explain.packing import pack
from headwise.explain.page import page_texts
from headwise.texts import current_language
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.explain.methods.occlusion import Occluded

INTERVENTIONS = ("hidden", "replaced")


def payload_of(e: Explanation) -> dict[str, Any]:
    """Everything, in the shape that the page reads."""
    return {
        "headwise": __version__,
        "language": current_language(),
        "model": {
            "name": e.subject.name,
            "type": e.subject.model_type,
            "kind": e.subject.kind,
            "num_layers": e.subject.num_layers,
            "num_heads": e.subject.num_heads,
            "num_kv_heads": e.subject.num_kv_heads,
            "dtype": e.subject.dtype,
            "device": e.subject.device,
        },
        "seed": e.seed,
        "elapsed_s": e.elapsed_s,
        "text": e.text.text,
        "tokens": [
            {"id": int(i), "text": shown, "special": special}
            for i, shown, special in zip(
                e.text.ids.tolist(), e.text.shown, e.text.is_special, strict=True
            )
        ],
        "question": {
            "kind": e.question.target.kind,
            "words": e.question_words,
            "position": e.question.query,
            "value": e.value,
            "top": _top(e, e.top),
        },
        "weights": _weights(e),
        "maps": [
            _map(name, found)
            for name, found in e.found.items()
            if found.scores is not None and name not in INTERVENTIONS
        ],
        "interventions": [_intervention(e, name) for name in INTERVENTIONS if name in e.found],
        "heads": _heads(e),
        "decomposition": _decomposition(e),
        "trust": None if e.trust is None else _trust(e, e.trust),
        "notes": list(e.notes),
        "repeat": e.repeat,
        "texts": page_texts(),
    }


def _numbers(tensor: Tensor) -> Any:
    """Nested lists; what is not finite becomes None."""
    return _finite(tensor.detach().cpu().double().tolist())


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if math.isfinite(value) else None


def _top(e: Explanation, top: Any) -> list[dict[str, Any]]:
    return [
        {"id": i, "text": e.subject.token(i), "logit": logit, "probability": share}
        for i, logit, share in top
    ]


def _weights(e: Explanation) -> dict[str, Any] | None:
    found = e.found.get("weights")
    if found is None or found.cells is None:
        return None
    order = next(
        (
            e.found[name].heads
            for name in ("ablation-zero", "decomposition")
            if name in e.found and e.found[name].heads is not None
        ),
        None,
    )
    packed = pack(found.extra["weights"], found.cells, order)
    left_out = ""
    if len(packed.kept) < packed.total:
        left_out = _(
            "{kept} of {total} heads are in this file, those that matter most; all of them would "
            "make it too large"
        ).format(kept=len(packed.kept), total=packed.total)
    return {
        "encoding": "uint16",
        "kept": [list(pair) for pair in packed.kept],
        "data": packed.data,
        "row": packed.row,
        "left_out": left_out,
    }


def _map(name: str, found: Attribution) -> dict[str, Any]:
    method = METHODS[name]
    assert found.scores is not None
    return {
        "name": name,
        "label": _(method.label),
        "scores": _numbers(found.scores),
        "signed": found.is_signed,
        "promises": [_(PROMISES[promise]) for promise in sorted(method.promises)],
        "notes": [*found.notes, _("source: {source}").format(source=_(method.source))],
        "figures": {key: value for key, value in found.figures.items() if math.isfinite(value)},
        "layers": None if found.layers is None else _numbers(found.layers),
    }


def _intervention(e: Explanation, name: str) -> dict[str, Any]:
    occluded: Occluded = e.found[name].extra["occluded"]
    after = []
    for index, value in enumerate(occluded.after.tolist()):
        entry: dict[str, Any] = {"value": value, "top": []}
        if occluded.logits is not None and e.top:
            entry["top"] = _top(e, top_of(occluded.logits[index], AFTER))
        after.append(entry)
    return {
        "name": name,
        "label": _(METHODS[name].label),
        "effect": _numbers(occluded.effect),
        "after": after,
    }


def _heads(e: Explanation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, name in (
        ("ablation_zero", "ablation-zero"),
        ("ablation_mean", "ablation-mean"),
        ("decomposition", "decomposition"),
    ):
        if name in e.found:
            heads = e.found[name].heads
            assert heads is not None
            found[key] = _numbers(heads)
    if e.detected:
        found["detected"] = [
            [[d.name for d in head if d.is_found] for head in layer] for layer in e.detected
        ]
        found["labels"] = {name: _(d.label) for name, d in DETECTORS.items()}
    return found


def _decomposition(e: Explanation) -> dict[str, Any] | None:
    found = e.found.get("decomposition")
    if found is None:
        return None
    parts = found.extra["parts"]
    return {
        "embedding": parts.embedding,
        "attention": [
            sum(heads) + bias for heads, bias in zip(parts.heads, parts.attention_bias, strict=True)
        ],
        "mlp": list(parts.feed_forward),
        "constant": parts.constant,
        "sum": parts.total,
        "value": parts.value,
        "gap": parts.gap,
    }


def _trust(e: Explanation, trust: Trust) -> dict[str, Any]:
    return {
        "reference": REFERENCE,
        "tokens": trust.tokens,
        "noise": trust.noise,
        "maps": [
            {"name": name, "label": _(METHODS[name].label), **found.to_payload()}
            for name, found in trust.maps.items()
        ],
        "layers": [
            {
                "name": f"layer {layer}",
                "label": _("layer {layer}").format(layer=layer),
                **found.to_payload(),
            }
            for layer, found in enumerate(trust.layers)
        ],
        "heads": [[found.to_payload() for found in row] for row in trust.heads],
        "sign_errors": [
            {"map": name, "token": error.token, "share": error.share, "effect": error.effect}
            for name, errors in trust.sign_errors.items()
            for error in errors
        ],
        "curves": [curve.to_payload() for curve in trust.curves],
    }
