"""Find a model by what the user calls it, and load it without any network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from headwise.errors import TargetError, UsageError, did_you_mean
from headwise.explain.subject import Kind
from headwise.integrations.library import quiet, require_transformers
from headwise.integrations.subject import HfSubject
from headwise.integrations.tiny import tiny
from headwise.integrations.tokens import FileTokenizer, HfTokenizer
from headwise.texts import translate as _

HEADS: tuple[tuple[str, Kind, str], ...] = (
    ("ForCausalLM", "causal", "AutoModelForCausalLM"),
    ("LMHeadModel", "causal", "AutoModelForCausalLM"),
    ("ForMaskedLM", "masked", "AutoModelForMaskedLM"),
    ("ForSequenceClassification", "classifier", "AutoModelForSequenceClassification"),
)
"""Ends of architecture names, what such a model predicts, and the class that loads it."""


def load(name: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> HfSubject:
    """A model with its tokenizer, ready to be explained.

    Args:
        name: a pulled model (``smollm2-135m``, ``minilm``), a folder with ``config.json``, a
            ``.gguf`` file, or ``hf:TYPE`` for a tiny random instance.
        dtype: of the weights.
        seed: of a random instance.

    Raises:
        UsageError: if there is no such model; it lists what there is.
        TargetError: if it can't be loaded, or has no attention that can be watched.
    """
    require_transformers()
    if name.startswith("hf:"):
        return tiny(name.removeprefix("hf:"), dtype=dtype, seed=seed)
    path = _find(name)
    gguf = path if path.suffix == ".gguf" else next(iter(sorted(path.glob("*.gguf"))), None)
    with quiet():
        if gguf is not None:
            return _load_gguf(name, gguf, dtype)
        if not (path / "config.json").is_file():
            raise UsageError(
                _("{path} holds no model").format(path=path),
                why=_("neither config.json nor a .gguf file is there"),
            )
        return _load(name, path, dtype)


def _find(name: str) -> Path:
    from headwise.checkpoints.pulled import KNOWN, path_of

    if name in KNOWN:
        return path_of(name)
    path = Path(name).expanduser()
    if path.exists():
        return path
    near = did_you_mean(name, KNOWN)
    raise UsageError(
        _("unknown model {name!r}").format(name=name),
        why=_("it is no folder, no .gguf file and none of: {known}").format(
            known=", ".join([*KNOWN, "hf:TYPE"])
        ),
        fix=_("did you mean {near!r}?").format(near=near) if near else "headwise models",
    )


def _load(name: str, folder: Path, dtype: torch.dtype) -> HfSubject:
    import transformers

    where = str(folder)
    try:
        config = transformers.AutoConfig.from_pretrained(where, local_files_only=True)
        kind, loader = _kind(config)
        model = getattr(transformers, loader).from_pretrained(
            where, dtype=dtype, local_files_only=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, local_files_only=True)
    except _LOADING as error:
        raise _unloadable(name, where, error) from error
    remarks = () if kind != "encoder" else _without_head(config)
    return HfSubject(name, model, HfTokenizer.of(tokenizer), kind, remarks=remarks)


def _without_head(config: Any) -> tuple[str, ...]:
    """What is said where a folder holds a head that can't be asked, such as one for questions."""
    heads = [one for one in config.architectures or () if "For" in one]
    return tuple(
        _(
            "{architecture} is explained as the encoder inside: what its head makes of it can't be "
            "asked"
        ).format(architecture=one)
        for one in heads
    )


def _load_gguf(name: str, path: Path, dtype: torch.dtype) -> HfSubject:
    """Weights and tokenizer by our own reader."""
    from headwise.integrations.from_checkpoint import causal_lm

    model, found = causal_lm(path, dtype=dtype)
    return HfSubject(name, model, FileTokenizer.of(found), "causal")


_LOADING = (OSError, ValueError, KeyError, RuntimeError, ImportError)


def _unloadable(name: str, where: str, error: Exception) -> TargetError:
    lines = str(error).strip().splitlines()
    return TargetError(
        _("{name} can't be loaded").format(name=name),
        where=where,
        why=lines[0] if lines else type(error).__name__,
    )


def _kind(config: Any) -> tuple[Kind, str]:
    for architecture in config.architectures or ():
        for end, kind, loader in HEADS:
            if architecture.endswith(end):
                return kind, loader
    return "encoder", "AutoModel"
