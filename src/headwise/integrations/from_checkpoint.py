"""A checkpoint that our reader has opened, as a model of transformers.

Transformers reads GGUF files too, through another package and several times over; this way is
quicker, accounts for every tensor, and has the rotated pairs decided by proof.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.checkpoints.families import FAMILIES
from headwise.checkpoints.family import Names
from headwise.checkpoints.load import Model, load
from headwise.checkpoints.mapping import write_state
from headwise.errors import TargetError
from headwise.texts import translate as _


def causal_lm(path: Path, *, dtype: torch.dtype) -> tuple[nn.Module, Model]:
    """The language model in a GGUF file, as transformers builds it, and the file as we read it.

    Args:
        path: of the file.
        dtype: of the weights.

    Raises:
        UsageError: if the file can't be read, or its family is not covered.
        TargetError: for an encoder, and if transformers expects other tensors than the file has.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    found = load(path, dtype=dtype)
    if found.spec.head is None:
        raise TargetError(
            _("{path} can't be explained").format(path=path),
            where=f"general.architecture: {found.family}",
            why=_("it is an encoder, and the pieces of words it reads are not read from GGUF"),
            fix=_("the folder that the file was made from"),
        )
    family = FAMILIES[found.family]
    tensors = write_state(
        found.stack.state_dict(),
        family.layout(Names(spec=found.spec, parameters=found.stack.state_dict())),
    )
    fields: dict[str, Any] = dict(family.config(found.spec))
    fields.pop("architectures", None)
    config = AutoConfig.for_model(fields.pop("model_type", found.family), **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    missing, unknown = model.load_state_dict(tensors, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if unknown or set(missing) - tied:
        raise TargetError(
            _("transformers builds another {family} than the file holds").format(
                family=found.family
            ),
            where=str(path),
            why=_("missing: {missing}; unknown: {unknown}").format(
                missing=", ".join(sorted(set(missing) - tied)) or "-",
                unknown=", ".join(unknown) or "-",
            ),
        )
    model.tie_weights()
    return model.eval(), found
