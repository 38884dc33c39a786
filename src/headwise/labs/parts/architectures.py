"""Head counts of published models, each with its source: facts that are cited, not measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """Sizes of the self-attention of a published model.

    Args:
        name: as its authors write it.
        layers: how many attention layers.
        d_model: width.
        num_heads, num_kv_heads: query heads, key/value heads.
        head_dim: numbers per query and key.
        source: where it is written down.
        window: keys that a token sees, if there is a sliding window.
    """

    name: str
    layers: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    source: str
    window: int | None = None

    @property
    def kind(self) -> str:
        """MHA, GQA or MQA."""
        if self.num_kv_heads == self.num_heads:
            return "MHA"
        return "MQA" if self.num_kv_heads == 1 else "GQA"

    @property
    def is_even(self) -> bool:
        """Whether head_dim is d_model / num_heads."""
        return self.head_dim * self.num_heads == self.d_model


_ORIGINAL = "arXiv 1706.03762, table 3"
_GPT2 = "openai-community/gpt2, gpt2-xl: config.json"
_LLAMA_1 = "arXiv 2302.13971, table 2"
_LLAMA_2 = "arXiv 2307.09288, table 1; config.json"
_LLAMA_3 = "arXiv 2407.21783, table 3"
_GEMMA = "arXiv 2403.08295, table 1"

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("Transformer base", 6, 512, 8, 8, 64, _ORIGINAL),
    Architecture("Transformer big", 6, 1024, 16, 16, 64, _ORIGINAL),
    Architecture("BERT base", 12, 768, 12, 12, 64, "arXiv 1810.04805, section 3"),
    Architecture("T5 11B", 24, 1024, 128, 128, 128, "arXiv 1910.10683, section 3.7"),
    Architecture("GPT-2 small", 12, 768, 12, 12, 64, _GPT2),
    Architecture("GPT-2 XL", 48, 1600, 25, 25, 64, _GPT2),
    Architecture("LLaMA 7B", 32, 4096, 32, 32, 128, _LLAMA_1),
    Architecture("LLaMA-2 7B", 32, 4096, 32, 32, 128, _LLAMA_2),
    Architecture("LLaMA-2 13B", 40, 5120, 40, 40, 128, _LLAMA_2),
    Architecture("LLaMA-2 34B", 48, 8192, 64, 8, 128, f"{_LLAMA_2} (of CodeLlama-34b)"),
    Architecture("LLaMA-2 70B", 80, 8192, 64, 8, 128, _LLAMA_2),
    Architecture("LLaMA-3 8B", 32, 4096, 32, 8, 128, _LLAMA_3),
    Architecture("LLaMA-3 70B", 80, 8192, 64, 8, 128, _LLAMA_3),
    Architecture("LLaMA-3 405B", 126, 16384, 128, 8, 128, _LLAMA_3),
    Architecture("Mistral 7B", 32, 4096, 32, 8, 128, "arXiv 2310.06825, table 1", 4096),
    Architecture("Gemma 2B", 18, 2048, 8, 1, 256, _GEMMA),
    Architecture("Gemma 7B", 28, 3072, 16, 16, 256, _GEMMA),
    Architecture("Qwen2.5 7B", 28, 3584, 28, 4, 128, "Qwen/Qwen2.5-7B: config.json"),
    Architecture("Qwen3 0.6B", 28, 1024, 16, 8, 128, "Qwen/Qwen3-0.6B: config.json"),
)


def architecture(name: str) -> Architecture:
    """One of them by name.

    Example:
        >>> architecture("LLaMA-2 70B").kind
        'GQA'
    """
    return next(one for one in ARCHITECTURES if one.name == name)
