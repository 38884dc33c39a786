"""A fault written in one of many styles is blamed on the line marked HERE, or on none."""

import importlib.util
import textwrap

import pytest
import torch

from headwise.reference import Inputs, Parameters, attend
from headwise.spec import Alibi, AttentionSpec, QkNorm, Rope
from headwise.verifier.faults import find_fault
from headwise.verifier.faults.masking import Skip
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


STYLES = {
    "scale": (
        "S02",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                s = q @ k.mT
                s = s / math.sqrt(12)  # HERE
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "scale-on-queries": (
        "S02",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                q = q * 12 ** -0.5  # HERE
                s = torch.einsum("bhqd,bhkd->bhqk", q, k)
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "scale-twice": (
        "S03",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                q = q / 2
                s = q @ k.mT
                s.div_(2)  # HERE
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "scale-missing": (
        "S01",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                s = q @ k.mT  # HERE
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "scale-in-kernel": (
        "S02",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                y = F.scaled_dot_product_attention(q, k, v, scale=12 ** -0.5)  # HERE
                return self.merge(y)
        """,
    ),
    "softmax-axis-by-hand": (
        "X01",
        {},
        None,
        """
        def normalise(s):
            e = (s - s.amax(-2, keepdim=True)).exp()
            return e / e.sum(-2, keepdim=True)  # HERE

        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                return self.merge(normalise(q @ k.mT / 2) @ v)
        """,
    ),
    "mask-in-helper": (
        "M07",
        {"is_causal": True},
        None,
        """
        def hidden(n):
            return torch.ones(n, n).triu(0).bool()  # HERE

        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                s = (q @ k.mT / 2).masked_fill(hidden(x.shape[1]), -torch.inf)
                s = torch.cat([torch.zeros_like(s[:, :, :1]), s[:, :, 1:]], 2)
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "mask-next-token-additive": (
        "M06",
        {"is_causal": True},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                n = x.shape[1]
                bias = torch.full((n, n), -1e9, dtype=x.dtype).triu(2)  # HERE
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
                return self.merge(y)
        """,
    ),
    "mask-query-axis": (
        "M02",
        {},
        pads(),
        """
        class Layer(Base):
            def forward(self, x, keep):
                q, k, v = self.heads(x)
                mask = keep[:, None, :, None]  # HERE
                s = (q @ k.mT / 2).masked_fill(~mask, -1e9)
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "mask-result-unread": (
        "M04",
        {},
        pads(),
        """
        class Layer(Base):
            def forward(self, x, keep):
                q, k, v = self.heads(x)
                s = q @ k.mT / 2
                torch.where(keep[:, None, None], s, -torch.inf)  # HERE
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "mask-rebound": (
        "M04",
        {},
        pads(),
        """
        class Layer(Base):
            def forward(self, x, keep):
                q, k, v = self.heads(x)
                mask = keep[:, None, None]
                mask = None  # HERE
                return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        """,
    ),
    "mask-branch-skipped": (
        "M04",
        {},
        pads(),
        """
        class Layer(Base):
            use_mask = False

            def forward(self, x, keep):
                q, k, v = self.heads(x)
                s = q @ k.mT / 2
                if self.use_mask:  # HERE
                    s = s.masked_fill(~keep[:, None, None], -torch.inf)
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "mask-forgotten": (
        "M05",
        {"is_causal": True},
        None,
        """
        class Layer(Base):
            def forward(self, x, keep=None):
                q, k, v = self.heads(x)
                s = q @ k.mT / 2
                if keep is not None:
                    s = s.masked_fill(~keep[:, None, None], -torch.inf)
                w = s.softmax(-1)  # HERE
                return self.merge(w @ v)
        """,
    ),
    "mask-after-softmax": (
        "M12",
        {},
        pads(),
        """
        class Layer(Base):
            def forward(self, x, keep):
                q, k, v = self.heads(x)
                w = (q @ k.mT / 2).softmax(-1)
                w = w.masked_fill(~keep[:, None, None], 0.0)  # HERE
                return self.merge(w @ v)
        """,
    ),
    "swapped-by-chunk": (
        "P02",
        {},
        None,
        """
        class Layer(Base):
            def project(self, x):
                return torch.cat([self.q(x), self.k(x), self.v(x)], -1).chunk(3, -1)

            def forward(self, x):
                q, v, k = map(self.split, self.project(x))  # HERE
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """,
    ),
    "values-rotated-by-good-helper": (
        "R04",
        {"positions": Rope(pairs="halves")},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                q = rotate(q)
                k = rotate(k)
                v = rotate(v)  # HERE
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """,
    ),
    "keys-not-rotated": (
        "R05",
        {"positions": Rope(pairs="halves")},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                q = rotate(q)  # HERE
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """,
    ),
    "alibi-sign": (
        "R13",
        {"positions": Alibi(slopes=(0.5, 0.25, 0.125))},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                i = torch.arange(x.shape[1])
                slopes = torch.tensor([0.5, 0.25, 0.125]).view(3, 1, 1)
                bias = (i[:, None] - i) * slopes  # HERE
                return self.merge((q @ k.mT / 2 + bias).softmax(-1) @ v)
        """,
    ),
    "merge-view": (
        "G01",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                y = F.scaled_dot_product_attention(q, k, v)
                y = y.contiguous().view(x.shape)  # HERE
                return self.o(y)
        """,
    ),
    "split-view": (
        "H01",
        {},
        None,
        """
        class Layer(Base):
            def heads(self, x):
                shape = (x.shape[0], 3, x.shape[1], 4)
                return [f(x).view(shape) for f in (self.q, self.k, self.v)]  # HERE

            def forward(self, x):
                q, k, v = self.heads(x)
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """,
    ),
    "weights-transposed": (
        "A01",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                w = (q @ k.mT / 2).softmax(-1)
                return self.merge(w.mT @ v)  # HERE
        """,
    ),
    "heads-in-a-loop": (
        "X01",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                out = []
                for h in range(3):
                    s = q[:, h] @ k[:, h].mT / 2
                    w = s.softmax(1)  # HERE
                    out.append(w @ v[:, h])
                return self.o(torch.cat(out, -1))
        """,
    ),
    "residual": (
        "O03",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                y = self.merge(F.scaled_dot_product_attention(q, k, v))
                return x + y  # HERE
        """,
    ),
    "float32-target": (
        "S02",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = (t.double() for t in self.heads(x))
                s = q @ k.mT
                s = s / math.sqrt(12)  # HERE
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
}


@pytest.mark.parametrize("style", STYLES)
def test_line_of_a_stage_fault(tmp_path, style):
    code, spec, keep, body = STYLES[style]
    found, marked = blame(tmp_path, body, code, spec=spec, keep=keep)
    assert [found.line] == marked, found
    assert found.lines[0] == found.line


def test_qk_norm_gain_unused_blames_the_caller_of_the_norm(tmp_path):
    body = """
        def rms(t):
            return t / (t.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()

        class Layer(Base):
            def __init__(self):
                super().__init__()
                self.gains = nn.Parameter(torch.arange(1.0, 5.0).double())

            def forward(self, x):
                q, k, v = self.heads(x)
                q, k = rms(q), rms(k)  # HERE
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """
    gains = lambda layer: {"q_norm": layer.gains.detach(), "k_norm": layer.gains.detach()}  # noqa: E731
    found, marked = blame(tmp_path, body, "P07", spec={"qk_norm": QkNorm()}, norms=gains)
    assert [found.line] == marked


CUTS = {
    "detach": "k = k.detach()  # HERE",
    "data": "k = k.data  # HERE",
    "rebuilt": "k = torch.from_numpy(k.detach().numpy())  # HERE",
    "no-grad": "with torch.no_grad(): k = self.split(self.k(x))  # HERE",
}


@pytest.mark.parametrize("cut", CUTS)
def test_gradient_cut_is_found_and_the_detached_maximum_is_not(tmp_path, cut):
    body = f"""
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                {CUTS[cut]}
                s = q @ k.mT / 2
                s = s - s.amax(-1, keepdim=True).detach()
                return self.merge(s.softmax(-1) @ v)
        """
    found, marked = blame(tmp_path, body, "T01", fault=False, backward=True)
    assert [found.line] == marked
    assert found.stage == "gradient"


def test_detached_maximum_alone_is_no_cut(tmp_path):
    body = """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                s = q @ k.mT / 2
                s = s - s.amax(-1, keepdim=True).detach()
                return self.merge(s.softmax(-1) @ v)
        """
    found, _ = blame(tmp_path, body, "T01", fault=False, backward=True)
    assert found.line is None
    assert found.reason


BACKWARD = """
    class Core(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            n = q.shape[2]
            hide = torch.ones(n, n).triu(1).bool()
            w = (q @ k.mT / 2).masked_fill(hide, -torch.inf).softmax(-1)
            ctx.save_for_backward(q, k, v, w)
            return w @ v

        @staticmethod
        def backward(ctx, g):
            q, k, v, w = ctx.saved_tensors
            {weights}
            dw = g @ v.mT
            {scores}
            {end}

    class Layer(Base):
        def forward(self, x):
            return self.merge(Core.apply(*self.heads(x)))
    """
FINE = {
    "weights": "w = w * 1.0",
    "scores": "ds = w * (dw - (w * dw).sum(-1, keepdim=True))",
    "end": "return ds @ k / 2, ds.mT @ q / 2, w.mT @ g",
}


@pytest.mark.parametrize(
    ("code", "place", "line"),
    [
        ("T02", "weights", "w = (q @ k.mT / 2).softmax(-1)  # HERE"),
        ("T03", "scores", "ds = w * dw  # HERE"),
        ("T04", "end", "return ds @ k, ds.mT @ q, w.mT @ g  # HERE"),
    ],
)
def test_hand_written_backward(tmp_path, code, place, line):
    body = textwrap.dedent(BACKWARD).format(**(FINE | {place: line}))
    found, marked = blame(
        tmp_path, body, code, spec={"is_causal": True}, fault=False, backward=True
    )
    assert [found.line] == marked


BEHAVIOUR = {
    "B01": "x = F.dropout(x, 0.5, training=True)  # HERE",
    "B02": "x.mul_(2)  # HERE",
    "B04": "self.seen = x  # HERE",
    "D02": "x = x.float().double()  # HERE",
}


@pytest.mark.parametrize("code", BEHAVIOUR)
def test_behaviour_and_precision(tmp_path, code):
    body = f"""
        class Layer(Base):
            seen = None

            def __init__(self):
                super().__init__()
                self.seen = None

            def forward(self, x):
                {BEHAVIOUR[code]}
                q, k, v = self.heads(x)
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """
    found, marked = blame(tmp_path, body, code, fault=False)
    assert [found.line] == marked


def test_empty_row_gives_the_softmax_and_the_fill(tmp_path):
    body = """
        class Layer(Base):
            def forward(self, x, keep):
                q, k, v = self.heads(x)
                s = q @ k.mT / 2
                s = s.masked_fill(~keep[:, None, None], -torch.inf)  # HERE
                w = s.softmax(-1)  # HERE
                return self.merge(w @ v)
        """
    keep = torch.arange(T) < torch.tensor([[T], [0]])
    found, marked = blame(tmp_path, body, "M26", keep=keep, fault=False)
    assert (found.line, sorted(found.lines)) == (marked[1], marked)


def test_unexplained_is_the_first_reader_of_what_is_right(tmp_path):
    body = """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                s = q @ k.mT / 2
                s = s.sin() * s.cos()  # HERE
                return self.merge(s.softmax(-1) @ v)
        """
    found, marked = blame(tmp_path, body, "U00", fault=False)
    assert [found.line] == marked
    assert found.stage == "softmax"


CORRECT = """
    class Layer(Base):
        def forward(self, x):
            q, k, v = self.heads(x)
            n = x.shape[1]
            hide = torch.ones(n, n).triu(1).bool()
            s = (q @ k.mT / 2).masked_fill(hide, -torch.inf)
            return self.merge(s.softmax(-1) @ v)
    """


@pytest.mark.parametrize("code", ["S02", "M06", "M07", "X01", "G01", "P02", "A01", "H01"])
def test_right_code_is_never_blamed(tmp_path, code):
    module, file, _ = load(tmp_path, CORRECT)
    layer, x = module.Layer(), tokens()
    spec = AttentionSpec(d_model=D, num_heads=H, is_causal=True)
    recording = record(lambda: layer(x), own_files=[file])
    inputs, parameters = Inputs(x=x), weights_of(layer)
    correct = attend(spec, parameters, inputs)
    for variant in find_fault(code).variants(spec):
        faulty = variant.run(spec, parameters, inputs)
        found = locate(recording, correct=correct, faulty=faulty, code=code, inputs=inputs)
        assert (found.file, found.line, found.lines) == (None, None, ())
        assert found.reason


def test_no_line_outside_the_target(tmp_path):
    module, _, _ = load(tmp_path, STYLES["scale"][3])
    layer, x = module.Layer(), tokens()
    spec = AttentionSpec(d_model=D, num_heads=H)
    recording = record(lambda: layer(x), own_files=[])
    inputs, parameters = Inputs(x=x), weights_of(layer)
    faulty = closest("S02", spec, parameters, inputs, recording.result)
    correct = attend(spec, parameters, inputs)
    found = locate(recording, correct=correct, faulty=faulty, code="HW-S02")
    assert (found.line, found.stage) == (None, "scores")
    assert "no line of the target's own files" in found.reason
