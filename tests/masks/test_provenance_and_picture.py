"""Which rule hid which cell, and the picture of it: written out by hand."""

import inspect

import pytest
import torch

from headwise.errors import MaskError
from headwise.masks import Causal, Custom, Documents, Padding, Prefix, Window
from headwise.masks.picture import draw
from headwise.texts import use_language

LEFT = Padding(torch.tensor([[1, 1, 1], [0, 1, 1]]))


def text(block: str) -> str:
    """An indented block as the lines it shows."""
    return inspect.cleandoc(block)


def test_every_rule_that_hid_a_cell():
    found = (Causal() & LEFT & Window(1, 0)).provenance(3, 3, 2)
    assert found.rules == ("causal", "padding", "window")
    assert found.hidden_by(0, 0, 0) == ()
    assert found.hidden_by(0, 0, 2) == ("causal", "window")
    assert found.hidden_by(1, 2, 0) == ("padding", "window")
    assert found.hidden_by(1, 0, 0) == ("padding",)
    assert found.visible.shape == (2, 1, 3, 3)
    # causal: 3 cells in 2 samples; padding: 1 column of 3; window: above (3) and far left (1).
    assert found.counts() == {"causal": 6, "padding": 3, "window": 8}


def test_or_charges_all_branches_and_only_where_all_hide():
    found = (Causal() | Prefix(2)).provenance(3, 3)
    assert found.hidden_by(0, 0, 1) == ()
    assert found.hidden_by(0, 0, 2) == ("causal", "prefix")
    assert found.counts() == {"causal": 2, "prefix": 2}
    found = ((Causal() | Prefix(2)) & Padding(torch.tensor([[0, 1, 1]]))).provenance(3, 3)
    assert found.hidden_by(0, 2, 0) == ("padding",)
    assert found.hidden_by(0, 1, 2) == ("causal", "prefix")


def test_rules_of_one_name_share_it():
    found = (Padding(torch.tensor([[0, 1, 1]])) & Padding(torch.tensor([[1, 1, 0]]))).provenance(
        1, 3
    )
    assert found.rules == ("padding", "padding")
    assert found.counts() == {"padding": 2}
    assert found.hidden_by(0, 0, 2) == ("padding",)


def test_heads():
    table = torch.tensor([[[True, False]], [[True, True]]])[None]
    found = (Causal() & Custom(table, name="banned")).provenance(1, 2, 1, num_heads=2)
    assert found.visible.shape == (1, 2, 1, 2)
    assert found.hidden_by(0, 0, 1) == ("banned",)
    assert found.hidden_by(0, 0, 1, head=1) == ()
    assert found.counts() == {"causal": 0, "banned": 1}


def test_empty_rows():
    found = (Causal() & LEFT).provenance(3, 3, 2)
    assert found.empty_rows.tolist() == [[[False] * 3], [[True, False, False]]]


@pytest.mark.parametrize("cell", [(2, 0, 0), (0, 3, 0), (0, 0, 3), (-1, 0, 0)])
def test_cells_that_are_not_there(cell):
    found = (Causal() & LEFT).provenance(3, 3, 2)
    with pytest.raises(MaskError, match="there is no cell") as caught:
        found.hidden_by(*cell)
    assert "(2, 1, 3, 3)" in caught.value.why


def test_picture_by_hand():
    assert (Causal() & LEFT).picture(3, 3, batch_index=1) == text(
        """
        key      012
        query 0  pcc  sees nothing
        query 1  p■c
        query 2  p■■
        ■ may look  c causal  p padding
        """
    )


def test_picture_of_the_first_rule_that_hides():
    mask = LEFT & Documents(torch.tensor([[1, 1, 2]])) & Causal()
    assert mask.picture(3, 3, 1, ascii=True) == text(
        """
        key      012
        query 0  pcd  sees nothing
        query 1  p#d
        query 2  pd#
        # may look  p padding  d documents  c causal
        """
    )


def test_own_rules_get_letters_of_their_own():
    even = Custom(lambda q, k: k != 1, name="not 1")
    late = Custom(lambda q, k: k > 2, name="late")
    assert (even & late | Prefix(1)).picture(1, 5, ascii=True) == text(
        """
        key      01234
        query 0  #xy##
        # may look  x not 1  y late
        """
    )


def test_key_indices_are_written_downwards():
    lines = Window(None, None).picture(1, 12, ascii=True).splitlines()
    assert lines[:3] == ["key                11", "         012345678901", "query 0  ############"]


def test_wide_masks_are_cut_with_a_note():
    mask = Custom(lambda q, k: (q > 298) | (k > 999))
    lines = mask.picture(2, 300, ascii=True).splitlines()
    assert max(map(len, lines)) <= 78
    assert lines[-1] == "cut: 55 of 300 keys shown"
    assert lines[2].endswith("x  sees nothing")
    assert lines[3] == "query 1  " + "#" * 55


def test_a_row_whose_visible_keys_are_cut_off_is_not_called_empty():
    lines = Custom(lambda q, k: k == 299).picture(1, 300, ascii=True).splitlines()
    assert lines[2] == "query 0  " + "x" * 69
    assert "sees nothing" not in "".join(lines)


def test_legend_is_wrapped():
    mask = Causal()
    for letter in "abcdefg":
        mask &= Custom(lambda q, k: q - k < 1, name=letter * 20)
    lines = mask.picture(3, 3, ascii=True).splitlines()
    assert max(map(len, lines)) <= 78
    assert len([line for line in lines if "a" * 20 in line]) == 1


def test_heads_are_named():
    mask = Custom(torch.tensor([[[True, False]], [[True, True]]])[None])
    assert mask.picture(1, 2, ascii=True).splitlines()[-1] == "head 0 of 2"
    assert mask.picture(1, 2, ascii=True, head=1).splitlines()[1] == "query 0  ##"


def test_samples_and_heads_that_are_not_there():
    with pytest.raises(MaskError, match="there is no sample 2"):
        LEFT.picture(3, 3, 2)
    with pytest.raises(MaskError, match="there is no sample -1"):
        Causal().picture(3, 3, -1)
    with pytest.raises(MaskError, match="there is no head 1"):
        Causal().picture(3, 3, head=1)
    assert Causal().picture(3, 3, 5) == Causal().picture(3, 3)


def test_empty_pictures():
    assert Causal().picture(0, 2, ascii=True) == "key  01\n# may look"
    assert Causal().picture(1, 0, ascii=True) == "key\nquery 0    sees nothing\n# may look"


def test_wide_characters_count_twice(monkeypatch):
    """Chinese texts are as wide on the screen as their columns say."""
    chinese = {"query {i}": "查询 {i}", "sees nothing": "什么也看不到", "key": "键"}
    monkeypatch.setattr("headwise.masks.picture._", lambda text: chinese.get(text, text))
    lines = draw((Causal() & LEFT).provenance(3, 3, 2), batch_index=1).splitlines()
    assert lines[:2] == ["键      012", "查询 0  pcc  什么也看不到"]


def test_other_languages_draw_the_same_cells():
    with use_language("zh"):
        drawn = (Causal() & LEFT).picture(3, 3, 1)
    assert "pcc" in drawn
    assert "p■■" in drawn
