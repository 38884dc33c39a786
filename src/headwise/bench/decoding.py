"""How fast text is decoded: ours beside transformers with its dynamic and its static cache.

All continue the same prompt, some steps each in turn, so that their texts stay equally long and
noise hits them alike. A step of ours is everything between two tokens: the model, the choice of the
token and what the run notes. A step of transformers is its ``forward`` and ``argmax``; its own
``generate`` does more, and would be slower.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from headwise.bench.limits import name_of
from headwise.bench.machine import Others, describe_cpu, versions
from headwise.bench.targets import MOST_OTHERS
from headwise.bench.timing import Timings
from headwise.checkpoints.load import Model, load
from headwise.generate.decoding import Decoder, Run
from headwise.generate.libraries import REST_S
from headwise.generate.stats import reading_bytes_per_s, stats_of
from headwise.texts import translate as _

OURS = "headwise"
CACHES = ("dynamic", "static")
TARGETS: Mapping[tuple[str, str], float] = {
    ("float32", "dynamic"): 1.8,
    ("float32", "static"): 1.8,
    ("bfloat16", "dynamic"): 1.3,
    ("bfloat16", "static"): 1.1,
}
"""Time of transformers over ours that was promised for SmolLM2-135M, by dtype and cache."""

Notify = Callable[[str], None]


class Candidate(Protocol):
    """Somebody who continues a prompt with the likeliest tokens."""

    @property
    def tokens(self) -> list[int]:
        """New ones so far."""
        ...

    def prefill(self) -> None:
        """Take in the prompt and choose the first token."""
        ...

    def advance(self, steps: int) -> None:
        """Choose so many more."""
        ...


class Ours:
    """``headwise.generate``."""

    def __init__(self, decoder: Decoder, prompt: Sequence[int], most: int) -> None:
        self.run: Run = decoder.start([prompt], max_tokens=most)
        self._steps: Iterator[list[tuple[int, int]]] = iter(self.run)

    @property
    def tokens(self) -> list[int]:
        """New ones so far."""
        return self.run.rows[0].tokens

    def prefill(self) -> None:
        """Take in the prompt and choose the first token."""
        next(self._steps)

    def advance(self, steps: int) -> None:
        """Choose so many more."""
        for _step in range(steps):
            next(self._steps)


class Theirs:
    """A model of transformers and one of its caches."""

    def __init__(self, model: Any, prompt: Sequence[int], most: int, kind: str) -> None:
        import inspect

        from transformers import DynamicCache, StaticCache

        self._model, self._prompt = model, torch.tensor([list(prompt)])
        self._cache: Any = (
            StaticCache(config=model.config, max_cache_len=len(prompt) + most)
            if kind == "static"
            else DynamicCache(config=model.config)
        )
        named = inspect.signature(model.forward).parameters
        self._word = "cache" if "cache" in named else "past_key_values"
        self.tokens: list[int] = []

    def prefill(self) -> None:
        """Take in the prompt and choose the first token."""
        self._newest = self._next(self._prompt)

    def advance(self, steps: int) -> None:
        """Choose so many more."""
        for _step in range(steps):
            self._newest = self._next(self._newest)

    def _next(self, ids: Tensor) -> Tensor:
        with torch.inference_mode():
            found = self._model(ids, use_cache=True, logits_to_keep=1, **{self._word: self._cache})
            newest: Tensor = found.logits[:, -1:].argmax(-1)
        self.tokens.append(int(newest))
        return newest


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be measured.

    Args:
        model: name or path.
        prompts: lengths of the prompts; their tokens are drawn.
        dtypes: names.
        rounds: how often each has its turn.
        steps: tokens in a turn.
        seed: of the prompts.
    """

    model: str = "smollm2-135m"
    prompts: tuple[int, ...] = (32, 1536)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    rounds: int = 12
    steps: int = 8
    seed: int = 0

    @property
    def most(self) -> int:
        """Tokens that each chooses: the first, a turn to warm up, and the timed turns."""
        return 1 + self.steps * (self.rounds + 1)


@dataclass
class Found:
    """What was measured; ``to_json`` is what ``--json`` prints."""

    plan: Plan
    bytes_per_s: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: str = ""
    interrupted: bool = False
    seconds: float = 0.0
    others: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "cpu": describe_cpu(),
            "versions": versions(),
            "model": self.plan.model,
            "seed": self.plan.seed,
            "rounds": self.plan.rounds,
            "steps_per_round": self.plan.steps,
            "missing": self.missing,
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 1),
            "others_share": self.others,
            "gbytes_per_s": round(self.bytes_per_s / 1e9, 2),
            "rows": self.rows,
        }


def run(plan: Plan, notify: Notify = lambda what: None) -> Found:
    """Measure; an interruption keeps the rows that are finished.

    Raises:
        UsageError: if the model can't be loaded or generates no text.
    """
    found, start, others = Found(plan), time.perf_counter(), Others()
    try:
        import transformers  # noqa: F401
    except ImportError:
        found.missing = "transformers"
    try:
        notify(_("bandwidth of this machine"))
        found.bytes_per_s = reading_bytes_per_s()
        for dtype in plan.dtypes:
            notify(_("loading {model} in {dtype}").format(model=plan.model, dtype=dtype))
            for row in _rows(found, getattr(torch, dtype), notify):
                found.rows.append(row)
    except KeyboardInterrupt:
        found.interrupted = True
    found.seconds, found.others = time.perf_counter() - start, others.share()
    for row in found.rows:
        for name, entry in row["others"].items():
            entry.update(verdict(row["dtype"], name, entry["ratio"], found))
    return found


def _rows(found: Found, dtype: torch.dtype, notify: Notify) -> Iterator[dict[str, Any]]:
    plan = found.plan
    official, model = (
        (None, load(plan.model, dtype=dtype)) if found.missing else _both(plan.model, dtype)
    )
    decoder = Decoder(model.stack)
    generator = torch.Generator().manual_seed(plan.seed)
    for length in plan.prompts:
        notify(f"{name_of(dtype)}, {length}")
        prompt = torch.randint(model.spec.vocabulary, (length,), generator=generator).tolist()
        candidates: dict[str, Candidate] = {OURS: Ours(decoder, prompt, plan.most)}
        if official is not None:
            candidates |= {kind: Theirs(official, prompt, plan.most, kind) for kind in CACHES}
        yield measure(candidates, plan, found.bytes_per_s, model, dtype, length)


def _both(name: str, dtype: torch.dtype) -> tuple[Any, Model]:
    """A model as transformers runs it, and as we do."""
    from headwise.integrations.from_checkpoint import causal_lm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return causal_lm(Path(name), dtype=dtype)


def measure(
    candidates: Mapping[str, Candidate],
    plan: Plan,
    bytes_per_s: float,
    model: Model,
    dtype: torch.dtype,
    length: int,
) -> dict[str, Any]:
    """One row of the result.

    Args:
        candidates: ours, by the name ``OURS``, and others.
        plan: rounds and steps.
        bytes_per_s: bandwidth of reading.
        model, dtype, length: what the row is about.
    """
    timings, first = Timings(), {}
    for name, candidate in candidates.items():
        start = time.perf_counter()
        candidate.prefill()
        first[name] = time.perf_counter() - start
        candidate.advance(plan.steps)  # warms up
    names = list(candidates)
    timings.rounds = {name: [] for name in names}
    for number in range(plan.rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            time.sleep(REST_S)  # threads that the one before left waiting busily disturb nobody
            start = time.perf_counter()
            candidates[name].advance(plan.steps)
            timings.rounds[name].append((time.perf_counter() - start) / plan.steps)
    ours = candidates[OURS]
    assert isinstance(ours, Ours)
    read = stats_of(ours.run.clock).read_bytes_per_step
    step_s = timings.median(OURS)
    assert step_s is not None
    return {
        "dtype": name_of(dtype),
        "prompt_tokens": length,
        "tokens": len(ours.tokens),
        "step_ms": round(step_s * 1e3, 3),
        "spread": timings.spread(OURS),
        "tokens_per_s": round(1.0 / step_s, 2),
        "prefill_ms": round(first[OURS] * 1e3, 1),
        "read_bytes_per_step": None if read is None else round(read),
        "bound_share": round(read / bytes_per_s / step_s, 3) if read and bytes_per_s else None,
        "others": {
            name: {
                "step_ms": round((timings.median(name) or 0.0) * 1e3, 3),
                "spread": timings.spread(name),
                "prefill_ms": round(first[name] * 1e3, 1),
                "ratio": round(timings.ratio(name, OURS) or 0.0, 3),
            }
            | compared(model, ours.run, candidates[name].tokens)
            for name in names
            if name != OURS
        },
    }


def compared(model: Model, run: Run, tokens: Sequence[int]) -> dict[str, Any]:
    """Whether both chose the same tokens; at the first difference, how near the two likeliest were.

    Args:
        model: what was run.
        run: ours.
        tokens: theirs.
    """
    row = run.rows[0]
    pairs = zip(row.tokens, tokens, strict=True)
    place = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if place is None:
        return {"same_tokens": len(row.tokens), "gap": None}
    ids = torch.tensor([[*row.prompt, *row.tokens[:place]]])
    with torch.inference_mode():
        largest = model.stack(ids, logits_rows=1)[0, -1].float().topk(2).values.tolist()
    return {"same_tokens": place, "gap": largest[0] - largest[1]}


def verdict(dtype: str, name: str, ratio: float, found: Found) -> dict[str, Any]:
    """What was promised, and whether this run shows it; None where it can't say.

    Example:
        >>> verdict("float32", "static", 2.0, Found(Plan(), others=0.0))
        {'target': 1.8, 'reached': True}
    """
    target = TARGETS.get((dtype, name)) if found.plan.model == Plan.model else None
    can_say = target is not None and found.others is not None and found.others <= MOST_OTHERS
    return {"target": target, "reached": ratio >= target if can_say and target else None}
