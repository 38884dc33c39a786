"""Explain a model that is already in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from headwise.explain.asking import ask
from headwise.explain.explanation import Explanation, explain
from headwise.explain.method import Progress, Settings, silent
from headwise.explain.subject import Kind
from headwise.integrations.loading import HEADS
from headwise.integrations.subject import HfSubject
from headwise.integrations.tokens import HfTokenizer


def explain_text(
    model: nn.Module,
    tokenizer: Any,
    text: str,
    *,
    target: str | None = None,
    against: str | None = None,
    position: int | None = None,
    methods: Sequence[str] | None = None,
    settings: Settings | None = None,
    with_curves: bool = True,
    progress: Progress = silent,
) -> Explanation:
    """What a loaded model of transformers looks at in a text, and how far to believe it.

    In a notebook the result shows itself as the page.

    Args:
        model: a causal or masked language model, a sequence classifier or an encoder.
        tokenizer: of the model.
        text: what it reads.
        target, against, position: what is asked; see ``headwise explain --help``.
        methods: names of methods; None = all.
        settings: of the methods.
        with_curves: measure deletion and insertion curves.
        progress: told what is done.

    Raises:
        UsageError: for a text, a target or a position that this model can't have.
        TargetError: if no attention of the model can be watched.
    """
    modes = {module: module.training for module in model.modules()}
    try:
        return _explained(
            model,
            tokenizer,
            text,
            target=target,
            against=against,
            position=position,
            methods=methods,
            settings=settings,
            with_curves=with_curves,
            progress=progress,
        )
    finally:
        for module, mode in modes.items():  # a model in training goes on training
            module.training = mode


def _explained(
    model: nn.Module,
    tokenizer: Any,
    text: str,
    *,
    target: str | None,
    against: str | None,
    position: int | None,
    **rest: Any,
) -> Explanation:
    subject = HfSubject(
        getattr(model.config, "name_or_path", "") or type(model).__name__,
        model,
        HfTokenizer.of(tokenizer),
        kind_of(type(model).__name__),
    )
    question = ask(subject, subject.read(text), target=target, against=against, position=position)
    return explain(subject, text, question, **rest)


def kind_of(architecture: str) -> Kind:
    """What a model predicts, by the end of its class name.

    Example:
        >>> kind_of("LlamaForCausalLM"), kind_of("BertModel")
        ('causal', 'encoder')
    """
    for end, kind, _loader in HEADS:
        if architecture.endswith(end):
            return kind
    return "encoder"
