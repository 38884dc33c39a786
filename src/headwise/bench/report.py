"""A run for people: what was measured on which machine, beside what was promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.bench.targets import MOST_OTHERS, geometric_mean
from headwise.bench.workloads import WORKLOADS
from headwise.document import Block, Document, Heading, Pairs, Table, Text
from headwise.texts import current_language
from headwise.texts import mark as N_
from headwise.texts import translate as _

SHORT = {"float32": "fp32", "bfloat16": "bf16"}
_STATES = {"met": N_("met"), "not met": N_("not met"), "not claimed": N_("not claimed")}


def as_document(result: Mapping[str, Any]) -> Document:
    """What ``Run.to_json`` gave, as a document."""
    blocks: list[Block] = [_machine(result)]
    others = result["others_share"]
    if others is not None and others > MOST_OTHERS:
        text = _("other processes took {share:.0%} of the processor: these times are worth little")
        blocks.append(Text(text.format(share=others), "bad"))
    for name in dict.fromkeys(row["workload"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["workload"] == name]
        title = _(WORKLOADS[name].title) if name in WORKLOADS else ""
        blocks.append(Heading(f"{name}: {title}" if title else name))
        blocks.append(_speed(rows))
        blocks += _aside(rows)
    if result["rows"]:
        blocks.append(Heading(_("Precision, limits and memory")))
        blocks.append(_precision(result["rows"]))
        blocks.append(Heading(_("Geometric means and targets")))
        blocks.append(_targets(result["summary"]))
        blocks += _floor(result["floor"])
    blocks += _incomplete(result)
    title = _("Attention beside other libraries, on {cpu}").format(cpu=result["cpu"]["model"])
    return Document(title, tuple(blocks), current_language())


def _machine(result: Mapping[str, Any]) -> Pairs:
    cpu, limits = result["cpu"], result["limits"]
    rows = [
        (
            _("processor"),
            _("{model}, {cores} cores, {threads} threads, {flags}").format(
                model=cpu["model"],
                cores=cpu["cores"],
                threads=cpu["threads"],
                flags=" ".join(cpu["flags"]) or _("no features known"),
            ),
        )
    ]
    if limits:
        rates = ", ".join(
            _("{dtype} {rate:.0f} GFLOP/s ({route})").format(
                dtype=SHORT.get(name, name), rate=rate, route=limits["routes"][name]
            )
            for name, rate in limits["gflops"].items()
        )
        rows.append(
            (
                _("limits"),
                _("{rates}, {bandwidth:.0f} GB/s").format(
                    rates=rates, bandwidth=limits["gbytes_per_s"]
                ),
            )
        )
    rows.append((_("versions"), ", ".join(f"{name} {v}" for name, v in result["versions"].items())))
    rows.append(
        (
            _("run"),
            _("seed {seed}, {seconds:.0f} s").format(
                seed=result["seed"], seconds=result["seconds"]
            ),
        )
    )
    return Pairs(tuple(rows))


def _name(row: Mapping[str, Any]) -> str:
    """Shape and dtype on a line each; that all are causal is in the title."""
    return f"{row['shape'].removesuffix(' causal')}\n{SHORT.get(row['dtype'], row['dtype'])}"


def _speed(rows: Sequence[Mapping[str, Any]]) -> Table:
    mixed = len({row["sizes"]["causal"] for row in rows}) > 1
    columns = (_("shape"), _("ours, ms"), _("torch call"), "×", _("best peer"), "×")
    cells = []
    for row in rows:
        shape = f"{row['shape']}\n{SHORT.get(row['dtype'], row['dtype'])}" if mixed else _name(row)
        same = row["best_peer"] == row["best_torch"]
        cells.append(
            (
                shape,
                f"{row['ours_ms']:.4g}\n{row['backend']}",
                _timed(row["best_torch"], row["best_torch_ms"]),
                _times(row["torch_ratio"]),
                _("the same") if same else _timed(row["best_peer"], row["best_peer_ms"]),
                "" if same else _times(row["ratio"]),
            )
        )
    return Table(columns, tuple(cells), numeric=(1, 3, 5))


def _aside(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Overheads, and what is shown but not counted."""
    blocks: list[Block] = []
    overheads = [
        f"{_name(row).replace(chr(10), ' ')}: {row['overhead_us']:+.1f} µs"
        for row in rows
        if row.get("overhead_us") is not None
    ]
    if overheads:
        text = _("longer than the best torch call by: {list}").format(list="; ".join(overheads))
        blocks.append(Text(text, "quiet"))
    shown: dict[str, list[float | None]] = {}
    for row in rows:
        for name, entry in row["peers"].items():
            if entry["kind"] in ("shown", "backend") and "ms" in entry:
                key = f"{name} {SHORT.get(row['dtype'], row['dtype'])}"
                shown.setdefault(key, []).append(entry["ratio"])
    if shown:
        listed = ", ".join(
            f"{name} ×{_times(geometric_mean(ratios))}" for name, ratios in shown.items()
        )
        blocks.append(
            Text(_("shown, not counted (time / ours): {list}").format(list=listed), "quiet")
        )
    return blocks


def _precision(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        _("row"),
        _("of the\nlimit"),
        _("spread"),
        _("error,\nours"),
        _("best torch\ncall"),
        _("memory,\nours"),
        _("torch"),
    )
    cells = tuple(
        (
            f"{row['workload']}\n{row['shape']} {SHORT.get(row['dtype'], row['dtype'])}",
            _percent(row["limit_share"]),
            _percent(row["ours_spread"]),
            _rms(row["error"]["ours"]),
            _rms(row["error"]["best_torch"]),
            _mebibytes(row["peak_bytes"]),
            _mebibytes(row["torch_peak_bytes"]),
        )
        for row in rows
    )
    caption = _(
        "errors: root mean square against float64, relative; the worst gradient in training; "
        "memory: extra, of one call, MiB"
    )
    return Table(columns, cells, caption, numeric=(1, 2, 3, 4, 5, 6))


def _targets(entries: Sequence[Mapping[str, Any]]) -> Table:
    """A row per workload and dtype, and one more per further target."""
    columns = (
        _("workload"),
        _("shapes"),
        _("torch\n×"),
        _("best peer\n×"),
        _("target"),
        _("state"),
    )
    reasons = {target["why"] for entry in entries for target in entry["targets"]}
    common = reasons.pop() if len(reasons) == 1 else ""
    cells = []
    for entry in entries:
        first = (
            f"{entry['workload']} {SHORT.get(entry['dtype'], entry['dtype'])}",
            _("{measured} of {total}").format(measured=entry["shapes"], total=entry["of"]),
            _times(entry["torch_ratio"]),
            _times(entry["ratio"]),
        )
        rows = [_target(target, common) for target in entry["targets"]] or [("", "")]
        cells += [
            (*(first if index == 0 else ("", "", "", "")), *row) for index, row in enumerate(rows)
        ]
    caption = _("time of the others / ours; the targets are for two cores with AVX-512")
    if common:
        caption += "\n" + _("not claimed: {reason}").format(reason=common)
    return Table(columns, tuple(cells), caption, numeric=(2, 3))


def _target(target: Mapping[str, Any], common: str) -> tuple[str, str]:
    """The promise, and what became of it."""
    against = ", ".join(target["against"])
    if "overhead_us" in target:
        words = _("{limit:g} µs at most").format(limit=target["overhead_us"])
    elif against == "best torch call":
        words = f"{target['ratio']:g}"
    else:
        words = _("{ratio:g} against {names}: {measured}").format(
            ratio=target["ratio"], names=against, measured=_times(target["measured"])
        )
    if target["gradients"] is not None:
        words += _(", gradient errors {ratio:.2f} of SDPA's").format(ratio=target["gradients"])
    state = _(_STATES[target["state"]])
    return words, f"{state}: {target['why']}" if target["why"] not in ("", common) else state


def _floor(floor: Mapping[str, Any]) -> list[Block]:
    state = _(_STATES[floor["state"]])
    if floor["why"]:
        state += f": {floor['why']}"
    below = "; ".join(
        f"{row['workload']} {row['shape']} {SHORT.get(row['dtype'], row['dtype'])} "
        f"{row['torch_ratio']:.2f}"
        for row in floor["below"]
    )
    text = _("under {ratio:g} × the best torch call: {below} ({state})").format(
        ratio=floor["ratio"], below=below or _("no shape"), state=state
    )
    return [Text(text, "warn" if floor["below"] else "plain")]


def _incomplete(result: Mapping[str, Any]) -> list[Block]:
    """Why a run is incomplete; empty if it is complete."""
    if result["complete"]:
        note = _("a quick run: one shape of each workload") if result["quick"] else ""
        return [Text(note, "quiet")] if note else []
    reasons = []
    if result["interrupted"]:
        reasons.append(_("it was interrupted"))
    reasons += [
        _("{name} can't take part: {missing} is missing ({install})").format(**entry)
        for entry in result["missing"]
    ]
    reasons += [
        f"{entry['workload']} {entry['shape']} {entry['dtype']}: {entry['reason']}"
        for entry in result["skipped"]
    ]
    reasons += [
        f"{row['workload']} {row['shape']} {row['dtype']}: {name}: {entry['failed']}"
        for row in result["rows"]
        for name, entry in row["peers"].items()
        if "failed" in entry and entry["kind"] != "backend"
    ]
    lines = "\n".join(f"  {reason}" for reason in reasons)
    return [Heading(_("This run is incomplete"), tone="bad"), Text(lines)]


def _timed(name: str | None, ms: float | None) -> str:
    return "–" if name is None or ms is None else f"{name}\n{ms:.4g} ms"


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _rms(error: Mapping[str, Any] | None) -> str:
    if error is None:
        return "–"
    values = [error["rms"], *error.get("gradients", ())]
    known = [value for value in values if value is not None]
    return f"{max(known):.1e}" if known else "–"


def _mebibytes(count: int | None) -> str:
    return "–" if count is None else f"{count / 2**20:.1f}"
