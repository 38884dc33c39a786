"""Faults without a stage: gradients, NaN, randomness, state, precision."""

import textwrap

import pytest
import torch
from tests.verifier.layers import T, blame

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
