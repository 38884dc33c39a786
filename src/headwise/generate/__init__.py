"""Text from real models: prompts to tokens, tokens one after the other, tokens to text."""

from __future__ import annotations

from headwise.generate.decoding import Decoder
from headwise.generate.sampling import Sampling

__all__ = ["Decoder", "Sampling"]
