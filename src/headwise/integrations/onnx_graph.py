"""Writing an ONNX graph node by node, with the few patterns that attention needs several times.

A value is the name of a tensor in the graph. Sizes are read from the inputs while the graph runs,
so batch and lengths stay open.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.errors import TargetError
from headwise.integrations.onnx_cases import INSTALL
from headwise.texts import translate as _


class Graph:
    """A graph that grows.

    Args:
        dtype: of the layer, ``float32`` or ``float64``.

    Example:
        >>> graph = Graph(np.dtype("float32"))
        >>> graph.add("Add", graph.constant(1), graph.constant(2), name="sum")
        'sum'
        >>> [node.op_type for node in graph.nodes]
        ['Add']
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.onnx = import_onnx()
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[tuple[Any, ...], str] = {}
        self._count = 0

    # -- single nodes
    def add(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A node with one output; returns the output's name. An empty input is left out."""
        output = name or self._name(op.lower())
        found = self.onnx.helper.make_node(op, list(inputs), [output], name=output, **attributes)
        self.nodes.append(found)
        return output

    def constant(self, value: Any, *, name: str = "") -> str:
        """A tensor that is part of the file; whole numbers become int64."""
        array = np.asarray(value)
        array = array.astype(np.int64) if array.dtype.kind == "i" else array
        key = (array.dtype.str, array.shape, array.tobytes(), name)
        if key not in self._known:
            known = name or self._name("constant")
            array = np.ascontiguousarray(array).reshape(array.shape)
            self.constants.append(self.onnx.numpy_helper.from_array(array, known))
            self._known[key] = known
        return self._known[key]

    def number(self, value: float) -> str:
        """A scalar in the layer's dtype."""
        return self.constant(np.asarray(value, dtype=self.dtype))

    def cast(self, value: str, dtype: str | np.dtype[Any]) -> str:
        """The same numbers in another dtype."""
        to = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.add("Cast", value, to=to)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"

    # -- shapes
    def size(self, value: str, axis: int) -> str:
        """The length of an axis, (1,) int64."""
        return self.add("Shape", value, start=axis, end=axis + 1)

    def shape(self, *sizes: str | int) -> str:
        """A shape from lengths and numbers, int64."""
        parts = [s if isinstance(s, str) else self.constant([s]) for s in sizes]
        return self.add("Concat", *parts, axis=0)

    def unsqueeze(self, value: str, *axes: int) -> str:
        """With further axes of length 1."""
        return self.add("Unsqueeze", value, self.constant(list(axes)))

    def count_to(self, size: str) -> str:
        """0, 1, 2, … below a length (1,), int64."""
        stop = self.add("Squeeze", size, self.constant([0]))
        return self.add("Range", self.constant(0), stop, self.constant(1))

    def both(self, a: str | None, b: str) -> str:
        """True where both are; None is no condition."""
        return b if a is None else self.add("And", a, b)

    # -- the parts of a layer
    def linear(self, x: str, weight: np.ndarray, bias: np.ndarray | None, *, name: str) -> str:
        """x·Wᵀ + b.

        Args:
            x: (B, T, in).
            weight: (out, in).
            bias: (out,) or None.
            name: of the result.
        """
        stored = self.constant(weight.T, name=f"{name}.weight")
        if bias is None:
            return self.add("MatMul", x, stored, name=name)
        found = self.add("MatMul", x, stored)
        return self.add("Add", found, self.constant(bias, name=f"{name}.bias"), name=name)

    def norm(
        self, x: str, heads: int, head_dim: int, gain: np.ndarray, offset: np.ndarray | None,
        eps: float,
    ) -> str:  # fmt: skip
        """A norm over the channels of each head, (B, T, H·D) → (B, T, H·D).

        Without an offset it is the root mean square. In float64 it is written out: the operators
        compute their statistics in float32 unless a runtime honours ``stash_type``.
        """
        split = self.add("Reshape", x, self.constant([0, 0, heads, head_dim]))
        scale, kind = self.constant(gain), "RMSNormalization" if offset is None else ""
        if self.dtype == np.float32:
            shift = () if offset is None else (self.constant(offset),)
            kind = kind or "LayerNormalization"
            made = self.add(kind, split, scale, *shift, axis=-1, epsilon=eps)
        else:
            last = self.constant([-1])
            if offset is not None:
                split = self.add("Sub", split, self.add("ReduceMean", split, last))
            mean = self.add("ReduceMean", self.add("Mul", split, split), last)
            root = self.add("Sqrt", self.add("Add", mean, self.number(eps)))
            made = self.add("Mul", self.add("Div", split, root), scale)
            if offset is not None:
                made = self.add("Add", made, self.constant(offset))
        return self.add("Reshape", made, self.constant([0, 0, heads * head_dim]))

    def model(self, inputs: list[Any], outputs: list[Any], *, opset: int, about: str) -> Any:
        """The finished model, checked: ``onnx.ModelProto``.

        Args:
            inputs, outputs: ``onnx.ValueInfoProto`` of each.
            opset: version of the operators.
            about: what the model is, kept in its metadata.
        """
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "attention", inputs, outputs, self.constants)
        made = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=IR_VERSION,
            producer_name="headwise",
        )
        helper.set_model_props(made, {"headwise.spec": about})
        self.onnx.checker.check_model(made, full_check=True)
        return made


IR_VERSION = 11
"""The file format that came with opset 23; newer ones are refused by runtimes of that time."""


def import_onnx() -> Any:
    """The library.

    Raises:
        TargetError: if it is missing.
    """
    try:
        import onnx
        import onnx.checker
    except ImportError as error:
        raise TargetError(
            _("writing ONNX files needs the onnx library"), why=str(error), fix=INSTALL
        ) from error
    return onnx
