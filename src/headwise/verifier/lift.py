"""Lifting: run float64 code without the casts to float32 that are written into it.

Many libraries compute their softmax (some also their norms and rotations) in float32, whatever the
dtype of the model: ``softmax(scores, dtype=torch.float32).to(query.dtype)``. In a float64 model
that leaves errors of about 1e-7, under which a real fault could hide. With the casts dropped, the
same code is comparable to rounding in float64, gradients included.

The casts also decide what an empty row is. A float64 mask hides keys with
``torch.finfo(torch.float64).min``, which is finite; cast to float32 it is −∞, and a row in which
every score is −∞ has a softmax of 0/0. So a float64 model gives NaN in rows where the same model
in float32, whose mask holds float32's own finite minimum, gives the mean of V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_LOW, _HIGH = torch.float32, torch.float64

_CASTS: dict[Any, str] = {
    Tensor.float: "float",
    Tensor.type: "type",
    Tensor.type_as: "type_as",
    Tensor.to: "to",
    torch.tensor: "tensor",
    torch.as_tensor: "as_tensor",
    torch.asarray: "asarray",
    Tensor.new_tensor: "new_tensor",
}
"""What does nothing but change the dtype of its tensor (or copies it)."""

_WITH_DTYPE: dict[Any, str] = {
    function: name
    for name, functions in {
        "softmax": (F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax),
        "log_softmax": (
            F.log_softmax,
            torch.log_softmax,
            Tensor.log_softmax,
            torch.special.log_softmax,
        ),
        "softmin": (F.softmin,),
        "sum": (torch.sum, Tensor.sum),
        "mean": (torch.mean, Tensor.mean),
        "cumsum": (torch.cumsum, Tensor.cumsum),
        "prod": (torch.prod, Tensor.prod),
        "vector_norm": (torch.linalg.vector_norm,),
    }.items()
    for function in functions
}
"""What computes, in a dtype that can be asked for."""


class Lift(TorchFunctionMode):
    """Inside this context, float64 tensors stay float64 where the code asks for float32.

    Dropped are ``.float()``, ``.to(torch.float32)``, ``.to(a float32 tensor)``, ``.type(…)``,
    ``.type_as(…)``, ``torch.tensor(x, dtype=torch.float32)`` and its kin, and the ``dtype`` of
    ``softmax``, ``sum``, ``mean`` and other reductions, each for float64 tensors only. A dropped
    cast still makes a copy, as the cast would have done, so that writing into its result does not
    write into its source. Everything else runs as written: integers become float32, other
    tensors keep their casts, casts to half precision are real. Autocast regions need no rule:
    torch leaves float64 tensors alone in them.

    Gradients flow as through a copy, wherever the backward pass runs. Casts inside a custom
    ``backward`` and inside compiled or scripted functions can't be seen and stay.

    Args:
        tables: raise integers and what is made from numbers as well, so that tables of angles
            and slopes are float64 (complex ones complex128): a layer may make those in float32
            however precise its input is.
        halves: drop casts to half precision too.

    Attributes:
        dropped: how many casts were dropped, by the name of the function that asked for them.

    Example:
        >>> scores = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
        >>> with Lift() as lift:
        ...     weights = torch.softmax(scores, -1, dtype=torch.float32)
        >>> weights.dtype, lift.dropped
        (torch.float64, {'softmax': 1})
    """

    def __init__(self, *, tables: bool = False, halves: bool = False) -> None:
        super().__init__()
        self.tables, self.halves = tables, halves
        self.wider = {**_WIDER, **_HALF} if halves else _WIDER
        self.dropped: dict[str, int] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` as called, or without its cast."""
        kwargs = dict(kwargs or {})
        if self.tables or self.halves:
            return self._wide(func, args, kwargs)
        source = _source(func, args, kwargs)
        if source is None or not _asks_low(func, args, kwargs):
            return func(*args, **kwargs)
        name = _CASTS.get(func) or _WITH_DTYPE[func]
        self.dropped[name] = self.dropped.get(name, 0) + 1
        if func in (Tensor.float, Tensor.type, Tensor.type_as):
            return source.clone()
        args, kwargs = _raised(args, kwargs)
        if func is Tensor.to:
            kwargs["copy"] = True
        return func(*args, **kwargs)

    def __enter__(self) -> Self:
        if self.tables:
            self._default = torch.get_default_dtype()
            torch.set_default_dtype(_HIGH)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self.tables:
            torch.set_default_dtype(self._default)

    def _wide(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``func`` with float64 wherever it asks for float32, whatever its source."""
        if func is Tensor.view:
            return func(*args, **kwargs)  # the same bits, read as another type
        wider = self.wider
        if func is Tensor.float or (self.halves and func in (Tensor.half, Tensor.bfloat16)):
            self.dropped["float"] = self.dropped.get("float", 0) + 1
            return args[0].to(_HIGH, copy=True)
        if func is Tensor.type_as and args[1].dtype in wider:
            return args[0].to(_HIGH, copy=True)
        changed = [wider.get(a, a) if _is_type(a) else a for a in args]
        named = {n: wider.get(a, a) if _is_type(a) else a for n, a in kwargs.items()}
        if func is Tensor.to and any(isinstance(a, Tensor) and a.dtype in wider for a in args[1:]):
            return args[0].to(_HIGH, copy=True)
        every = (*args[1:], *kwargs.values())
        if func is Tensor.to and any(_is_type(a) and a in wider for a in every):
            self.dropped["to"] = self.dropped.get("to", 0) + 1
            named["copy"] = True
        return func(*changed, **named)


_WIDER: dict[Any, Any] = {
    _LOW: _HIGH,
    torch.complex64: torch.complex128,
    torch.FloatTensor: torch.DoubleTensor,
    "torch.FloatTensor": "torch.DoubleTensor",
}


_HALF: dict[Any, Any] = {
    torch.float16: _HIGH,
    torch.bfloat16: _HIGH,
    torch.HalfTensor: torch.DoubleTensor,
    torch.BFloat16Tensor: torch.DoubleTensor,
    "torch.HalfTensor": "torch.DoubleTensor",
    "torch.BFloat16Tensor": "torch.DoubleTensor",
}


def _is_type(value: Any) -> bool:
    return isinstance(value, torch.dtype | type | str)


def _source(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Tensor | None:
    """The float64 tensor that a function would cast, or None if there is none."""
    if func not in _CASTS and func not in _WITH_DTYPE:
        return None
    place = 1 if func is Tensor.new_tensor else 0
    found = args[place] if len(args) > place else kwargs.get("input", kwargs.get("data"))
    return found if isinstance(found, Tensor) and found.dtype is _HIGH else None


def _asks_low(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call asks for float32, by whichever of the ways torch allows."""
    if func is Tensor.float:
        return True
    wanted = [*args[1:], *kwargs.values()]
    if func is Tensor.type:
        return any(value in (_LOW, torch.FloatTensor, "torch.FloatTensor") for value in wanted)
    if func in (Tensor.to, Tensor.type_as):  # `.to(other)`: the dtype that `other` has
        wanted = [value.dtype if isinstance(value, Tensor) else value for value in wanted]
    return any(value is _LOW for value in wanted)


def _raised(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with float64 wherever they ask for float32."""
    changed: list[Any] = list(args[:1])
    named = {name: _HIGH if value is _LOW else value for name, value in kwargs.items()}
    for value in args[1:]:
        if isinstance(value, Tensor) and value.dtype is _LOW:
            changed += [value.device, _HIGH]  # `.to(other)` is `.to(device, dtype)` of `other`
        else:
            changed.append(_HIGH if value is _LOW else value)
    return tuple(changed), named


class _Handler:
    """Hands what the dispatcher sees to ``look``.

    Apart from the mode, since torch wraps a handler that a mode defines itself in a guard whose
    first call imports its compiler: two seconds.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.look(func.overloadpacket.__name__, args, result)
        return result

    def look(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Called after each operation with its name, what it took and what it gave."""
        raise NotImplementedError


class Listener(_Handler, TorchDispatchMode):
    """A mode that looks at operations and changes none."""

    supports_higher_order_operators = True


class Narrow(Listener):
    """Notes in which precisions below float64 something is really computed.

    Masks of zeros and ones, infinities and whole numbers don't count: they are exact everywhere.

    Example:
        >>> with Narrow() as narrow:
        ...     _ = torch.tensor([0.3], dtype=torch.bfloat16) * 2, torch.ones(2) * 3
        >>> narrow.seen
        {torch.bfloat16}
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[torch.dtype] = set()

    def look(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Note the precisions of what an operation takes and gives."""
        for leaf in tree_leaves((args, result)):
            if (
                isinstance(leaf, Tensor)
                and leaf.dtype in (torch.float32, torch.float16, torch.bfloat16)
                and leaf.dtype not in self.seen
                and _fractional(leaf)
            ):
                self.seen.add(leaf.dtype)


def _fractional(tensor: Tensor) -> bool:
    """Whether some value needs more than six binary digits behind the point."""
    values = tensor.detach().double()
    values = values[values.isfinite() & (values.abs() < 1e4)] * 64
    return bool((values != values.round()).any())
