"""The cases with which ONNX pins its attention operators, taken from the installed ``onnx``.

Nothing is downloaded and nothing is read from disk: a case is computed by numpy, with a seed of its
own, when the module of its operator is imported. One case looks like this::

    attention_4d_causal_with_past_and_present      Attention, opset 24
      attributes   is_causal=1
      inputs       Q (2, 3, 4, 8)   K, V (2, 3, 4, 8)   past_key, past_value (2, 3, 3, 8)
      outputs      Y (2, 3, 4, 8)   present_key, present_value (2, 3, 7, 8)

``onnx`` is imported when `load` is called.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwise.errors import TargetError
from headwise.texts import translate as _

if TYPE_CHECKING:
    import numpy as np

MODULES: Mapping[str, str] = {"Attention": "attention", "RotaryEmbedding": "rotaryembedding"}
"""Operator -> the module of onnx that makes its cases."""

OLDEST = (1, 23)
"""Earlier wheels have other expected numbers under the same opsets: where the causal mask starts,
what an empty row gives, how heads are grouped, when scores are capped."""

INSTALL = "pip install 'headwise[onnx]'"


@dataclass(frozen=True)
class Case:
    """One call of an operator and what has to come out.

    Args:
        name: as onnx has it, without ``test_``.
        operator: ``Attention`` or ``RotaryEmbedding``.
        opset: version of the operator set that the case is written for.
        attributes: those that are given, by name.
        inputs: arrays by the name of the operator's schema (``Q``, ``attn_mask``, ``X`` ...),
            only those that are given.
        outputs: expected arrays by the name of the schema (``Y``, ``present_key`` ...), only those
            that the case declares.
        rtol: relative tolerance that onnx gives the case.
        atol: absolute tolerance that onnx gives the case.
        model: the same as an ``onnx.ModelProto`` with one node.
    """

    name: str
    operator: str
    opset: int
    attributes: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    rtol: float
    atol: float
    model: Any = field(repr=False)

    def feeds(self) -> dict[str, np.ndarray]:
        """The inputs by the names that the model's graph gives them."""
        names = (value.name for value in self.model.graph.input)
        return dict(zip(names, self.inputs.values(), strict=True))


def load() -> dict[str, Case]:
    """All cases of both operators, by name; not those in which onnx writes an operator out.

    Returns:
        101 cases with onnx 1.23: 93 of Attention, 8 of RotaryEmbedding.

    Raises:
        TargetError: if onnx is missing or too old, or if somebody collected the cases of another
            operator in this process before, which leaves ours unmade.

    Source:
        ``onnx.backend.test.case.node``, of which only the two modules are imported here: the public
        ``collect_testcases`` imports those of all operators, and only its first call in a process
        obeys its argument.
    """
    onnx = _onnx()
    with warnings.catch_warnings(), _own_random_stream():
        warnings.simplefilter("ignore")  # numpy's, about infinities that are meant
        node = importlib.import_module("onnx.backend.test.case.node")
        for module in MODULES.values():
            importlib.import_module(f"{node.__name__}.{module}")
    cases: dict[str, Case] = {}
    for made in node._NodeTestCases:  # noqa: SLF001 - the public way in is wider, see above
        nodes = made.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in MODULES:
            case = _case(onnx, made)
            cases[case.name] = case
    absent = set(MODULES) - {case.operator for case in cases.values()}
    if absent:
        raise TargetError(
            _("onnx made no cases of {operators}").format(operators=", ".join(sorted(absent))),
            where=node.__name__,
            why=_("its modules were imported before, for another operator, and make cases once"),
            fix=_("a fresh process"),
        )
    return cases


def _onnx() -> Any:
    """The library, new enough."""
    try:
        import onnx
    except ImportError as error:
        raise TargetError(
            _("the ONNX cases need the onnx library"), why=str(error), fix=INSTALL
        ) from error
    number = re.match(r"(\d+)\.(\d+)", onnx.__version__)
    if number is None or tuple(map(int, number.groups())) < OLDEST:
        raise TargetError(
            _("onnx {version} has other expected numbers").format(version=onnx.__version__),
            why=_("the meaning of attention changed under the same opsets until {oldest}").format(
                oldest=".".join(map(str, OLDEST))
            ),
            fix=INSTALL,
        )
    return onnx


@contextlib.contextmanager
def _own_random_stream() -> Iterator[None]:
    """The cases seed numpy's global stream; the caller's is put back afterwards."""
    import numpy as np

    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


def _case(onnx: Any, made: Any) -> Case:
    """One of onnx's records as one of ours."""
    (node,) = made.model.graph.node
    opset = next(s.version for s in made.model.opset_import if s.domain in {"", "ai.onnx"})
    schema = onnx.defs.get_schema(node.op_type, opset)
    ((inputs, outputs),) = made.data_sets
    return Case(
        name=made.name.removeprefix("test_"),
        operator=node.op_type,
        opset=opset,
        attributes={a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
        inputs=dict(zip(_given(schema.inputs, node.input), inputs, strict=True)),
        outputs=dict(zip(_given(schema.outputs, node.output), outputs, strict=True)),
        rtol=made.rtol,
        atol=made.atol,
        model=made.model,
    )


def _given(formal: Any, actual: Any) -> list[str]:
    """Names of the schema for those places that a node fills; an empty name is a gap."""
    return [place.name for place, name in zip(formal, actual, strict=False) if name]
