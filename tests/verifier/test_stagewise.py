"""The rows of ``headwise trace``: what equals what, where it lies, and what can't be seen."""

import pytest
import torch
from tests.verifier.layers import B, D, Dk, H, T, load, tokens, weights_of

from headwise.document import Table, Text
from headwise.reference import Inputs, Parameters, attend
from headwise.render.text import render_text
from headwise.spec import AttentionSpec
from headwise.verifier.recorder import record
from headwise.verifier.rules_forward import is_kernel
from headwise.verifier.stagewise import LESSON, align, decomposition_agrees, trace_document

EAGER = """
    class Layer(Base):
        def forward(self, x):
            q, k, v = self.heads(x)
            scores = q @ k.mT / 2
            weights = scores.softmax(-1)
            context = weights @ v
            merged = context.transpose(1, 2).contiguous().view(x.shape)
            return self.o(merged)
    """
FUSED = """
    class Layer(Base):
        def forward(self, x):
            q, k, v = self.heads(x)
            return self.merge(F.scaled_dot_product_attention(q, k, v))
    """
WRONG = EAGER.replace("q @ k.mT / 2", "(q @ k.mT).sin()")


def rows_of(tmp_path, body):
    module, file, _ = load(tmp_path, body)
    layer, x = module.Layer(), tokens()
    recording = record(lambda: layer(x), own_files=[file])
    correct = attend(AttentionSpec(d_model=D, num_heads=H), weights_of(layer), Inputs(x=x))
    return {row.tensor: row for row in align(recording, correct)}, recording, file


def test_every_stage_is_found_in_plain_code(tmp_path):
    rows, _, file = rows_of(tmp_path, EAGER)
    with open(file) as lines:  # noqa: PTH123
        source = list(lines)
    assert {row.how for row in rows.values()} == {"found"}
    for tensor, text in {
        "q": "return t.unflatten",
        "scores": "scores = ",
        "weights": "weights = ",
        "context": "context = ",
        "merged": "merged = ",
        "output": "return self.o(merged)",
    }.items():
        assert text in source[rows[tensor].line - 1]
    assert rows["x_q"].line is None  # handed over by the caller


def test_memory_of_a_split_and_of_a_merge(tmp_path):
    rows, _, _ = rows_of(tmp_path, EAGER)
    q = rows["q"]
    assert (q.target_shape, q.stride, q.contiguous) == ((B, H, T, Dk), (60, 4, 12, 1), False)
    assert any("transpose changed only the stride, same storage" in note for note in q.notes)
    copied = B * H * T * Dk * 8
    assert any(f"contiguous() copied {copied} bytes" in note for note in rows["context"].notes)
    assert rows["merged"].contiguous
    assert rows["weights"].notes == ()


def test_fused_kernel_is_decomposed_and_checked(tmp_path):
    rows, recording, _ = rows_of(tmp_path, FUSED)
    assert [name for name, row in rows.items() if row.how == "inside"] == [
        "scores",
        "masked_scores",
        "weights",
    ]
    assert rows["weights"].checked is True
    assert rows["context"].how == rows["output"].how == "found"
    kernel = next(op for op in recording.ops if is_kernel(op))
    value = next(c for c in recording.calls if is_kernel(c)).outputs[0]
    value.data.add_(0.1)
    assert decomposition_agrees(recording, kernel) is False


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.rand(T, T + 2) > 0.2},
        {"attn_mask": torch.rand(T, T + 2)},
        {"enable_gqa": True},
    ],
    ids=str,
)
def test_decomposition_of_the_kernel_in_all_its_options(options):
    heads = 2 if "enable_gqa" in options else 4
    q, k, v = (
        torch.randn(B, 4, T, 6),
        torch.randn(B, heads, T + 2, 6),
        torch.randn(B, heads, T + 2, 6),
    )
    attend_fast = torch.nn.functional.scaled_dot_product_attention
    recording = record(lambda: attend_fast(q, k, v, **options), own_files=[])
    assert decomposition_agrees(recording, recording.ops[-1]) is True


def test_kernel_whose_call_was_not_seen_is_not_checked(tmp_path):
    q = torch.randn(B, H, T, Dk)
    call = lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)  # noqa: E731
    recording = record(call, own_files=[], calls=False)
    assert decomposition_agrees(recording, recording.ops[-1]) is None


def test_what_is_wrong_is_not_found(tmp_path):
    rows, _, _ = rows_of(tmp_path, WRONG)
    assert rows["q"].how == "found"
    missing = [name for name, row in rows.items() if row.how == "missing"]
    assert missing == ["scores", "masked_scores", "weights", "context", "merged", "output"]


def test_document_has_the_lessons_shapes_first_and_the_sixth_named(tmp_path):
    rows, _, _ = rows_of(tmp_path, EAGER)
    document = trace_document(list(rows.values()), label="layer.py:Layer")
    lesson, stages = [block for block in document.blocks if isinstance(block, Table)]
    assert [row[2] for row in lesson.rows] == [
        "[2,5,12]",
        "[2,3,5,4]",
        "[2,3,5,5]",
        "[2,3,5,4]",
        "[2,5,12]",
        "[2,5,12]",
    ]
    assert len(LESSON) == 6
    assert any(
        isinstance(block, Text) and "announces six shapes and lists five" in block.text
        for block in document.blocks
    )
    assert len(stages.rows) == len(rows)
    alone = trace_document(list(rows.values()), label="x", lesson_first=False)
    assert len([block for block in alone.blocks if isinstance(block, Table)]) == 1


@pytest.mark.parametrize("body", [EAGER, FUSED, WRONG], ids=["eager", "fused", "wrong"])
def test_document_fits_the_terminal(tmp_path, body):
    rows, _, _ = rows_of(tmp_path, body)
    text = render_text(trace_document(list(rows.values()), label="layer.py:Layer"), width=80)
    assert max(map(len, text.split("\n"))) <= 80
    assert "10 output" in text


def test_a_function_of_q_k_v_has_no_projection_and_no_sixth_line():
    q, k, v = torch.randn(3, B, H, T, Dk, dtype=torch.float64).unbind(0)
    call = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)  # noqa: E731
    recording = record(call, own_files=[])
    spec = AttentionSpec(d_model=D, num_heads=H)
    rows = align(recording, attend(spec, Parameters(), Inputs(q=q, k=k, v=v)))
    assert [row.tensor for row in rows][:3] == ["q", "k", "v"]
    assert rows[0].line is None
    document = trace_document(rows, label="sdpa")
    assert not any(
        "announces" in block.text for block in document.blocks if isinstance(block, Text)
    )
