"""Layers with a cache in five styles, each with one fault at a time, and as they are.

A fault is a line of the file exchanged for another; lines that an engineer would accept instead
are given by their text.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.report import Report
from headwise.verifier.api import verify

LAYERS = Path(__file__).parent / "layers_cache"
FLAGS: dict[str, dict[str, object]] = {"growing": {"causal": True, "rope": "halves"}}

Change = tuple[str, str]

# style, code, (text, text instead) …, and further lines that are accepted
TABLE: list[tuple[str, str, tuple[Change, ...], tuple[str, ...]]] = [
    (
        "growing", "R02",
        (("positions = torch.arange(seen, seen + n).expand(b, -1)",
          "positions = torch.arange(n).expand(b, -1)"),
         ("(attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -n:]", "positions")),
        (),
    ),
    (
        "growing", "R12",
        (("        if attention_mask is not None:\n            positions",
          "        if attention_mask is not None and past_key_value is None:\n"
          "            positions"),),
        ("positions = torch.arange(seen", "positions = (attention_mask"),
    ),
    (
        "growing", "R08",
        (("            v = torch.cat((past_key_value[1], v), dim=-2)\n",
          "            v = torch.cat((past_key_value[1], v), dim=-2)\n"
          "            places = torch.arange(k.shape[-2]).expand(b, -1)\n"
          "            k = self.rotate(k, places)\n"),
         ("        k = self.rotate(k, positions)\n",
          "        k = k if past_key_value is not None else self.rotate(k, positions)\n"),
         ("(attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -n:]", "positions")),
        ("k = k if past_key_value", "k = torch.cat((past_key_value[0], k)"),
    ),
    (
        "growing", "M11",
        (("        scores = scores.masked_fill(torch.arange(total) >",
          "        if past_key_value is None:\n"
          "            scores = scores.masked_fill(torch.arange(total) >"),),
        ("scores = scores.masked_fill(torch.arange(total) >",),
    ),
    (
        "growing", "M08",
        (("rows = torch.arange(total - n, total)", "rows = torch.arange(n)"),),
        ("scores = scores.masked_fill(torch.arange(total)",),
    ),
    (
        "growing", "M19",
        (("        if attention_mask is not None:\n            scores",
          "        if attention_mask is not None and past_key_value is None:\n"
          "            scores"),),
        ("scores = scores.masked_fill(~attention_mask",),
    ),
    (
        "growing", "C03",
        (("past_key_value[0].shape[-2]", "past_key_value[0].shape[-3]"),
         ("(attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -n:]", "positions")),
        (),
    ),
    (
        "growing", "C02",
        (("k = torch.cat((past_key_value[0], k), dim=-2)",
          "k = torch.cat((past_key_value[0], k, k), dim=-2)"),
         ("v = torch.cat((past_key_value[1], v), dim=-2)",
          "v = torch.cat((past_key_value[1], v, v), dim=-2)"),
         ("positions = torch.arange(seen, seen + n).expand(b, -1)",
          "positions = torch.arange(seen, seen + n).expand(b, -1)  # counted twice as well")),
        ("v = torch.cat((past",),
    ),
    (
        "growing", "C05",
        (("k = torch.cat((past_key_value[0], k), dim=-2)",
          "k = torch.cat((past_key_value[0].roll(1, 0), k), dim=-2)"),
         ("v = torch.cat((past_key_value[1], v), dim=-2)",
          "v = torch.cat((past_key_value[1].roll(1, 0), v), dim=-2)")),
        ("v = torch.cat((past",),
    ),
    (
        "static", "C01",
        (("start, count = self.used, keys.shape[1]",
          "start, count = max(self.used - 1, 0), keys.shape[1]"),
         ("self.used = start + count", "self.used = self.used + count")),
        ("self.keys[:, start", "self.values[:, start"),
    ),
    (
        "static", "C01",
        (("self.used = start + count", "self.used = max(self.used, count)"),
         ("before = 0 if buffers is None else buffers.used",
          "before = 0 if buffers is None else buffers.used")),
        ("self.keys[:, start", "self.values[:, start", "start, count = self.used", "return self"),
    ),
    (
        "static", "R02",
        (("before = 0 if buffers is None else buffers.used", "before = 0"),),
        ("angle = torch.arange(start", "q = self.turn(q", "k = self.turn(k"),
    ),
    (
        "static", "M08",
        (("seen = seen.tril(total - count)", "seen = seen.tril()"),),
        (),
    ),
    (
        "static", "M11",
        (("seen = seen.tril(total - count)",
          "seen = seen.tril() if buffers is None else seen"),),
        ("y = F.scaled",),
    ),
    (
        "rolling", "C04",
        (('held["k"] = k[:, -REACH:]', 'held["k"] = k[:, -REACH + 1 :]'),
         ('held["v"] = v[:, -REACH:]', 'held["v"] = v[:, -REACH + 1 :]')),
        ('held["v"] = v', 'k = torch.cat([held["k"]', 'v = torch.cat([held["v"]'),
    ),
    (
        "rolling", "C04",
        (('held["k"] = k[:, -REACH:]', 'held["k"] = k[:, :REACH]'),
         ('held["v"] = v[:, -REACH:]', 'held["v"] = v[:, :REACH]')),
        ('held["v"] = v', 'k = torch.cat([held["k"]', 'v = torch.cat([held["v"]'),
    ),
    (
        "rolling", "R15",
        (("scores = scores - slopes[:, None, None] * behind",
          "scores = scores if held else scores - slopes[:, None, None] * behind"),),
        ('scores = torch.einsum("bihd,bjhd->bhij"',),
    ),
    (
        "rolling", "M22",
        (('held["k"] = k[:, -REACH:]', 'held["k"] = k'),
         ('held["v"] = v[:, -REACH:]', 'held["v"] = v'),
         ("        scores = scores.masked_fill(behind > REACH",
          "        scores = scores if held else scores.masked_fill(behind > REACH")),
        ("scores = scores.masked_fill(behind < 0",),
    ),
    (
        "stateful", "C05",
        (("        self.past, self.count, self.on = None, 0, True",
          "        self.count, self.on = 0, True"),
         ("        self.past, self.on = None, False", "        self.on = False")),
        ("self.past = (k, v)", "self.count += n"),
    ),
    (
        "stateful", "R12",
        (("        if keep is not None:\n            places",
          "        if keep is not None and old == 0:\n            places"),),
        ("places = torch.arange(old", "places = (keep"),
    ),
    (
        "stateful", "M19",
        (("        if keep is not None:\n            seen",
          "        if keep is not None and old == 0:\n            seen"),),
        ("seen = seen & keep", "seen = torch.arange(old", "y = F.scaled"),
    ),
    (
        "stateful", "R02",
        (("places = torch.arange(old, old + n).expand(b, n)",
          "places = torch.arange(n).expand(b, n)"),
         ("            places = (keep.long().cumsum(1) - 1).clamp(min=0)[:, old : old + n]",
          "            places = (keep[:, old : old + n].long().cumsum(1) - 1).clamp(min=0)")),
        (),
    ),
    (
        "buckets", "R15",
        (("bias = self.relative(buckets(to - at[:, None]))",
          "bias = self.relative(buckets(to - torch.arange(n)[:, None]))"),),
        (),
    ),
    (
        "buckets", "C02",
        (("        k, v = memory.update(k, v)\n",
          "        memory.update(k, v)\n        k, v = memory.update(k, v)\n"),
         ("    return layer(x, Memory())",
          "    once = Memory()\n    once.update = lambda k, v: (k, v)\n    return layer(x, once)")),
        ("k, v = memory.update", "self.k = k if", "self.v = v if"),
    ),
    (
        "buckets", "C05",
        (("        return self.k, self.v",
          "        return self.k[:1].expand_as(self.k) if len(k) == 1 else (self.k, self.v)"),
         ("        self.k = k if self.k is None else torch.cat([self.k, k], -2)",
          "        self.k = k if self.k is None else torch.cat([self.k.flip(0), k], -2)"),
         ("        self.v = v if self.v is None else torch.cat([self.v, v], -2)",
          "        self.v = v if self.v is None else torch.cat([self.v.flip(0), v], -2)")),
        ("self.v = v if",),
    ),
]  # fmt: skip


def report_on(tmp_path: Path, style: str, changes: tuple[Change, ...]) -> tuple[Report, list[str]]:
    source = (LAYERS / f"{style}.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    file = tmp_path / "layer.py"
    file.write_text(source, encoding="utf-8")
    name = ":DecoderAttention" if style == "growing" else ""
    return verify(f"{file}{name}", **FLAGS.get(style, {})), source.splitlines()


@pytest.mark.parametrize("style", ["growing", "static", "rolling", "stateful", "buckets"])
def test_a_right_layer_is_not_accused(tmp_path: Path, style: str) -> None:
    report, _lines = report_on(tmp_path, style, ())
    assert report.verdict == "matches"
    assert not [f for f in report.findings if f.kind in ("bug", "unexplained")]
    assert all(check.passed for check in report.checks)
    assert sum(check.name == "steps" for check in report.checks) >= 3


@pytest.mark.parametrize(
    ("style", "code", "changes", "more"),
    [pytest.param(*row, id=f"{i}-{row[0]}-{row[1]}") for i, row in enumerate(TABLE)],
)
def test_a_fault_is_named_and_located(
    tmp_path: Path, style: str, code: str, changes: tuple[Change, ...], more: tuple[str, ...]
) -> None:
    report, lines = report_on(tmp_path, style, changes)
    first = report.findings[0]
    assert report.verdict == "differs"
    assert first.code == f"HW-{code}", first.where
    assert [f.code for f in report.findings if f.kind in ("bug", "unexplained")] == [first.code]
    changed = {line.strip() for _old, new in changes for line in new.splitlines()}
    assert first.line is not None
    line = lines[first.line - 1].strip()
    assert (
        line in changed
        or any(part in line for part in changed if len(part) > 12)
        or any(part in line for part in more)
    ), line
