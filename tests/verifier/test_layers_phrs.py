"""Small layers as people write them, each with one fault of P, H, R, S, G or O, and its twin.

Every file of ``layers_phrs`` says in ``HEADWISE`` what it is meant to be. ``# <- fault`` marks the
line to change, ``# <- or`` lines that an engineer would accept instead, and ``# should be`` above
a line holds what it should be: the twin has these lines exchanged and nothing else.
"""

import ast
import re
from pathlib import Path

import pytest

from headwise.verifier.api import verify
from headwise.verifier.faults import FAULTS
from headwise.verifier.target import load_file

LAYERS = Path(__file__).parent / "layers_phrs"

# stem: code, flags for a run without HEADWISE, and the kind of what that run finds ("" = as the
# catalogue says; "inferred" = nothing, since a layer that declares nothing may be like that)
TABLE: dict[str, tuple[str, dict[str, object], str]] = {
    "p01_bert_names": ("P01", {"causal": False}, ""),
    "p01_fused_order": ("P01", {"causal": True}, "convention"),
    "p01_einsum_letters": ("P01", {"causal": False}, ""),
    "p02_separate": ("P02", {"causal": True}, "bug"),
    "p02_kv_chunk": ("P02", {"causal": False}, ""),
    "p02_fused_chunk": ("P02", {"causal": False}, ""),
    "p03_timm_axes": ("P03", {"causal": False}, "inferred"),
    "p03_neox_read_as_blocks": ("P03", {"causal": True}, "inferred"),
    "p03_grouped_as_blocks": ("P03", {"causal": False}, "inferred"),
    "p04_linear_weight_used_raw": ("P04", {"causal": False}, ""),
    "p04_raw_value_matrix": ("P04", {"causal": True}, ""),
    "p04_output": ("P04", {"causal": True}, ""),
    "p05_value_bias": ("P05", {"causal": False}, ""),
    "p05_fused_bias": ("P05", {"causal": True, "rope": "halves"}, ""),
    "p06_permute_on_load": ("P06", {"causal": True, "rope": "neighbours"}, ""),
    "p07_key_gain": ("P07", {"causal": True}, ""),
    "p08_flat_before_split": ("P08", {"causal": True, "rope": "halves"}, ""),
    "p08_wrong_axes": ("P08", {"causal": False}, ""),
    "p09_norm_then_rope": ("P09", {"causal": True, "rope": "neighbours"}, "inferred"),
    "p10_keys_from_x": ("P10", {"causal": False, "cross": True}, ""),
    "p10_kv_of_x": ("P10", {"causal": False, "cross": True}, ""),
    "h01_bare_view": ("H01", {"causal": False}, ""),
    "h01_view_both_ways": ("H01", {"causal": True}, ""),
    "h01_fused_view": ("H01", {"causal": False}, ""),
    "h02_permute": ("H02", {"causal": True}, ""),
    "h02_fused_channels_last": ("H02", {"causal": False}, ""),
    "h03_repeat": ("H03", {"causal": True}, ""),
    "h03_grouped_einsum": ("H03", {"causal": False}, ""),
    "h03_expand_wrong_side": ("H03", {"causal": True, "rope": "neighbours"}, ""),
    "h04_index": ("H04", {"causal": False}, ""),
    "h04_gather": ("H04", {"causal": True}, ""),
    "h05_repeat_wrong_axis": ("H05", {"causal": False}, ""),
    "h05_bthd_repeat": ("H05", {"causal": True}, ""),
    "h03_bthd_interleave_time": ("H03", {"causal": True}, ""),
    "h06_fairseq_unflatten": ("H06", {"causal": False}, ""),
    "h06_kyubyong_chunks": ("H06", {"causal": True}, ""),
    "h07_batch_first_forgotten": ("H07", {"causal": False}, "inferred"),
    "h07_own_axes": ("H07", {"causal": False}, "inferred"),
    "g01_reshape": ("G01", {"causal": True}, ""),
    "g01_grouped": ("G01", {"causal": False, "rope": "halves"}, ""),
    "g02_permute": ("G02", {"causal": False}, ""),
    "g02_einsum": ("G02", {"causal": True}, ""),
    "o01_forgotten": ("O01", {"causal": True}, ""),
    "o01_result_unused": ("O01", {"causal": False}, ""),
    "o02_linear_without_bias": ("O02", {"causal": False}, ""),
    "o02_sum_over_heads": ("O02", {"causal": True}, ""),
    "o03_residual": ("O03", {"causal": True}, ""),
    "r01_llama_complex": ("R01", {"causal": True, "rope": "halves"}, ""),
    "r01_partial_half": ("R01", {"causal": True, "rope": "neighbours", "rotary_dim": 6}, ""),
    "r03_base_not_passed": ("R03", {"causal": True, "rope": "halves", "rope_base": 5e5}, ""),
    "r03_odd_base": ("R03", {"causal": False, "rope": "neighbours"}, ""),
    "r04_all_three": ("R04", {"causal": True, "rope": "halves"}, ""),
    "r04_packed_before_split": ("R04", {"causal": False, "rope": "neighbours"}, ""),
    "r05_query_only": ("R05", {"causal": True, "rope": "halves"}, ""),
    "r05_result_dropped": ("R05", {"causal": False, "rope": "neighbours"}, ""),
    "r06_repeat_interleave": ("R06", {"causal": True, "rope": "halves"}, ""),
    "r06_rotate_every_two": ("R06", {"causal": True, "rope": "neighbours", "rotary_dim": 4}, ""),
    "r07_d_model": ("R07", {"causal": True, "rope": "halves"}, ""),
    "r07_partial_head_dim": ("R07", {"causal": False, "rope": "halves", "rotary_dim": 6}, ""),
    "r07_half_step": ("R07", {"causal": False, "rope": "halves"}, ""),
    "r09_conjugated_keys": ("R09", {"causal": True, "rope": "neighbours"}, ""),
    "r09_minus_sin": ("R09", {"causal": False, "rope": "halves"}, ""),
    "r10_table_kept": ("R10", {"causal": True, "rope": "halves"}, ""),
    "r11_learned_from_slot": ("R11", {"causal": True, "positions": "learned"}, ""),
    "r13_alibi_positive": ("R13", {"causal": True, "alibi": True}, ""),
    "r14_six_heads": ("R14", {"causal": True, "alibi": True}, ""),
    "r14_symmetric_ratio": ("R14", {"causal": False, "alibi": True}, ""),
    "r16_learned_missing": ("R16", {"causal": True, "positions": "learned"}, ""),
    "r16_learned_twice": ("R16", {"causal": False, "positions": "learned"}, ""),
    "r17_rope_computed_not_used": ("R17", {"causal": True, "rope": "halves"}, ""),
    "r18_bias_dropped": ("R18", {"causal": True, "alibi": True}, ""),
    "s01_function": ("S01", {"causal": False}, ""),
    "s01_kernel_scale_one": ("S01", {"causal": True}, ""),
    "s02_embed_size": ("S02", {"causal": False}, ""),
    "s03_q_scaled_and_kernel": ("S03", {"causal": True}, ""),
    "s03_no_sqrt": ("S03", {"causal": False}, ""),
    "s04_times_sqrt": ("S04", {"causal": False}, ""),
    "s05_heads": ("S05", {"causal": True}, ""),
    "s06_function": ("S06", {"causal": False, "v_head_dim": 12}, ""),
    "s06_layer": ("S06", {"causal": True}, ""),
    "s07_hard_coded": ("S07", {"causal": True}, ""),
    "s07_odd_constant": ("S07", {"causal": False}, ""),
    "s08_cap_unused": ("S08", {"causal": True, "softcap": 5.0}, ""),
    "s09_cap_after_mask": ("S09", {"causal": True, "softcap": 8.0}, ""),
    "s10_cap_before_scale": ("S10", {"causal": False, "softcap": 4.0}, ""),
    "s11_alibi_then_scale": ("S11", {"causal": True, "alibi": True}, ""),
    "s11_baddbmm": ("S11", {"causal": True, "alibi": True}, ""),
}


def statements(source: str) -> list[tuple[int, int]]:
    """First and last line of every statement; of one with a body, its head alone."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            spans.append((node.lineno, body[0].lineno - 1 if body else node.end_lineno))
    return spans


def span_of(source: str, line: int) -> tuple[int, int]:
    """The shortest statement that a line belongs to."""
    return min((s for s in statements(source) if s[0] <= line <= s[1]), key=lambda s: s[1] - s[0])


def marked(source: str) -> set[int]:
    """Numbers of the lines that may be blamed: those of marked statements."""
    found: set[int] = set()
    for number, line in enumerate(source.splitlines(), 1):
        if line.rstrip().endswith(("# <- fault", "# <- or")):
            first, last = span_of(source, number)
            found.update(range(first, last + 1))
    return found


def twin_of(source: str) -> str:
    """The layer without its fault."""
    lines = source.splitlines()
    for number, line in reversed(list(enumerate(source.splitlines(), 1))):
        found = re.fullmatch(r"(\s*)# should be (.*)", line)
        if found:
            first, last = span_of(source, number + 1)
            lines[first - 1 : last] = [found[1] + found[2]]
    return "\n".join(lines) + "\n"


def without_words(source: str) -> tuple[str, str]:
    """The file without ``HEADWISE`` and the adapters, and the name of what is left to verify."""
    rest = source.partition("HEADWISE = ")[0]
    names = re.findall(r"^(?:class|def) (\w+)", rest, re.MULTILINE)
    return rest, names[-1]


def accused(report) -> list[tuple[str, str]]:
    return [(f.code, f.kind) for f in report.findings if f.kind in ("bug", "unexplained")]


FIRST = {code: stem for stem, (code, _flags, _raw) in reversed(TABLE.items())}.values()
EVERY = [s if s in FIRST else pytest.param(s, marks=pytest.mark.slow) for s in TABLE]
"""All layers, of which the quick suite takes one for each fault."""


@pytest.mark.parametrize("stem", EVERY)
def test_a_fault_is_named_alone_and_its_line_found(stem: str) -> None:
    code, _flags, _raw = TABLE[stem]
    path = LAYERS / f"{stem}.py"
    report = verify(str(path))
    first = report.findings[0]
    assert first.code == f"HW-{code}"
    assert first.name == FAULTS[code].name
    if '"weights"' not in path.read_text() and FAULTS[code].point == "weights":
        assert first.kind == FAULTS[code].undeclared  # nothing says where the weights are
        assert not accused(report)
        return
    assert first.kind == "bug"
    assert report.verdict == "differs"
    assert accused(report) == [(first.code, "bug")]
    assert first.line in marked(path.read_text())


@pytest.mark.parametrize("stem", TABLE)
def test_the_twin_without_the_fault_is_right(stem: str, tmp_path: Path) -> None:
    path = tmp_path / f"{stem}.py"
    path.write_text(twin_of((LAYERS / f"{stem}.py").read_text()))
    report = verify(str(path))
    assert not accused(report)
    assert report.verdict == "matches"


@pytest.mark.slow
@pytest.mark.parametrize("stem", TABLE)
def test_a_fault_is_named_when_the_file_declares_nothing(stem: str, tmp_path: Path) -> None:
    code, flags, raw = TABLE[stem]
    source, name = without_words((LAYERS / f"{stem}.py").read_text())
    path = tmp_path / f"{stem}.py"
    path.write_text(source)
    report = verify(f"{path}:{name}", **flags)
    if raw == "inferred":
        assert report.verdict == "matches"
        assert not accused(report)
        return
    kind = raw or FAULTS[code].kind(frozenset(flags))
    first = report.findings[0]
    assert (first.code, first.kind) == (f"HW-{code}", kind)
    assert report.verdict == ("differs" if kind == "bug" else "matches")
    assert accused(report) == ([(first.code, "bug")] if kind == "bug" else [])


@pytest.mark.slow
@pytest.mark.parametrize("stem", TABLE)
def test_the_twin_is_right_when_the_file_declares_nothing(stem: str, tmp_path: Path) -> None:
    _code, flags, _raw = TABLE[stem]
    source, name = without_words(twin_of((LAYERS / f"{stem}.py").read_text()))
    path = tmp_path / f"{stem}.py"
    path.write_text(source)
    report = verify(f"{path}:{name}", **flags)
    assert report.verdict == "matches"
    assert not accused(report)


NARROW: dict[str, dict[str, object]] = {
    "c_rotary_complex64": {"causal": True, "rope": "neighbours"},
    "c_rotary_float32": {"causal": True, "rope": "halves"},
    "c_slopes_float32": {"causal": True, "alibi": True},
}
"""Right layers whose tables are float32, as in published code."""


@pytest.mark.parametrize("stem", NARROW)
@pytest.mark.parametrize("built", [False, True])
def test_tables_in_float32_are_no_fault(stem: str, built: bool) -> None:
    target = f"{LAYERS / stem}.py:Attention"
    report = verify(
        load_file(LAYERS / f"{stem}.py").Attention() if built else target, **NARROW[stem]
    )
    assert report.verdict == "matches"
    assert [(f.code, f.kind) for f in report.findings] == [("HW-D02", "numerics")]
