"""An estimate as a document: at a glance, where it goes, and every receipt."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.cost.bounds import Bound
from headwise.cost.expression import number_text
from headwise.cost.figure import exact, human, human_value
from headwise.cost.opened import CROSSINGS, PHASES, all_receipts, short_receipts
from headwise.cost.summary import Crossing, Estimate
from headwise.cost.totals import flops_by_part
from headwise.cost.weights import parameters
from headwise.document import Block, Document, Heading, Table, Text
from headwise.spec import AttentionSpec
from headwise.texts import current_language
from headwise.texts import mark as N_
from headwise.texts import translate as _

_RESOURCES = {"compute": N_("compute"), "memory": N_("memory")}


def document(found: Estimate, *, receipts: bool = True, more: Sequence[Block] = ()) -> Document:
    """The whole report.

    Args:
        found: what was estimated.
        receipts: show every figure's formula with the numbers filled in, down to the last part.
        more: blocks after the summary, such as the check against a real run.
    """
    blocks: list[Block] = [_setting(found), *_warnings(found), _glance(found)]
    blocks += more
    if found.layouts:
        blocks += _layouts(found)
    blocks += _where(found) + _lengths(found)
    if found.bounds or found.skipped:
        blocks += _bounds(found)
    blocks += _heads(found.model.spec) + _caches(found)
    blocks += all_receipts(found) if receipts else short_receipts(found)
    title = _("{name}: what it costs").format(name=found.model.name)
    return Document(title, tuple(blocks), current_language())


def _setting(found: Estimate) -> Text:
    model, spec = found.model, found.model.spec
    lines = [
        _("{batch} × {context} tokens, {dtype}, {what}").format(
            batch=found.batch,
            context=found.context,
            dtype=found.dtype,
            what=_("a training step") if found.is_training else _("a forward pass"),
        ),
        _("L {layers}, Dm {width}, Hq {heads}, Hkv {kv_heads}, Dk {size}, Dv {v_size}{rule}")
        .format(
            layers=model.layers,
            width=spec.d_model,
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            size=spec.head_dim,
            v_size=spec.v_head_dim,
            rule=_rule(spec),
        ),
    ]  # fmt: skip
    if model.source:
        lines.append(_("sizes: {source}").format(source=model.source))
    return Text("\n".join([*lines, *model.notes]))


def _rule(spec: AttentionSpec) -> str:
    words = [_("causal")] if spec.is_causal else []
    if spec.window is not None:
        left, right = ("∞" if side is None else str(side) for side in spec.window)
        words.append(_("window {left},{right}").format(left=left, right=right))
    return "".join(f", {word}" for word in words)


def _warnings(found: Estimate) -> list[Block]:
    """What does not fit, said before anything is allocated."""
    if found.here is None:
        return []
    phase = "training" if found.is_training else "prefill"
    need = found.memory[phase]  # type: ignore[index]
    if need.value <= found.here:
        return []
    text = _("needs {need}, this machine has {here}: it does not fit; nothing was allocated")
    here = human_value(found.here, "byte")
    return [Text(text.format(need=human(need), here=here), "warn")]


def _glance(found: Estimate) -> Table:
    step = found.is_training
    rows = [
        (_("parameters"), found.parameters),
        (_("FLOPs, training step") if step else _("FLOPs, forward"), found.main_flops),
        (_("bytes moved, plain attention"), found.bytes_moved["naive"]),
        (_("bytes moved, tiled attention"), found.bytes_moved["tiled"]),
        (_("KV cache"), found.cache),
        (_("KV cache per token"), found.per_token),
        (_("activations for backward, plain"), found.activations["naive"]),
        (_("… tiled"), found.activations["tiled"]),
        (_("… recomputed layer by layer"), found.activations["recomputed"]),
    ]
    if not step:
        saved = found.flops["forward_saving"]
        if saved.value != found.main_flops.value:
            rows.insert(2, (_("… without what the mask hides"), saved))
    cells = tuple((label, human(figure), exact(figure.value)) for label, figure in rows)
    return Table((_("figure"), _("rounded"), _("in full")), cells, numeric=(1, 2))


def _where(found: Estimate) -> list[Block]:
    every, saved = (
        flops_by_part(found.model, batch=found.batch, q_len=found.context, saving=saving)
        for saving in (False, True)
    )
    whole, less = (sum(f.value for f in parts.values()) for parts in (every, saved))
    rows = tuple(
        (
            name,
            human(every[name]),
            f"{100 * float(every[name].value) / float(whole):.1f} %",
            human(saved[name]),
            f"{100 * float(saved[name].value) / float(less):.1f} %",
        )
        for name in every
    )
    columns = (
        _("part"), _("forward"), _("share"), _("without the hidden pairs"), _("share"),
    )  # fmt: skip
    caption = _("the backward pass takes twice as much in every row")
    return [
        Heading(_("Where the FLOPs are")),
        Table(columns, rows, caption=caption, numeric=(1, 2, 3, 4)),
    ]


def _lengths(found: Estimate) -> list[Block]:
    rows = []
    for name, crossing in found.crossovers.items():
        rows.append((_(CROSSINGS[name]), *_crossing_cells(crossing)))
    columns = (
        _("attention takes more than"), _("from T ="), _("without hidden pairs"),
        _("by counting"),
    )  # fmt: skip
    text = _("scores and aggregate grow with T², everything else with T")
    heading = Heading(_("From which length on attention dominates"))
    return [heading, Table(columns, tuple(rows), caption=text, numeric=(1, 2, 3))]


def _crossing_cells(one: Crossing) -> tuple[str, str, str]:
    never = _("never")
    rule = exact(one.rule.value) if one.rule else never
    if not one.hides:
        return rule, "", number_text(one.exact) if one.exact else never
    causal = exact(one.rule_causal.value) if one.rule_causal else never
    counted = [number_text(value) if value else never for value in (one.exact, one.exact_causal)]
    return rule, causal, " / ".join(counted)


def _bounds(found: Estimate) -> list[Block]:
    rows = tuple(_bound_row(bound) for bound in found.bounds)
    columns = (
        _("machine"), _("phase"), _("bound by"), _("at best"), _("tokens/s"), _("needs"),
    )  # fmt: skip
    blocks: list[Block] = [Heading(_("Roofline: at best"))]
    if rows:
        caption = _("the larger of FLOPs / peak and bytes / bandwidth; real runs take longer")
        blocks.append(Table(columns, rows, caption=caption, numeric=(3, 4, 5)))
    sources = {b.hardware.name: b.hardware.source for b in found.bounds}
    blocks += [Text(f"{name}: {source}", "quiet") for name, source in sources.items()]
    for name in found.skipped:
        text = _("{machine}: no speed in {dtype} is known").format(machine=name, dtype=found.dtype)
        blocks.append(Text(text, "quiet"))
    return blocks


def _bound_row(bound: Bound) -> tuple[str, ...]:
    need = human(bound.needs)
    if not bound.fits:
        have = human_value(bound.hardware.memory_bytes, "byte")
        need = f"{need} > {have}"
    return (
        bound.hardware.key,
        _(PHASES[bound.phase]),
        _(_RESOURCES[bound.binds]),
        human(bound.seconds),
        human(bound.tokens_per_s).removesuffix(" token/s"),
        need,
    )


def _heads(spec: AttentionSpec) -> list[Block]:
    """The number of heads does not enter the parameters: shown by counting."""
    wide, wide_v = spec.num_heads * spec.head_dim, spec.num_heads * spec.v_head_dim
    rows = []
    for heads in _some_heads(spec):
        kv_heads = heads * spec.num_kv_heads // spec.num_heads
        other = spec.replace(
            num_heads=heads, num_kv_heads=kv_heads, head_dim=wide // heads,
            v_head_dim=wide_v // heads, positions=None, sinks=False, qk_norm=None,
        )  # fmt: skip
        count = exact(parameters(other).value)
        rows.append((str(heads), str(kv_heads), str(wide // heads), count))
    columns = ("Hq", "Hkv", "Dk", _("parameters of one attention layer"))
    caption = _("at the same total width Hq·Dk the number of heads changes nothing")
    heading = Heading(_("Parameters do not depend on the number of heads"))
    return [heading, Table(columns, tuple(rows), caption=caption, numeric=(0, 1, 2, 3))]


def _some_heads(spec: AttentionSpec) -> list[int]:
    wide, wide_v = spec.num_heads * spec.head_dim, spec.num_heads * spec.v_head_dim
    fitting = [
        heads
        for heads in range(1, wide + 1)
        if wide % heads == 0
        and wide_v % heads == 0
        and heads * spec.num_kv_heads % spec.num_heads == 0
    ]
    around = [spec.num_heads * factor // 4 for factor in (1, 2, 4, 8)]
    chosen = {heads for heads in around if heads in fitting}
    return sorted({fitting[0], spec.num_heads} | chosen)


def _caches(found: Estimate) -> list[Block]:
    rows = tuple(
        (name, human(figure), exact(figure.value)) for name, figure in found.caches.items()
    )
    columns = (_("dtype"), _("KV cache"), _("bytes"))
    caption = _("{batch} × {context} tokens, all layers").format(
        batch=found.batch, context=found.context
    )
    blocks: list[Block] = [Heading(_("KV cache by dtype"))]
    blocks.append(Table(columns, rows, caption=caption, numeric=(1, 2)))
    if found.cache.note:
        blocks.append(Text(_(found.cache.note), "quiet"))
    return blocks


def _layouts(found: Estimate) -> list[Block]:
    rows = tuple(
        (
            one.name + (" ←" if one.is_own else ""),
            human(one.parameters),
            human(one.per_token),
            human(one.cache),
            human(one.flops),
            " · ".join(
                f"{bound.hardware.key} {human(bound.tokens_per_s).removesuffix(' token/s')}"
                for bound in one.bounds
            ),
        )
        for one in found.layouts
    )
    columns = (
        _("heads"), _("parameters"), _("cache per token"), _("cache"), _("FLOPs"),
        _("decoded tokens/s at best"),
    )  # fmt: skip
    caption = _("everything else equal; ← is how the model is published")
    heading = Heading(_("Other numbers of key/value heads"))
    return [heading, Table(columns, rows, caption=caption, numeric=(1, 2, 3, 4))]
