"""Rules for faults that no single tensor gives away, in the forward pass."""

from __future__ import annotations

import ast
import linecache
import math
from collections.abc import Iterator

import numpy as np
from torch import Tensor

from headwise.texts import translate as _
from headwise.verifier.evidence import Case, Location, departure
from headwise.verifier.matching import as_array
from headwise.verifier.recorder import Frame, Operation

FILLS = frozenset({"masked_fill", "masked_fill_", "where", "add", "add_", "mul", "mul_"})
FACTORS = frozenset({"mul", "mul_", "div", "div_"})
KERNELS = ("scaled_dot_product", "multi_head_attention", "efficient_attention", "flash_attention")


def is_kernel(op: Operation) -> bool:
    """Whether an operation computes several stages at once."""
    return any(part in op.name for part in KERNELS)


def kernels(case: Case) -> list[Operation]:
    """Fused kernels of the forward pass."""
    ops = (*case.recording.calls, *case.recording.ops)
    return [op for op in ops if is_kernel(op) and op.frames and not op.backward]


def mask_storages(case: Case) -> frozenset[int]:
    """Memory that holds, or was computed from, a mask that the caller handed over."""
    inputs = case.inputs
    if inputs is None:
        return frozenset()
    given = [mask for mask in (inputs.keep, inputs.documents) if mask is not None]
    if isinstance(case.a.correct.visible, Tensor):
        given.append(case.a.correct.visible)
    wanted = [array for array in map(as_array, given) if array is not None]
    made = set(case.recording.producers)
    roots = set()
    for op in case.recording.ops:
        for value in (*op.inputs, *op.results):
            got = case.a.array(value)
            if got is None or (value.storage in made and got.dtype != bool):
                continue
            for array in wanted:
                same = got.size == array.size and (got.ravel() == array.ravel()).all()
                flipped = got.dtype == bool and array.dtype == bool and got.size == array.size
                if same or (flipped and (got.ravel() == ~array.ravel()).all()):
                    roots.add(value.storage)
    return case.recording.descendants(roots)


def unread_result(case: Case) -> Location | None:
    """A mask is applied and nobody reads the result."""
    masks = mask_storages(case)
    for op in case.recording.ops:
        if op.backward or not op.frames or op.view or op.in_place or case.recording.is_used(op):
            continue
        touches = any(value.storage in masks for value in op.inputs)
        if op.name in FILLS and (touches or op.name.startswith("masked_fill")):
            return case.at(op, _("the result of {name} is never used").format(name=op.name))
    return None


def rebound_mask(case: Case) -> Location | None:
    """A variable that held a mask is bound to something that has nothing to do with it."""
    masks = mask_storages(case)
    for bound in case.recording.rebinds:
        if bound.before not in masks or bound.after in masks:
            continue
        if bound.after is None and not bound.to_none:
            continue
        frame = Frame(bound.file, bound.line, bound.function, -1)
        uses = [op for op in kernels(case) if op.frames[0].line > bound.line]
        return case.on(
            [frame, *(f for op in uses[:1] for f in op.frames)],
            _("{name} held the mask and is bound to something else here").format(name=bound.name),
        )
    return None


def skipped_branch(case: Case) -> Location | None:
    """Between scores and softmax lies a branch that was not taken."""
    ops = [op for op in case.a.forward if op.frames]
    softmaxes = [op for op in ops if "softmax" in op.name]
    if not softmaxes:
        return None
    end = softmaxes[-1].frames[0]
    scores = [m.op for m in case.a.matches if m.name == "scores" and m.op.frames] or [
        op
        for op in ops
        if op.name in ("bmm", "matmul", "baddbmm") and op.index < softmaxes[-1].index
    ]
    starts = [op.frames[0].line for op in scores if op.frames[0].function == end.function]
    if not starts:
        return None
    ran, nothing = case.recording.executed, case.recording.nothing
    for branch in branches(end.file):
        body = branch.body[0].lineno
        if not (starts[0] <= branch.lineno and body <= end.line):
            continue
        names = {node.id for node in ast.walk(branch.test) if isinstance(node, ast.Name)}
        absent = nothing.get((end.file, branch.lineno), frozenset())
        if (end.file, branch.lineno) in ran and (end.file, body) not in ran and not names <= absent:
            frames = [Frame(end.file, line, end.function, -1) for line in (branch.lineno, body)]
            return case.on(frames, _("this branch holds the step and is not taken"))
    return None


def branches(file: str) -> Iterator[ast.If]:
    """The ``if`` statements of a file; none if it can't be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            yield node


def unmasked_softmax(case: Case) -> Location | None:
    """Where scores become weights without the mask: the softmax, or the fused kernel."""
    for op in kernels(case):
        return case.at(op, _("the kernel is called without the mask"))
    found = departure(case)
    if found is not None:
        scores = [m.op for m in case.a.matches if m.name == "scores" and m.op.frames]
        frames = [f for op in scores[:1] for f in op.frames if f.file == found.file]
        lines = tuple(dict.fromkeys((*found.lines, *(f.line for f in frames))))
        reason = _("the scores become weights here without the mask")
        return Location(found.file, found.line, lines, found.stage, reason)
    return None


def swapped(case: Case) -> Location | None:
    """Two tensors change places: the statement, in the outermost own function, that names them."""
    a = case.a
    if not any(m.name in ("scores", "context", "merged", "output") for m in a.faulty_matches):
        return None
    for name in ("q", "k", "v", "q_flat", "k_flat", "v_flat", "q_pos", "k_pos"):
        if name not in a.wrong:
            continue
        if case.code == "P01" and (found := _swapped_product(case)) is not None:
            return found
        for op in a.forward:
            hit = any(
                (grade := a.names_of(value, op, {name: a.wrong[name]}).get(name)) is not None
                and grade <= 1
                for value in op.results
            )
            if hit and op.frames:
                frames = [op.frames[-1], *op.frames]
                reason = _("what is made here is used as {tensor}").format(tensor=name)
                return case.on(frames, reason)
    return None


def _swapped_product(case: Case) -> Location | None:
    """The scores, where one line makes queries and keys alike and so can't exchange them."""
    a = case.a
    made = [next(iter(a.producers(name)), None) for name in ("q_flat", "k_flat")]
    scores = [m.op for m in a.faulty_matches if m.name == "scores" and m.op.frames]
    if not scores or any(match is None or not match.op.frames for match in made):
        return None
    q, k = (match.op.frames[0] for match in made if match is not None)
    if (q.line, q.offset) != (k.line, k.offset) or len(made[0].op.frames) > 2:  # type: ignore[union-attr]
        return None
    products = [
        op
        for op in a.between(0, scores[0].index + 1)
        if op.name in ("bmm", "mm", "matmul", "baddbmm") and op.frames
    ]
    return case.at((products or scores)[-1], _("the scores come out transposed here"), scores[0])


def outermost_departure(case: Case) -> Location | None:
    """As ``departure``, in the outermost own function: a step that a caller forgot."""
    a = case.a
    found = [m for m in a.faulty_matches if m.op.frames and m.name in a.new] or [
        m for m in a.faulty_matches if m.op.frames
    ]
    if not found:
        return None
    frames = found[0].op.frames
    reason = _("{tensor} is made here without the parameter").format(tensor=found[0].name)
    return case.on([frames[-1], *frames], reason)


def one_sided(case: Case) -> Location | None:
    """Only one of queries and keys is turned: the line that turns it."""
    a = case.a
    for name, other in (("q_pos", "k_pos"), ("k_pos", "q_pos")):
        if other in a.changed and name not in a.changed:
            made = [m for m in a.producers(name) if m.op.frames and m.grade <= 1]
            if made:
                frames = made[0].op.frames
                reason = _("{tensor} is turned here and its partner is not").format(tensor=name)
                return case.on([frames[-1], *frames], reason)
    return None


def late_cap(case: Case) -> Location | None:
    """The hyperbolic tangent that comes too late or too early."""
    for op in case.a.forward:
        if op.frames and op.name in ("tanh", "tanh_"):
            return case.at(op, _("the cap is applied here"))
    return None


def rotary_table(case: Case) -> Location | None:
    """Where the frequencies of the rotation are computed; if not in the call, where the angles are.

    Frequencies are the last power or exponential on the way to the cosine.
    """
    ops = case.recording.ops
    turned = next((op for op in case.a.forward if _turns(op)), None)
    if turned is None:
        return None
    chain, seen = [turned], {turned.index}
    for op in chain:
        for value in op.inputs:
            made = [i for i in case.recording.producers.get(value.storage, ()) if i < op.index]
            if made and made[-1] not in seen:
                seen.add(made[-1])
                chain.append(ops[made[-1]])
    powers = [op for op in chain[1:] if op.name in ("pow", "exp", "exp2") and op.frames]
    angles = [op for op in chain[1:] if op.frames and len(op.results[0].shape) > 1]
    reason = _("the frequencies of the rotation are made here")
    for op in [*sorted(powers, key=lambda op: -op.index), *angles]:
        return case.at(op, reason, *angles[:1], turned)
    return None


def _turns(op: Operation) -> bool:
    """Whether an operation makes the rotation from angles: a cosine, or e to i times the angle."""
    if not op.frames:
        return False
    complex_result = any(value.dtype.is_complex for value in op.results)
    return op.name in ("cos", "polar") or (op.name == "exp" and complex_result)


def moved_batch(case: Case) -> Location | None:
    """The first operation that takes the batch away from the front."""
    if case.inputs is None:
        return None
    batch = case.inputs.batch
    for op in case.a.forward:
        if op.name not in ("permute", "transpose", "t") or not op.frames:
            continue
        before, after = op.inputs[0].shape, op.results[0].shape
        if before.count(batch) == 1 and before[0] == batch and after[0] != batch:
            return case.on(op.frames, _("the batch leaves the front here"))
    return None


def fused_cut(case: Case) -> Location | None:
    """The first cut of a fused projection, if what is made of it is wrong only by order.

    Where whole blocks are exchanged, the cut that gives them their names.
    """
    found = _fused_root(case)
    if found is None:
        return None
    root, target = found
    width, whole = root.results[0].shape[-1], math.prod(root.results[0].shape)
    blocks = case.code in ("P01", "P02")
    for op in case.a.between(root.index + 1, target.index + 1):
        if not op.frames or all(v.storage != root.results[0].storage for v in op.inputs):
            continue
        if any(
            math.prod(value.shape) < whole if blocks else value.shape[-1:] != (width,)
            for value in op.results
        ):
            reason = _("the fused projection is cut here")
            if blocks:  # who asks for the parts gives them their names
                return case.on([op.frames[-1], *op.frames, *target.frames], reason)
            return case.at(op, reason, target)
    return None


def fused_projection(case: Case) -> Location | None:
    """The product that makes queries, keys and values at once."""
    found = _fused_root(case)
    if found is None:
        return None
    return case.at(found[0], _("queries, keys and values are made here"), found[1])


def _fused_root(case: Case) -> tuple[Operation, Operation] | None:
    """The product of a fused projection, and the first operation that shows the fault."""
    a = case.a
    names = ("q_flat", "k_flat", "v_flat", "q", "k", "v")
    for match in a.faulty_matches:
        if match.name not in names or not match.op.frames:
            continue
        made = case.recording.producers.get(match.value.storage, ())
        if not match.op.view or not made or made[0] > match.op.index:
            return None
        root = case.recording.ops[made[0]]
        if not root.results or not root.frames:
            return None
        whole, part = root.results[0].shape, match.value.shape
        return (root, match.op) if math.prod(whole) > math.prod(part) else None
    return None


def shared_statistics(case: Case) -> Location | None:
    """The mean whose axes hold all heads; of a flat tensor, where it is handed to the norm."""
    found = departure(case)
    norms = ("mean", "sum", "linalg_vector_norm", "native_layer_norm", "_fused_rms_norm", "var")
    first = min((m.op.index for m in case.a.faulty_matches if m.name in case.a.new), default=None)
    if found is None or first is None:
        return found
    for op in case.a.between(0, first):
        if op.name in norms and op.frames and op.inputs:
            flat = len(op.inputs[0].shape) == 3
            frames = [op.frames[-1], *op.frames] if flat else list(op.frames)
            return case.on(frames, _("the statistics of all heads are taken together here"))
    return found


def permuted_rows(case: Case) -> Location | None:
    """The first keys whose channels are those of the definition in another order."""
    right = case.a.right.get("k_flat")
    if right is None:
        return None
    want = np.sort(right.data.reshape(-1, right.data.shape[-1]), axis=-1)
    for op in case.a.forward:
        for value in op.results:
            got = case.a.array(value)
            if got is None or got.size != right.data.size or got.shape[-1] != want.shape[-1]:
                continue
            if not np.allclose(np.sort(got.reshape(want.shape), axis=-1), want, atol=1e-9):
                continue
            if right.grade(got, 1e-9) is None and op.frames:
                frames = [op.frames[-1], *op.frames]
                return case.on(frames, _("the channels of the keys are in another order here"))
    return None


def wrong_factor(case: Case) -> Location | None:
    """The factor, if it was applied to the queries or keys before the product."""
    a = case.a
    found = [m for m in a.faulty_matches if m.name in ("scores", "masked_scores") and m.op.frames]
    if found and found[0].op.name in FACTORS:
        return None
    limit = found[0].op.index if found else len(a.recording.ops)
    for op in a.between(0, limit):
        if (
            op.name in FACTORS
            and op.frames
            and any(_scales(case, op, name) for name in ("q_pos", "k_pos"))
        ):
            return case.at(
                op,
                _("the factor enters here"),
                *(match.op for match in found[:1]),
            )
    return None


def _scales(case: Case, op: Operation, name: str) -> bool:
    """Whether an operation multiplies a tensor of the definition by a number."""
    wanted = case.a.right.get(name)
    if wanted is None or not op.outputs or not wanted.scale:
        return False
    got = case.a.array(op.outputs[0])
    if got is None or got.dtype == bool or got.size != wanted.data.size:
        return False
    top = float(abs(got).max())
    if not 0 < top < float("inf") or abs(top / wanted.scale - 1) < 1e-6:
        return False
    return wanted.grade(got * (wanted.scale / top), case.a.tolerances[op.index]) is not None
