"""Decoding in steps: the line that is right for the first step and wrong for a later one."""

import textwrap

import pytest
import torch
from tests.verifier.layers import D, H, load, pads, tokens, weights_of

from headwise.reference import Inputs, attend
from headwise.spec import Alibi, AttentionSpec, Rope
from headwise.verifier.locate import locate
from headwise.verifier.recorder import record

TURN = """
    def turn(t, pos):
        f = pos[..., None] * 10000.0 ** (-torch.arange(0, 4, 2) / 4).double()
        c, s = f.cos(), f.sin()
        a, b = t[..., :2], t[..., 2:]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def visible(q, k):
        return torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2]).bool()
    """

FORWARD = """
    class Layer(Base):
        def forward(self, x, past=None, keep=None):
            q, k, v = self.heads(x)
            n = x.shape[1]
            {start}
            {positions}
            q = turn(q, pos)
            k = turn(k, pos)
            if past is not None:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            {late}
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible(q, k))
            return self.merge(y), (k, v)
    """
FINE = {
    "start": "start = 0 if past is None else past[0].shape[2]",
    "positions": "pos = torch.arange(start, start + n)",
    "late": "pass",
}
CASES = {
    "offset lost": ("R02", {"positions": "pos = torch.arange(n)  # HERE"}),
    "wrong axis": ("C03", {"start": "start = 0 if past is None else past[0].shape[1]  # HERE"}),
}


def decode(tmp_path, body, code, *, spec, sizes=(3, 1, 1)):
    module, file, marked = load(tmp_path, body)
    layer, x = module.Layer(), tokens()

    def call():
        past, out = None, []
        for part in x.split(list(sizes), 1):
            y, past = layer(part, past)
            out.append(y)
        return torch.cat(out, 1)

    recording = record(call, own_files=[file])
    spec = AttentionSpec(d_model=D, num_heads=H, is_causal=True, **spec)
    inputs = Inputs(x=x)
    correct = attend(spec, weights_of(layer), inputs)
    found = locate(recording, correct=correct, faulty=None, code=code, inputs=inputs, spec=spec)
    return found, marked, recording, correct


def body_of(parts):
    return textwrap.dedent(TURN) + textwrap.dedent(FORWARD).format(**(FINE | parts))


@pytest.mark.parametrize("case", ["offset lost", "wrong axis"])
@pytest.mark.parametrize("sizes", [(3, 1, 1), (2, 3)])
def test_positions_in_steps(tmp_path, case, sizes):
    code, parts = CASES[case]
    found, marked, _, _ = decode(
        tmp_path, body_of(parts), code, spec={"positions": Rope(pairs="halves")}, sizes=sizes
    )
    assert [found.line] == marked, found


def test_keys_turned_again(tmp_path):
    turned = "k = turn(k, torch.arange(k.shape[2]))  # HERE"
    body = body_of({"late": turned}).replace("k = turn(k, pos)", "pass")
    found, marked, recording, correct = decode(
        tmp_path, body, "R08", spec={"positions": Rope(pairs="halves")}
    )
    assert (recording.result - correct.output).abs().max() > 1e-3
    assert [found.line] == marked


def test_unexplained_decoding_is_what_was_right_in_the_first_step(tmp_path):
    clamped = "k = k[:, :, [min(i, 2) for i in range(k.shape[2])]]  # HERE"
    body = body_of({"late": clamped})
    found, marked, _, _ = decode(tmp_path, body, "U00", spec={"positions": Rope(pairs="halves")})
    assert [found.line] == marked


@pytest.mark.parametrize("code", ["R02", "R08", "R12", "C01", "C02", "C03", "U00"])
def test_right_decoding_is_never_blamed(tmp_path, code):
    found, _, recording, correct = decode(
        tmp_path, body_of({}), code, spec={"positions": Rope(pairs="halves")}
    )
    assert torch.allclose(recording.result, correct.output)
    assert (found.line, found.lines) == (None, ())


def test_bias_made_of_the_query_length(tmp_path):
    body = """
        class Layer(Base):
            def forward(self, x, past=None):
                q, k, v = self.heads(x)
                slopes = torch.tensor([0.5, 0.25, 0.125]).double().view(3, 1, 1)
                bias = slopes * torch.arange(x.shape[1])  # HERE
                if past is not None:
                    k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
                ok = torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2]).bool()
                s = (q @ k.mT / 2 + bias).masked_fill(~ok, -torch.inf)
                return self.merge(s.softmax(-1) @ v), (k, v)
        """
    spec = {"positions": Alibi(slopes=(0.5, 0.25, 0.125))}
    found, marked, _, _ = decode(tmp_path, body, "R15", spec=spec)
    assert [found.line] == marked


def test_left_padding_needs_other_positions(tmp_path):
    body = body_of({"positions": "pos = torch.arange(start, start + n)  # HERE"})
    module, file, marked = load(tmp_path, body)
    layer, x, keep = module.Layer(), tokens(), pads(left=True)
    recording = record(lambda: layer(x)[0], own_files=[file])
    spec = AttentionSpec(d_model=D, num_heads=H, is_causal=True, positions=Rope(pairs="halves"))
    inputs = Inputs(x=x, keep=keep)
    correct = attend(spec, weights_of(layer), inputs)
    found = locate(recording, correct=correct, faulty=None, code="R11", inputs=inputs, spec=spec)
    assert [found.line] == marked
