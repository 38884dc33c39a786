"""Recording what a target does: every tensor operation, with the source line it came from.

Two interceptions at once, because neither sees everything: the dispatcher (``TorchDispatchMode``)
sees each aten operation, also inside library modules and in hand-written backward passes; the
function mode sees ``.data``, ``detach`` and dropout as the programmer wrote them, and what requires
a gradient. A trace function restricted to the target's own files adds which variable was bound to
what. Values are copied when they are made, since a later in-place operation may change them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headwise.verifier.recording import Frame, Operation, Recording, Value
from headwise.verifier.watcher import Watcher

__all__ = ["Frame", "Operation", "Recording", "Value", "record"]

LARGEST = 1 << 18
"""Values with more entries than this are not copied; cases are small."""

_APPLY = ("autograd/function.py", "apply")
_QUIET = frozenset(
    "shape dtype device layout ndim size dim numel stride requires_grad is_leaf grad_fn grad "
    "names is_sparse is_quantized is_nested is_meta is_cuda is_cpu is_floating_point is_complex "
    "is_mkldnn storage_offset untyped_storage data_ptr element_size is_contiguous __len__ __hash__ "
    "requires_grad_ retain_grad _version __format__ __repr__".split()
)


class _Recorder:
    """State of one recording."""

    def __init__(
        self, own_files: Collection[str], adapters: Collection[CodeType], stop: FrameType
    ) -> None:
        self.own = {str(file) for file in own_files}
        self.own |= {str(Path(file).resolve()) for file in own_files}
        self.adapters = frozenset(inner for code in adapters for inner in _with_inner(code))
        self.stop = stop
        self.is_own: dict[CodeType, bool] = {}
        self.ops: list[Operation] = []
        self.calls: list[Operation] = []
        self.values: dict[tuple[Any, ...], Value] = {}
        self.alive: list[Any] = []
        self.versions: dict[int, int] = {}
        self.bases: dict[int, Tensor] = {}
        self.busy = False
        self.backward = False

    def owns(self, code: CodeType) -> bool:
        """Whether a function is the target's own code, and no adapter around it."""
        if code not in self.is_own:
            name = code.co_filename
            self.is_own[code] = (
                (name in self.own or str(Path(name).resolve()) in self.own)
                and code not in self.adapters
                and not code.co_qualname.startswith("headwise_")
            )
        return self.is_own[code]

    def frames(self) -> tuple[tuple[Frame, ...], bool]:
        """Own frames, innermost first, and whether a custom autograd function is among them."""
        found, custom = [], False
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - inspect takes 100 times as long
        while frame is not None and frame is not self.stop:
            code = frame.f_code
            if self.owns(code):
                found.append(Frame(code.co_filename, frame.f_lineno, code.co_name, frame.f_lasti))
            elif code.co_name == _APPLY[1] and code.co_filename.endswith(_APPLY[0]):
                custom = True
            frame = frame.f_back
        return tuple(found), custom

    def value(self, tensor: Tensor) -> Value | None:
        """The tensor as it is now; None for kinds that have no storage to speak of."""
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
            return None
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # noqa: SLF001
            return None
        if type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return None
        storage = tensor.untyped_storage()._cdata  # noqa: SLF001 - identity shared by all views
        shape, stride = tuple(tensor.shape), tensor.stride()
        version = self.versions.get(storage, 0)
        offset = tensor.storage_offset()
        key = (storage, version, offset, shape, stride, tensor.dtype)
        known = self.values.get(key)
        needs_grad = tensor.requires_grad
        if known is not None and known.requires_grad == needs_grad:
            return known
        if storage not in self.bases:
            self.bases[storage] = tensor.detach()
            self.alive.append(tensor)
        if known is not None:
            data = known.data
        elif tensor.numel() <= LARGEST:
            copy = tensor.detach().clone(memory_format=torch.contiguous_format)
            data = copy.resolve_conj().resolve_neg()
        else:
            data = None
        made = Value(
            key, storage, data, shape, stride, tensor.dtype, tensor.is_contiguous(), needs_grad
        )
        self.values[key] = made
        return made

    def all_values(self, tree: Any) -> tuple[Value, ...]:
        """Values of the tensors in nested arguments."""
        tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
        return tuple(v for v in map(self.value, tensors) if v is not None)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """A code object and those inside it: comprehensions, lambdas, inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


class _Handler:
    """Records what reaches the dispatcher.

    Apart from the mode, since torch wraps a handler that a mode defines itself in a guard whose
    first call imports its compiler: two seconds.
    """

    recorder: _Recorder

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords, r = kwargs or {}, self.recorder
        if r.busy:
            return func(*args, **keywords)
        inputs = r.all_values((args, keywords))
        output = func(*args, **keywords)
        schema, written = getattr(func, "_schema", None), {}
        if schema is not None and schema.is_mutable:
            for tensor in _written(schema, args, keywords):
                storage = tensor.untyped_storage()._cdata  # noqa: SLF001
                r.versions[storage] = r.versions.get(storage, 0) + 1
                written[storage] = r.bases.get(storage, tensor)
        outputs = r.all_values(output)
        frames, custom = r.frames()
        sources = {value.storage for value in inputs}
        r.ops.append(
            Operation(
                index=len(r.ops),
                name=str(func) if schema is None else schema.name.partition("::")[2],
                frames=frames,
                inputs=inputs,
                outputs=outputs,
                written=r.all_values(list(written.values())),
                mutated=frozenset(written),
                backward=r.backward,
                in_function=custom,
                view=not written and any(value.storage in sources for value in outputs),
                details=_details(args, keywords),
            )
        )
        return output


class _Ops(_Handler, TorchDispatchMode):
    """The handler as a mode."""

    supports_higher_order_operators = True

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder


class _Calls(TorchFunctionMode):
    """Records what the programmer called."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords, r = kwargs or {}, self.recorder
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            name = getattr(func.__self__, "__name__", name)
        if r.busy or name in _QUIET:
            return func(*args, **keywords)
        r.busy = True
        inputs = r.all_values((args, keywords))
        r.busy = False
        index = len(r.ops)
        output = func(*args, **keywords)
        r.busy = True
        outputs = r.all_values(output)
        r.busy = False
        frames, custom = r.frames()
        r.calls.append(
            Operation(
                index=index,
                name=name,
                frames=frames,
                inputs=inputs,
                outputs=outputs,
                backward=r.backward,
                in_function=custom,
                details=_details(args, keywords),
            )
        )
        return output


def record(
    call: Callable[[], Any],
    *,
    own_files: Collection[str],
    adapters: Collection[CodeType] = (),
    backward: bool = False,
    wrt: Sequence[Tensor] = (),
    grad_seed: int = 0,
    calls: bool = True,
    names: bool = True,
) -> Recording:
    """Run a call and record its tensor operations.

    Args:
        call: runs the target once.
        own_files: source files whose lines may be pointed at.
        adapters: code objects in those files that only call the target (``headwise_run``): their
            lines are never pointed at.
        backward: run the backward pass as well, with random upstream gradients.
        wrt: tensors to differentiate; empty = accumulate into ``.grad`` of all leaves.
        grad_seed: of the upstream gradients.
        calls: record calls in Python too. It makes ``nn.MultiheadAttention`` leave its fast path.
        names: record which variables are rebound.

    Returns:
        A ``Recording``; if the call raised, what was recorded until then, and the exception.

    Example:
        >>> scores = torch.ones(2)
        >>> [op.name for op in record(lambda: scores.softmax(0) * 2, own_files=[]).ops]
        ['_softmax', 'mul']
    """
    started = time.perf_counter()
    r = _Recorder(own_files, adapters, sys._getframe())  # noqa: SLF001
    watcher = Watcher(r.owns)
    result: Any = None
    error: Exception | None = None
    grads: tuple[Tensor | None, ...] = ()
    with ExitStack() as stack:
        stack.enter_context(_Ops(r))
        if calls:
            stack.enter_context(_Calls(r))
        if names:
            watcher.guard = r
            stack.enter_context(watcher)
        try:
            result = call()
            if backward:
                r.backward = True
                grads = _differentiate(result, wrt, grad_seed, r)
        except Exception as problem:  # a target may raise anything; it is kept
            error = problem
    returned = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    storages = {v.storage for v in map(r.value, returned) if v is not None}
    return Recording(
        ops=tuple(r.ops),
        calls=tuple(r.calls),
        rebinds=tuple(watcher.rebinds),
        executed=frozenset(watcher.executed),
        nothing={place: frozenset(names) for place, names in watcher.nothing.items()},
        result=result,
        error=error,
        grads=grads,
        seconds=time.perf_counter() - started,
        result_storages=frozenset(storages),
        latest=dict(watcher.latest),
    )


def _differentiate(
    result: Any, wrt: Sequence[Tensor], seed: int, r: _Recorder
) -> tuple[Tensor | None, ...]:
    """Backward pass of everything that was returned and can be differentiated."""
    outputs = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    if not outputs:
        return tuple(None for _ in wrt)
    r.busy = True
    generator = torch.Generator().manual_seed(seed)
    upstream = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in outputs]
    # A scalar, since handing upstream gradients over makes torch import sympy: 0.9 seconds.
    loss = torch.stack(
        [(t * g).sum().double() for t, g in zip(outputs, upstream, strict=True)]
    ).sum()
    r.busy = False
    if wrt:
        return tuple(torch.autograd.grad(loss, list(wrt), allow_unused=True))
    loss.backward()
    return ()


def _written(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Tensors that an operator writes, by its schema."""
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[place] if place < len(args) else kwargs.get(argument.name)
        yield from (leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor))


def _details(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments that are plain values."""
    named = [(str(place), value) for place, value in enumerate(args)] + list(kwargs.items())
    return {name: value for name, value in named if isinstance(value, bool | int | float)}
