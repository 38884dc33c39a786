"""Named entries: duplicates and unknown names are errors, the rest is a Mapping."""

from __future__ import annotations

import pytest

from headwise.errors import UsageError
from headwise.registry import Registry


@pytest.fixture
def shapes():
    shapes = Registry("shape")
    shapes.add("square", 4)
    shapes.add("triangle", 3)
    return shapes


def test_is_a_mapping_in_order_of_registration(shapes):
    assert dict(shapes) == {"square": 4, "triangle": 3}
    assert list(shapes) == ["square", "triangle"]
    assert len(shapes) == 2
    assert list(shapes.values()) == [4, 3]
    assert shapes == {"square": 4, "triangle": 3}


def test_membership_and_get_do_not_raise(shapes):
    assert "square" in shapes
    assert "circle" not in shapes
    assert 7 not in shapes
    assert shapes.get("square") == 4
    assert shapes.get("circle") is None
    assert shapes.get("circle", 0) == 0


def test_a_duplicate_is_an_error_and_changes_nothing(shapes):
    with pytest.raises(ValueError, match="shape 'square' is registered twice"):
        shapes.add("square", 5)
    assert shapes["square"] == 4


def test_an_unknown_name_suggests_the_nearest(shapes):
    with pytest.raises(UsageError, match="unknown shape 'sqare'") as caught:
        shapes["sqare"]
    assert caught.value.fix == "did you mean 'square'?"


def test_an_unknown_name_far_from_all_lists_them(shapes):
    with pytest.raises(UsageError, match="unknown shape 'zzz'") as caught:
        shapes["zzz"]
    assert caught.value.fix == "known: square, triangle"


def test_registries_do_not_share_entries(shapes):
    assert len(Registry("shape")) == 0
