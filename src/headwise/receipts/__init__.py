"""Cost formulas against real runs: operations counted, bytes kept, caches made, time taken.

`headwise.cost` is arithmetic and knows nothing about tensors; here its figures are compared with
what PyTorch does when the layer really runs.
"""

from __future__ import annotations

from headwise.receipts.check import Check, Formulas, Residual, check_layer, check_model
from headwise.receipts.counting import Counted, Kept, count_products, kept_bytes
from headwise.receipts.machine import measure
from headwise.receipts.second import Second, published, second_sources

__all__ = [
    "Check",
    "Counted",
    "Formulas",
    "Kept",
    "Residual",
    "Second",
    "check_layer",
    "check_model",
    "count_products",
    "kept_bytes",
    "measure",
    "published",
    "second_sources",
]
