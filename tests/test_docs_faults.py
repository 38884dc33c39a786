"""The cards of the catalogue are complete and their code runs; docs/faults.md shows them."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from headwise.verifier.faults import FAULTS, Fault

ROOT = Path(__file__).parent.parent

# Codes and names are a contract: add at the end of a letter, never rename or renumber.
NAMES = {
    "P01": "query-key-swapped",
    "P02": "key-value-swapped",
    "P03": "packed-order-mismatch",
    "P04": "weight-transposed",
    "P05": "projection-bias-dropped",
    "P06": "rope-permutation-wrong-heads",
    "P07": "unused-parameter",
    "P08": "qk-norm-across-heads",
    "P09": "qk-norm-wrong-side-of-rope",
    "P10": "context-ignored",
    "H01": "split-without-transpose",
    "H02": "head-dim-major-split",
    "H03": "kv-heads-tiled",
    "H04": "kv-head-wrong-divisor",
    "H05": "kv-repeated-along-time",
    "H06": "batch-head-order",
    "H07": "attends-over-batch",
    "R01": "rotary-pairs-swapped",
    "R02": "rotary-offset-lost",
    "R03": "rotary-wrong-base",
    "R04": "rotary-applied-to-values",
    "R05": "rotary-query-only",
    "R06": "rotary-angles-and-pairs-disagree",
    "R07": "rotary-frequencies-wrong-dim",
    "R08": "rotary-applied-twice",
    "R09": "rotary-sign-flipped-on-one-side",
    "R10": "rotary-stale-table",
    "R11": "positions-ignore-left-padding",
    "R12": "positions-jump-after-prefill",
    "R13": "alibi-sign-flipped",
    "R14": "alibi-wrong-slopes",
    "R15": "alibi-lost-in-decoding",
    "R16": "absolute-positions-missing-or-doubled",
    "R17": "rotary-missing",
    "R18": "alibi-missing",
    "S01": "scale-missing",
    "S02": "scale-by-d-model",
    "S03": "scale-applied-twice",
    "S04": "scale-inverted",
    "S05": "scale-by-num-heads",
    "S06": "scale-by-value-dim",
    "S07": "scale-constant",
    "S08": "softcap-missing",
    "S09": "softcap-after-mask",
    "S10": "softcap-before-scale",
    "S11": "bias-scaled",
    "M01": "mask-polarity-inverted",
    "M02": "padding-mask-on-query-axis",
    "M03": "padding-mask-on-head-axis",
    "M04": "padding-mask-ignored",
    "M05": "causal-mask-missing",
    "M06": "causal-sees-next-token",
    "M07": "causal-hides-self",
    "M08": "causal-aligned-to-start",
    "M09": "causal-reversed",
    "M10": "causal-not-wanted",
    "M11": "causal-dropped-with-cache",
    "M12": "mask-after-softmax",
    "M13": "mask-multiplied-into-scores",
    "M14": "mask-fill-near-zero",
    "M15": "mask-fill-too-weak",
    "M16": "mask-added-as-numbers",
    "M17": "padding-dropped-by-causal-flag",
    "M18": "padding-mask-batch-order",
    "M19": "padding-only-in-prefill",
    "M20": "mask-lost-on-weights-path",
    "M21": "window-off-by-one",
    "M22": "window-ignored",
    "M23": "documents-leak",
    "M24": "cross-uses-query-mask",
    "M25": "key-mask-zeroes-queries",
    "M26": "empty-row-nan",
    "M27": "empty-row-uniform",
    "M28": "additive-masks-overflow",
    "M29": "hidden-values-leak-nan",
    "M30": "mask-missing-in-registry",
    "X01": "softmax-over-queries",
    "X02": "softmax-over-heads",
    "X03": "softmax-over-heads-and-keys",
    "X04": "softmax-without-max-subtraction",
    "X05": "softmax-missing-or-doubled",
    "X06": "sink-missing",
    "X07": "dropout-before-softmax",
    "A01": "weights-transposed",
    "A02": "aggregates-keys",
    "G01": "merge-without-transpose",
    "G02": "merge-head-dim-major",
    "O01": "output-projection-missing",
    "O02": "output-bias-dropped",
    "O03": "residual-included",
    "C01": "cache-slot-overwritten",
    "C02": "cache-appended-twice",
    "C03": "cache-length-from-wrong-axis",
    "C04": "cache-window-evicts-wrong",
    "C05": "cache-shared-between-sequences",
    "D02": "float32-inside",
    "D03": "softmax-in-half",
    "B01": "dropout-active-in-eval",
    "B02": "input-mutated",
    "B03": "batch-dependent",
    "B04": "state-kept-between-calls",
    "T01": "gradient-cut",
    "T02": "gradient-ignores-mask",
    "T03": "gradient-softmax-term-missing",
    "T04": "gradient-wrong-scale",
    "U00": "unexplained",
}


def _script():
    spec = importlib.util.spec_from_file_location("docs_script", ROOT / "scripts" / "docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = _script()


# -- codes and names ----------------------------------------------------------------------------


def wrong_names(faults: list[Fault]) -> list[str]:
    """What breaks the contract about codes and names, one line each."""
    found = [f"{f.code} is {f.name!r}" for f in faults if NAMES.get(f.code) != f.name]
    found += [f"{code} is missing" for code in NAMES if code not in {f.code for f in faults}]
    kebab = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
    found += [f"{f.name!r} is not kebab-case" for f in faults if not kebab.fullmatch(f.name)]
    names = [f.name for f in faults]
    found += [f"{name!r} is used twice" for name in sorted(set(names)) if names.count(name) > 1]
    return found


def test_codes_and_names_are_those_of_the_contract():
    assert wrong_names(list(FAULTS.values())) == []
    assert all(key == fault.code for key, fault in FAULTS.items())
    assert [code for code in NAMES if not re.fullmatch(r"[A-Z]\d\d", code)] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scale-lost", ["S01 is 'scale-lost'"]),
        ("Scale_missing", ["S01 is 'Scale_missing'", "'Scale_missing' is not kebab-case"]),
        ("-scale", ["S01 is '-scale'", "'-scale' is not kebab-case"]),
        ("scale-inverted", ["S01 is 'scale-inverted'", "'scale-inverted' is used twice"]),
    ],
)
def test_a_changed_name_is_found(name, expected):
    renamed = dataclasses.replace(FAULTS["S01"], name=name)
    others = [fault for code, fault in FAULTS.items() if code != "S01"]
    assert wrong_names([*others, renamed]) == expected


def test_a_lost_and_an_unknown_fault_are_found():
    others = [fault for code, fault in FAULTS.items() if code != "T04"]
    assert wrong_names(others) == ["T04 is missing"]
    unknown = dataclasses.replace(FAULTS["T04"], code="T09", name="gradient-new")
    assert wrong_names([*FAULTS.values(), unknown]) == ["T09 is 'gradient-new'"]


# -- cards --------------------------------------------------------------------------------------


def gaps(fault: Fault) -> list[str]:
    """What a card lacks, by field; empty if it is complete."""
    found = [
        f"{name} is empty"
        for name in ("what", "why", "fix", "bad", "good")
        if not getattr(fault, name).strip()
    ]
    if fault.bad.strip() and fault.bad == fault.good:
        found.append("bad and good are the same")
    for name in ("what", "why", "fix"):
        text = getattr(fault, name)
        # Reports put them after a label; braces and percent signs would be read as fields.
        found += [f"{name} holds {sign!r}" for sign in "{}%\n" if sign in text]
        found += [f"{name} has spaces to spare"] if text != " ".join(text.split()) else []
        found += [f"{name} ends with a full stop"] if text.endswith(".") else []
    for name in ("bad", "good"):
        lines = getattr(fault, name).split("\n")
        found += [f"{name} is longer than a glance"] if len(lines) > 4 else []
        found += [f"{name} is too wide"] if max(map(len, lines)) > 88 else []
        try:
            ast.parse(getattr(fault, name))
        except SyntaxError:
            found.append(f"{name} is no Python")
    return found


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.code)
def test_card_is_complete(fault):
    assert gaps(fault) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"what": ""}, ["what is empty"]),
        ({"why": ""}, ["why is empty"]),
        ({"fix": ""}, ["fix is empty"]),
        ({"bad": ""}, ["bad is empty"]),
        ({"good": ""}, ["good is empty"]),
        ({"why": "it is wrong."}, ["why ends with a full stop"]),
        ({"why": "off by {factor}"}, ["why holds '{'", "why holds '}'"]),
        ({"fix": "scale  once"}, ["fix has spaces to spare"]),
        ({"good": "a = 1", "bad": "a = 1"}, ["bad and good are the same"]),
        ({"bad": "a = ("}, ["bad is no Python"]),
        ({"bad": "\n".join("abcde")}, ["bad is longer than a glance"]),
        ({"good": "a = 1  # " + 90 * "x"}, ["good is too wide"]),
    ],
)
def test_an_incomplete_card_is_found(change, expected):
    assert gaps(dataclasses.replace(FAULTS["S01"], **change)) == expected


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def surroundings() -> dict[str, object]:
    """Values for the names that cards use; the letters of sizes are those of the page."""
    generator = torch.Generator().manual_seed(11)

    def random(*sizes):
        return torch.randn(*sizes, generator=generator)

    b, t, h, kv, d = 2, 5, 6, 3, 4
    width = h * d
    keep = torch.ones(b, t, dtype=torch.bool)
    keep[1, 3:] = False
    causal = torch.ones(t, t, dtype=torch.bool).tril()
    q, k, v = random(b, h, t, d), random(b, h, t, d), random(b, h, t, d)
    scores, angles = q @ k.mT, random(t, d // 2)
    layer = SimpleNamespace(
        **{f"{name}_proj": nn.Linear(width, width) for name in "qkvo"},
        qkv=nn.Linear(width, 3 * width),
        positions=nn.Embedding(t, width),
        q_gain=random(d),
        sinks=random(h),
        past_k=random(b, h, 3, d),
        table=None,
        key=None,
        training=True,
        p=0.25,
    )
    tools = {"torch": torch, "nn": nn, "F": functional, "math": math, "self": layer}
    sizes = {
        "B": b,
        "T": t,
        "Tq": 2,
        "Tk": t,
        "length": 3,
        "H": h,
        "Hkv": kv,
        "D": d,
        "d_model": width,
        "w": 3,
    }
    masks = {
        "keep": keep,
        "query_keep": keep,
        "context_keep": torch.ones(b, t + 2, dtype=torch.bool),
        "causal": causal,
        "padding": keep[:, None, None, :],
        "mask": causal & keep[:, None, None, :],
        "attn_mask": None,
        "is_causal": True,
        "causal_bias": random(t, t),
        "padding_bias": random(b, 1, 1, t),
        "documents": torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]]),
        "i": torch.arange(t)[:, None],
        "j": torch.arange(t),
    }
    positions = {
        "positions": torch.arange(t),
        "angles": angles,
        "cos": angles.cos(),
        "sin": angles.sin(),
        "slopes": random(h),
        "bias": random(h, t, t),
        "base": 10000.0,
        "config": SimpleNamespace(rope_theta=500000.0),
        "make_table": lambda length, _base: random(length, d // 2),
        "rotate": rotate,
        "rotate_half": rotate_half,
    }
    tensors = {
        "x": random(b, t, width),
        "embedded": random(b, t, width),
        "context": random(b, t + 2, width),
        "merged": random(b, t, width),
        "w_k": random(kv * d, width),
        "k_grouped": random(b, kv, t, d),
        "q_new": random(b, h, 2, d),
        "k_new": random(b, h, 2, d),
        "past_k": random(b, h, 3, d),
        "cache": random(b, h, 8, d),
        "flat": random(b * h, t, d),
        "out": random(b, h, t, d),
        "scores": scores,
        "weights": scores.softmax(dim=-1),
        "logsumexp": scores.logsumexp(dim=-1, keepdim=True),
        "d_weights": random(b, h, t, t),
        "d_scores": random(b, h, t, t),
    }
    numbers = {"q": q, "k": k, "v": v, "scale": d**-0.5, "cap": 5.0, "need_weights": True}
    fused = {"fused_attention": functional.scaled_dot_product_attention}
    table = SimpleNamespace(register=lambda _name, _function: None)
    registries = {
        "AttentionInterface": table,
        "AttentionMaskInterface": table,
        "my_attention": functional.scaled_dot_product_attention,
        "eager_mask": torch.ones,
    }
    return {**tools, **sizes, **masks, **positions, **tensors, **numbers, **fused, **registries}


def run(code: str) -> None:
    exec(compile(code, "card", "exec"), surroundings())


@pytest.mark.parametrize("name", ["bad", "good"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.code)
def test_code_of_a_card_runs(fault, name):
    run(getattr(fault, name))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("scores = q @ k * scale", RuntimeError),
        ("weights = score.softmax(dim=-1)", NameError),
        ("weights = scores.soft_max(dim=-1)", AttributeError),
    ],
)
def test_code_that_does_not_run_is_found(code, error):
    with pytest.raises(error):
        run(code)


# -- the page -----------------------------------------------------------------------------------


def test_page_is_up_to_date():
    assert script.stale() == [], "run python scripts/docs.py write"


def test_a_changed_and_a_missing_page_are_found(tmp_path):
    assert script.stale(tmp_path) == ["docs/faults.md"]
    page = tmp_path / "docs" / "faults.md"
    page.parent.mkdir()
    page.write_text(script.faults_page(FAULTS.values()), encoding="utf-8")
    assert script.stale(tmp_path) == []
    page.write_text(
        page.read_text(encoding="utf-8").replace("Scale", "Scales", 1), encoding="utf-8"
    )
    assert script.stale(tmp_path) == ["docs/faults.md"]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.code)
def test_page_shows_every_part_of_a_card(fault):
    page = script.faults_page(FAULTS.values())
    section = page.split(f"### {fault.full_code} {fault.name}\n", maxsplit=1)[1].split("\n## ")[0]
    section = section.split("\n### ")[0]
    unescaped = re.sub(r"\\(.)", r"\1", section)
    for text in (fault.what, fault.why, fault.fix):
        assert text[1:] + "." in unescaped
    for code in (fault.bad, fault.good):
        assert f"```python\n{code}\n```" in section
    assert ", ".join(fault.shown_by) in unescaped


@pytest.mark.parametrize("name", ["what", "why", "fix", "bad", "good", "name", "shown_by"])
def test_page_follows_the_catalogue(name):
    new = ("pad",) if name == "shown_by" else "something-else"
    changed = dataclasses.replace(FAULTS["S01"], **{name: new})
    assert script.faults_page([changed]) != script.faults_page([FAULTS["S01"]])


def test_every_link_of_the_page_leads_to_a_heading():
    page = script.faults_page(FAULTS.values())
    links = set(re.findall(r"\]\(#([^)]+)\)", page))
    headings = re.findall(r"^### (.+)$", page, flags=re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert links == anchors
    assert len(anchors) == len(headings) == len(NAMES)


def test_an_experiment_without_explanation_is_an_error():
    fault = dataclasses.replace(FAULTS["S01"], shown_by=("at full moon",))
    with pytest.raises(ValueError, match="at full moon"):
        script.faults_page([fault])


def test_markdown_does_not_interpret_texts():
    assert script.plain("a*b <i> W_Q `x` _y") == r"a\*b \<i\> W_Q \`x\` \_y"
