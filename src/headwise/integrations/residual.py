"""What writes into the residual stream of a model: found by watching it, not by names.

The output projection of a layer is the linear module that takes the merged context of that layer,
number for number. Whatever linear module runs last in the rest of the block writes the feed-forward
part. Cutting the graph at these places, and holding the sizes of the norms fixed, makes the target
a sum of what was written: see `decompose`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.errors import TargetError
from headwise.explain.question import EmbeddingNorm, Question
from headwise.explain.subject import Parts, Run
from headwise.explain.tap import Tap, Watch
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.integrations.subject import HfSubject


def takes(model: nn.Module, name: str) -> bool:
    """The model's forward has a parameter of this name."""
    return name in inspect.signature(model.forward).parameters


def cache_argument(model: nn.Module) -> str:
    """The name under which a model takes its cache; later versions of transformers renamed it."""
    return "cache" if takes(model, "cache") else "past_key_values"


def is_linear(module: nn.Module) -> bool:
    """A linear layer, or the transposed one of GPT-2."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


@dataclass(frozen=True, eq=False)
class Projection:
    """The output projection of one layer.

    Args:
        module: the linear layer.
        block: the repeated part of the model that holds this layer's attention.
    """

    module: nn.Module
    block: nn.Module

    def by_head(self, num_heads: int) -> Tensor:
        """(H, D, Dv): column block h maps the context of head h."""
        weight: Tensor = self.module.weight.detach()  # type: ignore[operator]
        if not isinstance(self.module, nn.Linear):
            weight = weight.T
        return weight.reshape(weight.shape[0], num_heads, -1).transpose(0, 1)

    @property
    def bias(self) -> Tensor | None:
        """(D,) or None."""
        found: Any = self.module.bias
        return None if found is None else found.detach()


@contextlib.contextmanager
def inputs_of_projections(model: nn.Module) -> Iterator[list[tuple[nn.Module, Tensor]]]:
    """What goes into every linear layer inside the block, in order."""
    found: list[tuple[nn.Module, Tensor]] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            found.append((module, args[0].detach()))

    handles = [m.register_forward_pre_hook(note) for m in model.modules() if is_linear(m)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def match(tap: Tap, inputs: list[tuple[nn.Module, Tensor]], model: nn.Module) -> list[Projection]:
    """The output projection of every layer, as far as each layer has one.

    Args:
        tap: a run that kept every context.
        inputs: of every linear layer, in the same run.
        model: to find the block that a layer sits in.

    Returns:
        One per layer in order; it ends before the first layer without one.
    """
    names = {id(module): name for name, module in model.named_modules()}
    found, start = [], 0
    for layer in range(tap.seen.num_layers):
        context = tap.seen.contexts[layer].transpose(1, 2)
        merged = context.flatten(2)
        at = next(
            (
                index
                for index in range(start, len(inputs))
                if inputs[index][1].numel() == merged.numel()
                and inputs[index][1].shape[-1] == merged.shape[-1]
                and torch.equal(inputs[index][1].reshape(merged.shape), merged)
            ),
            None,
        )
        if at is None:
            break
        start = at + 1
        block = _block(model, names.get(id(tap.callers[layer]), ""))
        found.append(Projection(inputs[at][0], block))
    return found


def _block(model: nn.Module, name: str) -> nn.Module:
    """The member of a list of layers that holds a module; the module itself where there is none."""
    path = name.split(".") if name else []
    best = model
    for length in range(1, len(path) + 1):
        holder = model.get_submodule(".".join(path[: length - 1])) if length > 1 else model
        inner = model.get_submodule(".".join(path[:length]))
        if isinstance(holder, nn.ModuleList):
            best = inner
            break
        best = inner
    return best


# ------------------------------------------------------------------------------------ a sum
class HeldNorms(TorchFunctionMode):
    """Normalisations with their sizes held fixed: linear maps, in the size of this very run.

    ``rsqrt`` (every RMSNorm of transformers), ``layer_norm`` and ``rms_norm`` give numbers that do
    not depend on their input any more. The sizes are recorded, and given out again in a replay.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sizes: list[Tensor] = []
        self._at = 0
        self.is_replay = False

    def replay(self) -> HeldNorms:
        """The same sizes again, from the first on."""
        self._at, self.is_replay = 0, True
        return self

    def _held(self, compute: Callable[[], Tensor]) -> Tensor:
        if self.is_replay:
            self._at += 1
            return self._sizes[self._at - 1]
        size = compute().detach()
        self._sizes.append(size)
        return size

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in {torch.rsqrt, Tensor.rsqrt}:
            return self._held(lambda: func(*args, **kwargs))
        if func is F.layer_norm:
            return self._layer_norm(*args, **kwargs)
        if func is F.rms_norm:
            return self._rms_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _layer_norm(
        self,
        x: Tensor,
        shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        axes = tuple(range(-len(shape), 0))
        centred = x - x.mean(axes, keepdim=True)
        size = self._held((centred.square().mean(axes, keepdim=True) + eps).rsqrt)
        found = centred * size
        if weight is not None:
            found = found * weight
        return found if bias is None else found + bias

    def _rms_norm(
        self, x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        axes = tuple(range(-len(shape), 0))
        small = torch.finfo(x.dtype).eps if eps is None else eps
        size = self._held((x.square().mean(axes, keepdim=True) + small).rsqrt)
        return x * size if weight is None else x * size * weight


@dataclass(eq=False)
class Leaves:
    """Places where the graph is cut: the first block's input and every write after it."""

    start: Tensor | None
    attention: list[Tensor]
    feed_forward: list[Tensor]


def decompose(
    subject: HfSubject, model: nn.Module, projections: list[Projection], x: Tensor, q: Question
) -> Parts:
    """Cut the graph at every write into the residual stream and read off what each adds.

    With the norms held, the target is linear in the writes: its value is the sum of gradient times
    write over all of them, plus what remains when every write is zero (biases). The gap between
    that sum and the target is computed from an ordinary run; a model that is not built so (experts,
    a cap on the logits) shows a large one.

    Args:
        subject: to run the model as its user does.
        model: the same model.
        projections: one per layer.
        x: ids (1, T).
        q: the target, a linear one or the norm of an embedding (its direction is held).
    """
    plain = subject.run(x, position=q.position)
    value = float(q.value(plain)[0])
    feed = _feed_forward(subject, projections, x, q.position)
    norms = HeldNorms()
    with _cut(projections, feed, None) as leaves, norms:
        run = subject.run(
            x, position=q.position, watch=Watch(contexts=True, keeps_graph=True), keeps_graph=True
        )
        target = _linear(q, run, plain)[0]
    assert leaves.start is not None
    writes = [leaves.start, *leaves.attention, *leaves.feed_forward]
    gradients = torch.autograd.grad(target, writes, allow_unused=True)
    count = len(projections)
    with _cut(projections, feed, 0.0), norms.replay():
        zero = subject.run(x, position=q.position, watch=Watch())
        constant = float(_linear(q, zero, plain)[0])
    heads, biases = [], []
    for layer in range(count):
        gradient, projection = gradients[1 + layer], projections[layer]
        if gradient is None:
            heads.append((0.0,) * subject.num_heads)
            biases.append(0.0)
            continue
        per_head = projection.by_head(subject.num_heads)
        flat = gradient.reshape(-1, gradient.shape[-1])  # (T, D)
        context = run.seen.contexts[layer].detach()[0]  # (H, T, Dv)
        read = torch.einsum("td,hdv->htv", flat, per_head.to(flat))
        heads.append(tuple(float(s) for s in (read * context.to(read)).sum((1, 2))))
        bias = projection.bias
        biases.append(0.0 if bias is None else float((flat * bias).sum()))
    return Parts(
        embedding=_sum_of(gradients[0], leaves.start),
        heads=tuple(heads),
        attention_bias=tuple(biases),
        feed_forward=tuple(
            _sum_of(g, w) for g, w in zip(gradients[1 + count :], leaves.feed_forward, strict=True)
        ),
        constant=constant,
        value=value,
    )


def _sum_of(gradient: Tensor | None, write: Tensor) -> float:
    return 0.0 if gradient is None else float((gradient * write.detach()).sum())


def _linear(q: Question, run: Run, plain: Run) -> Tensor:
    """The target, or for the norm of an embedding its length along the direction it has."""
    if isinstance(q.target, EmbeddingNorm):
        direction = q.target.pooled(plain)
        direction = direction / torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
        along: Tensor = (q.target.pooled(run) * direction).sum(-1)
        return along
    return q.value(run)


def _feed_forward(
    subject: HfSubject, projections: list[Projection], x: Tensor, position: int | None
) -> list[nn.Module]:
    """The last linear layer of every block that runs after the output projection."""
    order: list[nn.Module] = []
    handles = [
        m.register_forward_hook(lambda module, *_rest: order.append(module))
        for m in subject.model.modules()
        if is_linear(m)
    ]
    try:
        subject.run(x[:, : min(4, x.shape[1])] if position is None else x, position=position)
    finally:
        for handle in handles:
            handle.remove()
    found = []
    for layer, projection in enumerate(projections):
        inside = set(projection.block.modules())
        after = [m for m in order if m in inside]
        if projection.module not in after or after[-1] is projection.module:
            raise TargetError(
                _("no feed-forward part follows the attention of layer {layer}").format(
                    layer=layer
                ),
                why=_(
                    "the target can be taken apart where a block is attention, then feed-forward"
                ),
            )
        found.append(after[-1])
    return found


@contextlib.contextmanager
def _cut(
    projections: list[Projection], feed: list[nn.Module], fill: float | None
) -> Iterator[Leaves]:
    """Make every write a leaf of the graph, with its own numbers or filled with one."""
    leaves = Leaves(None, [], [])

    def leaf(tensor: Tensor) -> Tensor:
        found = tensor.detach() if fill is None else torch.full_like(tensor.detach(), fill)
        return found.requires_grad_()

    def start(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves.start = leaf(args[0] if args else kwargs["hidden_states"])
        if args:
            return (leaves.start, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": leaves.start}

    def write(into: list[Tensor]) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            into.append(leaf(output))
            return into[-1]

        return hook

    first = projections[0].block
    handles = [first.register_forward_pre_hook(start, with_kwargs=True)]
    handles += [p.module.register_forward_hook(write(leaves.attention)) for p in projections]
    handles += [m.register_forward_hook(write(leaves.feed_forward)) for m in feed]
    try:
        yield leaves
    finally:
        for handle in handles:
            handle.remove()
