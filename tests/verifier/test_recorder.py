"""What is recorded: operations, lines, values at the time, data flow, variables, backward."""

import sys

import pytest
import torch
from tests.verifier.layers import load
from torch.nn import functional as F

from headwise.verifier.recorder import record

SOURCE = """
    def inner(x):
        return x * 2

    def outer(x):
        y = inner(x)
        z = [t + 1 for t in (y,)]
        return z[0]

    def in_place(x):
        y = torch.zeros_like(x)
        for row in range(2):
            y[row][1:] = x[row][1:]
        y.add_(1)
        return y

    def unread(x):
        x + 1
        v = (x * 3)[0]
        (x * 5)[0]
        return v

    def rebound(x):
        mask = x > 0
        kept = x * 2
        kept = kept + 1
        if True:
            mask = None
        return kept

    def raises(x):
        y = x + 1
        raise ValueError("no")

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    def custom(x):
        return Twice.apply(x)

    def cut(x):
        return x.data + x.detach()

    def kernel(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def headwise_run(f, x):
        return f(-x)

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(2, 3))
            self.count = 0

        def forward(self, x):
            self.seen = x + 1
            return self.seen * 1
    """


@pytest.fixture
def target(tmp_path):
    module, file, _ = load(tmp_path, SOURCE)
    return module, [file]


def line_of(file, text):
    with open(file) as lines:  # noqa: PTH123
        return next(n for n, line in enumerate(lines, 1) if text in line)


def by_name(recording, name):
    return [op for op in recording.ops if op.name == name]


X = torch.arange(6.0).reshape(2, 3)


def test_frames_innermost_first_and_own_only(target):
    module, files = target
    recording = record(lambda: module.outer(X), own_files=files)
    (mul,) = by_name(recording, "mul")
    assert [f.function for f in mul.frames] == ["inner", "outer"]
    assert [f.line for f in mul.frames] == [
        line_of(files[0], "return x * 2"),
        line_of(files[0], "y = inner(x)"),
    ]
    assert {f.file for f in mul.frames} == set(files)


def test_no_own_file_gives_no_frames(target):
    module, _ = target
    recording = record(lambda: module.outer(X), own_files=[])
    assert [op.frames for op in recording.ops] == [()] * len(recording.ops)
    assert not recording.executed


def test_adapters_are_not_the_target(target):
    module, files = target
    call = lambda: module.headwise_run(module.inner, X)  # noqa: E731
    neg, mul = record(call, own_files=files).ops
    assert neg.frames == ()
    assert [f.function for f in mul.frames] == ["inner"]
    code = module.inner.__code__
    assert record(call, own_files=files, adapters=[code]).ops[1].frames == ()


def test_values_are_those_of_the_moment(target):
    module, files = target
    recording = record(lambda: module.in_place(X + 5), own_files=files)
    writes = [op for op in recording.ops if op.in_place]
    assert [op.name for op in writes] == ["copy_", "copy_", "add_"]
    assert all(op.written[0].shape == (2, 3) for op in writes)  # the whole, not the view
    first, second, last = (op.written[0].data for op in writes)
    assert first.tolist() == [[0, 6, 7], [0, 0, 0]]
    assert second.tolist() == [[0, 6, 7], [0, 9, 10]]
    assert last.tolist() == [[1, 7, 8], [1, 10, 11]]


def test_who_reads_what(target):
    module, files = target
    recording = record(lambda: module.unread(X), own_files=files)
    (add,) = by_name(recording, "add")
    three, five = by_name(recording, "mul")
    assert not recording.is_used(add)
    assert recording.is_used(three)  # returned, through a view
    assert not recording.is_used(five)  # a view that nobody reads is no use
    assert [op.name for op in recording.consumers(five)] == ["select"]


def test_descendants_follow_views_and_copies(target):
    module, files = target
    recording = record(lambda: module.outer(X), own_files=files)
    start = recording.ops[0].inputs[0].storage
    reached = recording.descendants({start})
    assert {op.outputs[0].storage for op in recording.ops} <= reached
    assert recording.descendants({-1}) == {-1}


def test_rebinding_to_none(target):
    module, files = target
    recording = record(lambda: module.rebound(X), own_files=files)
    (mask,) = [bound for bound in recording.rebinds if bound.name == "mask"]
    assert (mask.to_none, mask.after) == (True, None)
    assert mask.before == by_name(recording, "gt")[0].outputs[0].storage
    assert mask.line == line_of(files[0], "mask = None")
    (kept,) = [bound for bound in recording.rebinds if bound.name == "kept"]
    assert kept.after == by_name(recording, "add")[0].outputs[0].storage


def test_attributes_that_change(target):
    module, files = target
    layer = module.Module()
    recording = record(lambda: layer(X), own_files=files)
    assert [bound.name for bound in recording.rebinds] == ["self.seen"]
    assert recording.rebinds[0].line == line_of(files[0], "self.seen = x + 1")


def test_a_target_that_raises_is_kept(target):
    module, files = target
    before = sys.gettrace()
    recording = record(lambda: module.raises(X), own_files=files)
    assert isinstance(recording.error, ValueError)
    assert recording.result is None
    assert [op.name for op in recording.ops] == ["add"]
    assert sys.gettrace() is before
    (torch.ones(1) + 1).sum()  # no mode is left behind
    assert len(recording.ops) == 1


def test_backward_of_a_hand_written_function(target):
    module, files = target
    x = X.clone().requires_grad_()
    recording = record(lambda: module.custom(x), own_files=files, backward=True, wrt=[x])
    own = [op for op in recording.ops if op.backward and op.frames]
    assert [op.frames[0].line for op in own] == [line_of(files[0], "return g * 2")]
    assert recording.grads[0].shape == x.shape
    assert x.grad is None
    again = record(lambda: module.custom(x), own_files=files, backward=True, wrt=[x])
    assert torch.equal(recording.grads[0], again.grads[0])
    other = record(lambda: module.custom(x), own_files=files, backward=True, wrt=[x], grad_seed=1)
    assert not torch.equal(recording.grads[0], other.grads[0])


def test_backward_without_anything_to_differentiate(target):
    module, files = target
    recording = record(lambda: module.inner(X), own_files=files, backward=True, wrt=[X])
    assert recording.error is None
    assert recording.grads == (None,)


def test_calls_show_what_the_dispatcher_does_not(target):
    module, files = target
    x = X.clone().requires_grad_()
    recording = record(lambda: module.cut(x), own_files=files)
    cuts = [c for c in recording.calls if c.name in ("data", "detach")]
    assert len(cuts) == 2
    for call in cuts:
        assert call.inputs[0].requires_grad
        assert not call.outputs[0].requires_grad
    quiet = record(lambda: F.dropout(X, 0.5, training=False), own_files=files)
    assert [c.name for c in quiet.calls] == ["dropout"]
    assert record(lambda: module.cut(x), own_files=files, calls=False).calls == ()


def test_fused_kernel_is_one_operation_with_its_inputs(target):
    module, files = target
    q, k, v = torch.randn(3, 2, 3, 5, 4).unbind(0)
    recording = record(lambda: module.kernel(q, k, v), own_files=files)
    (call,) = recording.calls
    assert call.name == "scaled_dot_product_attention"
    assert [torch.equal(a.data, b) for a, b in zip(call.inputs, (q, k, v), strict=True)] == [
        True
    ] * 3
    assert call.details["is_causal"] is True


def test_strides_are_those_of_the_tensor():
    recording = record(lambda: X.t().contiguous(), own_files=[])
    turned, copied = recording.ops
    assert (turned.view, turned.outputs[0].stride, turned.outputs[0].contiguous) == (
        True,
        (1, 3),
        False,
    )
    assert (copied.view, copied.outputs[0].stride) == (False, (2, 1))


def test_large_and_unusual_tensors_are_not_copied():
    large = record(lambda: torch.zeros(600, 600).add(1), own_files=[])
    assert large.ops[-1].outputs[0].data is None
    sparse = record(lambda: torch.eye(3).to_sparse().coalesce(), own_files=[])
    assert sparse.error is None


def test_library_modules_are_seen_inside():
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 3, 8)
    recording = record(lambda: layer(x, x, x), own_files=[])
    assert recording.error is None
    assert len(recording.ops) > 5


def test_vmap_is_survived():
    recording = record(lambda: torch.vmap(lambda t: t * 2)(X), own_files=[])
    assert recording.error is None
    assert torch.equal(recording.result, X * 2)
