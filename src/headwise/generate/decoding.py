"""Text token by token: prompts in chunks first (prefill), then one token per row and step (decode).

::

    prompts   · · a b        left padding, so that all rows end together
              c d e f
    prefill   chunks of the prompts through the stack, logits of the last place only
    decode    one new token per row, until it is a stop token, or there is no room for more

A row that is finished leaves the batch. Padding never enters a cache and positions count real
tokens, so a row of a batch gets the tokens that it gets alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from headwise.attend.cache import KVCache
from headwise.checkpoints.stack import Stack
from headwise.errors import UsageError
from headwise.generate.fused import Fused, refuses
from headwise.generate.libraries import on_one_thread
from headwise.generate.sampling import Chooser, Sampling
from headwise.texts import translate as _

CHUNK = 2048
"""Tokens of a prompt that go through the model at once: what bounds the memory of long prompts."""

Stop = Literal["stop", "length", "full", "interrupted"]
"""Why a row ended: a stop token; ``max_tokens``; the most that the model takes; the user."""


@dataclass
class RowOfText:
    """A prompt and what followed it.

    Args:
        prompt: its tokens.
        tokens: new ones, without the stop token.
        stopped: why there are no more; None = there may be more.
    """

    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    stopped: Stop | None = None


@dataclass
class Clock:
    """How long a run took, and what its steps read.

    Args:
        prompt_tokens: real tokens of all prompts.
        prefill_s: seconds until the first token of every row was chosen.
        first_rows: rows that got one.
        step_s: seconds of each later step.
        step_rows: rows in each step.
        cached_bytes: bytes of keys and values that each step read.
        cache_bytes: bytes of the caches.
        weight_bytes: bytes of parameters that a step reads.
    """

    prompt_tokens: int = 0
    prefill_s: float = 0.0
    first_rows: int = 0
    step_s: list[float] = field(default_factory=list)
    step_rows: list[int] = field(default_factory=list)
    cached_bytes: list[int] = field(default_factory=list)
    cache_bytes: int = 0
    weight_bytes: int = 0


class Decoder:
    """A model made ready to generate. Its parameters keep their values and become views.

    Args:
        stack: a causal model with a head.

    Raises:
        UsageError: for a model that can't generate text.

    Example:
        >>> from headwise import AttentionSpec
        >>> from headwise.checkpoints.stack import StackSpec
        >>> one = AttentionSpec(d_model=8, num_heads=2, is_causal=True)
        >>> spec = StackSpec(vocabulary=9, attention=(one,), ffn_width=5, activation="silu")
        >>> decoder = Decoder(Stack(spec).eval())
        >>> rows = decoder.complete([[1, 2, 3], [4]], max_tokens=4)
        >>> [len(row.tokens) for row in rows], rows[0].stopped
        ([4, 4], 'length')
    """

    def __init__(self, stack: Stack) -> None:
        check_causal(stack)
        self.stack = stack
        self.why_not_fused = refuses(stack.spec)
        self.fused = None if self.why_not_fused else Fused(stack)

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        sampling: Sampling | None = None,
        stop: Sequence[int] = (),
        use_cache: bool = True,
        chunk: int = CHUNK,
    ) -> Run:
        """Prepare a run; nothing is computed before it is iterated.

        Args:
            prompts: tokens of each row, one at least.
            max_tokens: most new tokens per row.
            sampling: how tokens are chosen; None = the likeliest.
            stop: tokens that end a row.
            use_cache: without, every step computes all earlier tokens again.
            chunk: tokens of a prompt at once.

        Raises:
            UsageError: for prompts or numbers that can't be.
        """
        return Run(
            self,
            check_prompts(self.stack, prompts),
            max_tokens=check_count("max_tokens", max_tokens),
            sampling=sampling or Sampling(),
            stop=frozenset(stop),
            use_cache=use_cache,
            chunk=check_count("chunk", chunk),
        )

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        sampling: Sampling | None = None,
        stop: Sequence[int] = (),
        use_cache: bool = True,
        chunk: int = CHUNK,
    ) -> list[RowOfText]:
        """All rows, when they are finished; arguments as for ``start``."""
        run = self.start(
            prompts,
            max_tokens=max_tokens,
            sampling=sampling,
            stop=stop,
            use_cache=use_cache,
            chunk=chunk,
        )
        for _new in run:
            pass
        return run.rows


class Run:
    """Prompts on their way; iterate to get new tokens, step by step.

    Each step gives (row, token) for every row that goes on; stop tokens are not given. ``rows``
    and ``clock`` always hold what there is so far, also after an interruption.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: list[tuple[int, ...]],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop: frozenset[int],
        use_cache: bool,
        chunk: int,
    ) -> None:
        self.decoder, self.use_cache, self.chunk = decoder, use_cache, chunk
        self.rows = [RowOfText(prompt) for prompt in prompts]
        self.clock = Clock(prompt_tokens=sum(map(len, prompts)))
        self.max_tokens, self.stop = max_tokens, stop
        self._chooser = Chooser(sampling, len(prompts))
        self._device = decoder.stack.tokens.weight.device
        self._caches: list[KVCache] | None = None

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        start = time.perf_counter()
        live = list(range(len(self.rows)))
        logits = self._prefill()
        step = 0
        while True:
            with self._threads(len(live)):
                new = self._choose(logits, live)
            seconds = time.perf_counter() - start
            if step:
                self.clock.step_s.append(seconds)
            else:
                self.clock.prefill_s, self.clock.first_rows = seconds, len(live)
            yield new
            going = [row for row in live if self.rows[row].stopped is None]
            if not going:
                return
            start, step = time.perf_counter(), step + 1
            with self._threads(len(going)):
                logits = self._step(live, going)
            live = going

    def interrupt(self) -> None:
        """Rows that are not finished end here."""
        for row in self.rows:
            row.stopped = row.stopped or "interrupted"

    # ------------------------------------------------------------------ steps
    def _limit(self, row: RowOfText) -> tuple[int, Stop]:
        """How many new tokens a row can get, and what ends it then."""
        longest = self.decoder.stack.spec.longest
        room = self.max_tokens if longest is None else longest - len(row.prompt)
        return (room, "full") if room < self.max_tokens else (self.max_tokens, "length")

    def _prefill(self) -> Tensor:
        """Logits after the prompts, (B, V)."""
        stack = self.decoder.stack
        with torch.inference_mode():
            ids, keep = padded([row.prompt for row in self.rows], self._device)
            if not self.use_cache:
                return last(stack(ids, keep=keep, logits_rows=1))
            longest = max(len(row.prompt) + self._limit(row)[0] for row in self.rows)
            self._caches = stack.caches(batch=len(self.rows), max_len=longest)
            self.clock.cache_bytes = sum(cache.nbytes for cache in self._caches)
            self.clock.weight_bytes = weight_bytes(stack)
            for begin in range(0, ids.shape[1], self.chunk):
                part = slice(begin, begin + self.chunk)
                found = stack.hidden(
                    ids[:, part],
                    keep=None if keep is None else keep[:, part],
                    caches=self._caches,
                    last=1,
                )
            return last(stack.logits(found))

    def _threads(self, rows: int) -> AbstractContextManager[None]:
        """Torch's threads while a step is made."""
        fused = self.decoder.fused
        return on_one_thread(fused is not None and self.use_cache and fused.is_numpys(rows))

    def _step(self, live: list[int], going: list[int]) -> Tensor:
        """Logits after the newest token of each row that goes on, (rows, V)."""
        stack, fused = self.decoder.stack, self.decoder.fused
        with torch.inference_mode():
            if not self.use_cache:
                texts = [(*self.rows[row].prompt, *self.rows[row].tokens) for row in going]
                ids, keep = padded(texts, self._device)
                return last(stack(ids, keep=keep, logits_rows=1))
            caches = self._caches
            assert caches is not None
            if going != live:
                places = [live.index(row) for row in going]
                for cache in caches:
                    cache.reorder(places)
            self.clock.step_rows.append(len(going))
            newest = torch.tensor([self.rows[row].tokens[-1] for row in going], device=self._device)
            if fused is not None:
                found = fused(newest, caches)
            else:
                found = last(stack(newest[:, None], caches=caches, logits_rows=1))
            self.clock.cached_bytes.append(self._cached_bytes(going))
            return found

    def _cached_bytes(self, going: list[int]) -> int:
        """Bytes of keys and values that the newest tokens of some rows have looked at."""
        assert self._caches is not None
        total = 0
        for cache in self._caches:
            left = None if cache.window is None else cache.window[0]
            for row in going:
                seen = len(self.rows[row].prompt) + len(self.rows[row].tokens)
                total += cache.bytes_per_token * (seen if left is None else min(seen, left + 1))
        return total

    def _choose(self, logits: Tensor, live: list[int]) -> list[tuple[int, int]]:
        found = []
        for row, token in zip(live, self._chooser.choose(logits, live), strict=True):
            text = self.rows[row]
            if token in self.stop:
                text.stopped = "stop"
                continue
            text.tokens.append(token)
            found.append((row, token))
            limit, why = self._limit(text)
            if len(text.tokens) >= limit:
                text.stopped = why
        return found


def padded(
    texts: Sequence[Sequence[int]], device: torch.device | str | None = None
) -> tuple[Tensor, Tensor | None]:
    """Rows padded on the left, and which places are real; None = all.

    Example:
        >>> ids, keep = padded([[5, 6, 7], [8]])
        >>> ids.tolist(), keep.int().tolist()
        ([[5, 6, 7], [0, 0, 8]], [[1, 1, 1], [0, 0, 1]])
    """
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(one)) + list(one) for one in texts], device=device)
    if all(len(one) == longest for one in texts):
        return ids, None
    lengths = torch.tensor([len(one) for one in texts], device=device)
    return ids, torch.arange(longest, device=device) >= longest - lengths[:, None]


def last(logits: Tensor) -> Tensor:
    """(B, T, V) → (B, V), those of the last place."""
    return logits[:, -1]


def weight_bytes(stack: Stack) -> int:
    """Bytes of parameters that a step of decoding reads: of a table that is looked up, nothing."""
    tables = [stack.positions, stack.types, stack.tokens if stack.head is not None else None]
    looked_up = sum(one.weight.nbytes for one in tables if one is not None)
    return sum(value.nbytes for value in stack.parameters()) - looked_up


# ---------------------------------------------------------------------------------- checks
def check_causal(stack: Stack) -> None:
    """Refuse a model that no text can be generated with."""
    if stack.spec.is_causal and stack.spec.head is not None:
        return
    why = (
        _("it has no head that would say what the next token is")
        if stack.spec.is_causal
        else _("its tokens see later ones, as in an encoder: there is no next token to predict")
    )
    raise UsageError(
        _("this model can't generate text"),
        why=why,
        fix=_("a causal language model, such as smollm2-135m"),
    )


def check_prompts(stack: Stack, prompts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Prompts that the model can take."""
    if not prompts:
        raise UsageError(_("there is no prompt"), fix=_("one at least"))
    longest, vocabulary = stack.spec.longest, stack.spec.vocabulary
    for number, prompt in enumerate(prompts, 1):
        where = _("prompt {number}").format(number=number)
        if not len(prompt):
            raise UsageError(
                _("a prompt has no token"),
                where=where,
                why=_("the first token is predicted from at least one"),
            )
        if longest is not None and len(prompt) >= longest:
            raise UsageError(
                _("the prompt has {tokens} tokens, the model takes {longest}").format(
                    tokens=len(prompt), longest=longest
                ),
                where=where,
                why=_("prompt and new tokens have to fit together"),
                fix=_("a prompt of at most {most} tokens").format(most=longest - 1),
            )
        wrong = next((token for token in prompt if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise UsageError(
                _("token {token} is not in the vocabulary of {size}").format(
                    token=wrong, size=vocabulary
                ),
                where=where,
            )
    return [tuple(prompt) for prompt in prompts]


def check_count(name: str, value: object) -> int:
    """A whole number from 1 up."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise UsageError(
        _("{name}={value!r} is not a number of tokens").format(name=name, value=value),
        fix=_("a whole number from 1 up"),
    )
