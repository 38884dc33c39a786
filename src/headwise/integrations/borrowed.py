"""Projections whose weights stay where they are: in a module of somebody else's model."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from headwise.attend.linear import linear


class Borrowed(nn.Module):
    """A projection that reads its weights from a child of the model's own module.

    The child is looked up at every call: one that is replaced (by an adapter of low rank, say) is
    used from then on, and no weight exists twice.

    Args:
        owner: the module that has the child.
        child: its name.
        columns: which of its outputs, where one matrix holds q, k and v; None = all.
    """

    def __init__(self, owner: nn.Module, child: str, columns: slice | None = None) -> None:
        super().__init__()
        self._owner = (owner,)  # in a tuple, not as a child: its parameters are the model's
        self.child, self.columns = child, columns

    @property
    def source(self) -> nn.Module:
        """The model's own module."""
        return self._owner[0].get_submodule(self.child)

    @property
    def weight(self) -> Tensor:
        """(out, in), a view."""
        stored = cast("Tensor", self.source.weight)
        weight = stored.t() if _is_transposed(self.source) else stored
        return weight if self.columns is None else weight[self.columns]

    @property
    def bias(self) -> Tensor | None:
        """(out,), a view, or None."""
        bias = cast("Tensor | None", self.source.bias)
        return bias if bias is None or self.columns is None else bias[self.columns]

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        if is_plain(self.source):
            return linear(x, self.weight, self.bias)
        found: Tensor = self.source(x)
        return found if self.columns is None else found[..., self.columns]

    def extra_repr(self) -> str:
        """Where the weights are."""
        return self.child if self.columns is None else f"{self.child}[{self.columns}]"


def _is_transposed(module: nn.Module) -> bool:
    """Whether a matrix is stored (in, out), as in GPT-2."""
    return type(module).__name__ == "Conv1D"


def is_plain(module: nn.Module) -> bool:
    """Whether a module does x·W + b and nothing else.

    Example:
        >>> is_plain(nn.Linear(2, 3)), is_plain(nn.ReLU())
        (True, False)
    """
    known = type(module) is nn.Linear or _is_transposed(module)
    hooked = module._forward_hooks or module._forward_pre_hooks  # noqa: SLF001 - no public way
    hooked = hooked or module._backward_hooks or module._backward_pre_hooks  # noqa: SLF001
    return known and not hooked and "forward" not in vars(module)
