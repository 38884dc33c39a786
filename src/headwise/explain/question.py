"""What is asked of a model: one number that everything is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from headwise.errors import UsageError
from headwise.explain.subject import Run
from headwise.texts import translate as _

Pool = Literal["mean", "first"]


class Target(Protocol):
    """Turns what came out of a run into one number per row."""

    @property
    def kind(self) -> str:
        """What sort of number it is, ``logit``."""
        ...

    def value(self, run: Run) -> Tensor:
        """(B,), in the graph of the run."""
        ...

    def words(self, tokens: Any) -> str:
        """What is asked, for people; ``tokens`` turns an id into a string."""
        ...


@dataclass(frozen=True)
class Logit:
    """The logit of one token after the question's position."""

    token: int
    kind: str = "logit"

    def value(self, run: Run) -> Tensor:
        return logits_of(run)[:, self.token]

    def words(self, tokens: Any) -> str:
        return _("the logit of {token!r}").format(token=tokens(self.token))


@dataclass(frozen=True)
class LogitDifference:
    """The logit of one token minus that of another."""

    token: int
    against: int
    kind: str = "logit-difference"

    def value(self, run: Run) -> Tensor:
        logits = logits_of(run)
        return logits[:, self.token] - logits[:, self.against]

    def words(self, tokens: Any) -> str:
        return _("the logit of {token!r} minus that of {against!r}").format(
            token=tokens(self.token), against=tokens(self.against)
        )


@dataclass(frozen=True)
class ClassLogit:
    """The logit of a class of a sequence classifier."""

    index: int
    kind: str = "class"

    def value(self, run: Run) -> Tensor:
        return logits_of(run)[:, self.index]

    def words(self, tokens: Any) -> str:
        return _("the logit of class {index}").format(index=self.index)


@dataclass(frozen=True)
class EmbeddingNorm:
    """The length of the text's embedding.

    Args:
        pool: ``mean`` over the tokens that are not hidden (zero if all are), or the ``first``.

    Example:
        >>> run = Run(hidden=torch.tensor([[[3.0, 4.0], [3.0, 4.0]]]), logits=None)
        >>> EmbeddingNorm().value(run).tolist()
        [5.0]
    """

    pool: Pool = "mean"
    kind: str = "embedding-norm"

    def value(self, run: Run) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(self.pooled(run), dim=-1)
        return length

    def pooled(self, run: Run) -> Tensor:
        """The embedding, (B, D)."""
        if run.hidden is None:
            raise UsageError(
                _("this model gives no hidden states to take the norm of"),
                fix=_("a class or a token as the target"),
            )
        if self.pool == "first":
            return run.hidden[:, 0]
        if run.keep is None:
            return run.hidden.mean(1)
        counts = run.keep[..., None].to(run.hidden)
        pooled: Tensor = (run.hidden * counts).sum(1) / counts.sum(1).clamp_min(1.0)
        return pooled

    def words(self, tokens: Any) -> str:
        if self.pool == "first":
            return _("the length of the first token's embedding")
        return _("the length of the mean embedding of the tokens")


def logits_of(run: Run) -> Tensor:
    """The logits of a run, (B, V or C); an error where the model has none."""
    if run.logits is None:
        raise UsageError(
            _("this model gives no logits"),
            fix=_("ask for the norm of its embedding: --target norm"),
        )
    return run.logits


@dataclass(frozen=True)
class Question:
    """A target at a place of a text.

    Args:
        target: which number.
        position: the token whose prediction or state is asked about, from 0; None where the
            target belongs to the whole text (a class, a mean embedding).
        reads: the only token from whose state such a target is made, where that was measured: a
            classifier on [CLS] or on the last token. None = several, or not measured.
    """

    target: Target
    position: int | None
    reads: int | None = None

    @property
    def query(self) -> int | None:
        """The token whose row of the weights is meant; None = the mean over all rows."""
        if isinstance(self.target, EmbeddingNorm) and self.target.pool == "first":
            return 0
        return self.reads if self.position is None else self.position

    def value(self, run: Run) -> Tensor:
        """(B,), one number per row of the run."""
        return self.target.value(run)
