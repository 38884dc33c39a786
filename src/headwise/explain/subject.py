"""What can be explained: a model behind one small interface, and the text it runs on.

The methods know this interface alone. ``headwise.integrations`` implements it for the models of
Hugging Face; a test implements it in a page of plain torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from headwise.explain.change import Change
from headwise.explain.tap import Seen, Watch

Kind = Literal["causal", "masked", "classifier", "encoder"]


@dataclass(frozen=True, eq=False)
class Text:
    """A text as the model reads it.

    Args:
        text: what the user wrote.
        ids: (T,) token ids.
        shown: one string per token, for people; may hold anything.
        is_special: which tokens the tokenizer added ([CLS], a begin mark).
    """

    text: str
    ids: Tensor
    shown: tuple[str, ...]
    is_special: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.shown)


@dataclass(eq=False)
class Run:
    """What came out of one run.

    Args:
        hidden: (B, T', D), the last hidden states; T' leaves out the tokens of a prefix.
        logits: (B, V) at the position asked for, or (B, C) of the classes, or None.
        keep: (B, T') True where a token counts in a mean over tokens.
        seen: what the watch kept.
    """

    hidden: Tensor | None
    logits: Tensor | None
    keep: Tensor | None = None
    seen: Seen = field(default_factory=Seen)


class Prefix(Protocol):
    """The state of a causal model after the first tokens of a text, to go on from."""

    @property
    def length(self) -> int:
        """How many tokens it holds."""
        ...


class Subject(Protocol):
    """A model that can be explained.

    Inputs ``x`` are token ids (B, T) int64 or embeddings (B, T, D) of the model's own dtype.
    """

    name: str
    kind: Kind
    num_layers: int
    num_heads: int
    num_kv_heads: int
    remarks: tuple[str, ...]
    """For the reader: what was left out when the model was loaded."""

    @property
    def model_type(self) -> str:
        """The type in its configuration, ``llama``."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of tokens it knows."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """Longest text, or None for no limit."""
        ...

    @property
    def mask_id(self) -> int:
        """The token that stands for a replaced one."""
        ...

    @property
    def mask_words(self) -> str:
        """The same as a string."""
        ...

    @property
    def dtype(self) -> str:
        """The dtype of the weights, ``float32``."""
        ...

    @property
    def device(self) -> str:
        """Where the model lives."""
        ...

    def read(self, text: str) -> Text:
        """Tokens of a text; an error where it is too long or empty."""
        ...

    def token(self, id: int) -> str:
        """A token as a string."""
        ...

    def token_id(self, text: str) -> int:
        """The id of a string that is exactly one token; an error with near ones otherwise."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings (B, T, D) of ids, as ``run`` takes them."""
        ...

    def run(
        self,
        x: Tensor,
        *,
        position: int | None = None,
        watch: Watch | None = None,
        change: Change | None = None,
        prefix: Prefix | None = None,
        keeps_graph: bool = False,
    ) -> Run:
        """Run the model.

        Args:
            x: ids (B, T) or embeddings (B, T, D); without the tokens of the prefix.
            position: the token whose logits are wanted, counted from the start of the text; None
                for classes and embeddings.
            watch: what to keep of the attention.
            change: what to change in it.
            prefix: of the same text; its keys and values are used and not computed again.
            keeps_graph: gradients are wanted.
        """
        ...

    def prefixes(self, ids: Tensor) -> Prefixes | None:
        """States after every number of tokens of a text (1, T), or None where that is impossible.

        Impossible for models that look ahead, and for those that keep more than keys and values.
        """
        ...

    def output_projection(self, layer: int) -> Tensor:
        """W_O of a layer, cut into heads, (H, D, Dv): how a head's context enters the residual."""
        ...

    def decompose(self, x: Tensor, question: Any) -> Parts:
        """The target as a sum of what each part of the model writes; see ``Parts``."""
        ...


class Prefixes(Protocol):
    """All prefixes of a text, from one run."""

    @property
    def logits(self) -> Tensor:
        """(1, V) after the whole text, from that run."""
        ...

    def first(self, length: int, batch: int) -> Prefix:
        """The state after ``length`` tokens, for ``batch`` rows."""
        ...


@dataclass(frozen=True)
class Parts:
    """A target as a sum over what wrote into the residual stream, norms held at their size.

    Args:
        embedding: written by the embedding (and learned positions).
        heads: per layer and head.
        attention_bias: per layer, of the output projection's bias.
        feed_forward: per layer.
        constant: what biases of norms and of the last projection add.
        value: the target itself, from an ordinary run.

    Source: direct logit attribution, Elhage et al. 2021 ("A Mathematical Framework for
    Transformer Circuits", section "Attention heads are independent and additive").
    """

    embedding: float
    heads: tuple[tuple[float, ...], ...]
    attention_bias: tuple[float, ...]
    feed_forward: tuple[float, ...]
    constant: float
    value: float

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return (
            self.embedding
            + sum(sum(row) for row in self.heads)
            + sum(self.attention_bias)
            + sum(self.feed_forward)
            + self.constant
        )

    @property
    def gap(self) -> float:
        """How far the sum is from the target."""
        return self.value - self.total
