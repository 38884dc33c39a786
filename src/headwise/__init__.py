"""Headwise, the attention workbench: is this attention layer right, and if not, what is wrong?

The public names are resolved on first use, so that ``import headwise`` (and with it
``headwise --help``) imports neither torch nor any other heavy library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Alibi": "headwise.spec",
    "AttentionSpec": "headwise.spec",
    "Causal": "headwise.masks",
    "Custom": "headwise.masks",
    "DistanceBias": "headwise.attend",
    "Documents": "headwise.masks",
    "HeadwiseError": "headwise.errors",
    "KVCache": "headwise.attend",
    "Learned": "headwise.spec",
    "Mask": "headwise.masks",
    "MultiHeadAttention": "headwise.attend.module",
    "Padding": "headwise.masks",
    "Prefix": "headwise.masks",
    "QkNorm": "headwise.spec",
    "QueryPadding": "headwise.masks",
    "RelativeBias": "headwise.spec",
    "Rope": "headwise.spec",
    "Sinusoidal": "headwise.spec",
    "Window": "headwise.masks",
    "attention": "headwise.attend",
    "capture": "headwise.integrations.capture",
    "explain_backend": "headwise.attend",
    "explain_text": "headwise.integrations.explaining",
    "explain_weights": "headwise.explain.matrices",
    "swap": "headwise.integrations.swap",
    "trace": "headwise.verifier.api",
    "verify": "headwise.verifier.api",
}

__all__ = [
    "Alibi",
    "AttentionSpec",
    "Causal",
    "Custom",
    "DistanceBias",
    "Documents",
    "HeadwiseError",
    "KVCache",
    "Learned",
    "Mask",
    "MultiHeadAttention",
    "Padding",
    "Prefix",
    "QkNorm",
    "QueryPadding",
    "RelativeBias",
    "Rope",
    "Sinusoidal",
    "Window",
    "attention",
    "capture",
    "explain_backend",
    "explain_text",
    "explain_weights",
    "swap",
    "trace",
    "verify",
]

if TYPE_CHECKING:
    from headwise.attend import DistanceBias, KVCache, attention, explain_backend
    from headwise.attend.module import MultiHeadAttention
    from headwise.errors import HeadwiseError
    from headwise.explain.matrices import explain_weights
    from headwise.integrations.capture import capture
    from headwise.integrations.explaining import explain_text
    from headwise.integrations.swap import swap
    from headwise.masks import (
        Causal,
        Custom,
        Documents,
        Mask,
        Padding,
        Prefix,
        QueryPadding,
        Window,
    )
    from headwise.spec import (
        Alibi,
        AttentionSpec,
        Learned,
        QkNorm,
        RelativeBias,
        Rope,
        Sinusoidal,
    )
    from headwise.verifier.api import trace, verify


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headwise' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
