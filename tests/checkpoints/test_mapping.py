"""Transforms undo themselves, and every tensor of a file is accounted for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints import tiny

from headwise.attend.layers import split
from headwise.attend.positions import rotate
from headwise.checkpoints.load import from_source
from headwise.checkpoints.mapping import (
    Entry,
    Known,
    Layout,
    Packed,
    Paired,
    Same,
    Template,
    expand,
    prefix_of,
    read_state,
    write_state,
)
from headwise.errors import UsageError

# -- transforms -----------------------------------------------------------------------------------

few = st.integers(1, 4)


def numbered(*shape):
    return torch.arange(float(torch.tensor(shape).prod())).reshape(shape)


@given(rows=st.lists(few, min_size=1, max_size=3), width=few, transposed=st.booleans())
def test_packed_parts_come_back(rows, width, transposed):
    way = Packed(tuple(rows), transposed=transposed)
    ours = numbered(sum(rows), width).split(rows)
    theirs = way.save(ours)
    assert theirs.shape == ((width, sum(rows)) if transposed else (sum(rows), width))
    assert all(a.equal(b) for a, b in zip(way.load(theirs), ours, strict=True))
    assert way.save(way.load(theirs)).equal(theirs)
    bias = numbered(sum(rows))
    assert way.save(way.load(bias)).equal(bias)


@given(heads=few, half=few, width=few, to=st.sampled_from(["halves", "neighbours"]))
def test_paired_rows_come_back(heads, half, width, to):
    for shape in ((heads * 2 * half, width), (heads * 2 * half,)):
        theirs = numbered(*shape)
        way = Paired(heads, to)
        (ours,) = way.load(theirs)
        assert way.save([ours]).equal(theirs)
        assert (
            Paired(heads, "halves" if to == "neighbours" else "neighbours")
            .load(ours)[0]
            .equal(theirs)
        )


def test_paired_rows_rotate_as_they_did():
    """The other order under the other pairing gives the same scores."""
    torch.manual_seed(0)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    angle = torch.rand(1, 5, 3, dtype=torch.float64)
    weights = torch.randn(2, 12, 8, dtype=torch.float64)  # queries and keys of two heads

    def scores(rows, pairs):
        q, k = (rotate(split(x @ w.t(), 2), angle.cos(), angle.sin(), pairs=pairs) for w in rows)
        return q @ k.transpose(-1, -2)

    want = scores(weights, "halves")
    moved = [Paired(2, "neighbours").load(w)[0] for w in weights]
    assert torch.allclose(scores(moved, "neighbours"), want, rtol=0, atol=1e-12)
    assert not torch.allclose(scores(weights, "neighbours"), want, rtol=0, atol=1e-3)


# -- names ----------------------------------------------------------------------------------------


def test_templates_of_layers_and_leaves():
    lines = [
        Template("h.{n}.c", ("blocks.{n}.a", "blocks.{n}.b"), lambda leaf: Packed((1, 1))),
        Template("out", ("norm",), leaves=("gamma", "beta")),
    ]
    parameters = [f"blocks.{n}.{one}.weight" for n in (0, 1) for one in "ab"] + ["norm.bias"]
    found = expand(lines, parameters)
    assert [entry.theirs for entry in found] == ["h.0.c.weight", "h.1.c.weight", "out.beta"]
    assert found[1].ours == ("blocks.1.a.weight", "blocks.1.b.weight")


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([], "norm.weight"),
        ([Template("a", ("norm",)), Template("b", ("norm",))], "norm.weight"),
        ([Template("a", ("norm", "other"))], "other.weight"),
    ],
)
def test_a_family_that_forgets_or_repeats_a_parameter_is_a_mistake(lines, wrong):
    with pytest.raises(ValueError, match=wrong):
        expand(lines, ["norm.weight"])


def test_a_prefix_is_found_by_a_name():
    assert prefix_of({"bert.x"}, ("", "bert."), "x") == "bert."
    assert prefix_of({"y"}, ("a.", ""), "x") == "a."


# -- accounting -----------------------------------------------------------------------------------

SHAPES = {"norm.weight": (3,), "head.weight": (2, 3)}
LAYOUT = Layout(
    (Entry("n", ("norm.weight",), Same()), Entry("h", ("head.weight",), Packed((2,), True))),
    (
        Known("mask", "a table", shape=(2, 2), value=lambda: torch.ones(2, 2).tril().bool()),
        Known("copy", "a copy", copy_of="h"),
        Known("free", "of no use"),
        Known("made", "factors", value=lambda: torch.tensor([0.5]), is_written=True),
    ),
)


def held(**changes):
    tensors = {"n": numbered(3), "h": numbered(3, 2)}
    for name, value in changes.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    return tiny.Memory(tensors, {})


def test_what_is_used_and_what_is_not_needed():
    source = held(
        mask=torch.ones(2, 2, dtype=torch.long).tril(), copy=numbered(3, 2), free=numbered(7)
    )
    state, account = read_state(source, LAYOUT, SHAPES)
    assert state["head.weight"].equal(numbered(3, 2).t())
    assert (account.used, account.values) == (2, 9)
    assert account.known == (("a table", 1), ("a copy", 1), ("of no use", 1))
    assert account.lines()[0] == "2 tensors used, 9 numbers"
    assert state["head.weight"].is_contiguous()


def test_writing_is_the_inverse_and_adds_what_has_to_be_there():
    state, _ = read_state(held(), LAYOUT, SHAPES)
    made = write_state(state, LAYOUT)
    assert list(made) == ["n", "h", "made"]
    assert made["h"].equal(numbered(3, 2)) and made["made"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("changes", "counts", "line"),
    [
        ({"n": None}, "1 missing", "missing: n (3,)"),
        ({"x": numbered(4)}, "1 unused", "unused: x (4,)"),
        (
            {"h": numbered(2, 3)},
            "1 misshaped",
            "misshaped: h: the file has (2, 3), the model (3, 2)",
        ),
        ({"mask": torch.ones(2, 2)}, "1 contradicting", "contradicting: mask: its values are not"),
        (
            {"mask": torch.ones(3, 3).tril()},
            "1 contradicting",
            "the file has (3, 3), the model (2, 2)",
        ),
        ({"copy": numbered(3, 2) + 1}, "1 contradicting", "copy: its values are not those of h"),
        ({"copy": numbered(2)}, "1 contradicting", "copy: (2,), but h is (3, 2)"),
        ({"made": torch.tensor([0.50001])}, "1 contradicting", "made: its values are not"),
        ({"made": torch.tensor([float("nan")])}, "1 contradicting", "made: its values are not"),
    ],
)
def test_one_thing_that_is_wrong(changes, counts, line):
    with pytest.raises(UsageError) as caught:
        read_state(held(**changes), LAYOUT, SHAPES)
    assert caught.value.what.endswith(counts)
    assert line in caught.value.why


def test_everything_that_is_wrong_is_one_error():
    source = held(n=None, h=numbered(1), x=numbered(1), y=numbered(2), mask=numbered(2))
    with pytest.raises(UsageError) as caught:
        read_state(source, LAYOUT, SHAPES)
    assert caught.value.what.endswith("1 missing, 2 unused, 1 misshaped, 1 contradicting")
    assert len(caught.value.why.splitlines()) == 5


def test_rounding_of_a_made_table_is_allowed_in_the_dtype_it_is_stored_in():
    read_state(held(made=torch.tensor([0.5 + 2**-23])), LAYOUT, SHAPES)
    read_state(held(made=torch.tensor([0.502], dtype=torch.bfloat16)), LAYOUT, SHAPES)
    with pytest.raises(UsageError):
        read_state(held(made=torch.tensor([0.8], dtype=torch.bfloat16)), LAYOUT, SHAPES)


# -- what families declare ------------------------------------------------------------------------


def with_tensors(name, **tensors):
    official = tiny.official(name)
    source = tiny.source_of(official)
    source.held |= {path.replace("__", "."): value for path, value in tensors.items()}
    return source


def test_old_files_of_gpt2_hold_masks_and_no_prefix():
    source = with_tensors("gpt2")
    old = {path.removeprefix("transformer."): value for path, value in source.held.items()}
    del old["lm_head.weight"]
    for n in range(tiny.LAYERS):
        old[f"h.{n}.attn.bias"] = torch.ones(1, 1, 40, 40).tril()
        old[f"h.{n}.attn.masked_bias"] = torch.tensor(-1e4)
    account = from_source(tiny.Memory(old, source.config)).account
    assert [count for _, count in account.known] == [3, 3]
    old["h.1.attn.bias"] = torch.ones(1, 1, 40, 40)
    with pytest.raises(UsageError, match="1 contradicting"):
        from_source(tiny.Memory(old, source.config))


def test_old_files_of_llama_hold_angles():
    source = with_tensors("llama")
    turns = 500.0 ** (-torch.arange(0, 10, 2).float() / 10)
    for n in range(tiny.LAYERS):
        source.held[f"model.layers.{n}.self_attn.rotary_emb.inv_freq"] = turns
    assert from_source(source).account.known[0][1] == 3
    source.held["model.layers.1.self_attn.rotary_emb.inv_freq"] = turns * 1.01
    with pytest.raises(UsageError, match="1 contradicting"):
        from_source(source)


def test_a_tied_head_may_be_stored_if_it_is_equal():
    source = with_tensors("llama-biases")
    assert from_source(source).account.known[0][1] == 1  # as the state dict of transformers has it
    source.held["lm_head.weight"] = source.held["lm_head.weight"] + 1
    with pytest.raises(UsageError, match="1 contradicting"):
        from_source(source)


def test_the_first_files_of_bert_have_prefix_heads_and_greek_names():
    source = with_tensors("bert")
    old = {
        f"bert.{path}".replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for path, value in source.held.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(40)[None]
    old["cls.predictions.bias"] = torch.zeros(tiny.VOCABULARY)
    old["cls.seq_relationship.weight"] = torch.zeros(2, 24)
    first, second = from_source(source), from_source(tiny.Memory(old, source.config))
    assert [count for _, count in second.account.known] == [1, 2]
    for path, value in first.stack.state_dict().items():
        assert second.stack.state_dict()[path].equal(value), path


def test_an_encoder_without_a_pooler():
    source = with_tensors("bert")
    for part in ("weight", "bias"):
        del source.held[f"pooler.dense.{part}"]
    model = from_source(source)
    assert not model.spec.pooler
    with pytest.raises(UsageError, match="no pooler"):
        model.stack.pooled(model.stack(tiny.text()))
