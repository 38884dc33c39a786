"""Attention to use: right in every variant, proved against the definition, and fast.

* ``functional``: ``attention``, ``stages``, ``explain_backend``.
* ``module``: ``MultiHeadAttention``, the layer of a spec.
* ``cache``: ``KVCache``.
* ``parts``: a mask, taken apart into what a fast path can use.
* ``backends``: ways to compute one and the same thing, and the choice among them.
"""

from headwise.attend.backends.dispatch import Choice
from headwise.attend.backends.eager import Stages
from headwise.attend.cache import KVCache
from headwise.attend.call import DistanceBias
from headwise.attend.functional import attention, explain_backend, stages
from headwise.attend.store import Cached

__all__ = [
    "Cached",
    "Choice",
    "DistanceBias",
    "KVCache",
    "Stages",
    "attention",
    "explain_backend",
    "stages",
]
