"""Values of a GGUF file's metadata, and what its keys can't say.

GGUF keeps numbers in float32: 1e-5 reads as 9.999999747378752e-06. Taken is the shortest decimal
that has this float32, which is what the writer of the file started from.

Source: the key-value pairs of the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from headwise.checkpoints.source import TensorSource
from headwise.checkpoints.stack import StackSpec
from headwise.errors import UsageError
from headwise.texts import translate as _


class Metadata:
    """The keys of a file's own architecture.

    Args:
        source: a GGUF file.
    """

    def __init__(self, source: TensorSource) -> None:
        self.source = source
        self.arch = str(source.config.get("general.architecture"))

    def get(self, key: str, default: Any = None, *, needed: bool = False) -> Any:
        """The value of a key without the architecture in front.

        Raises:
            UsageError: if it is needed and missing.
        """
        value = self.source.config.get(f"{self.arch}.{key}", default)
        if needed and value is None:
            raise UsageError(
                _("the file states no {key}").format(key=f"{self.arch}.{key}"),
                where=str(self.source.path),
                why=_("sizes of a GGUF model stand in its metadata"),
            )
        return shortest(value) if isinstance(value, float) else value

    def vocabulary(self) -> int:
        """Rows of the token table.

        Raises:
            UsageError: if there is no such table.
        """
        table = self.source.tensors.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise UsageError(
                _("the file has no token table"),
                where=f"{self.source.path}: token_embd.weight",
                why=_("its rows are the vocabulary"),
            )
        return int(table.shape[0])


def sizes(spec: StackSpec, arch: str) -> dict[str, Any]:
    """The keys that every architecture has."""
    return {
        "general.architecture": arch,
        f"{arch}.vocab_size": spec.vocabulary,
        f"{arch}.block_count": spec.layers,
        f"{arch}.context_length": spec.longest or 2048,
        f"{arch}.embedding_length": spec.d_model,
        f"{arch}.feed_forward_length": spec.ffn_width,
        f"{arch}.attention.head_count": spec.attention[0].num_heads,
    }


def unsaid(what: str) -> UsageError:
    """The error for a model of which the format can't say something."""
    return UsageError(
        _("this model can't be written as GGUF"),
        where=f"save(model, format='gguf'): {what}",
        why=_("the format does not say it, so it would be read as another model"),
        fix="format='safetensors'",
    )


def shortest(value: float) -> float:
    """The shortest decimal with this float32, for numbers that are one.

    Example:
        >>> shortest(9.999999747378752e-06)
        1e-05
    """
    if not math.isfinite(value) or abs(value) > torch.finfo(torch.float32).max:
        return value
    single = np.float32(value)
    return float(str(single)) if float(single) == value else value
