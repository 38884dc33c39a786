"""What a fault is, and the registry of all of them.

A fault is one stage of the definition replaced by a wrong one. The same record drives the
verifier's diagnosis, its texts, the labs' injected errors and the mutation tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from headwise.errors import UsageError, did_you_mean
from headwise.reference import Inputs, Parameters, StageFunction, Trace, attend
from headwise.reference.setting import Setting
from headwise.registry import Registry
from headwise.spec import AttentionSpec
from headwise.stages import place_of
from headwise.texts import translate as _
from headwise.verifier.faults.decoding import Decoding, decode

Kind = Literal["bug", "convention", "numerics", "hazard", "unexplained"]
Whole = Callable[[AttentionSpec, Parameters, Inputs], Trace]


@dataclass(frozen=True)
class Variant:
    """One way in which a fault is written in practice.

    Args:
        label: what distinguishes it from the fault's other variants ("fill -inf").
        replace: stage functions to use instead.
        around: a replacement for the whole run, for faults that no single stage holds.
        decoding: what is done otherwise when a sequence is taken in steps.
    """

    label: str = ""
    replace: Mapping[str, StageFunction] = field(default_factory=dict)
    around: Whole | None = None
    decoding: Decoding | None = None

    def run(
        self,
        spec: AttentionSpec,
        parameters: Parameters,
        inputs: Inputs,
        steps: tuple[int, ...] = (),
    ) -> Trace:
        """The definition with this fault; without a fault of decoding, steps change nothing."""
        if self.decoding is not None and steps:
            return decode(spec, parameters, inputs, steps, self.decoding, self.replace)
        if self.around is not None:
            return self.around(spec, parameters, inputs)
        return attend(spec, parameters, inputs, replace=self.replace)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An entry of the catalogue.

    Args:
        code: stage letter and number, without the prefix ``HW-``.
        name: the bad pattern in kebab case.
        undeclared: kind of the finding when the user declared nothing about the point.
        point: word of the specification that declares it ("" if it can't be declared).
        rank: among faults that compute the same function, the lowest rank is named first.
        shown_by: experiments that separate it, in the words of docs/faults.md.
        what: what is wrong, one sentence (source text of the catalogue of translations).
        why: why that is wrong, what it does to the numbers.
        fix: what to write instead.
        bad, good: the pattern in code, wrong and right.
        variants: the ways of being wrong for a spec; empty where a property finds it instead.
        in_steps: the ways that only show when a sequence is taken in steps, with a cache.
        with_evidence: the ways that other faults share, named only where the target's provider has
            seen the cause itself (``Subject.evidence``).
    """

    code: str
    name: str
    undeclared: Kind = "bug"
    point: str = ""
    rank: int = 50
    shown_by: tuple[str, ...] = ()
    what: str
    why: str = ""
    fix: str = ""
    bad: str = ""
    good: str = ""
    variants: Callable[[AttentionSpec], Iterable[Variant]] = lambda spec: ()
    in_steps: Callable[[AttentionSpec], Iterable[Variant]] = lambda spec: ()
    with_evidence: Callable[[AttentionSpec], Iterable[Variant]] = lambda spec: ()

    @property
    def stage(self) -> str:
        """The stage or place that the code's letter names."""
        return place_of(self.code)

    @property
    def full_code(self) -> str:
        """The code as it is printed."""
        return f"HW-{self.code}"

    def kind(self, declared: frozenset[str]) -> Kind:
        """A bug if the user declared the point, else what the catalogue says."""
        if self.point and self.undeclared == "convention" and self.point in declared:
            return "bug"
        return self.undeclared


FAULTS: Registry[Fault] = Registry("fault")


def register(*faults: Fault) -> None:
    """Add faults to the catalogue."""
    for fault in faults:
        FAULTS.add(fault.code, fault)


def find_fault(text: str) -> Fault:
    """A fault by code (with or without ``HW-``) or by name.

    Raises:
        UsageError: unknown, with the nearest code or name.
    """
    wanted = text.strip()
    code = wanted.upper().removeprefix("HW-")
    if code in FAULTS:
        return FAULTS[code]
    for fault in FAULTS.values():
        if fault.name == wanted.lower():
            return fault
    near = did_you_mean(code, FAULTS) or did_you_mean(
        wanted.lower(), [fault.name for fault in FAULTS.values()]
    )
    raise UsageError(
        _("there is no fault {text!r}").format(text=text),
        fix=_("did you mean {near!r}?").format(near=near)
        if near
        else _("`headwise fault` lists them all"),
    )


def one(
    stage: str, function: StageFunction, label: str = ""
) -> Callable[[AttentionSpec], Iterable[Variant]]:
    """Variants of a fault that is a single replaced stage, whatever the spec."""
    return lambda spec: (Variant(label, {stage: function}),)


def under(function: StageFunction, **changes: object) -> StageFunction:
    """A stage that works under a changed spec."""

    def changed(t: Trace, s: Setting) -> None:
        function(t, s.with_spec(**changes))

    return changed
