"""Tables of constants that several layers read: made once, kept, and made again where longer.

A table is known by *everything* that it depends on, device and dtype included. While a program is
being compiled nothing is kept and nothing is looked up: the table becomes part of the program.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

KEPT = 32
"""Tables that are kept at most; the one that was used longest ago goes first."""

_tables: OrderedDict[Hashable, tuple[Tensor, ...]] = OrderedDict()


def table(
    key: Hashable, length: int, make: Callable[[int], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Tables with at least ``length`` rows.

    Args:
        key: everything that a row depends on.
        length: rows that are needed.
        make: a function of the number of rows.

    Example:
        >>> import torch
        >>> make = lambda rows: (torch.arange(rows),)
        >>> len(table("example", 3, make)[0]) >= 3
        True
        >>> table("example", 2, make)[0] is table("example", 3, make)[0]
        True
    """
    if torch.compiler.is_compiling():
        return make(length)
    found = _tables.get(key)
    if found is not None and found[0].shape[0] >= length:
        _tables.move_to_end(key)
        return found
    # Twice as many rows as last time, so that decoding does not make one table per token.
    rows = length if found is None else max(length, 2 * found[0].shape[0])
    with torch.inference_mode(False), torch.no_grad():  # training may come after inference
        made = make(rows)
    if all(type(one) is Tensor for one in made):  # no tensors of a tracer
        _tables[key] = made
        _tables.move_to_end(key)
        while len(_tables) > KEPT:
            _tables.popitem(last=False)
    return made
