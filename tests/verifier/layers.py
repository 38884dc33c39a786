"""Small layers written as text, so that the line of a fault can be marked in it."""

import importlib.util
import textwrap

import pytest
import torch

from headwise.reference import Inputs, Parameters, attend
from headwise.spec import AttentionSpec
from headwise.verifier.faults import find_fault
from headwise.verifier.faults.masking import NothingToDoError as Skip
from headwise.verifier.locate import locate
from headwise.verifier.recorder import record

B, T, D, H, Dk = 2, 5, 12, 3, 4

HEAD = """\
import math
import torch
from torch import nn
from torch.nn import functional as F


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        for place, name in enumerate("qkvo"):
            layer = nn.Linear(12, 12, bias=False)
            generator = torch.Generator().manual_seed(place)
            layer.weight = nn.Parameter(torch.randn(12, 12, generator=generator))
            setattr(self, name, layer)
        self.double()

    def split(self, t):
        return t.unflatten(-1, (3, 4)).transpose(1, 2)

    def heads(self, x):
        return [self.split(f(x)) for f in (self.q, self.k, self.v)]

    def merge(self, t):
        return self.o(t.transpose(1, 2).flatten(2))


def rotate(t):
    angle = torch.arange(t.shape[-2])[:, None] * 10000.0 ** (-torch.arange(0, 4, 2) / 4).double()
    a, b = t[..., :2], t[..., 2:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
"""


def load(tmp_path, body):
    """The module, its file and the lines marked HERE."""
    source = HEAD + "\n\n" + textwrap.dedent(body)
    file = tmp_path / "layer.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("layer", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    marked = [n for n, line in enumerate(source.split("\n"), 1) if "# HERE" in line]
    return module, str(file), marked


def tokens(length=T):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(B, length, D, generator=generator, dtype=torch.float64)


def pads(left=False):
    keep = torch.arange(T) < torch.tensor([[T], [3]])
    return keep.flip(1) if left else keep


def weights_of(layer):
    return Parameters(**{n: getattr(layer, n).weight.detach() for n in "qkvo"})


def closest(code, spec, parameters, inputs, output):
    """The catalogue's trace that equals the target's output; the test is void without one."""
    for variant in find_fault(code).variants(spec):
        try:
            trace = variant.run(spec, parameters, inputs)
        except Skip:
            continue
        if trace.output.shape == output.shape:
            gap = (trace.output - output).detach().nan_to_num().abs().max()
            if gap < 1e-10:
                return trace
    pytest.fail(f"no variant of {code} equals the target")


def blame(tmp_path, body, code, *, spec=None, keep=None, fault=True, backward=False, **more):
    """The location, and the marked lines."""
    module, file, marked = load(tmp_path, body)
    layer = module.Layer()
    spec = AttentionSpec(d_model=D, num_heads=H, **(spec or {}))
    x = tokens().requires_grad_(backward)
    arguments = () if keep is None else (keep,)
    recording = record(lambda: layer(x, *arguments), own_files=[file], backward=backward, wrt=[x])
    assert recording.error is None
    inputs = Inputs(x=x.detach(), keep=keep)
    parameters = weights_of(layer)
    if more.get("norms"):
        parameters = Parameters(**dict(parameters.items()), **more["norms"](layer))
    correct = attend(spec, parameters, inputs)
    faulty = closest(code, spec, parameters, inputs, recording.result) if fault else None
    found = locate(recording, correct=correct, faulty=faulty, code=code, inputs=inputs, spec=spec)
    return found, marked
