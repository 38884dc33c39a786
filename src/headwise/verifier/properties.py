"""Properties that need no reference, and what they prove when they fail."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.errors import HeadwiseError
from headwise.report import Check
from headwise.spec import Rope
from headwise.texts import translate as _
from headwise.verifier.cases import Case
from headwise.verifier.diagnose import Theory
from headwise.verifier.evidence import Location
from headwise.verifier.faults import FAULTS, Variant
from headwise.verifier.faults.masking import drop_rule, hiding
from headwise.verifier.lift import Listener
from headwise.verifier.notes import Note
from headwise.verifier.recorder import Operation, Recording, record
from headwise.verifier.session import Reading, gap

if TYPE_CHECKING:
    from headwise.verifier.engine import Engine

DROPOUT_CALLS = ("dropout", "dropout_", "alpha_dropout", "feature_dropout", "dropout2d")


class DropoutWatch(TorchFunctionMode):
    """Notes every dropout that is on, with what it is applied to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in DROPOUT_CALLS and args:
            p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            on = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
            if on and p:
                self.seen.append(args[0].detach().clone())
        if name == "scaled_dot_product_attention":
            p = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            if p:
                self.seen.append(args[0].detach().clone())
        return func(*args, **kwargs)


def call_once(
    engine: Engine, thing: Any, case: Case, reading: Reading, **changes: Any
) -> Tensor | None:
    """One call without memory; None if it raises or gives no output."""
    options = reading.options(case, lifted=engine.session.lifted, **changes)
    try:
        with torch.no_grad():
            result, _inputs = engine.session.call(thing, case, options)
        return engine.session.pick(result, case, reading, options)[0]
    except HeadwiseError:
        return None
    except Exception:
        return None


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return gap(a, b) <= 1e-10 * max(1.0, float(b.abs().nan_to_num().max()))


def check_twice(engine: Engine) -> bool:
    """Two identical calls, and a call after a different one. True if the result is random."""
    engine.phase("two identical calls")
    forms = [r for r in engine.all_readings if any(engine.runs(c, r) for c in engine.cases)]
    reading = forms[0] if forms else engine.reading
    runnable = [c for c in engine.cases if not c.masked and engine.runs(c, reading)]
    if not runnable:
        return False
    case = next((c for c in runnable if c.name == "plain"), runnable[-1])
    state = torch.random.get_rng_state()
    session = engine.session
    try:
        thing = session.copy()
        torch.manual_seed(1)
        first = call_once(engine, thing, case, reading)
        torch.manual_seed(2)
        second = call_once(engine, thing, case, reading)
        if not _same(first, second):
            fresh = session.copy()
            torch.manual_seed(1)
            third = call_once(engine, fresh, case, reading)
            torch.manual_seed(1)
            fourth = call_once(engine, fresh, case, reading)
            if _same(third, fourth):
                return _random(engine, case, reading, first, second)
            note = Note(FAULTS["B04"], case=case)
            note.where = _("the second of two identical calls differs by {gap:.2g}").format(
                gap=gap(first, second) if first is not None and second is not None else float("inf")
            )
            engine.notes.append(note)
            return False
        masked = [c for c in engine.cases if c.masked and c.name == "left padding"]
        styles = engine.subject.styles[:4]
        between = [(c, reading) for c in runnable if c is not case]
        between += [(c, dataclasses.replace(reading, style=s)) for c in masked for s in styles]
        for other, form in between:
            thing = session.copy()
            if call_once(engine, thing, other, form) is None:
                continue
            again = call_once(engine, thing, case, reading)
            if not _same(first, again):
                rotary = isinstance(engine.spec.positions, Rope) or any(
                    isinstance(r.spec.positions, Rope) for r in engine.all_readings[:1]
                )
                note = Note(FAULTS["R10" if rotary else "B04"], case=case)
                if not rotary:
                    note.case, note.theory = other, Theory(form)  # the call that leaves something
                note.where = _(
                    "case {case} gives another result after a call on case {other}"
                ).format(case=case.name, other=other.name)
                if first is not None and again is not None:
                    note.before = gap(first, again)
                engine.notes.append(note)
                return False
    finally:
        torch.random.set_rng_state(state)
    engine.checks.append(
        Check(name="repeatable", case=case.name, passed=True, error=0.0, allowed=0.0)
    )
    return False


def _random(
    engine: Engine, case: Case, reading: Reading, first: Tensor | None, second: Tensor | None
) -> bool:
    difference = gap(first, second) if first is not None and second is not None else float("inf")
    engine.checks.append(
        Check(name="repeatable", case=case.name, passed=False, error=difference, allowed=0.0)
    )
    with DropoutWatch() as watch:
        call_once(engine, engine.session.copy(), case, reading)
    if watch.seen or _dropped_by_hand(engine, case, reading):
        note = Note(FAULTS["B01"], case=case, before=difference)
        note.where = _("two calls in evaluation mode differ by {gap:.2g} (case {case})").format(
            gap=difference, case=case.name
        )
        engine.notes.append(note)
    else:
        engine.unstable = True
    engine.reading = reading
    return True


def looks_ahead(engine: Engine, reading: Reading) -> bool | None:
    """Whether changing the last token moves earlier rows; None if that can't be tried."""
    case = next((c for c in engine.cases if c.name == "plain"), None)
    if case is None:
        return None
    i = case.inputs
    changed = {
        name: torch.cat([t[..., :-1, :], t[..., -1:, :] + 1.0], dim=-2)
        for name, t in i.tensors().items()
    }
    other = Case("plain, last token changed", i.replace(**changed), case.queries)
    before = engine.session.outcome(case, reading).output
    after = engine.session.outcome(other, reading).output
    if before is None or after is None:
        return None
    return bool((before[..., :-1, :] != after[..., :-1, :]).any())


class Products(Listener):
    """Keeps what products and choices give, for as many numbers as a tensor in question has."""

    NAMES = ("mul", "mul_", "div", "div_", "where", "masked_fill", "masked_fill_", "bernoulli")

    def __init__(self, sizes: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes = sizes
        self.seen: list[Tensor] = []

    def look(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Keep a result of a size in question."""
        kept = isinstance(result, Tensor) and result.numel() in self.sizes
        if kept and name in self.NAMES and result.is_floating_point():
            self.seen.append(result.detach().double().clone())


def _dropped_by_hand(engine: Engine, case: Case, reading: Reading) -> bool:
    """Whether a random call computes a stage's tensor times a constant, with some entries zero."""
    likely = [r for r in engine.all_readings if engine.runs(case, r)][:6]
    stages: list[Tensor] = []
    for tried in [reading, *likely]:
        trace = engine.session.predict(case, tried)
        if not isinstance(trace, Exception):
            stages += [trace.weights, trace.context, trace.output]
    with Products({t.numel() for t in stages}) as kept:
        call_once(engine, engine.session.copy(), case, reading)
    return any(_dropped(tensor, stage) for tensor in kept.seen for stage in stages)


def _dropped(tensor: Tensor, stage: Tensor) -> bool:
    """Whether a tensor is a stage's times one number, with a part of the entries set to zero."""
    if tensor.shape != stage.shape:
        return False
    alive = stage != 0
    zero = (tensor == 0) & alive
    ratio = (tensor / stage)[alive & ~zero]
    if not bool(zero.any()) or ratio.numel() < 2 or zero.sum() > 0.9 * alive.sum():
        return False
    return bool(torch.allclose(ratio, ratio[0].expand_as(ratio), rtol=1e-6))


def batch_dependent(engine: Engine, reading: Reading) -> Any:
    """B03 as a note, if a sample's result depends on its neighbours; None otherwise."""
    names = ("plain", "left padding", "right padding")
    for case in (c for c in engine.cases if c.name in names and c.inputs.batch > 1):
        outcome = engine.session.outcome(case, reading)
        if outcome.output is None:
            continue
        for row in range(case.inputs.batch):
            i = case.inputs
            cut = {n: t[row : row + 1] for n, t in i.tensors().items()}
            if i.keep is not None:
                cut["keep"] = i.keep[row : row + 1]
            single = Case(
                case.name, i.replace(**cut), case.queries[row : row + 1], case.causal_flag
            )
            alone = call_once(engine, engine.session.copy(), single, reading)
            if alone is None:
                continue
            together = outcome.output[row : row + 1]
            real = case.queries[row : row + 1]
            difference = gap(together, alone, real)
            if difference > 1e-9:
                note = Note(FAULTS["B03"], case=case, before=difference)
                note.place = _place_of_mixing(engine, case, single, row, reading)
                note.where = _(
                    "sample {row} of case {case} alone and in its batch differ by {gap:.2g}"
                ).format(row=row, case=case.name, gap=difference)
                return note
    return None


def _place_of_mixing(
    engine: Engine, case: Case, single: Case, row: int, reading: Reading
) -> Location | None:
    """The first operation that gives a sample something else in its batch than alone."""
    recordings = []
    for this in (case, single):
        thing, options = engine.session.copy(), reading.options(this, lifted=engine.session.lifted)
        inputs = engine.session.fresh_inputs(this)

        def call(thing: Any = thing, inputs: Any = inputs, options: Any = options) -> Any:
            return engine.session.subject.call(thing, inputs, options)

        with contextlib.suppress(Exception):
            recordings.append(
                record(call, own_files=engine.subject.own_files, adapters=engine.subject.adapters)
            )
    if len(recordings) < 2:
        return None
    for together, alone in _same_steps(*recordings):
        for a, b in zip(together.results, alone.results, strict=False):
            if a.data is None or b.data is None or not a.data.dim() or not together.frames:
                continue
            block = b.data.shape[0]
            if a.data.shape[0] != case.inputs.batch * block or a.data.shape[1:] != b.data.shape[1:]:
                continue
            if not _same(a.data[row * block : (row + 1) * block].double(), b.data.double()):
                frames = together.frames
                first = frames[0]
                lines = tuple(dict.fromkeys(f.line for f in frames if f.file == first.file))
                reason = _("here a sample first differs from itself alone")
                return Location(first.file, first.line, lines, "behaviour", reason)
    return None


def _same_steps(a: Recording, b: Recording) -> Iterator[tuple[Operation, Operation]]:
    """Operations of two recordings that the same lines made, in order."""

    def keyed(ops: Iterable[Operation]) -> dict[tuple[Any, ...], Operation]:
        found: dict[tuple[Any, ...], Operation] = {}
        for op in ops:
            lines = tuple((f.file, f.line) for f in op.frames)
            place = sum(key[:2] == (op.name, lines) for key in found)
            found[(op.name, lines, place)] = op
        return found

    others = keyed(b.ops)
    for key, op in keyed(a.ops).items():
        if key in others:
            yield op, others[key]


def check_returned_weights(engine: Engine, theory: Theory) -> None:
    """Compare returned attention weights, and the output on the path that returns them (M20)."""
    wanted = engine.subject.weight_requests if "weights" in engine.subject.offers else (None,)
    for asked in wanted:
        if not _weights_right(engine, theory, asked):
            return


def _weights_right(engine: Engine, theory: Theory, asked: Any) -> bool:
    """The same for one way of asking for weights; False if something was found."""
    reading = theory.reading
    adapter = bool(engine.subject.styles and engine.subject.styles[0].shape == "adapter")
    names = ("plain",) if adapter else ("plain", "left padding", "right padding", "causal switch")
    for name in names:
        case = next((c for c in engine.cases if c.name == name), None)
        if case is None or (case.masked and reading.style is None):
            continue
        outcome = engine.session.outcome(case, reading, weights=asked)
        trace = engine.session.predict(case, reading, theory.variant)
        if outcome.output is None or isinstance(trace, Exception):
            continue
        rows = engine.session.real_rows(case, reading)
        allowed = engine.session.allowance(case, reading)
        error = gap(outcome.output, trace.output, rows) if asked else 0.0
        wrong_weights = 0.0
        if outcome.weights is not None:
            expected = trace.weights
            if outcome.weights.dim() == 3:
                expected = expected.mean(1)
            wrong_weights = gap(outcome.weights, expected, rows)
            engine.checks.append(
                Check(
                    name="returned weights",
                    case=name,
                    passed=wrong_weights <= allowed,
                    error=wrong_weights,
                    allowed=allowed,
                )
            )
        if error <= allowed and wrong_weights <= allowed:
            continue
        note = Note(FAULTS["M20"], case=case, before=max(error, wrong_weights))
        for dropped in (("padding",), ("causal",), ("padding", "causal"), ("custom",)):
            variant = Variant("", hiding(drop_rule(*dropped), "fill -inf"))
            without = engine.session.predict(case, reading, variant)
            if isinstance(without, Exception):
                continue
            expected = without.weights
            if outcome.weights is not None and outcome.weights.dim() == 3:
                expected = expected.mean(1)
            after = gap(outcome.output, without.output, rows) if error > allowed else 0.0
            if outcome.weights is not None and wrong_weights > allowed:
                after = max(after, gap(outcome.weights, expected, rows))
            if after <= allowed and without is not trace:
                note.after = after
                note.theory = Theory(reading, (FAULTS["M20"],), (variant,))
                note.where = _("without the {rules} mask when weights are asked for").format(
                    rules=" + ".join(dropped)
                )
                engine.notes.insert(0, note)
                return False
        unexplained = Note(FAULTS["U00"], case=case, before=note.before)
        unexplained.what = (
            _("asking for the weights changes the output")
            if error > allowed
            else _("the returned weights are not the weights of the definition")
        )
        engine.notes.append(unexplained)
        return False
    return True


def causal_right_padding(engine: Engine) -> None:
    """Under causality, right padding lies in the hidden future: does the mask change anything?"""
    reading = engine.reading
    case = next((c for c in engine.cases if c.name == "right padding"), None)
    if case is None or not reading.spec.is_causal:
        return
    without = Case("right padding, no mask", case.inputs.replace(keep=None), case.queries)
    with_mask = engine.session.outcome(case, reading).output
    plain = engine.session.outcome(without, reading).output
    if with_mask is None or plain is None:
        return
    difference = gap(with_mask, plain, case.queries)
    if difference == 0.0:
        engine.inferred["right padding"] = _(
            "changes nothing on real rows: the layer is causal, and right padding lies in the "
            "hidden future (largest difference {gap:.0f})"
        ).format(gap=difference)


def dropout_place(engine: Engine) -> None:
    """X07: in training mode, is dropout applied to the scores instead of the weights?"""
    reading = engine.reading
    case = next((c for c in engine.cases if c.name == "plain"), None)
    if case is None:
        return
    thing = engine.session.copy()
    if isinstance(thing, nn.Module):
        for module in thing.modules():
            if isinstance(module, nn.Dropout) and module.p == 0.0:
                module.p = 0.25
    elif "dropout" not in engine.subject.offers:
        return
    trace = engine.session.predict(case, reading)
    if isinstance(trace, Exception):
        return
    engine.phase("dropout")
    state = torch.random.get_rng_state()
    with contextlib.suppress(Exception), DropoutWatch() as watch:
        torch.manual_seed(5)
        call_once(engine, thing, case, reading, training=True)
    torch.random.set_rng_state(state)
    for tensor in watch.seen:
        for name in ("scores", "masked_scores"):
            if _equal_values(tensor, getattr(trace, name), factor=True):
                note = Note(FAULTS["X07"], case=case)
                note.where = _(
                    "in training, dropout is applied to a tensor equal to the {name}"
                ).format(name=name)
                engine.notes.append(note)
                return
        if _equal_values(tensor, trace.weights):
            engine.checks.append(Check(name="dropout on weights", case=case.name, passed=True))


def _equal_values(a: Tensor, b: Tensor, *, factor: bool = False) -> bool:
    """Whether two tensors hold the same numbers, in any order of axes, or up to a factor."""
    if a.numel() != b.numel():
        return False
    left = a.detach().double().flatten().nan_to_num(0.0, -1e300, -1e300).sort().values
    right = b.detach().double().flatten().nan_to_num(0.0, -1e300, -1e300).sort().values
    left, right = left.clamp(min=-1e6), right.clamp(min=-1e6)
    if factor:
        seen = (left > -1e6) & (right > -1e6)
        if not torch.equal(left > -1e6, right > -1e6) or not bool(right[seen].any()):
            return False
        ratio = left[seen].norm() / right[seen].norm()
        left, right = left[seen], right[seen] * ratio
    return bool(torch.allclose(left, right, rtol=1e-6, atol=1e-7))
