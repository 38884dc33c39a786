"""An explanation as a document for the terminal."""

from __future__ import annotations

from headwise.document import Block, Document, Heading, Pairs, Table, Text, Tone
from headwise.explain.agreement import Agreement, count_codes
from headwise.explain.detectors import DETECTORS
from headwise.explain.explanation import REFERENCE, Explanation, Trust
from headwise.explain.method import METHODS
from headwise.explain.page_labels import LABELS
from headwise.explain.verdicts import Code
from headwise.texts import current_language
from headwise.texts import translate as _

SHOWN_HEADS = 8
SHOWN_TOKENS = 64
COLUMNS = ("weights", "rollout", "integrated")
"""Maps that have a column of their own beside the tokens."""

TONES: dict[Code, Tone] = {
    Code.STRONG: "good",
    Code.MODERATE: "good",
    Code.WEAK: "warn",
    Code.CHANCE: "bad",
    Code.OPPOSITE: "bad",
    Code.TOO_LITTLE: "warn",
}


def summary(e: Explanation) -> Document:
    """What the terminal shows."""
    blocks: list[Block] = [
        Pairs(
            (
                (_("model"), _model_words(e)),
                (_("asked"), e.question_words),
                (_("value"), f"{e.value:.4g}"),
                *(((_("predictions"), _top_words(e)),) if e.top else ()),
            )
        )
    ]
    if e.trust is not None:
        blocks += _trust_blocks(e.trust)
    blocks += _token_blocks(e)
    blocks += _layer_blocks(e)
    blocks += _head_blocks(e)
    if e.trust is not None:
        blocks += _error_blocks(e, e.trust)
    blocks += [Text(note, "quiet") for note in e.notes]
    blocks.append(
        Text(
            _("{seconds:.1f} s, seed {seed}, {dtype}").format(
                seconds=e.elapsed_s, seed=e.seed, dtype=e.subject.dtype
            ),
            "quiet",
        )
    )
    return Document(_title(e), tuple(blocks), current_language(), _tone(e))


def _weights_of(trust: Trust | None) -> Agreement | None:
    return None if trust is None else trust.maps.get("weights")


def _title(e: Explanation) -> str:
    found = _weights_of(e.trust)
    if found is None:
        return _("{name}: maps of one text").format(name=e.subject.name)
    return _("attention weights of {name}: {words}").format(name=e.subject.name, words=found.words)


def _tone(e: Explanation) -> Tone:
    found = _weights_of(e.trust)
    return "strong" if found is None else TONES[found.code]


def _model_words(e: Explanation) -> str:
    s = e.subject
    return _(
        "{name} ({type}): {layers} layers, {heads} heads over {kv} for keys and values"
    ).format(
        name=s.name,
        type=s.model_type,
        layers=s.num_layers,
        heads=s.num_heads,
        kv=s.num_kv_heads,
    )


def _top_words(e: Explanation) -> str:
    return "  ".join(f"{e.subject.token(i)!r} {share:.1%}" for i, _logit, share in e.top[:5])


def _number(value: float | None) -> str:
    return "·" if value is None else f"{value:+.2f}"


def _span(ends: tuple[float, float] | None) -> str:
    return "·" if ends is None else f"{ends[0]:+.2f} … {ends[1]:+.2f}"


def _agreement_cells(found: Agreement) -> tuple[str, ...]:
    return (
        _number(found.spearman),
        _number(found.kendall),
        _span(found.interval),
        _span(found.null),
        short(found),
    )


def short(found: Agreement) -> str:
    """The verdict in a few words."""
    return _(LABELS[f"verdict.{found.code.value}"])


def _agreement_columns(first: str) -> tuple[str, ...]:
    return (first, _("Spearman"), _("Kendall"), _("interval"), _("chance alone"), _("verdict"))


def _trust_blocks(trust: Trust) -> list[Block]:
    rows = tuple(
        (_(METHODS[name].label), *_agreement_cells(found)) for name, found in trust.maps.items()
    )
    if not rows:
        return []
    return [
        Heading(_("May these maps be believed?")),
        Text(
            _(
                "Rank agreement of each map with what happened when each of {count} tokens was "
                "hidden from attention, on this text. Effects below {noise:.1e} are rounding."
            ).format(count=trust.tokens, noise=trust.noise),
            "quiet",
        ),
        Table(_agreement_columns(_("map")), rows, numeric=(1, 2)),
    ]


def _token_blocks(e: Explanation) -> list[Block]:
    names = [name for name in COLUMNS if name in e.found and e.found[name].scores is not None]
    hidden = e.found.get(REFERENCE)
    if not names and hidden is None:
        return []
    columns = ["#", _("token")]
    if hidden is not None:
        columns.append(_("effect of\nhiding it"))
    columns += [_(METHODS[name].label) for name in names]
    rows = []
    for index, shown in enumerate(e.text.shown[:SHOWN_TOKENS]):
        row = [str(index), repr(shown)[1:-1]]
        if hidden is not None and hidden.scores is not None:
            row.append(f"{float(hidden.scores[index]):+.3g}")
        for name in names:
            scores = e.found[name].scores
            assert scores is not None
            sign = "+" if e.found[name].is_signed else ""
            row.append(f"{float(scores[index]):{sign}.3g}")
        rows.append(tuple(row))
    blocks: list[Block] = [
        Heading(_("Token by token")),
        Table(tuple(columns), tuple(rows), numeric=tuple(range(2, len(columns)))),
    ]
    if len(e.text) > SHOWN_TOKENS:
        blocks.append(
            Text(
                _("the first {shown} of {total} tokens; --json and --html have all").format(
                    shown=SHOWN_TOKENS, total=len(e.text)
                ),
                "quiet",
            )
        )
    return blocks


def _layer_blocks(e: Explanation) -> list[Block]:
    if e.trust is None or not e.trust.layers:
        return []
    rows = tuple(
        (str(layer), *_agreement_cells(found)) for layer, found in enumerate(e.trust.layers)
    )
    return [
        Heading(_("Layer by layer: attention weights, mean over heads")),
        Text(
            _(
                "{count} layers are judged together, so each needs more evidence than one map"
            ).format(count=len(rows)),
            "quiet",
        ),
        Table(_agreement_columns(_("layer")), rows, numeric=(0, 1, 2)),
    ]


def _head_blocks(e: Explanation) -> list[Block]:
    blocks: list[Block] = []
    if e.trust is not None and e.trust.heads:
        counts = count_codes([found for row in e.trust.heads for found in row])
        words = ", ".join(
            f"{_(LABELS[f'verdict.{code.value}'])} {count}"
            for code, count in counts.items()
            if count
        )
        blocks.append(Heading(_("Heads")))
        blocks.append(
            Text(
                _("verdicts of {total} heads: {counts}").format(
                    total=sum(counts.values()), counts=words
                )
            )
        )
    zero = e.found.get("ablation-zero")
    if zero is not None and zero.heads is not None:
        blocks.append(_strongest(e, zero.heads.abs().flatten().argsort(descending=True).tolist()))
    if e.detected:
        found: dict[str, list[str]] = {}
        for layer, row in enumerate(e.detected):
            for head, detections in enumerate(row):
                for d in detections:
                    if d.is_found:
                        found.setdefault(d.name, []).append(f"{layer}.{head}")
        rows = tuple(
            (_(DETECTORS[name].label), str(len(heads)), _some(heads))
            for name, heads in found.items()
        )
        if rows:
            blocks.append(
                Table(
                    (_("what the weights show"), _("heads"), _("which (layer.head)")),
                    rows,
                    numeric=(1,),
                )
            )
    return blocks


def _some(heads: list[str]) -> str:
    shown = " ".join(heads[:SHOWN_HEADS])
    return shown + (" …" if len(heads) > SHOWN_HEADS else "")


def _strongest(e: Explanation, order: list[int]) -> Block:
    """The heads without which the target changes most."""
    zero, mean, parts = (
        e.found.get(name) for name in ("ablation-zero", "ablation-mean", "decomposition")
    )
    assert zero is not None and zero.heads is not None
    H = zero.heads.shape[1]
    columns = [_("layer.head"), _("set to zero")]
    columns += [_("set to its mean")] if mean is not None else []
    columns += [_("adds by itself")] if parts is not None else []
    columns.append(_("its map"))
    rows = []
    for index in order[:SHOWN_HEADS]:
        layer, head = divmod(index, H)
        row = [f"{layer}.{head}"]
        row += [
            f"{float(found.heads[layer, head]):+.3g}"
            for found in (zero, mean, parts)
            if found is not None and found.heads is not None
        ]
        row.append(short(e.trust.heads[layer][head]) if e.trust and e.trust.heads else "")
        rows.append(tuple(row))
    return Table(
        tuple(columns),
        tuple(rows),
        _("heads that matter most: how much the target falls without them"),
        tuple(range(1, len(columns) - 1)),
    )


def _error_blocks(e: Explanation, trust: Trust) -> list[Block]:
    rows = tuple(
        (
            _(METHODS[name].label),
            f"{error.token} {e.text.shown[error.token]!r}",
            f"{error.share:.0%}",
            f"{error.effect:+.3g}",
        )
        for name, errors in trust.sign_errors.items()
        for error in errors
    )
    if not rows:
        return []
    return [
        Heading(_("Sign errors")),
        Text(
            _(
                "tokens that a map holds for important and that work the other way: against the "
                "target, or against the sign that the map gives them"
            ),
            "quiet",
        ),
        Table((_("map"), _("token"), _("share of the map"), _("effect")), rows, numeric=(2, 3)),
    ]
