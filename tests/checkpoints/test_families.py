"""Every family against transformers: logits, gradients, files, caches, padding."""

from __future__ import annotations

import pytest
import torch
from tests.checkpoints import tiny

from headwise.checkpoints.families import FAMILIES
from headwise.checkpoints.family import Names
from headwise.checkpoints.load import from_source
from headwise.checkpoints.mapping import write_state
from headwise.numerics import compare

pytest.importorskip("transformers")


def keep_of(name):
    """The second row has padding: behind it for an encoder, before it for a decoder."""
    keep = torch.ones(2, tiny.TEXT_LEN, dtype=torch.bool)
    keep[1, -4:] = name != "bert"
    keep[1, :4] = name == "bert"
    return keep


def weights_of(name, seed=2):
    width = 24 if name == "bert" else tiny.VOCABULARY
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, tiny.TEXT_LEN, width, generator=generator, dtype=torch.float64)


def ours(model, ids, keep, weight, types=None):
    """The same numbers from the stack, gradients under the names of transformers."""
    stack = model.stack
    x = stack.tokens(ids)
    x.retain_grad()
    result = stack(x, keep=keep, types=types)
    (result * keep[..., None] * weight).sum().backward()
    grads = {
        name: value.new_zeros(value.shape) if value.grad is None else value.grad
        for name, value in stack.named_parameters()
    }
    layout = FAMILIES[model.family].layout(Names(spec=model.spec, parameters=grads))
    found = {"result": result.detach() * keep[..., None], "embeddings": x.grad}
    return found | write_state(grads, layout)


@pytest.mark.parametrize("name", tiny.CASES)
def test_logits_and_gradients_are_those_of_transformers(name):
    official, ids, keep, weight = tiny.official(name), tiny.text(), keep_of(name), weights_of(name)
    types = tiny.text(seed=5) % 3 if name == "bert" else None
    more = {} if types is None else {"token_type_ids": types}
    truth = tiny.truth(official, ids, keep, weight, **more)
    model = from_source(tiny.source_of(official))
    assert model.stack.tokens.weight.dtype == torch.float64
    found = ours(model, ids, keep, weight, types)
    assert set(truth.run.found) <= set(found)
    unused = set(found) - set(truth.run.found)  # no gradient there
    assert unused == ({"pooler.dense.weight", "pooler.dense.bias"} if name == "bert" else set())
    for path, want in truth.run.found.items():
        result = compare(found[path], want, allowed=truth.allowed[path])
        assert result.passed, f"{path}: {result.sentence()}"
