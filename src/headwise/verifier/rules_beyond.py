"""Rules for NaN, precision, gradients, randomness and state."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.texts import translate as _
from headwise.verifier.evidence import Case, Location
from headwise.verifier.recorder import Frame, Operation, Value
from headwise.verifier.rules_forward import FACTORS, is_kernel

RANDOM = ("dropout", "bernoulli", "native_dropout", "alpha_dropout", "feature_dropout")


def is_random(op: Operation) -> bool:
    """Whether an operation draws random numbers."""
    return any(op.name.startswith(name) for name in RANDOM)


def _finite(value: Value) -> bool:
    data = value.data
    return data is None or not data.is_floating_point() or bool(data.isfinite().all())


def _has(value: Value, test: str) -> bool:
    data = value.data
    if data is None or not data.is_floating_point():
        return False
    return bool(getattr(torch, test)(data).any())


def first_nan(case: Case) -> Location | None:
    """The first NaN, and the first −∞ that led to it."""
    ops = [op for op in case.recording.ops if op.frames]
    nan = next((op for op in ops if any(_has(v, "isnan") for v in op.results)), None)
    if nan is None:
        softmaxes = [op for op in ops if "softmax" in op.name or is_kernel(op)]
        nan = next(iter(softmaxes), None)
    fill = next(
        (
            op
            for op in ops
            if nan and op.index < nan.index and any(_has(v, "isinf") for v in op.results)
        ),
        None,
    )
    if nan is None or (not any(_has(v, "isnan") for v in nan.results) and fill is None):
        return None
    return case.at(nan, _("the first value that is not a number appears here"), fill)


def fill_number(case: Case) -> Location | None:
    """Where the number comes in with which hidden scores are written."""
    faulty = case.a.faulty
    scores, masked, visible = faulty.scores, faulty.masked_scores, faulty.visible
    if not all(isinstance(t, Tensor) for t in (scores, masked, visible)):
        return None
    hidden = ~visible.expand(scores.shape)
    if not bool(hidden.any()):
        return None
    candidates = (masked[hidden].double(), (masked - scores)[hidden].double())
    made = [m.op for m in case.a.producers("masked_scores") if m.op.frames]
    for numbers in candidates:
        value = float(numbers[0])
        if not torch.isfinite(numbers).all() or float((numbers - value).abs().max()) > 1e-6 * abs(
            value
        ):
            continue
        for op in case.recording.ops:
            data = op.results[0].data if op.results else None
            if not op.frames or op.backward or data is None or not data.is_floating_point():
                continue
            close = (data.double() - value).abs() <= 1e-6 * abs(value)
            if bool(close.any()) and bool((close | (data >= -1.0) | data.isinf()).all()):
                return case.at(op, _("hidden scores get the number {value:g}").format(value=value),
                               *made[:1])  # fmt: skip
    if made:
        return case.at(made[0], _("hidden scores get a finite number here"))
    kernel = next((op for op in case.recording.ops if op.frames and is_kernel(op)), None)
    return case.at(kernel, _("the kernel gets the mask here"))


def first_infinity(case: Case) -> Location | None:
    """The first infinity that is computed from finite numbers."""
    fills = {"masked_fill", "masked_fill_", "full", "full_like", "fill_", "where", "scalar_tensor"}
    for op in case.recording.ops:
        if not op.frames or op.name in fills or op.backward or op.view:
            continue
        if any(_has(v, "isinf") for v in op.results) and all(_finite(v) for v in op.inputs):
            nan = next(
                (o for o in case.recording.ops if any(_has(v, "isnan") for v in o.results)), None
            )
            return case.at(op, _("finite numbers become infinite here"), nan)
    return None


def leaking_product(case: Case) -> Location | None:
    """Zero weights meet values that are NaN."""
    for op in case.recording.ops:
        if not op.frames or not any(_has(v, "isnan") for v in op.results):
            continue
        if is_kernel(op):
            return case.at(op, _("hidden NaN is multiplied by a weight of zero here"))
        if op.name in ("bmm", "mm", "matmul") and _zero_meets_nan(op):
            return case.at(op, _("hidden NaN is multiplied by a weight of zero here"))
        if op.name in ("add", "add_", "baddbmm") and any(_hides(v) for v in op.inputs):
            return case.at(op, _("a number added to NaN does not hide it"))
    return None


def _zero_meets_nan(op: Operation) -> bool:
    """Whether a row without NaN, with a zero in it, comes out of a product as NaN."""
    left, product = op.inputs[0].data, op.results[0].data
    if left is None or product is None or left.shape[:-1] != product.shape[:-1]:
        return False
    clean = ~left.isnan().any(-1) & (left == 0).any(-1)
    return bool((clean & product.isnan().any(-1)).any())


def _hides(value: Value) -> bool:
    """Whether a tensor is an additive mask: zeros and very low numbers, nothing else."""
    data = value.data
    if data is None or not data.is_floating_point() or data.isnan().any():
        return False
    low = data < -99.0
    return bool(low.any()) and bool((low | (data == 0)).all())


def narrowing(case: Case) -> Location | None:
    """The first cast to a lower precision, or softmax in it."""
    for op in case.recording.ops:
        wide = [v.dtype.itemsize for v in op.inputs if v.dtype.is_floating_point]
        narrow = [v.dtype.itemsize for v in op.outputs if v.dtype.is_floating_point]
        if op.frames and wide and narrow and min(narrow) < max(wide) and not op.backward:
            return case.at(op, _("the precision drops here"))
    for op in case.recording.ops:
        widths = {v.dtype.itemsize for v in op.inputs if v.dtype.is_floating_point and v.shape}
        if op.frames and len(widths) > 1 and not op.backward:
            return case.at(op, _("numbers of lower precision come in here"))
    return None


def half_softmax(case: Case) -> Location | None:
    """The softmax that runs in half precision."""
    for op in case.recording.ops:
        if op.frames and "softmax" in op.name and not op.backward:
            return case.at(op, _("the probabilities are computed in the input's precision here"))
    repeated: dict[tuple[str, int], list[Operation]] = {}
    for op in case.recording.ops:
        if op.frames and not op.backward and op.name in ("add", "add_"):
            place = (op.frames[0].file, op.frames[0].line)
            repeated.setdefault(place, []).append(op)
    loops = [ops for ops in repeated.values() if len(ops) > 2]
    for ops in loops:
        return case.at(ops[0], _("a sum is kept in the input's precision here"), *(
            more[0] for more in loops))  # fmt: skip
    return None


def cut_gradient(case: Case) -> Location | None:
    """The call that took a tensor needing a gradient and gave one that has none."""
    calls = case.recording.calls
    cuts = [
        call
        for call in calls
        if call.frames
        and not call.in_function
        and not call.backward
        and any(v.requires_grad and v.dtype.is_floating_point for v in call.inputs)
        and call.outputs
        and all(v.dtype.is_floating_point for v in call.outputs)
        and not any(v.requires_grad for v in call.outputs)
    ]
    known = [call for call in cuts if _matters(case, call)]
    for call in known:
        switches = [
            c for c in calls if "set_grad_enabled" in c.name and c.frames and c.index <= call.index
        ]
        return case.at(
            call, _("{name} cuts the gradient here").format(name=call.name), *switches[-1:]
        )
    for op in case.recording.ops:
        if op.backward and op.frames:
            return case.at(op, _("the hand-written backward pass returns no gradient"))
    return None


def _matters(case: Case, call: Operation) -> bool:
    """Whether a call's output is a tensor whose gradient is owed.

    That is a tensor of the definition, or a parameter; the row maximum, detached by right, is none.
    """
    a, rec = case.a, case.recording
    reached = rec.descendants({v.storage for v in call.outputs})
    for value in (*call.inputs, *call.outputs):
        got = a.array(value)
        if got is None:
            continue
        if any(t.grade(got, 1e-6) is not None for t in (*a.right.values(), *a.wrong.values())):
            return True
    leaf = [v for v in call.inputs if v.requires_grad and v.storage not in rec.producers]
    return bool(leaf) and any(storage in rec.result_storages for storage in reached)


def backward_without_mask(case: Case) -> Location | None:
    """Weights are rebuilt in the backward pass without the mask."""
    own = [op for op in case.recording.ops if op.backward and op.frames]
    visible, scores = case.a.correct.visible, case.a.correct.scores
    if not isinstance(visible, Tensor) or not isinstance(scores, Tensor):
        return None
    hidden = ~visible.expand(scores.shape)
    row = scores.detach().masked_fill(hidden, -torch.inf).logsumexp(-1, keepdim=True)
    candidates = [(scores - row).exp(), scores.softmax(-1)]
    for op in own:
        for value in op.results:
            got = value.data
            if got is None or got.shape != scores.shape or not got.is_floating_point():
                continue
            if any(
                torch.allclose(got.double(), c.detach().double(), 1e-5, 1e-8) for c in candidates
            ):
                return case.at(op, _("the weights are rebuilt here without the mask"))
    for op in own:
        for value in op.results:
            if value.data is not None and value.shape == tuple(scores.shape):
                leaks = value.data[hidden]
                if leaks.is_floating_point() and bool((leaks != 0).any()):
                    return case.at(op, _("hidden cells have a gradient here"))
    return None


def backward_product(case: Case) -> Location | None:
    """The product of weights and their gradient, from which the row sum should be taken."""
    own = [op for op in case.recording.ops if op.backward and op.frames]
    weights = case.a.right.get("weights")
    for op in own:
        square = tuple(case.a.correct.scores.shape)
        arrays = [case.a.array(value) for value in op.inputs if value.shape == square]
        uses = (
            weights is not None
            and len(arrays) > 1
            and any(got is not None and weights.grade(got, 1e-6) is not None for got in arrays)
        )
        if uses and op.name in ("mul", "mul_"):
            return case.at(op, _("the row sum of the softmax's gradient is missing here"))
    return backward_end(case)


def backward_end(case: Case) -> Location | None:
    """The last own operation of the backward pass, where the gradients of q and k are scaled."""
    own = [op for op in case.recording.ops if op.backward and op.frames]
    factors = [op for op in own if op.name in FACTORS and set(op.details.values()) - {0, 1, -1}]
    if not own:
        return None
    op = factors[-1] if factors else own[-1]
    return case.at(op, _("the gradients leave the backward pass here"), own[-1], *factors)


def random_call(case: Case) -> Location | None:
    """The first call that draws random numbers."""
    for op in (*case.recording.calls, *case.recording.ops):
        if not op.frames or not (is_random(op) or op.name.startswith(("rand", "uniform"))):
            continue
        pairs = [(i.data, o.data) for i in op.inputs[:1] for o in op.outputs[:1]]
        same = [i is not None and o is not None and torch.equal(i, o) for i, o in pairs]
        if not any(same):
            return case.at(op, _("{name} draws random numbers here").format(name=op.name))
    return None


def dropout_on_scores(case: Case) -> Location | None:
    """Dropout whose input is the scores."""
    scores = [case.a.right[name] for name in ("masked_scores", "scores") if name in case.a.right]
    for op in (*case.recording.calls, *case.recording.ops):
        if op.frames and is_random(op):
            arrays = [case.a.array(value) for value in op.inputs]
            if any(
                got is not None and s.grade(got, 1e-6) is not None for got in arrays for s in scores
            ):
                return case.at(op, _("the scores, not the weights, are dropped here"))
    return random_call(case)


def mutated_input(case: Case) -> Location | None:
    """The first in-place operation on memory that the target did not make."""
    for op in case.recording.ops:
        if op.frames and not op.backward:
            made = case.recording.producers
            for storage in op.mutated:
                if min(made[storage]) == op.index:
                    return case.at(
                        op, _("{name} writes into the caller's tensor").format(name=op.name)
                    )
    return None


def kept_state(case: Case) -> Location | None:
    """The line that binds or writes an attribute of the module."""
    for bound in case.recording.rebinds:
        if bound.name.startswith("self."):
            frame = Frame(bound.file, bound.line, bound.function, -1)
            return case.on([frame], _("{name} is kept for the next call").format(name=bound.name))
    return mutated_input(case)
