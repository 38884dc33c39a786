"""A transformer small enough to train in a lab, the two tasks it is trained on, and the training.

Everything is plain PyTorch and deterministic: weights and data come from generators of their own,
and the global random state is left as it was found.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.labs.parts.grammar import WORDS, text

IGNORED = -100
"""Target of a position that the loss skips."""


# ------------------------------------------------------------------ determinism
@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside the block: the same rounding everywhere, and times that can be compared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A seeded global generator inside the block (modules initialise from it), restored after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def generator(seed: int) -> torch.Generator:
    """A generator of one's own."""
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------ the model
@dataclass(frozen=True, kw_only=True)
class Size:
    """What a small transformer is.

    Args:
        vocab: how many different tokens.
        max_len: longest sequence.
        d_model: width.
        num_heads: query heads.
        num_kv_heads: key/value heads; None = num_heads.
        head_dim: of queries and keys; None = d_model / num_heads.
        v_head_dim: of values; None = head_dim.
        layers: how many blocks.
        d_ff: width of the feed-forward part; None = 4·d_model, 0 = there is none.
        is_causal: later tokens are hidden.
        scale: factor of the scores; None = 1/sqrt(head_dim).
        positions: whether a learned position is added to each token.
        tied: projections that share one matrix: "", "qk", "kv" or "qkv".
    """

    vocab: int
    max_len: int
    d_model: int = 32
    num_heads: int = 4
    num_kv_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    layers: int = 2
    d_ff: int | None = None
    is_causal: bool = True
    scale: float | None = None
    positions: bool = True
    tied: str = ""

    def replace(self, **changes: object) -> Size:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of the tokens so far, one pair per layer, (B, Hkv, T, D)."""


class SmallAttention(nn.Module):
    """Attention without bias, written out: the weights can be looked at."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.num_heads
        self.kv_heads = size.num_kv_heads or size.num_heads
        d_k = size.head_dim or size.d_model // size.num_heads
        d_v = size.v_head_dim or d_k
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads can't share {self.kv_heads} evenly")
        self.scale = d_k**-0.5 if size.scale is None else size.scale
        self.is_causal = size.is_causal
        self.q = nn.Linear(size.d_model, self.heads * d_k, bias=False)
        self.k = nn.Linear(size.d_model, self.kv_heads * d_k, bias=False)
        self.v = nn.Linear(size.d_model, self.kv_heads * d_v, bias=False)
        self.o = nn.Linear(self.heads * d_v, size.d_model, bias=False)
        if "qk" in size.tied:
            self.k.weight = self.q.weight
        if "kv" in size.tied:
            self.v.weight = self.k.weight

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Output (B, T, Dm), weights (B, H, T, Tk), and the keys and values to keep."""
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        v = self.v(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        group, q_len, kv_len = self.heads // self.kv_heads, q.shape[2], k.shape[2]
        keys, values = k, v
        if group > 1:
            keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = q @ keys.transpose(-2, -1) * self.scale
        if self.is_causal:
            seen = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)
            scores = scores.masked_fill(~seen, -math.inf)
        weights = scores.softmax(-1)
        return self.o((weights @ values).transpose(1, 2).flatten(2)), weights, (k, v)


class SmallBlock(nn.Module):
    """Norm, attention, norm, feed-forward, with residuals."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        d_ff = 4 * size.d_model if size.d_ff is None else size.d_ff
        self.attention = SmallAttention(size)
        self.norm_1 = nn.LayerNorm(size.d_model)
        self.norm_2 = nn.LayerNorm(size.d_model) if d_ff else None
        self.up = nn.Linear(size.d_model, d_ff) if d_ff else None
        self.down = nn.Linear(d_ff, size.d_model) if d_ff else None

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Like ``SmallAttention``."""
        out, weights, kept = self.attention(self.norm_1(x), past)
        x = x + out
        if self.norm_2 is not None and self.up is not None and self.down is not None:
            x = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return x, weights, kept


class SmallTransformer(nn.Module):
    """Tokens in, scores of the next token (or of the token itself, without causality) out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(size.vocab, size.d_model)
        self.positions = nn.Embedding(size.max_len, size.d_model) if size.positions else None
        if self.positions is not None:  # at first, what a token is counts more than where it is
            nn.init.normal_(self.positions.weight, std=0.5)
        self.blocks = nn.ModuleList(SmallBlock(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.d_model)
        self.head = nn.Linear(size.d_model, size.vocab, bias=False)

    def layers(self) -> list[SmallBlock]:
        """The blocks in order."""
        return [block for block in self.blocks if isinstance(block, SmallBlock)]

    def embed(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Tokens (B, T) as vectors (B, T, Dm), with positions that count from ``start``."""
        x: Tensor = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(start, start + tokens.shape[1]))
        return x

    def run(self, x: Tensor, cache: Cache | None = None) -> tuple[Tensor, list[Tensor], Cache]:
        """From vectors (B, T, Dm): (logits, weights of every layer, keys and values to keep)."""
        every, kept = [], []
        for index, block in enumerate(self.layers()):
            x, weights, pair = block(x, cache[index] if cache else None)
            every.append(weights)
            kept.append(pair)
        return self.head(self.norm(x)), every, kept

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → logits (B, T, vocab)."""
        return self.run(self.embed(tokens))[0]


def build(size: Size, seed: int) -> SmallTransformer:
    """A model whose weights follow from the seed (PyTorch's default initialisation)."""
    with seeded(seed):
        return SmallTransformer(size)


def parameter_count(model: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(p.numel() for p in model.parameters())


# ------------------------------------------------------------------ the tasks
@dataclass(frozen=True)
class Task:
    """Something to learn.

    Args:
        name: kebab case.
        vocab: how many tokens.
        length: of a sequence.
        draw: (how many, generator) → tokens (B, T) and targets (B, T), ``IGNORED`` where there is
            nothing to predict.
    """

    name: str
    vocab: int
    length: int
    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def text_task(*, length: int = 32, sentences: int = 1500, seed: int = 0) -> Task:
    """Predict the next word of sentences from the small grammar.

    Args:
        length: words in a sequence.
        sentences: size of the text that sequences are cut from.
        seed: of the text; take another one for the test.
    """
    words = text(sentences, seed)

    def draw(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(words) - length - 1, (count, 1), generator=g)
        window = words[starts + torch.arange(length + 1)]
        return window[:, :-1], window[:, 1:]

    return Task("text", len(WORDS), length, draw)


def recall_task(*, pairs: int = 4, keys: int = 12, values: int = 12) -> Task:
    """Associative recall: k₁ v₁ k₂ v₂ …, then every key again in another order: say its value.

    The answers follow their questions, so a sequence asks ``pairs`` times. Chance is 1 / values
    (1 / pairs for a model that has found out that the answer is one of those shown).
    """

    def draw(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        k = torch.rand(count, keys, generator=g).argsort(1)[:, :pairs]
        v = torch.randint(keys, keys + values, (count, pairs), generator=g)
        order = torch.rand(count, pairs, generator=g).argsort(1)
        shown = torch.stack([k, v], dim=2).flatten(1)
        asked = torch.stack([k.gather(1, order), v.gather(1, order)], dim=2).flatten(1)
        tokens = torch.cat([shown, asked], dim=1)
        targets = torch.full_like(tokens, IGNORED)
        targets[:, 2 * pairs :: 2] = v.gather(1, order)
        return tokens, targets

    return Task("recall", keys + values, 4 * pairs, draw)


def lookup_task(*, pairs: int = 4, keys: int = 8, values: int = 8) -> Task:
    """Associative recall in one step: each shown token is a (key, value) pair, each question a key.

    One layer of attention can do it, so it is learned in a few hundred small steps (in
    ``recall_task`` a key and its value are two tokens, which needs two layers and more patience).
    Chance is 1 / values.
    """

    def draw(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        k = torch.rand(count, keys, generator=g).argsort(1)[:, :pairs]
        v = torch.randint(values, (count, pairs), generator=g)
        order = torch.rand(count, pairs, generator=g).argsort(1)
        tokens = torch.cat([k * values + v, keys * values + k.gather(1, order)], dim=1)
        targets = torch.full_like(tokens, IGNORED)
        targets[:, pairs:] = v.gather(1, order)
        return tokens, targets

    return Task("lookup", keys * values + keys, 2 * pairs, draw)


# ------------------------------------------------------------------ training and scoring
def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy, in nats per predicted token."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def train(
    model: SmallTransformer,
    task: Task,
    *,
    steps: int,
    seed: int,
    batch: int = 32,
    rate: float = 3e-3,
    tick: Callable[[int], None] = lambda step: None,
    watch: Callable[[int, SmallTransformer], None] = lambda step, model: None,
) -> list[float]:
    """Train with Adam; the rate rises over a tenth of the steps and then falls to zero.

    Args:
        tick: called with the number of the step, for a progress bar.
        watch: called before each step with its number and the model (gradients of the step before
            are still there), and once after the last.

    Returns:
        The loss of every step.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    g, losses, rising = generator(seed), [], max(steps // 10, 1)
    for step in range(steps):
        tick(step)
        watch(step, model)
        share = min((step + 1) / rising, (steps - step) / max(steps - rising, 1))
        for group in optimiser.param_groups:
            group["lr"] = rate * min(share, 1.0)
        tokens, targets = task.draw(batch, g)
        loss = loss_of(model(tokens), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    watch(steps, model)
    return losses


def evaluate(
    model: SmallTransformer, task: Task, *, seed: int, batch: int = 256
) -> tuple[float, float]:
    """(loss, share of right predictions) on freshly drawn sequences."""
    with torch.no_grad():
        tokens, targets = task.draw(batch, generator(seed))
        logits = model(tokens)
        asked = targets != IGNORED
        right = (logits.argmax(-1) == targets)[asked].float().mean()
        return float(loss_of(logits, targets)), float(right)


def generate(
    model: SmallTransformer, start: Tensor, count: int, seed: int, *, temperature: float = 1.0
) -> Tensor:
    """Sample ``count`` further tokens, each from a full run over the last ``max_len`` tokens.

    Args:
        start: (B, T) tokens to begin with.

    Returns:
        (B, T + count).
    """
    g, tokens = generator(seed), start
    with torch.no_grad():
        for _ in range(count):
            logits = model(tokens[:, -model.size.max_len :])[:, -1]
            chances = (logits / temperature).softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=g)], dim=1)
    return tokens
