"""Calling the target and the definition on cases, once each, with everything kept."""

from __future__ import annotations

import contextlib
import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, TargetError
from headwise.numerics import eps, float64_allowance, largest
from headwise.reference import Inputs, Parameters, Trace
from headwise.spec import AttentionSpec
from headwise.texts import translate as _
from headwise.verifier.cases import Case
from headwise.verifier.faults import Variant
from headwise.verifier.faults.masking import NothingToDoError
from headwise.verifier.layouts import EMPTY, Layout
from headwise.verifier.lift import Lift
from headwise.verifier.names import role_of
from headwise.verifier.subject import Options, PadStyle, Subject

_MODULE_CALL = nn.Module._call_impl.__code__  # noqa: SLF001 - under it runs a module's forward

CORRECT = Variant("")
"""The definition as it is."""


@dataclass(frozen=True)
class Reading:
    """A way of understanding the target: what it is, where its weights are, how it is called."""

    spec: AttentionSpec
    layout: Layout = EMPTY
    time_first: bool = False
    tensor_layout: str = "BHTD"
    style: PadStyle | None = None
    words: tuple[tuple[str, str], ...] = ()

    def options(self, case: Case, **changes: Any) -> Options:
        """How to call the target on a case under this reading."""
        given: dict[str, Any] = {
            "style": self.style,
            "time_first": self.time_first,
            "layout": self.tensor_layout,
            "causal_flag": True if case.causal_flag else None,
            "steps": case.steps,
            "recent": case.recent,
        }
        return Options(**{**given, **changes})


PRODUCTS_PER_UNIT = 1.2e6
"""So many multiplications take about as long as everything else in a prediction."""


def products_of(case: Case, reading: Reading) -> float:
    """Multiplications of the projections in a prediction, roughly."""
    spec, inputs = reading.spec, case.inputs
    keys = spec.num_kv_heads * (spec.head_dim + spec.v_head_dim)
    heads = spec.num_heads * (spec.head_dim + spec.v_head_dim)
    return float(inputs.batch * max(inputs.q_len, inputs.kv_len) * spec.d_model * (keys + heads))


@dataclass
class Outcome:
    """What one call of the target gave.

    Args:
        output: (B, Tq, Dm) or (B, Hq, Tq, Dv), or None if it raised.
        weights: attention weights, if it returned some.
        error: the exception, if it raised.
        mutated: names of inputs that the call changed.
    """

    output: Tensor | None = None
    weights: Tensor | None = None
    error: Exception | None = None
    mutated: tuple[str, ...] = ()


@dataclass
class Gradients:
    """Gradients by name of input or parameter; None = not reached."""

    values: dict[str, Tensor | None] = field(default_factory=dict)
    error: Exception | None = None


class Session:
    """One target, with random weights unless it keeps its own, and a memory of its results.

    Args:
        subject: the target.
        seed: of the weights.
        phase: told what is being done, so that a hang can be described.
    """

    def __init__(
        self, subject: Subject, *, seed: int, phase: Callable[[str], None] = lambda name: None
    ) -> None:
        self.subject, self.seed, self.phase = subject, seed, phase
        self.pid = os.getpid()
        self.dtype = torch.float64
        self.lifted = False
        self.shared = False
        self.halves = self.coarse = False
        self._lifted: Any = None
        self.phase("constructing")
        self.object = self._fresh()
        self._outcomes: dict[Any, Outcome] = {}
        self._traces: dict[Any, Trace | Exception] = {}
        self._applies: dict[Any, bool] = {}
        self._known: dict[int, tuple[Trace, tuple[float, float, Tensor]]] = {}
        self._alive_variants: list[Variant] = []

    # -------------------------------------------------------------- the target
    def _fresh(self, *, lifted: bool = False) -> Any:
        with self._contained(_("while it is built")), self.lift(lifted):
            thing = self.subject.make()
        if isinstance(thing, nn.Module):
            try:
                thing = copy.deepcopy(thing)
            except Exception:
                self.shared = True  # an object that refuses to be copied is used as it is
            thing = thing.to(self.dtype).eval()
            if not self.subject.keeps_weights:
                randomise(thing, seed=self.seed)
        return thing

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Work in another precision from now on, for targets that refuse float64."""
        self.dtype, self._lifted = dtype, None
        self.object = self._fresh()
        self._outcomes.clear()

    def work_in(self, precision: str) -> None:
        """Drop casts, or allow for rounding in float32, from now on.

        Args:
            precision: ``float64`` (as it is), ``lifted`` (casts to float32 dropped), ``halves``
                (casts to half precision too), ``float32`` (dropped where that is possible, and
                rounding in float32 allowed for).
        """
        self.lifted, self.coarse = precision != "float64", precision == "float32"
        if self.halves != (precision == "halves"):
            self.halves = precision == "halves"
            self._lifted = None
            for key in [k for k in self._outcomes if k[1].lifted]:
                del self._outcomes[key]

    def copy(self, *, lifted: bool | None = None) -> Any:
        """The target with its weights, in the state it has when new.

        Args:
            lifted: built with float64 tables as well; None = as the session works now.
        """
        thing = self.object
        if self.lifted if lifted is None else lifted:
            thing = self._lifted_object()
        if not isinstance(thing, nn.Module):
            return thing
        try:
            return copy.deepcopy(thing)
        except Exception:
            return thing

    def _lifted_object(self) -> Any:
        """The target, the same weights, built without casts to float32."""
        if self._lifted is None:
            try:
                self._lifted = self._fresh(lifted=True)
            except Exception:
                self._lifted = self.object
        return self._lifted

    def lift(self, lifted: bool) -> Any:
        """The context that drops casts, if they are to be dropped."""
        if not lifted:
            return contextlib.nullcontext()
        return Lift(tables=self.subject.angles is None, halves=self.halves)

    def keeps_narrow_tables(self) -> bool:
        """Whether it is a finished module with tables in float32, which can't be made anew."""
        if self.rebuilds() or not isinstance(self.object, nn.Module):
            return False
        made = self.subject.make()
        held = [t for m in made.modules() for t in vars(m).values() if isinstance(t, Tensor)]
        narrow = (torch.float32, torch.complex64)
        return any(t.dtype in narrow for t in (*made.buffers(), *held))

    def rebuilds(self) -> bool:
        """Whether making the target again makes another module."""
        return isinstance(self.object, nn.Module) and self.subject.make() is not self.subject.make()

    def rebuilt(self) -> Any:
        """The target made anew, with the same weights."""
        thing = self.subject.make().to(self.dtype).eval()
        with torch.no_grad():
            for name, tensor in thing.named_parameters():
                tensor.copy_(self.tensors()[name])
        return thing

    @contextlib.contextmanager
    def _contained(self, when: str) -> Iterator[None]:
        try:
            yield
        except SystemExit as error:
            raise TargetError(
                _("the target exits (sys.exit({code!r})) {when}").format(code=error.code, when=when)
            ) from error
        finally:
            self.check_process()

    def raised_inside(self, error: BaseException) -> bool:
        """Whether an exception passed through the target's own code, which may use Headwise too."""
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            own = code.co_filename in self.subject.own_files and code not in self.subject.adapters
            if own or code is _MODULE_CALL:
                return True
            trace = trace.tb_next
        return False

    def check_process(self) -> None:
        """End a copy of this process that the target forked."""
        if os.getpid() != self.pid:
            os._exit(0)

    def tensors(self, thing: Any = None) -> dict[str, Tensor]:
        """The target's parameters by name."""
        thing = self.object if thing is None else thing
        return dict(thing.named_parameters()) if isinstance(thing, nn.Module) else {}

    def call(
        self, thing: Any, case: Case, options: Options, inputs: Inputs | None = None
    ) -> tuple[Any, Inputs]:
        """Call the target on copies of a case's inputs; returns its result and the copies."""
        fresh = self.fresh_inputs(case, inputs)
        self.phase(f"case {case.name}")
        return self._invoke(thing, fresh, options), fresh

    def fresh_inputs(self, case: Case, inputs: Inputs | None = None) -> Inputs:
        """Copies of a case's inputs, in the session's precision."""
        given = case.inputs if inputs is None else inputs
        clones = {n: t.detach().clone().to(self.dtype) for n, t in given.tensors().items()}
        more = {
            n: getattr(given, n).clone()
            for n in ("keep", "query_keep", "documents")
            if getattr(given, n) is not None
        }
        return given.replace(**clones, **more)

    def _invoke(self, thing: Any, inputs: Inputs, options: Options) -> Any:
        with self._contained(_("when it is called")), self.lift(options.lifted):
            return self.subject.call(thing, inputs, options)

    def outcome(self, case: Case, reading: Reading, **changes: Any) -> Outcome:
        """The target's result on a case, remembered."""
        changes.setdefault("lifted", self.lifted)
        options = reading.options(case, **changes)
        key = (case.name, options)
        if key not in self._outcomes:
            self._outcomes[key] = self._run(case, options, reading)
        return self._outcomes[key]

    def _run(self, case: Case, options: Options, reading: Reading) -> Outcome:
        thing = self.copy(lifted=options.lifted)
        try:
            with torch.no_grad():
                result, given = self.call(thing, case, options)
        except Exception as error:
            if isinstance(error, HeadwiseError) and not self.raised_inside(error):
                raise
            return Outcome(error=error)
        originals = {**case.inputs.tensors()}
        mutated = tuple(
            name
            for name, tensor in given.tensors().items()
            if not torch.equal(tensor, originals[name].to(self.dtype))
            and bool(tensor.isfinite().all())
        )
        if case.inputs.keep is not None and not torch.equal(
            given.keep if given.keep is not None else case.inputs.keep, case.inputs.keep
        ):
            mutated = (*mutated, "mask")
        try:
            output, weights = self.pick(result, case, reading, options)
        except TargetError as error:
            return Outcome(error=error, mutated=mutated)
        return Outcome(output, weights, None, mutated)

    def pick(
        self, result: Any, case: Case, reading: Reading, options: Options
    ) -> tuple[Tensor, Tensor | None]:
        """The output and the weights among what the target returned."""
        found = list(tensors_in(result))
        i, spec = case.inputs, reading.spec
        b, q_len, kv_len = i.batch, i.q_len, i.kv_len
        weight_shapes = ((b, spec.num_heads, q_len, kv_len), (b, q_len, kv_len))
        if i.x is None:
            wanted: set[tuple[int, ...]] = {(b, spec.num_heads, q_len, spec.v_head_dim)}
        else:
            wanted = {(b, q_len, spec.d_model), (b, q_len, spec.num_heads * spec.v_head_dim)}
        output = None
        for tensor in found:
            seen = tensor.transpose(0, 1) if options.time_first and tensor.dim() == 3 else tensor
            if tuple(seen.shape) in wanted and tensor.is_floating_point():
                output = seen
                break
        if output is None:
            raise TargetError(
                _("no tensor of shape {wanted} among what it returned: {shapes}").format(
                    wanted=" or ".join(str(list(w)) for w in sorted(wanted)),
                    shapes=[list(t.shape) for t in found] or type(result).__name__,
                )
            )
        weights = next(
            (t for t in found if tuple(t.shape) in weight_shapes and t is not output), None
        )
        return output.detach(), None if weights is None else weights.detach()

    def gradients(self, case: Case, reading: Reading, upstream: Tensor) -> Gradients:
        """The target's gradients of sum(output · upstream), by name."""
        thing = self.copy()
        leaves: dict[str, Tensor] = {}
        clones = {}
        for name, tensor in case.inputs.tensors().items():
            clones[name] = tensor.detach().clone().to(self.dtype).requires_grad_()
            leaves[name] = clones[name]
        for name, tensor in self.tensors(thing).items():
            leaves[name] = tensor.requires_grad_()
        options = reading.options(case, lifted=self.lifted)
        self.phase(f"gradients, case {case.name}")
        try:
            given = {n: t.clone() for n, t in clones.items()}  # a leaf can't be written into
            masks = {
                n: getattr(case.inputs, n).clone()
                for n in ("keep", "query_keep", "documents")
                if getattr(case.inputs, n) is not None
            }
            result = self._invoke(thing, case.inputs.replace(**given, **masks), options)
            with self.lift(self.lifted):
                output = self._grad_output(result, case, reading, options)
                grads = torch.autograd.grad(
                    (output * upstream.to(output.dtype)).sum(),
                    list(leaves.values()),
                    allow_unused=True,
                )
        except Exception as error:
            if isinstance(error, HeadwiseError) and not self.raised_inside(error):
                raise
            return Gradients(error=error)
        finally:
            self.check_process()
        return Gradients(dict(zip(leaves, grads, strict=True)))

    def _grad_output(self, result: Any, case: Case, reading: Reading, options: Options) -> Tensor:
        chosen, _weights = self.pick(result, case, reading, options)
        for tensor in tensors_in(result):
            seen = tensor.transpose(0, 1) if options.time_first and tensor.dim() == 3 else tensor
            if seen.shape == chosen.shape and torch.equal(
                seen.detach().nan_to_num(), chosen.nan_to_num()
            ):
                return seen
        raise TargetError(_("the output is not among what it returned"))

    # -------------------------------------------------------------- the definition
    def inputs(self, case: Case) -> Inputs:
        """The case's inputs, with the rotary tables that the target is handed, if any."""
        if self.subject.angles is None:
            return case.inputs
        return case.inputs.replace(angles=self.subject.angles(case.inputs, self.lifted))

    def parameters(
        self, reading: Reading, tensors: Mapping[str, Tensor] | None = None
    ) -> Parameters:
        """The target's weights in the definition's layout, float64."""
        given = self.tensors() if tensors is None else tensors
        return reading.layout.read({n: t.double() for n, t in given.items()})

    def spec_for(self, case: Case, reading: Reading) -> AttentionSpec:
        """The specification on a case: causal where the target's switch is on."""
        if case.causal_flag:
            return reading.spec.replace(is_causal=True)
        return reading.spec

    def applies(self, case: Case, reading: Reading, variant: Variant) -> bool:
        """Whether a fault has something to do on a case."""
        key = (case.name, id(variant), id(reading.spec), self.lifted)
        if key not in self._applies:
            self._applies[key] = True
            self._alive_variants.append(variant)  # its id is a key
            with contextlib.suppress(Exception), torch.no_grad():
                try:
                    variant.run(
                        self.spec_for(case, reading), self.detached(reading), self.inputs(case)
                    )
                except NothingToDoError:
                    self._applies[key] = False
        return self._applies[key]

    def predict(
        self, case: Case, reading: Reading, variant: Variant = CORRECT
    ) -> Trace | Exception:
        """What the definition, or the definition with a fault, gives on a case."""
        key = (case.name, self.lifted, id(reading.spec), reading.layout.name)
        if variant is CORRECT and key in self._traces:
            return self._traces[key]
        self.work += 1.0 + products_of(case, reading) / PRODUCTS_PER_UNIT
        try:
            with torch.no_grad():
                trace: Trace | Exception = variant.run(
                    self.spec_for(case, reading),
                    self.detached(reading),
                    self.inputs(case),
                    case.steps,
                )
        except NothingToDoError:
            return self.predict(case, reading)
        except Exception as error:
            trace = error
        if variant is CORRECT:
            self._traces[key] = trace
            self._keep_alive(reading)
        return trace

    work: float = 0.0
    """What predictions have cost so far, the measure of a search: 1 for each small one."""

    _alive: list[Any]

    def forget(self) -> None:
        """Drop remembered results, before sizes change."""
        self._outcomes.clear()
        self._traces.clear()

    def _keep_alive(self, reading: Reading) -> None:
        # ids are keys of the memory, so what they belong to must not be collected
        if not hasattr(self, "_alive"):
            self._alive = []
        self._alive.append(reading)

    def detached(self, reading: Reading) -> Parameters:
        """Parameters without gradients, remembered per layout."""
        memory = self.__dict__.setdefault("_parameters", {})
        key = (id(self.object), reading.layout.name)
        if key not in memory:
            memory[key] = self.parameters(reading).map(lambda t: t.detach())
        found: Parameters = memory[key]
        return found

    def expected_gradients(
        self, case: Case, reading: Reading, upstream: Tensor, variant: Variant = CORRECT
    ) -> Gradients:
        """The definition's gradients for the target's own parameters, by the same names."""
        leaves = {
            n: t.detach().double().clone().requires_grad_() for n, t in self.tensors().items()
        }
        inputs = self.inputs(case)
        clones = {
            n: t.detach().double().clone().requires_grad_() for n, t in inputs.tensors().items()
        }
        try:
            trace = variant.run(
                self.spec_for(case, reading),
                reading.layout.read(leaves),
                inputs.replace(**clones),
            )
            every = {**clones, **leaves}
            grads = torch.autograd.grad(
                (trace.output * upstream).sum(), list(every.values()), allow_unused=True
            )
        except NothingToDoError:
            return self.expected_gradients(case, reading, upstream)
        except Exception as error:
            return Gradients(error=error)
        return Gradients(dict(zip(every, grads, strict=True)))

    # -------------------------------------------------------------- comparing
    def allowance(self, case: Case, reading: Reading, *, rows: int = 0) -> float:
        """What rounding explains on a case, from sum lengths, magnitude and sharpness."""
        trace = self.predict(case, reading)
        if isinstance(trace, Exception):
            return 1e-9
        spec, kv_len = reading.spec, case.inputs.kv_len
        terms = spec.d_model + spec.head_dim + kv_len + spec.num_heads * spec.v_head_dim + rows
        sharpness, scale, _rows = self._facts(trace)
        allowed = float64_allowance(terms=terms, scale=scale, sharpness=sharpness)
        dtype = torch.float32 if self.coarse else self.dtype
        return allowed * (eps(dtype) / eps(torch.float64))

    def real_rows(self, case: Case, reading: Reading) -> Tensor:
        """(B, Tq) bool: real queries that see at least one key."""
        trace = self.predict(case, reading)
        if isinstance(trace, Exception):
            return case.queries
        return case.queries & self._facts(trace)[2]

    def _facts(self, trace: Trace) -> tuple[float, float, Tensor]:
        """Sharpness and magnitude of a trace, and its rows that see a key; remembered."""
        if id(trace) not in self._known:
            visible = trace.scores.masked_fill(~trace.visible.expand(trace.scores.shape), 0.0)
            facts = (
                1.0 + largest([visible]),
                max(largest([trace.output]), 1e-3),
                trace.visible.any(-1).all(1),
            )
            self._known[id(trace)] = (trace, facts)
        return self._known[id(trace)][1]


def gap(got: Tensor, want: Tensor, rows: Tensor | None = None) -> float:
    """Largest difference of two outputs on some rows; NaN in the same places counts as equal.

    Args:
        got, want: (B, Tq, ·) or (B, H, Tq, ·).
        rows: (B, Tq) bool; None = all.
    """
    if got.shape != want.shape:
        return math.inf
    a, b = got.detach().double(), want.detach().double()
    if rows is not None:
        chosen = rows[..., None] if a.dim() == 3 else rows[:, None, :, None]
        chosen = chosen.expand(a.shape)
        a, b = a[chosen], b[chosen]
    if a.numel() == 0:
        return 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    gaps = torch.where(same, 0.0, (a - b).abs())
    return float(torch.where(gaps.isnan(), math.inf, gaps).max())


def tensors_in(result: Any) -> Iterator[Tensor]:
    """The tensors of a result, in nested mappings, lists and tuples too."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Mapping):
        for value in result.values():
            yield from tensors_in(value)
    elif isinstance(result, list | tuple):
        for value in result:
            yield from tensors_in(value)


def randomise(module: nn.Module, *, seed: int) -> None:
    """Distinct random values for every parameter, in place.

    Fresh layers have zero biases and unit gains, which hide faults. Matrices get a spread that
    keeps scores of order one; gains stay around one.
    """
    generator = torch.Generator().manual_seed(77_000 + seed)
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            if not tensor.is_floating_point():
                continue
            draw = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            role = role_of(name) or ""
            if role.endswith("norm") and not name.endswith("bias"):
                values = 1.0 + 0.4 * draw
            elif role == "positions":
                values = 0.7 * draw
            elif tensor.dim() >= 2:
                values = 1.2 * draw / math.sqrt(max(tensor.shape[-2:]))
            else:
                values = 0.5 * draw
            tensor.copy_(values.to(tensor.dtype))
