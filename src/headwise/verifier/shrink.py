"""The smallest input with whole numbers that still fails, replayed, as a test to paste."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.reference import Inputs
from headwise.verifier.cases import Case, lengths_to_keep
from headwise.verifier.session import Reading, Session, gap

if TYPE_CHECKING:
    from headwise.verifier.engine import Engine
    from headwise.verifier.notes import Note

MAX_TRIES = 400
"""How many inputs are tried before none is shown."""
CLEAR = 1e-6
"""A difference that nobody takes for rounding."""


@dataclass(frozen=True)
class Smallest:
    """A minimal failing input.

    Args:
        sizes: in the letters of the notation.
        error: largest difference from the definition.
        position: index of that difference in the output.
        got, want: the two numbers there.
        test: code that shows it, "" where the target can't be built in two lines.
    """

    sizes: str
    error: float
    position: tuple[int, ...]
    got: float
    want: float
    test: str


def whole_numbers(shape: tuple[int, ...], seed: int) -> Tensor:
    """Whole numbers from -2 to 2 as float64, the same on every machine and release.

    Example:
        >>> whole_numbers((6,), 0).tolist()
        [-2.0, 0.0, 2.0, -1.0, 1.0, 1.0]
    """
    count = math.prod(shape)
    numbers = torch.arange(count) * 7 + torch.arange(count) // 5 * 3 + 11 * seed
    return (numbers % 5 - 2).double().view(shape)


DIVISORS = (1, 8)
"""Weights are whole numbers; where these make every softmax a hard choice, eighths of them."""


def fill(module: nn.Module, divisor: int) -> None:
    """Every parameter of a module filled with whole numbers over a divisor, in place."""
    with torch.no_grad():
        for index, tensor in enumerate(module.parameters()):
            values = whole_numbers(tuple(tensor.shape), index + 1) / divisor
            tensor.copy_(values.to(tensor.dtype))


def steps_for(case: Case, q_len: int) -> Iterator[tuple[int, ...]]:
    """Ways of taking a few tokens in steps, the simplest first; one way for cases without steps."""
    if not case.steps:
        yield ()
        return
    for prompt in range(1, q_len):
        rest = q_len - prompt
        yield (prompt, *[1] * rest)
        if rest > 1:
            yield (prompt, rest)


def sizes_for(case: Case) -> Iterator[tuple[int, int, int]]:
    """(B, Tq, Tk) from the smallest up to the case's own."""
    i = case.inputs
    same = i.q_len == i.kv_len and i.context is None
    options = [
        (b, q, k)
        for b, q, k in itertools.product(
            range(1, i.batch + 1), range(1, i.q_len + 1), range(1, i.kv_len + 1)
        )
        if not same or q == k
    ]
    yield from sorted(options, key=lambda s: (s[0] * (s[1] + s[2]), s))


def inputs_for(case: Case, reading: Reading, batch: int, q_len: int, kv_len: int) -> Inputs | None:
    """Whole-number inputs of the case's kind in other sizes; None if they can't exist."""
    i, spec = case.inputs, reading.spec
    changes: dict[str, Any] = {}
    if i.x is not None:
        changes["x"] = whole_numbers((batch, q_len, spec.d_model), 101)
        if i.context is not None:
            changes["context"] = whole_numbers((batch, kv_len, spec.d_context), 102)
        if i.values is not None:
            changes["values"] = whole_numbers((batch, kv_len, spec.d_values), 103)
    else:
        changes["q"] = whole_numbers((batch, spec.num_heads, q_len, spec.head_dim), 101)
        changes["k"] = whole_numbers((batch, spec.num_kv_heads, kv_len, spec.head_dim), 102)
        changes["v"] = whole_numbers((batch, spec.num_kv_heads, kv_len, spec.v_head_dim), 103)
    if i.keep is not None:
        if kv_len < 2:
            return None
        left = not bool(i.keep[:, 0].all())
        lengths = [kv_len - 1] + [kv_len] * (batch - 1)
        changes["keep"] = lengths_to_keep(lengths, kv_len, left=left)
    if i.query_keep is not None:
        changes["query_keep"] = torch.ones(batch, q_len, dtype=torch.bool)
    if i.documents is not None:
        changes["documents"] = (
            torch.arange(q_len).mul(2).div(q_len, rounding_mode="floor").expand(batch, -1)
        )
    return Inputs(**changes)


def shrink(engine: Engine, note: Note) -> Smallest | None:
    """The smallest failing input for a forward difference, found and replayed.

    Returns:
        None if there is no case, or none of those tried fails with whole numbers.
    """
    if note.case is None or note.theory is None or note.fault.stage in ("gradient", "behaviour"):
        return None
    session, reading, case = engine.session, note.theory.reading, note.case
    if session.dtype is not torch.float64 or session.lifted:
        return None
    things = [(session.copy(), divisor) for divisor in DIVISORS]
    for thing, divisor in things:
        if isinstance(thing, nn.Module):
            fill(thing, divisor)
    if not isinstance(things[0][0], nn.Module):
        things = things[:1]
    sized = itertools.product(sizes_for(case), things)
    for (batch, q_len, kv_len), (thing, divisor) in itertools.islice(sized, MAX_TRIES):
        inputs = inputs_for(case, reading, batch, q_len, kv_len)
        if inputs is None:
            continue
        queries = inputs.keep if inputs.keep is not None and inputs.context is None else None
        if queries is None or queries.shape[1] != q_len:
            queries = torch.ones(batch, q_len, dtype=torch.bool)
        options = [
            Case("smallest", inputs, queries, case.causal_flag, steps=steps)
            for steps in steps_for(case, q_len)
        ]
        tried = ((small, _difference(session, thing, small, reading)) for small in options)
        small, first = next(
            ((c, d) for c, d in tried if d is not None and d.error >= CLEAR), (case, None)
        )
        if first is None:
            continue
        again = _difference(session, thing, small, reading)  # replay before speaking
        if again is None or again.error != first.error:
            return None
        test = write_test(engine, note, small, reading, first, divisor)
        return Smallest(small.sizes(), first.error, first.position, first.got, first.want, test)
    return None


@dataclass(frozen=True)
class _Gap:
    error: float
    position: tuple[int, ...]
    got: float
    want: float


def _difference(session: Session, thing: Any, case: Case, reading: Reading) -> _Gap | None:
    """Largest difference on real rows, None if either side can't run or is not finite there."""
    options = reading.options(case, lifted=False)
    try:
        with torch.no_grad():
            result, _inputs = session.call(thing, case, options)
            output, _weights = session.pick(result, case, reading, options)
            tensors = {n: t.double() for n, t in session.tensors(thing).items()}
            trace = _definition(session, case, reading, tensors)
    except HeadwiseError:
        return None
    except Exception:
        return None
    rows = case.queries & trace.visible.any(-1).all(1)
    chosen = rows[..., None] if output.dim() == 3 else rows[:, None, :, None]
    got, want = output.double(), trace.output
    if not bool(chosen.any()) or gap(got, want, rows) == math.inf:
        return None
    gaps = ((got - want).abs() * chosen).nan_to_num(0.0)
    flat = int(gaps.argmax())
    position = tuple(int(i) for i in np.unravel_index(flat, gaps.shape))  # torch's imports sympy
    return _Gap(float(gaps[position]), position, float(got[position]), float(want[position]))


def _definition(session: Session, case: Case, reading: Reading, tensors: dict[str, Tensor]) -> Any:
    from headwise.reference import attend

    return attend(
        session.spec_for(case, reading), reading.layout.read(tensors), session.inputs(case)
    )


def write_test(
    engine: Engine, note: Note, case: Case, reading: Reading, found: _Gap, divisor: int
) -> str:
    """A test without Headwise in it that fails until the fault is mended."""
    recipe = engine.subject.recipe
    if recipe is None:
        return ""
    call = recipe.call(case.inputs, reading.options(case))
    if call is None:
        return ""
    name = note.fault.name.replace("-", "_")
    lines = [
        f"# {note.fault.full_code} {note.fault.name}, smallest case: {case.sizes()}",
        "import math",
        "",
        "import torch",
        "",
        *recipe.imports,
        "",
        "",
        "def whole_numbers(shape, seed):",
        "    n = torch.arange(math.prod(shape))",
        "    return ((n * 7 + n // 5 * 3 + 11 * seed) % 5 - 2).double().view(shape)",
        "",
        "",
        f"def test_{name}():",
        f"    target = {recipe.build}",
    ]
    if engine.subject.kind == "layer":
        lines += [
            "    target = target.double().eval()",
            "    with torch.no_grad():",
            "        for seed, p in enumerate(target.parameters()):",
            "            p.copy_(whole_numbers(p.shape, seed + 1)"
            + (")" if divisor == 1 else f" / {divisor})"),
        ]
    seeds = {"x": 101, "context": 102, "values": 103, "q": 101, "k": 102, "v": 103}
    for key, tensor in case.inputs.tensors().items():
        lines.append(f"    {key} = whole_numbers({tuple(tensor.shape)}, {seeds[key]})")
    if case.inputs.keep is not None:
        lines.append(f"    keep = torch.tensor({case.inputs.keep.tolist()})  # True = real token")
    if case.inputs.documents is not None:
        lines.append(f"    documents = torch.tensor({case.inputs.documents.tolist()})")
    where = ", ".join(str(n) for n in found.position)
    lines += [
        f"    out = {call}",
        "    out = out[0] if isinstance(out, tuple) else out",
        f"    # got {found.got:.10g}",
        f"    assert abs(out[{where}].item() - {found.want!r}) < 1e-6",
    ]
    return "\n".join(lines) + "\n"
