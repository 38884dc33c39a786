"""The families that can be loaded, by the ``model_type`` of their configurations."""

from __future__ import annotations

from headwise.checkpoints.bert import BERT
from headwise.checkpoints.family import Family
from headwise.checkpoints.gpt2 import GPT2
from headwise.checkpoints.llama import LLAMA
from headwise.checkpoints.mistral import MISTRAL
from headwise.checkpoints.qwen2 import QWEN2
from headwise.registry import Registry

FAMILIES: Registry[Family] = Registry("model type")
for _family in (GPT2, LLAMA, MISTRAL, QWEN2, BERT):
    FAMILIES.add(_family.name, _family)
