"""A Hugging Face model as something that can be explained.

The model keeps its own attention for plain runs. Where weights are wanted or something is changed,
it runs on the ``headwise`` implementation inside a `Tap`: see ``registration``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, TargetError, UsageError, did_you_mean
from headwise.explain.change import Change
from headwise.explain.question import Question
from headwise.explain.subject import Kind, Parts, Prefix, Run, Text
from headwise.explain.tap import Tap, Watch
from headwise.integrations import residual
from headwise.integrations.registration import implementation, watching
from headwise.integrations.tokens import Tokenizer, read_text
from headwise.numerics import eps
from headwise.texts import translate as _

PROOF_TOKENS = 8
"""Tokens that are run again through a prefix, to see that it holds all the state there is."""


@dataclass(eq=False)
class HfSubject:
    """A loaded model with its tokenizer.

    Args:
        name: what the user calls it.
        model: in eval mode.
        tokenizer: of the model, or a stand-in for one without text.
        kind: what it predicts.
        remarks: what was left out when it was loaded.

    Raises:
        TargetError: if no attention of the model goes through ``AttentionInterface``, or it does
            not run on one text.
    """

    name: str
    model: nn.Module
    tokenizer: Tokenizer
    kind: Kind
    num_layers: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    remarks: tuple[str, ...] = ()
    _projections: list[residual.Projection] = field(default_factory=list, repr=False)
    _last_rows_only: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        """Run once on a few tokens: how many layers and heads there are, and what follows them."""
        self.model.eval()
        ids = torch.arange(1, 5, device=self._device)[None] % self.vocab_size
        self._last_rows_only = self.kind == "causal" and residual.takes(
            self.model, "logits_to_keep"
        )
        tap = Tap(Watch(contexts=True))
        with torch.no_grad(), residual.inputs_of_projections(self.model) as inputs:
            try:
                self._forward(ids, position=None, tap=tap)
            except (ValueError, TypeError) as error:  # an encoder-decoder wants two texts
                raise TargetError(
                    _("{name} does not run on the tokens of one text").format(name=self.name),
                    where=type(self.model).__name__,
                    why=str(error).partition("\n")[0],
                    fix=_("of a model with an encoder and a decoder, give one of the two"),
                ) from error
        seen = tap.seen
        if not seen.num_layers:
            raise TargetError(
                _("{name} has no attention that can be watched").format(name=self.name),
                where=type(self.model).__name__,
                why=_(
                    "none of its layers goes through the AttentionInterface of transformers: it "
                    "has no softmax attention, or attention code of its own"
                ),
            )
        self.num_layers = seen.num_layers
        self.num_heads, self.num_kv_heads = max(seen.num_heads), max(seen.num_kv_heads)
        if len(set(seen.num_heads)) > 1:
            raise TargetError(
                _("the layers of {name} have different numbers of heads").format(name=self.name),
                why=_("found: {counts}").format(counts=sorted(set(seen.num_heads))),
            )
        self._projections = residual.match(tap, inputs, self.model)

    # ------------------------------------------------------------------------------- facts
    @property
    def model_type(self) -> str:
        """The type in its configuration, ``llama``."""
        return str(self._config.model_type)

    @property
    def vocab_size(self) -> int:
        """Number of tokens it knows."""
        table = self._embedding
        return int(table.weight.shape[0])

    @property
    def max_tokens(self) -> int | None:
        """Longest text, or None for no limit."""
        found = getattr(self._text_config, "max_position_embeddings", None)
        if not isinstance(found, int) or found <= 0:
            return None
        # RoBERTa and its kin number places from the one after padding: rows that no token gets.
        unused = max(
            (
                module.padding_idx + 1
                for name, module in self.model.named_modules()
                if name.endswith("position_embeddings")
                and isinstance(module, nn.Embedding)
                and module.padding_idx is not None
                and module.num_embeddings == found
            ),
            default=0,
        )
        return found - unused

    @property
    def mask_id(self) -> int:
        """What stands for a replaced token."""
        return self.tokenizer.mask_id

    @property
    def mask_words(self) -> str:
        """The same as a string."""
        return self.tokenizer.show(self.mask_id)

    @property
    def dtype(self) -> str:
        """Of the embedding table."""
        return str(self._embedding.weight.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """Where the model lives."""
        return str(self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def _config(self) -> Any:
        return self.model.config

    @property
    def _text_config(self) -> Any:
        return self._config.get_text_config()

    @property
    def _embedding(self) -> nn.Embedding:
        return self.model.get_input_embeddings()  # type: ignore[operator, no-any-return]

    # ------------------------------------------------------------------------------- text
    def read(self, text: str) -> Text:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                _("the text is not valid Unicode"),
                where=_("character {index}: {code}").format(
                    index=error.start, code=f"U+{ord(text[error.start]):04X}"
                ),
                why=_("half of a surrogate pair, as bytes that are not UTF-8 give it"),
                fix=_("give the text in UTF-8"),
            ) from error
        found = read_text(self.tokenizer, text)
        if all(found.is_special):  # of no tokens too
            raise UsageError(_("the text is empty"), fix=_("give at least one word"))
        if self.max_tokens is not None and len(found) > self.max_tokens:
            raise UsageError(
                _("the text is too long for {name}").format(name=self.name),
                why=_("it has {count} tokens, the model takes {limit}").format(
                    count=len(found), limit=self.max_tokens
                ),
                fix=_("give a shorter text"),
            )
        largest = int(found.ids.max())
        if largest >= self.vocab_size:
            raise UsageError(
                _("the tokenizer does not belong to {name}").format(name=self.name),
                why=_("it gives token {token}, the model knows {count}").format(
                    token=largest, count=self.vocab_size
                ),
            )
        return Text(found.text, found.ids.to(self._device), found.shown, found.is_special)

    def token(self, id: int) -> str:
        return self.tokenizer.show(id)

    def token_id(self, text: str) -> int:
        ids = self.tokenizer.pieces(text)
        if len(ids) == 1 and ids[0] < self.vocab_size:
            return ids[0]
        shown = " ".join(repr(self.token(i)) for i in ids)
        near = did_you_mean(text, self.tokenizer.some_words())
        raise UsageError(
            _("{text!r} is not one token of {name}").format(text=text, name=self.name),
            why=_("it is {count} tokens: {shown}").format(count=len(ids), shown=shown)
            if ids
            else _("the vocabulary has {count} tokens, and none reads so").format(
                count=self.vocab_size
            ),
            fix=_("did you mean {near!r}?").format(near=near)
            if near
            else _("a token's number is taken too, as in #{id}").format(id=ids[0] if ids else 0),
        )

    # ------------------------------------------------------------------------------- running
    def embed(self, ids: Tensor) -> Tensor:
        found: Tensor = self._embedding(ids)
        return found

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
        tap = None
        if watch is not None or (change is not None and not change.is_empty):
            tap = Tap(watch or Watch(), change or Change())
        with contextlib.nullcontext() if keeps_graph else torch.no_grad():
            out = self._forward(x, position=position, tap=tap, prefix=prefix)
        run = self._read_output(out, position, prefix.length if prefix else 0)
        if change is not None and change.hidden is not None and run.hidden is not None:
            run.keep = ~change.hidden[:, -run.hidden.shape[1] :]
        if tap is not None:
            run.seen = tap.seen
        return run

    def _forward(
        self, x: Tensor, *, position: int | None, tap: Tap | None, prefix: Prefix | None = None
    ) -> Any:
        kwargs: dict[str, Any] = {"use_cache": prefix is not None}
        kwargs["inputs_embeds" if x.is_floating_point() else "input_ids"] = x
        done = 0
        if prefix is not None:
            assert isinstance(prefix, CachedPrefix)
            kwargs[residual.cache_argument(self.model)] = prefix.cache
            done = prefix.length
        kwargs["attention_mask"] = torch.ones(
            x.shape[0], done + x.shape[1], dtype=torch.long, device=x.device
        )
        if self._last_rows_only and position is not None:
            kwargs["logits_to_keep"] = torch.tensor([position - done], device=x.device)
        if position is None and self.kind in {"causal", "masked"}:
            kwargs["output_hidden_states"] = True
        if not residual.takes(self.model, "use_cache"):
            kwargs.pop("use_cache")
        with self._attention(tap):
            if not x.is_floating_point():
                return self.model(**kwargs)
            try:
                return self.model(**kwargs)
            except HeadwiseError:
                raise
            except Exception as error:
                raise TargetError(
                    _("{name} can't be run on embeddings with gradients").format(name=self.name),
                    why=_first_line(error),
                ) from error

    @contextlib.contextmanager
    def _attention(self, tap: Tap | None) -> Iterator[None]:
        if tap is None:
            yield
            return
        with implementation(self.model), watching(tap):
            yield

    def _read_output(self, out: Any, position: int | None, done: int) -> Run:
        if self.kind == "encoder":
            if getattr(out, "last_hidden_state", None) is None:
                raise TargetError(
                    _("{name} gives no embedding").format(name=type(self.model).__name__),
                    why=_(
                        "causal and masked language models, sequence classifiers and plain "
                        "encoders can be explained"
                    ),
                    fix=_("give the encoder inside: model.base_model"),
                )
            return Run(hidden=out.last_hidden_state, logits=None)
        if self.kind == "classifier":
            return Run(hidden=None, logits=out.logits)
        if position is None:
            return Run(hidden=out.hidden_states[-1], logits=None)
        row = 0 if self._last_rows_only else position - done
        return Run(hidden=None, logits=out.logits[:, row])

    def prefixes(self, ids: Tensor) -> CachedPrefixes | None:
        if self.kind != "causal":
            return None
        length = ids.shape[1]
        if length < 2:
            return None
        rows = {"logits_to_keep": 1} if self._last_rows_only else {}
        try:
            found = CachedPrefixes.of(self.model, ids, **rows)
        except Exception:  # noqa: BLE001 - a model with another kind of state: no prefixes then
            return None
        if found is None:
            return None
        # Proof on this text: its last tokens through a prefix have to give what the whole text
        # gives.
        start = max(length // 2, length - PROOF_TOKENS)
        part = self.run(ids[:, start:], position=length - 1, prefix=found.first(start, 1)).logits
        assert part is not None
        whole = found.logits
        allowed = eps(whole.dtype) * 2**9 * float(whole.abs().max())
        return found if float((whole - part).abs().max()) <= allowed else None

    # ------------------------------------------------------------------------------- inside
    def output_projection(self, layer: int) -> Tensor:
        if layer >= len(self._projections):
            raise TargetError(
                _("what follows the attention of {name} is not one output projection").format(
                    name=self.name
                ),
                why=_("no linear layer takes the merged heads of layer {layer} as they are").format(
                    layer=layer
                ),
            )
        return self._projections[layer].by_head(self.num_heads)

    def decompose(self, x: Tensor, question: Question) -> Parts:
        if len(self._projections) < self.num_layers:
            self.output_projection(len(self._projections))  # raises, and says why
        try:
            return residual.decompose(self, self.model, self._projections, x, question)
        except HeadwiseError:
            raise
        except Exception as error:
            raise TargetError(
                _("{name} can't be taken apart into a sum").format(name=self.name),
                why=_first_line(error),
            ) from error


@dataclass(eq=False)
class CachedPrefix:
    """Keys and values of the first tokens, for a batch of rows.

    Args:
        cache: as the model takes it; used up by one run.
        length: tokens in it.
    """

    cache: Any
    length: int


@dataclass(eq=False)
class CachedPrefixes:
    """Keys and values of a whole text, to be cut, and the logits after it."""

    layers: list[tuple[Tensor, Tensor]]
    logits: Tensor

    @classmethod
    def of(cls, model: nn.Module, ids: Tensor, **kwargs: Any) -> CachedPrefixes | None:
        """Run a text once; None if the model keeps anything but keys and values."""
        from transformers import DynamicCache

        cache = DynamicCache()
        with torch.no_grad():
            out = model(
                input_ids=ids, use_cache=True, **{residual.cache_argument(model): cache}, **kwargs
            )
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        if any(keys is None or keys.shape[2] != ids.shape[1] for keys, _values in layers):
            return None
        return cls(layers, out.logits[:, -1])

    def first(self, length: int, batch: int) -> CachedPrefix:
        """The state after ``length`` tokens, for ``batch`` rows."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for index, (keys, values) in enumerate(self.layers):
            shape = (batch, -1, -1, -1)
            cache.update(
                keys[:, :, :length].expand(shape), values[:, :, :length].expand(shape), index
            )
        return CachedPrefix(cache, length)


def _first_line(error: Exception) -> str:
    """One line of an error from a library."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
