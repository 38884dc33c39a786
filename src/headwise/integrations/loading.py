"""Find a model by what the user calls it, and load it without any network."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from headwise.errors import TargetError, UsageError, did_you_mean
from headwise.explain.subject import Kind
from headwise.integrations.subject import HfSubject
from headwise.integrations.tokens import HfTokenizer, WordTokenizer
from headwise.integrations.transformers import SIZES, TYPE_SIZES
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
    _require_transformers()
    if name.startswith("hf:"):
        return tiny(name.removeprefix("hf:"), dtype=dtype, seed=seed)
    path = _find(name)
    gguf = path if path.suffix == ".gguf" else next(iter(sorted(path.glob("*.gguf"))), None)
    with _quiet():
        if gguf is not None:
            return _load(name, gguf.parent, dtype, gguf_file=gguf.name)
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


def _require_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise TargetError(
            _("transformers is not installed"),
            fix="pip install 'headwise[hf,models]'",
        ) from error


def _load(name: str, folder: Path, dtype: torch.dtype, **extra: Any) -> HfSubject:
    import transformers

    where = str(folder)
    try:
        config = transformers.AutoConfig.from_pretrained(where, local_files_only=True, **extra)
        kind, loader = _kind(config, is_gguf=bool(extra))
        model = getattr(transformers, loader).from_pretrained(
            where, dtype=dtype, local_files_only=True, **extra
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            where, local_files_only=True, **extra
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise TargetError(
            _("{name} can't be loaded").format(name=name),
            where=where,
            why=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
        ) from error
    return HfSubject(name, model, HfTokenizer.of(tokenizer), kind)


def _kind(config: Any, *, is_gguf: bool) -> tuple[Kind, str]:
    if is_gguf:
        return "causal", "AutoModelForCausalLM"
    for architecture in config.architectures or ():
        for end, kind, loader in HEADS:
            if architecture.endswith(end):
                return kind, loader
    return "encoder", "AutoModel"


def tiny(model_type: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> HfSubject:
    """A small random instance of a model type; every parameter is filled with random numbers.

    Example:
        >>> tiny("gpt2").num_layers
        2
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    _require_transformers()
    if model_type not in CONFIG_MAPPING_NAMES:
        near = did_you_mean(model_type, CONFIG_MAPPING_NAMES)
        raise UsageError(
            _("transformers has no model type {type!r}").format(type=model_type),
            fix=_("did you mean {near!r}?").format(near=near) if near else "hf:llama, hf:bert, …",
        )
    kind: Kind = "encoder"
    loader = "AutoModel"
    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        kind, loader = "causal", "AutoModelForCausalLM"
    if model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        kind, loader = "masked", "AutoModelForMaskedLM"
    state = torch.get_rng_state()
    try:
        torch.manual_seed(seed)
        with _quiet():
            config = tiny_config(model_type)
            model = getattr(transformers, loader).from_config(config).to(dtype).eval()
            fill(model)
    except Exception as error:
        raise TargetError(
            _("a tiny {type} can't be built").format(type=model_type),
            why=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        ) from error
    finally:
        torch.set_rng_state(state)
    table = model.get_input_embeddings()
    return HfSubject(f"hf:{model_type}", model, WordTokenizer(int(table.weight.shape[0])), kind)


def tiny_config(model_type: str) -> Any:
    """The configuration of a tiny instance, as the verifier builds it."""
    from transformers import AutoConfig

    sizes = {**SIZES, **TYPE_SIZES.get(model_type, {})}
    base = AutoConfig.for_model(model_type)
    known = {**base.to_dict(), **dict.fromkeys(getattr(base, "attribute_map", {}))}
    return AutoConfig.for_model(
        model_type,
        **{name: value for name, value in sizes.items() if name in known},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


def fill(model: torch.nn.Module) -> None:
    """Give every parameter random numbers: fresh layers have zero biases and unit gains."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
            elif "norm" in name.lower() or name.lower().endswith("ln_f.weight"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.normal_(0.0, 0.1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars, hints and warnings of the libraries out of our output."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
