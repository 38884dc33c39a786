"""Letters of the formulas, bound to the numbers of a layer; dtypes and their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from headwise.cost.expression import Expression, Size, triangle
from headwise.cost.figure import Figure
from headwise.errors import UsageError, did_you_mean
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.texts import translate as _

LEGEND: Mapping[str, str] = {
    "B": N_("samples in a batch"),
    "T": N_("tokens, where queries and keys are one sequence"),
    "Tq": N_("queries"),
    "Tk": N_("keys"),
    "Dm": N_("width of the model"),
    "Dc": N_("width of the sequence that keys come from"),
    "Dval": N_("width of the sequence that values come from"),
    "Hq": N_("query heads"),
    "Hkv": N_("key/value heads"),
    "Dk": N_("size of a query and key head"),
    "Dv": N_("size of a value head"),
    "F": N_("hidden width of the feed-forward part"),
    "L": N_("layers"),
    "V": N_("entries of the vocabulary"),
    "P": N_("rows of the table of positions"),
    "s": N_("bytes per number"),
    "M": N_("bytes of fast memory"),
    "l": N_("steps to the farthest visible key on the left"),
    "r": N_("steps to the farthest visible key on the right"),
    "n": N_("buckets of distance, or another count named beside it"),
}
"""What the letters of the formulas mean: those of docs/notation.md, and those of docs/cost.md."""

DTYPES: Mapping[str, int] = {
    "float64": 64,
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "float8": 8,
    "int8": 8,
    "int4": 4,
}
"""Bits of a number by dtype."""

_SHORT = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16",
          "half": "float16", "fp8": "float8"}  # fmt: skip


def dtype_name(name: str) -> str:
    """The dtype in full.

    Raises:
        UsageError: for a name that is unknown, with the nearest.

    Example:
        >>> dtype_name("bf16")
        'bfloat16'
    """
    name = _SHORT.get(name.removeprefix("torch."), name.removeprefix("torch."))
    if name not in DTYPES:
        near = did_you_mean(name, [*DTYPES, *_SHORT])
        raise UsageError(
            _("unknown dtype {name!r}").format(name=name),
            fix=_("did you mean {near!r}?").format(near=near) if near else ", ".join(DTYPES),
        )
    return name


def bytes_of(dtype: str) -> Size:
    """``s``, the bytes of one number.

    Example:
        >>> bytes_of("float32").value, bytes_of("int4").value
        (4, Fraction(1, 2))
    """
    bits = DTYPES[dtype_name(dtype)]
    return Size("s", bits // 8 if bits % 8 == 0 else Fraction(bits, 8))


def checked(name: str, value: int) -> int:
    """A count, if it is an integer from 1 up.

    Raises:
        UsageError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(
            _("{name}={value!r} is not a count from 1 up").format(name=name, value=value),
            where=f"headwise.cost: {name}={value!r}",
        )
    return value


class Letters:
    """The sizes of one call of a layer, as terms of formulas.

    Args:
        spec: the layer.
        batch: B.
        q_len: Tq.
        kv_len: Tk; None = q_len, and both are called T.

    Raises:
        UsageError: for a count below 1, or for lengths that differ in a layer that needs one.
    """

    def __init__(
        self, spec: AttentionSpec, *, batch: int = 1, q_len: int = 1, kv_len: int | None = None
    ) -> None:
        self.spec = spec
        self.B = Size("B", checked("batch", batch))
        self.Tq = Size("T" if kv_len is None else "Tq", checked("q_len", q_len))
        self.Tk = self.Tq if kv_len is None else Size("Tk", checked("kv_len", kv_len))
        self.Dm, self.Hq = Size("Dm", spec.d_model), Size("Hq", spec.num_heads)
        self.Hkv = Size("Hkv", spec.num_kv_heads)
        self.Dk, self.Dv = Size("Dk", spec.head_dim), Size("Dv", spec.v_head_dim)
        self.Dc = self.Dm if spec.d_context == spec.d_model else Size("Dc", spec.d_context)
        same = spec.d_values == spec.d_context
        self.Dval = self.Dc if same else Size("Dval", spec.d_values)

    @property
    def left(self) -> int | None:
        """Steps to the farthest visible key on the left, or None without a limit that matters."""
        window = self.spec.window[0] if self.spec.window else None
        return None if window is None or window >= int(self.Tk.value) - 1 else window

    @property
    def right(self) -> int | None:
        """Likewise on the right; a causal layer sees nothing there."""
        window = self.spec.window[1] if self.spec.window else None
        if self.spec.is_causal:
            return 0
        return None if window is None or window >= int(self.Tq.value) - 1 else window

    def pairs(self, *, saving: bool = True) -> Expression:
        """Pairs of a query and a key in one head: all, or only those that the rules leave visible.

        Queries sit at the last Tq slots. Without a limit these are Tq·Tk pairs. A causal rule takes
        off a triangle above the diagonal, a window one more on its side; ``Δ(n) = n·(n+1)/2``.

        Args:
            saving: leave out what causality and the window hide.

        Example:
            >>> spec = AttentionSpec(d_model=8, num_heads=2, is_causal=True)
            >>> pairs = Letters(spec, q_len=4).pairs()
            >>> pairs.value, pairs.formula.text(), pairs.formula.filled()
            (10, 'T² − Δ(T − 1)', '4² − Δ(4 − 1)')
        """
        whole = self.Tq * self.Tk
        q_len, kv_len = int(self.Tq.value), int(self.Tk.value)
        if not saving or (self.left is None and self.right is None):
            return whole
        visible = whole
        if self.right is not None:
            past = self.Tq - 1 if self.right == 0 else self.Tq - 1 - Size("r", self.right)
            visible = visible - triangle(past)
            if q_len - 1 - self.right > kv_len:  # the first queries come before every key
                visible = visible + triangle(past - self.Tk)
        if self.left is not None:
            left = Size("l", self.left)
            visible = visible - triangle(self.Tk - 1 - left)
            if kv_len - q_len - 1 - self.left > 0:
                visible = visible + triangle(self.Tk - self.Tq - 1 - left)
        return Figure(
            "pairs",
            visible,
            "pair",
            note=N_("queries and keys that see each other, per head; Δ(n) = 1 + 2 + … + n"),
        )
