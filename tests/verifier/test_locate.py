"""A fault written in one of many styles is blamed on the line marked HERE, or on none."""

import pytest
from tests.verifier.layers import D, H, blame, closest, load, tokens, weights_of
from tests.verifier.styles import STYLES

from headwise.reference import Inputs, attend
from headwise.spec import AttentionSpec, QkNorm
from headwise.verifier.faults import find_fault
from headwise.verifier.locate import locate
from headwise.verifier.recorder import record


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
