"""Right on ordinary inputs, wrong on special ones: empty rows, NaN in padding, half precision."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.report import Check
from headwise.texts import translate as _
from headwise.verifier.cases import Case, Factory, lengths_to_keep
from headwise.verifier.diagnose import Theory
from headwise.verifier.faults import FAULTS, Variant
from headwise.verifier.faults.masking import (
    FILL_TEXTS,
    FILLS,
    doubled_planes,
    filled,
    hiding,
    plain_softmax,
)
from headwise.verifier.faults.softmax import without_maximum
from headwise.verifier.gradients import upstream
from headwise.verifier.lift import Listener
from headwise.verifier.notes import Note
from headwise.verifier.properties import call_once
from headwise.verifier.session import Reading, gap

if TYPE_CHECKING:
    from headwise.verifier.engine import Engine

WEAK = (
    -1e4, -1e3, -100.0, -50.0, -99.0, -200.0, -500.0, -999.0, -5e3, -9e3, -9999.0,
    -65504.0, -65500.0, -65000.0, -6e4, -5e4, -32768.0, -32767.0, -3e4, -2e4, -99999.0, -1e5,
)  # fmt: skip
"""Finite numbers that have been used to hide a score and that real scores can pass."""

FACTORS = (8.0, 30.0, 100.0, 300.0, 1000.0)
"""Of the inputs; the scores grow with their square. The smallest that shows a fill tells which."""

SCOPE_NAMES = ("all", "padding", "causal")


def look_for_hazards(engine: Engine, theory: Theory) -> None:
    """Notes for every hazard that shows, the gravest first."""
    for look in (empty_rows, half_precision, weak_fill, no_maximum, nan_in_padding, half_sums):
        engine.phase(look.__name__.replace("_", " "))
        try:
            note = look(engine, theory)
        except HeadwiseError:
            continue
        if note is not None:
            engine.notes.append(note)


def _note(code: str, case: Case | None, **changes: Any) -> Note:
    return Note(FAULTS[code], case=case, **changes)


def _everything(s: Any) -> Tensor:
    visible: Tensor = s.visible()
    return visible


# ------------------------------------------------------------------ rows without a visible key
def empty_cases(engine: Engine, reading: Reading) -> list[Case]:
    """Cases in which some row sees nothing."""
    found = []
    for case in engine.cases:
        trace = engine.session.predict(case, reading)
        if not isinstance(trace, Exception) and not bool(trace.visible.any(-1).all()):
            found.append(case)
    offers = engine.subject.offers
    if "padding" in offers and "self" in offers and reading.style is not None:
        make = Factory(
            reading.spec, seed=engine.seed + 50, function=engine.subject.kind == "function"
        )
        keep = lengths_to_keep([5, 0], 5, left=False)
        found.append(make.self_case("a sample that is all padding", 2, 5, keep=keep))
    elif "cross" in offers and "padding" in offers and reading.style is not None:
        make = Factory(reading.spec, seed=engine.seed + 50, function=False)
        keep = lengths_to_keep([5, 0], 5, left=False)
        found.append(make.two_lengths("a context that is all padding", 2, 4, 5, keep=keep))
    return found


def empty_rows(engine: Engine, theory: Theory) -> Note | None:
    """M26, M27, M28: what a row with nothing visible gives, and what it does to gradients."""
    reading = theory.reading
    if theory.faults:
        return None
    cases = [c for c in empty_cases(engine, reading) if engine.runs(c, reading)]
    if not cases:
        return None
    if all(_agrees_everywhere(engine, c, reading, Variant("")) for c in cases):
        poisoned = _poisoned(engine, cases, reading)
        if poisoned is None:
            engine.checks.append(
                Check(name="empty rows are zero", case=cases[-1].name, passed=True)
            )
            return None
        return poisoned
    nan_case = next((c for c in cases if _has_nan(engine, c, reading)), None)
    doubled = Variant("", {"mask": doubled_planes, "softmax": plain_softmax})
    planes = all(_agrees_everywhere(engine, c, reading, doubled) for c in cases)
    for label in FILLS:
        variant = Variant(label, hiding(_everything, label))
        if all(_agrees_everywhere(engine, c, reading, variant) for c in cases):
            if label == "fill -inf" or nan_case is not None:
                return _nan_note(engine, nan_case or cases[0], reading, variant)
            note = _note("M27", cases[0], theory=Theory(reading, (FAULTS["M27"],), (variant,)))
            note.where = _("case {case}: {rule}").format(
                case=cases[0].name, rule=_(FILL_TEXTS[label])
            )
            return note
    if planes:
        overlap = next((c for c in cases if len(_rules(engine, c, reading)) > 1), cases[0])
        note = _note("M28", overlap, theory=Theory(reading, (FAULTS["M28"],), (doubled,)))
        note.where = _(
            "two planes of the lowest number are added and make −∞ where both hide (case {case})"
        ).format(case=overlap.name)
        return note
    if nan_case is not None:
        return _nan_note(engine, nan_case, reading, None)
    engine.checks.append(
        Check(
            name="empty rows",
            case=cases[0].name,
            passed=True,
            note=_("finite, and none of the known conventions"),
        )
    )
    return None


def _rules(engine: Engine, case: Case, reading: Reading) -> dict[str, Tensor]:
    from headwise.reference.setting import Setting

    setting = Setting(
        engine.session.spec_for(case, reading),
        engine.session.detached(reading),
        engine.session.inputs(case),
    )
    return setting.rules


def _agrees_everywhere(engine: Engine, case: Case, reading: Reading, variant: Variant) -> bool:
    """Whether a variant gives the target's numbers on every row, the empty ones included."""
    outcome = engine.session.outcome(case, reading)
    trace = engine.session.predict(case, reading, variant)
    if outcome.output is None or isinstance(trace, Exception):
        return False
    return gap(outcome.output, trace.output) <= engine.session.allowance(case, reading)


def _has_nan(engine: Engine, case: Case, reading: Reading) -> bool:
    output = engine.session.outcome(case, reading).output
    return output is not None and bool(output.isnan().any())


def _nan_note(engine: Engine, case: Case, reading: Reading, variant: Variant | None) -> Note:
    note = _note("M26", case)
    if variant is not None:
        note.theory = Theory(reading, (FAULTS["M26"],), (variant,))
    output = engine.session.outcome(case, reading).output
    if output is not None:
        rows = (
            output.isnan().flatten(2).any(-1)
            if output.dim() == 3
            else output.isnan().any(-1).any(1)
        )
        real = engine.session.real_rows(case, reading)
        note.where = _(
            "case {case} ({sizes}): {count} rows without a visible key are NaN, and {real} real "
            "rows"
        ).format(
            case=case.name,
            sizes=case.sizes(),
            count=int((rows & ~real).sum()),
            real=int((rows & real).sum()),
        )
    note.evidence.extend(_nan_gradients(engine, case, reading))
    return note


def _nan_gradients(engine: Engine, case: Case, reading: Reading) -> list[str]:
    """Which gradients a loss on real rows alone turns into NaN."""
    names, finite = nan_gradient_names(engine, case, reading)
    if not names:
        return [_("the gradients stay finite")]
    found = [
        _("with a loss on real rows only, the gradient is NaN in: {names}").format(
            names=", ".join(names)
        )
    ]
    if finite:
        found.append(_("it stays finite in: {names}").format(names=", ".join(finite)))
    return found


MATRICES = {"q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O"}


def nan_gradient_names(engine: Engine, case: Case, reading: Reading) -> tuple[list[str], list[str]]:
    """Names of inputs and weight matrices whose gradient has NaN, and of those that stay finite."""
    given = upstream(engine, case, reading)
    got = engine.session.gradients(case, reading, given)
    if got.error is not None:
        return [], []
    bad = {n: g for n, g in got.values.items() if g is not None and bool(g.isnan().any())}
    inputs = [n for n in bad if n in case.inputs.tensors()]
    found = list(inputs)
    tensors = engine.session.tensors()
    grads: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        grad = got.values.get(name)
        grads[name] = torch.zeros_like(tensor) if grad is None else grad
    finite: list[str] = []
    for role, block in reading.layout.read(grads).items() if grads else ():
        name = MATRICES.get(role, role)
        if role in MATRICES and reading.layout.fused and role != "o":
            name = _("{name} (its block of the fused weight)").format(name=name)
        if not bool(block.isnan().any()):
            finite.append(name)
        elif bool(block.isnan().all()):
            found.append(name)
        else:
            found.append(_("part of {name}").format(name=name))
    return found, finite


def _poisoned(engine: Engine, cases: list[Case], reading: Reading) -> Note | None:
    """M26 by its gradient alone: the output of empty rows is right, the gradients are NaN."""
    for case in cases:
        names, _finite = nan_gradient_names(engine, case, reading)
        if names:
            note = _note("M26", case)
            note.where = _("the output is finite; NaN in the gradient of {names}").format(
                names=", ".join(names)
            )
            return note
    return None


# ------------------------------------------------------------------ half precision
def opposed_keys(engine: Engine, reading: Reading, thing: nn.Module) -> bool:
    """Make the key projection minus the query projection, in place: scores become negative.

    The layout is read with numbered entries, which tells where each entry of the matrices lives.
    """
    tensors = dict(thing.named_parameters())
    start, numbered = 0, {}
    for name, tensor in tensors.items():
        count = tensor.numel()
        numbered[name] = torch.arange(start, start + count).double().view(tensor.shape)
        start += count
    flat = torch.cat([t.detach().flatten().double() for t in tensors.values()])
    places = reading.layout.read(numbered)
    for mine, other in ((places.q, places.k), (places.q_bias, places.k_bias)):
        if other is None:
            continue
        if mine is None or mine.shape[1:] != other.shape[1:]:
            return False
        source = mine[: other.shape[0]].long().flatten()
        flat[other.long().flatten()] = -flat[source]
    at = 0
    with torch.no_grad():
        for tensor in tensors.values():
            part = flat[at : at + tensor.numel()].view(tensor.shape)
            tensor.copy_(part.to(tensor.dtype))
            at += tensor.numel()
    return True


def half_precision(engine: Engine, theory: Theory) -> Note | None:
    """M28: in float16, left padding and strongly negative scores, rows turn into NaN."""
    reading = theory.reading
    if any(note.fault.code in ("M26", "M28") for note in engine.notes) or theory.faults:
        return None
    if "padding" not in engine.subject.offers or engine.subject.kind != "layer":
        return None
    case = next((c for c in engine.cases if c.name == "left padding"), None)
    thing = engine.session.copy()
    if case is None or not isinstance(thing, nn.Module) or reading.style is None:
        return None
    if not opposed_keys(engine, reading, thing):
        return None
    assert case.inputs.x is not None
    base = torch.randn(
        1, 1, reading.spec.d_model, generator=torch.Generator().manual_seed(5)
    ).double()
    x = (base + 0.05 * case.inputs.x) * 6
    half_case = Case(
        "left padding, float16", case.inputs.replace(x=x), case.queries, case.causal_flag
    )
    full = _nan_rows(engine, thing.double(), half_case, reading, torch.float64)
    low = _nan_rows(engine, thing.half(), half_case, reading, torch.float16)
    if full is None or low is None or full.any() or not low.any():
        return None
    note = _note("M28", case)
    note.where = _(
        "in float16 with negative scores {count} of {total} rows are NaN; in float64 none is"
    ).format(count=int(low.sum()), total=low.numel())
    return note


def _nan_rows(
    engine: Engine, thing: Any, case: Case, reading: Reading, dtype: torch.dtype
) -> Tensor | None:
    before = engine.session.dtype
    engine.session.dtype = dtype
    try:
        options = reading.options(case, lifted=False)
        with torch.no_grad():
            result, _inputs = engine.session.call(thing, case, options)
        output, _weights = engine.session.pick(result, case, reading, options)
        return output.isnan().any(-1)
    except Exception:
        return None
    finally:
        engine.session.dtype = before


class Counting(Listener):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def look(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Count one."""
        self.count += 1


def half_sums(engine: Engine, theory: Theory) -> Note | None:
    """D03: with many keys, sums kept in bfloat16 stop growing.

    Torch's own reductions add up in float32 whatever their input, so only code that goes through
    the keys step by step can keep such a sum; the number of operations tells. Plain code in the
    same precision is the yardstick.
    """
    reading, session = theory.reading, engine.session
    if theory.faults or "self" not in engine.subject.offers or session.dtype is not torch.float64:
        return None
    counts = [_operations(engine, reading, size) for size in (8, 16, 24)]
    if (
        None in counts
        or counts[1] <= counts[0]
        or counts[2] - counts[1] > 1.2 * (counts[1] - counts[0])
    ):
        return None
    per_token = (counts[2] - counts[1]) / 8
    size = min(1024, int(MOST_OPERATIONS / per_token))
    if size < SHORTEST:
        return None
    case = _even_case(engine, reading, size)
    trace = session.predict(case, reading)
    if isinstance(trace, Exception):
        return None
    got = _in_half(engine, reading, case)
    if got is None or got.shape != trace.output.shape:
        return None
    rows = slice(-size // 4, None)
    truth = trace.output[..., rows, :]
    scale = float(truth.abs().max())
    error = gap(got[..., rows, :], truth) / scale
    baseline = gap(_plain_half(engine, reading, case, trace)[..., rows, :], truth) / scale
    if not math.isfinite(error) or error < max(8.0 * baseline, 0.05):
        return None
    note = _note("D03", case, before=error, after=baseline)
    note.where = _(
        "in bfloat16 with {size} keys the largest relative error is {error:.2g}; plain code in "
        "bfloat16 has {baseline:.2g}"
    ).format(size=size, error=error, baseline=baseline)
    note.case = next((c for c in engine.cases if c.name == "plain"), case)
    return note


MOST_OPERATIONS = 30_000
SHORTEST = 384
"""Keys that a bfloat16 sum of equal terms needs to be clearly off: it stops growing at 256."""


def _even_case(engine: Engine, reading: Reading, size: int) -> Case:
    """Keys that get about the same weight, values with the same sign."""
    make = Factory(reading.spec, seed=engine.seed + 70, function=engine.subject.kind == "function")
    case = make.self_case(f"{size} keys of the same weight", 1, size)
    i, changes = case.inputs, {}
    for name, tensor in i.tensors().items():
        axis = 1 if name == "x" else 2
        level = tensor.narrow(axis, 0, 1) if name == "x" else torch.full_like(tensor, name == "v")
        changes[name] = level + 0.1 * tensor
    return Case(case.name, i.replace(**changes), case.queries)


def _operations(engine: Engine, reading: Reading, size: int) -> Any:
    case = _even_case(engine, reading, size)
    with Counting() as counting:
        output = call_once(engine, engine.session.copy(), case, reading)
    return None if output is None else counting.count


def _in_half(engine: Engine, reading: Reading, case: Case) -> Tensor | None:
    """The target's output in bfloat16, from the same weights and inputs."""
    thing, session = engine.session.copy(), engine.session
    if isinstance(thing, nn.Module):
        thing = thing.bfloat16()
    before, session.dtype = session.dtype, torch.bfloat16
    try:
        output = call_once(engine, thing, case, reading)
    finally:
        session.dtype = before
    return None if output is None else output.double()


def _plain_half(engine: Engine, reading: Reading, case: Case, trace: Any) -> Tensor:
    """Plain code in bfloat16 from the definition's queries, keys and values."""
    low = torch.bfloat16
    scores = trace.scores.to(low).masked_fill(~trace.visible, -math.inf)
    context: Tensor = scores.softmax(-1) @ trace.v_shared.to(low)
    if case.inputs.x is None:
        return context.double()
    parameters = engine.session.detached(reading)
    if parameters.o is None:
        return context.transpose(1, 2).flatten(2).double()
    bias = None if parameters.o_bias is None else parameters.o_bias.to(low)
    merged = context.transpose(1, 2).flatten(2)
    output: Tensor = nn.functional.linear(merged, parameters.o.to(low), bias)
    return output.double()


# ------------------------------------------------------------------ large scores
def _large(engine: Engine, reading: Reading, *, masked: bool, factor: float) -> Case | None:
    make = Factory(reading.spec, seed=engine.seed + 60, function=engine.subject.kind == "function")
    if "self" not in engine.subject.offers:
        return None
    keep = lengths_to_keep([6, 3], 6, left=True) if masked else None
    name = f"inputs times {factor:g}"  # names are keys: one for each factor
    return make.self_case(name, 2, 6, keep=keep, factor=factor)


def weak_fill(engine: Engine, theory: Theory) -> Note | None:
    """M15: a finite fill that large scores pass."""
    reading = theory.reading
    spec = reading.spec
    masked = "padding" in engine.subject.offers and reading.style is not None
    if (not masked and not spec.is_causal) or spec.softcap is not None or theory.faults:
        return None
    for factor in FACTORS:
        case = _large(engine, reading, masked=masked, factor=factor)
        if case is None or not engine.runs(case, reading):
            return None
        if engine.search.agrees(Theory(reading), case):
            continue
        for value, scope, added in itertools.product(WEAK, SCOPE_NAMES, (False, True)):
            variant = filled(value, scope, added=added)
            candidate = Theory(reading, (FAULTS["M15"],), (variant,))
            if engine.search.agrees(candidate, case):
                note = _note("M15", case, theory=candidate)
                note.before = engine.search.distance(Theory(reading), case)
                note.after = engine.search.distance(candidate, case)
                note.where = _("scores beyond {value:g} bring hidden keys back").format(value=value)
                return note
        return None
    return None


def no_maximum(engine: Engine, theory: Theory) -> Note | None:
    """X04: exp of raw scores overflows."""
    reading = theory.reading
    if theory.faults or reading.spec.softcap is not None:
        return None
    case = _large(engine, reading, masked=False, factor=300.0)
    if case is None or not engine.runs(case, reading):
        return None
    output = engine.session.outcome(case, reading).output
    if output is None or bool(output.isfinite().all()):
        return None
    candidate = Theory(reading, (FAULTS["X04"],), (Variant("", {"softmax": without_maximum}),))
    if engine.search.distance(candidate, case) > engine.session.allowance(case, reading):
        trace = engine.search.predict(candidate, case)
        if isinstance(trace, Exception) or not torch.equal(
            trace.output.isfinite(), output.isfinite()
        ):
            return None
    note = _note("X04", case, theory=candidate)
    note.where = _("{count} of {total} values are not finite with scores of thousands").format(
        count=int((~output.isfinite()).sum()), total=output.numel()
    )
    return note


# ------------------------------------------------------------------ NaN at hidden positions
def nan_in_padding(engine: Engine, theory: Theory) -> Note | None:
    """M29: NaN in the input at hidden positions reaches real rows."""
    reading = theory.reading
    if reading.style is None:
        return None
    for name in ("right padding", "cross, masked"):
        case = next((c for c in engine.cases if c.name == name), None)
        if case is None or case.inputs.keep is None or not engine.runs(case, reading):
            continue
        keep = case.inputs.keep
        changes = {}
        for spot in ("context", "values") if case.inputs.context is not None else ("x",):
            tensor = getattr(case.inputs, spot)
            if tensor is not None:
                changes[spot] = tensor.masked_fill(~keep[..., None], math.nan)
        if not changes:
            for spot in ("k", "v"):
                tensor = getattr(case.inputs, spot)
                changes[spot] = tensor.masked_fill(~keep[:, None, :, None], math.nan)
        poisoned = Case(f"NaN in {name}", case.inputs.replace(**changes), case.queries)
        output = engine.session.outcome(poisoned, reading).output
        if output is None:
            continue
        rows = engine.session.real_rows(case, reading)
        bad = output.isnan().any(-1)
        bad = bad if bad.dim() == 2 else bad.any(1)
        if bool((bad & rows).any()):
            note = _note("M29", poisoned)
            note.where = _("NaN in the padding of case {case} reaches {count} real rows").format(
                case=name, count=int((bad & rows).sum())
            )
            return note
    return None
