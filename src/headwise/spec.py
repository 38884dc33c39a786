"""What an attention layer *is*, as a frozen validated value.

Everything takes a spec: the definition, the verifier, the cost model, the labs. A contradiction is
an error that names both values; nothing is corrected silently.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from headwise.errors import SpecError, did_you_mean
from headwise.texts import translate as _

Pairs = Literal["halves", "neighbours"]
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Every angle divided by one factor: positions lie closer together.

    Args:
        factor: how many times longer a sequence may be than in training.

    Source: Chen et al. 2023 (arXiv 2306.15595), equation 4; transformers' ``rope_type="linear"``.
    """

    factor: float

    def __post_init__(self) -> None:
        _positive_number("factor", self.factor, owner="LinearScaling")


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Slow turns divided by a factor, fast turns left alone, and those between blended.

    A pair that turns round at least ``high_freq_factor`` times within the original length keeps
    its angle; one that does so at most ``low_freq_factor`` times is slowed down by ``factor``.

    Args:
        factor: how much the slow pairs are slowed down.
        low_freq_factor: turns within the original length up to which a pair is slow.
        high_freq_factor: turns from which on it is fast.
        original_max_len: length of the sequences before the extension.

    Source: ``apply_scaling`` in Meta's code of Llama 3.1; transformers' ``rope_type="llama3"``.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            _positive_number(name, getattr(self, name), owner="Llama3Scaling")
        _positive("original_max_len", self.original_max_len, owner="Llama3Scaling")
        if self.high_freq_factor <= self.low_freq_factor:
            raise SpecError(
                _("high_freq_factor={high} is not above low_freq_factor={low}").format(
                    high=self.high_freq_factor, low=self.low_freq_factor
                ),
                where=f"Llama3Scaling(low_freq_factor={self.low_freq_factor}, "
                f"high_freq_factor={self.high_freq_factor})",
                why=_("pairs between the two are blended"),
                fix=_("1 and 4 are the values of Llama 3.1"),
            )


RopeScaling = LinearScaling | Llama3Scaling

_SCALING_KINDS: dict[str, type[Any]] = {"linear": LinearScaling, "llama3": Llama3Scaling}


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary positions: channel pairs of q and k are turned by an angle proportional to position.

    Args:
        pairs: ``halves`` pairs channel i with i + rotary_dim/2, ``neighbours`` pairs 2i with
            2i + 1. There is no default: both are in use and neither is visible in shapes.
        base: frequency base; pair i turns by ``position * base ** (-2 i / rotary_dim)``.
        rotary_dim: how many leading channels are turned; None = all.
        scaling: how the angles are changed for longer sequences; None = not at all.

    Source: Su et al. 2021 (arXiv 2104.09864), section 3.4.2.
    """

    pairs: Pairs
    base: float = 10000.0
    rotary_dim: int | None = None
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if self.pairs not in ("halves", "neighbours"):
            raise SpecError(
                _("rotary pairs {value!r} are unknown").format(value=self.pairs),
                where=f"Rope(pairs={self.pairs!r})",
                fix=_('"halves" (i with i + d/2) or "neighbours" (2i with 2i + 1)'),
            )
        _check_base("Rope", self.base)
        if self.rotary_dim is not None and (self.rotary_dim <= 0 or self.rotary_dim % 2):
            raise SpecError(
                _("rotary_dim={dim} can't be split into pairs").format(dim=self.rotary_dim),
                where=f"Rope(rotary_dim={self.rotary_dim})",
                why=_("two channels are turned together, so their number is even and positive"),
            )
        if self.scaling is not None and not isinstance(self.scaling, LinearScaling | Llama3Scaling):
            raise SpecError(
                _("scaling is a {kind}").format(kind=type(self.scaling).__name__),
                where="Rope(scaling=…)",
                fix="LinearScaling(factor=…), Llama3Scaling(factor=…, …)",
            )


@dataclass(frozen=True, kw_only=True)
class Alibi:
    """A penalty on the scores that grows linearly with distance, with one slope per head.

    Args:
        slopes: one per query head; None = the paper's geometric series.
        symmetric: keys that come later are penalised as those before, by the absolute distance;
            without, their bias is positive, which a causal mask hides.

    Source: Press et al. 2022 (arXiv 2108.12409), section 3.
    """

    slopes: tuple[float, ...] | None = None
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.slopes is not None:
            object.__setattr__(self, "slopes", tuple(self.slopes))


@dataclass(frozen=True, kw_only=True)
class Sinusoidal:
    """Fixed sines and cosines added to the input.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.5.
    """

    base: float = 10000.0

    def __post_init__(self) -> None:
        _check_base("Sinusoidal", self.base)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A learned table of absolute positions (parameter ``positions``) added to the input."""

    max_len: int | None = None

    def __post_init__(self) -> None:
        if self.max_len is not None:
            _positive("max_len", self.max_len, owner="Learned")


@dataclass(frozen=True, kw_only=True)
class RelativeBias:
    """A learned bias per head and bucket of distance (parameter ``relative_bias``).

    Args:
        num_buckets: rows of the table.
        max_distance: distances from here on share the last bucket.
        bidirectional: half of the buckets are for keys after the query.

    Source: Raffel et al. 2020 (arXiv 1910.10683), section 2.1.
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        _positive("num_buckets", self.num_buckets, owner="RelativeBias")
        _positive("max_distance", self.max_distance, owner="RelativeBias")
        sides = 2 if self.bidirectional else 1
        if self.num_buckets % (2 * sides):
            raise SpecError(
                _("num_buckets={num_buckets} can't be divided by {parts}").format(
                    num_buckets=self.num_buckets, parts=2 * sides
                ),
                where=f"RelativeBias(num_buckets={self.num_buckets}, "
                f"bidirectional={self.bidirectional})",
                why=_("half of the buckets of each side hold one distance, the other half many"),
            )
        exact = self.num_buckets // (2 * sides)
        if self.max_distance <= exact:
            raise SpecError(
                _("max_distance={max_distance} leaves nothing for the far buckets").format(
                    max_distance=self.max_distance
                ),
                where=f"RelativeBias(num_buckets={self.num_buckets}, "
                f"max_distance={self.max_distance})",
                why=_("distances below {exact} have a bucket each").format(exact=exact),
                fix=_("max_distance above {exact}").format(exact=exact),
            )


Positions = Rope | Alibi | Sinusoidal | Learned | RelativeBias

_POSITION_KINDS: dict[str, type[Any]] = {
    "rope": Rope,
    "alibi": Alibi,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "relative-bias": RelativeBias,
}


@dataclass(frozen=True, kw_only=True)
class QkNorm:
    """Normalisation of queries and keys, per head, with a gain (parameters ``q_norm``, ``k_norm``).

    Args:
        order: before or after the rotation.
        kind: ``rms`` (root mean square) or ``layer`` (mean removed as well).
        eps: added to the mean square.

    Source: Henry et al. 2020 (arXiv 2010.04245); RMS form as in Qwen3 and Gemma 3.
    """

    order: Literal["before-rope", "after-rope"] = "before-rope"
    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.order not in ("before-rope", "after-rope") or self.kind not in ("rms", "layer"):
            raise SpecError(
                _("qk-norm {order!r}, {kind!r} is unknown").format(
                    order=self.order, kind=self.kind
                ),
                where=f"QkNorm(order={self.order!r}, kind={self.kind!r})",
                fix=_('order "before-rope" or "after-rope", kind "rms" or "layer"'),
            )
        if not 0 <= self.eps < math.inf:
            raise SpecError(
                _("eps={eps} is not a small number from 0 up").format(eps=self.eps),
                where=f"QkNorm(eps={self.eps})",
            )


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """An attention layer as a value.

    Args:
        d_model: width of the queries' input and of the output (Dm).
        num_heads: query heads (Hq).
        num_kv_heads: key/value heads (Hkv), a divisor of num_heads; None = num_heads.
        head_dim: size of a query and key head (Dk); None = d_model / num_heads.
        v_head_dim: size of a value head (Dv); None = head_dim.
        d_context: width of the sequence that keys come from; None = d_model.
        d_values: width of the sequence that values come from; None = d_context.
        is_causal: the last query sees the last key and nobody sees later keys.
        window: inclusive distances (left, right); None on a side = unlimited.
        positions: Rope, Alibi, Sinusoidal, Learned, RelativeBias or None.
        scale: factor of the scores; None = 1/sqrt(head_dim).
        softcap: scores become cap·tanh(scores/cap), before mask and bias.
        sinks: one learned logit per head that takes part in the denominator only.
        qk_norm: normalisation of queries and keys.
        dropout: probability of dropping a weight in training.
        biases: which projections have a bias, a subset of "qkvo".

    Raises:
        SpecError: for every contradiction, with both values.

    Example:
        >>> spec = AttentionSpec(d_model=768, num_heads=12)
        >>> spec.head_dim, spec.num_kv_heads, round(spec.scale, 3)
        (64, 12, 0.125)
    """

    d_model: int
    num_heads: int
    num_kv_heads: int = field(default=None)  # type: ignore[assignment]
    head_dim: int = field(default=None)  # type: ignore[assignment]
    v_head_dim: int = field(default=None)  # type: ignore[assignment]
    d_context: int = field(default=None)  # type: ignore[assignment]
    d_values: int = field(default=None)  # type: ignore[assignment]
    is_causal: bool = False
    window: tuple[int | None, int | None] | None = None
    positions: Positions | None = None
    scale: float = field(default=None)  # type: ignore[assignment]
    softcap: float | None = None
    sinks: bool = False
    qk_norm: QkNorm | None = None
    dropout: float = 0.0
    biases: str = ""

    def __post_init__(self) -> None:
        _positive("d_model", self.d_model)
        _positive("num_heads", self.num_heads)
        if self.head_dim is None and self.d_model % self.num_heads:
            raise SpecError(
                _("d_model={d_model} can't be divided into num_heads={num_heads}").format(
                    d_model=self.d_model, num_heads=self.num_heads
                ),
                where=f"AttentionSpec(d_model={self.d_model}, num_heads={self.num_heads})",
                why=_("{d_model} / {num_heads} is {ratio:.4g}, and head_dim is not given").format(
                    d_model=self.d_model,
                    num_heads=self.num_heads,
                    ratio=self.d_model / self.num_heads,
                ),
                fix=_("give head_dim, or num_heads in {heads}").format(
                    heads=_divisors_near(self.d_model, self.num_heads)
                ),
            )
        defaults = {
            "num_kv_heads": self.num_heads,
            "head_dim": self.d_model // self.num_heads,
            "d_context": self.d_model,
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.v_head_dim is None:
            object.__setattr__(self, "v_head_dim", self.head_dim)
        if self.d_values is None:
            object.__setattr__(self, "d_values", self.d_context)
        for name in ("num_kv_heads", "head_dim", "v_head_dim", "d_context", "d_values"):
            _positive(name, getattr(self, name))
        if self.scale is None:
            object.__setattr__(self, "scale", self.head_dim**-0.5)
        self._check_heads()
        self._check_values()
        self._check_positions()

    def _check_heads(self) -> None:
        if self.num_heads % self.num_kv_heads:
            good = _divisors_near(self.num_heads, self.num_kv_heads)
            raise SpecError(
                _(
                    "num_heads={num_heads} can't be shared evenly by num_kv_heads={num_kv_heads}"
                ).format(num_heads=self.num_heads, num_kv_heads=self.num_kv_heads),
                where=f"AttentionSpec(num_heads={self.num_heads}, "
                f"num_kv_heads={self.num_kv_heads})",
                why=_(
                    "every key/value head serves the same number of query heads, and "
                    "{num_heads} / {num_kv_heads} is {ratio:.4g}"
                ).format(
                    num_heads=self.num_heads,
                    num_kv_heads=self.num_kv_heads,
                    ratio=self.num_heads / self.num_kv_heads,
                ),
                fix=_("num_kv_heads in {good}").format(good=good),
            )

    def _check_values(self) -> None:
        if not 0.0 <= self.dropout < 1.0:
            raise SpecError(
                _("dropout={dropout} is not a probability below 1").format(dropout=self.dropout),
                where=f"AttentionSpec(dropout={self.dropout})",
            )
        if self.scale == 0 or not math.isfinite(self.scale):
            raise SpecError(
                _("scale={scale} leaves nothing of the scores").format(scale=self.scale),
                where=f"AttentionSpec(scale={self.scale})",
                fix=_("leave it out for 1/sqrt(head_dim)"),
            )
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise SpecError(
                _("softcap={softcap} is not a positive number").format(softcap=self.softcap),
                where=f"AttentionSpec(softcap={self.softcap})",
                fix=_("None turns the cap off"),
            )
        if set(self.biases) - set("qkvo"):
            raise SpecError(
                _("biases={biases!r} names something else than q, k, v, o").format(
                    biases=self.biases
                ),
                where=f"AttentionSpec(biases={self.biases!r})",
            )
        if self.window is not None:
            object.__setattr__(self, "window", _window(self.window))

    def _check_positions(self) -> None:
        rope = self.positions
        if isinstance(rope, Rope):
            turned = self.head_dim if rope.rotary_dim is None else rope.rotary_dim
            if turned > self.head_dim or turned % 2:
                raise SpecError(
                    _("rotary_dim={turned} does not fit head_dim={head_dim}").format(
                        turned=turned, head_dim=self.head_dim
                    ),
                    where=f"AttentionSpec(head_dim={self.head_dim}, positions={rope})",
                    why=_("pairs of channels are turned, at most as many as a head has"),
                )
        slopes = self.positions.slopes if isinstance(self.positions, Alibi) else None
        if slopes is not None and len(slopes) != self.num_heads:
            raise SpecError(
                _("{given} ALiBi slopes are given for num_heads={num_heads}").format(
                    given=len(slopes), num_heads=self.num_heads
                ),
                where="AttentionSpec(positions=Alibi(slopes=…))",
            )

    # ------------------------------------------------------------------ derived sizes
    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def rope(self) -> Rope | None:
        """The rotation, if positions are rotary."""
        return self.positions if isinstance(self.positions, Rope) else None

    @property
    def rotary_dim(self) -> int:
        """How many channels of a head are turned (0 without rotation)."""
        if self.rope is None:
            return 0
        return self.head_dim if self.rope.rotary_dim is None else self.rope.rotary_dim

    def replace(self, **changes: Any) -> AttentionSpec:
        """A copy with some fields changed, validated again.

        Every other field keeps its value, also where it was once filled in from another field:
        give None to have it filled in anew.

        Example:
            >>> spec = AttentionSpec(d_model=8, num_heads=2)
            >>> spec.replace(head_dim=16).scale, spec.replace(head_dim=16, scale=None).scale
            (0.5, 0.25)
        """
        return dataclasses.replace(self, **changes)

    # ------------------------------------------------------------------ other forms
    def to_json(self) -> dict[str, Any]:
        """Plain data; ``AttentionSpec.from_json`` gives the same value back.

        Example:
            >>> spec = AttentionSpec(d_model=8, num_heads=2, positions=Rope(pairs="halves"))
            >>> AttentionSpec.from_json(spec.to_json()) == spec
            True
        """
        data = dataclasses.asdict(self)
        if self.positions is not None:
            kind = next(n for n, c in _POSITION_KINDS.items() if isinstance(self.positions, c))
            data["positions"] = {"kind": kind, **dataclasses.asdict(self.positions)}
            if kind == "alibi" and data["positions"]["slopes"] is not None:
                data["positions"]["slopes"] = list(data["positions"]["slopes"])
            if self.rope is not None and self.rope.scaling is not None:
                name = next(
                    n for n, c in _SCALING_KINDS.items() if isinstance(self.rope.scaling, c)
                )
                data["positions"]["scaling"] = {"kind": name, **data["positions"]["scaling"]}
        data["window"] = None if self.window is None else list(self.window)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AttentionSpec:
        """The spec that ``to_json`` wrote. Unknown and missing fields are an error.

        Raises:
            SpecError: for a field that does not exist or has to be there, or a contradiction.
        """
        values = dict(data)
        if values.get("positions") is not None:
            position = dict(values["positions"])
            kind = position.pop("kind", None)
            if kind not in _POSITION_KINDS:
                raise SpecError(
                    _("unknown kind of positions {kind!r}").format(kind=kind),
                    fix=", ".join(_POSITION_KINDS),
                )
            if kind == "rope" and isinstance(position.get("scaling"), Mapping):
                position["scaling"] = _scaling(position["scaling"])
            values["positions"] = _from_fields(_POSITION_KINDS[kind], position)
        if values.get("qk_norm") is not None:
            values["qk_norm"] = _from_fields(QkNorm, values["qk_norm"])
        return _from_fields(cls, values)

    @classmethod
    def from_flags(cls, **flags: Any) -> AttentionSpec:
        """A spec from the words of the command line and of ``HEADWISE = {…}``.

        Accepts ``d_model``, ``num_heads``, …, and the flat words ``causal``, ``rope``,
        ``rotary_dim``, ``rope_base``, ``rope_scaling`` (a value, or its form in JSON), ``alibi``,
        ``positions="learned"|"sinusoidal"``, ``qk_norm="before-rope"|"after-rope"``. None means
        "not said".

        Raises:
            SpecError: for an unknown word or a contradiction.

        Example:
            >>> AttentionSpec.from_flags(d_model=8, num_heads=2, rope="halves").rope.pairs
            'halves'
        """
        given = {name: value for name, value in flags.items() if value is not None}
        values: dict[str, Any] = {}
        if "causal" in given:
            values["is_causal"] = bool(given.pop("causal"))
        kinds: dict[str, Positions] = {}
        base, rotary_dim = given.pop("rope_base", None), given.pop("rotary_dim", None)
        scaling = given.pop("rope_scaling", None)
        pairs = given.pop("rope", None)
        if pairs:
            kinds["rope"] = Rope(
                pairs=pairs,
                base=10000.0 if base is None else float(base),
                rotary_dim=rotary_dim,
                scaling=_scaling(scaling) if isinstance(scaling, Mapping) else scaling,
            )
        elif base is not None or rotary_dim is not None or scaling is not None:
            raise SpecError(
                _("rope_base, rotary_dim or rope_scaling is given, but not the pairs of channels"),
                where=f"rope_base={base}, rotary_dim={rotary_dim}, rope_scaling={scaling}",
                fix=_("say rope=halves or rope=neighbours"),
            )
        alibi = given.pop("alibi", None)
        if alibi:
            kinds["alibi"] = Alibi()
        position = given.pop("positions", None)
        if isinstance(position, str):
            named: dict[str, Positions] = {
                "learned": Learned(),
                "sinusoidal": Sinusoidal(),
                "relative-bias": RelativeBias(),
            }
            if position not in named:
                raise SpecError(
                    _("unknown kind of positions {kind!r}").format(kind=position),
                    fix=", ".join(named),
                )
            kinds[position] = named[position]
        elif position is not None:
            kinds["positions"] = position
        if len(kinds) > 1:
            raise SpecError(
                _("two kinds of positions at once: {kinds}").format(kinds=" + ".join(kinds)),
                fix=_("choose one"),
            )
        if kinds:
            values["positions"] = next(iter(kinds.values()))
        norm = given.pop("qk_norm", None)
        if norm is not None:
            values["qk_norm"] = norm if isinstance(norm, QkNorm) else QkNorm(order=norm)
        known = [f.name for f in dataclasses.fields(cls)]
        for name, value in given.items():
            if name not in known:
                near = did_you_mean(name, known)
                raise SpecError(
                    _("unknown word {name!r} in a specification").format(name=name),
                    fix=_("did you mean {near!r}?").format(near=near) if near else "",
                )
            values[name] = value
        for name in ("d_model", "num_heads"):
            if name not in values:
                raise SpecError(
                    _("{name} is missing").format(name=name),
                    where="AttentionSpec.from_flags",
                    fix=_("give d_model and num_heads"),
                )
        return cls(**values)

    @classmethod
    def from_hf_config(cls, config: Any, *, layer: int = 0) -> AttentionSpec:
        """The self-attention of one layer, as a Hugging Face config states it.

        Args:
            config: a ``transformers`` configuration, or a mapping such as a ``config.json``.
            layer: which layer, where layers differ (``layer_types``).

        Raises:
            SpecError: if the config states no sizes, or a rotary scaling that is not covered.

        Example:
            >>> spec = AttentionSpec.from_hf_config(
            ...     {
            ...         "model_type": "llama",
            ...         "hidden_size": 64,
            ...         "num_attention_heads": 4,
            ...         "num_key_value_heads": 2,
            ...     }
            ... )
            >>> spec.num_kv_heads, spec.is_causal, spec.rope.pairs
            (2, True, 'halves')
        """
        from headwise.hf_config import spec_fields

        return cls(**spec_fields(config, layer=layer))


def _from_fields(kind: type[Made], values: Mapping[str, Any]) -> Made:
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    known = [field.name for field in fields]
    for name in values:
        if name not in known:
            near = did_you_mean(name, known)
            raise SpecError(
                _("unknown field {name!r} in a spec").format(name=name),
                where=kind.__name__,
                fix=_("did you mean {near!r}?").format(near=near) if near else ", ".join(known),
            )
    for spot in fields:
        if spot.default is dataclasses.MISSING and spot.name not in values:
            raise SpecError(_("{name} is missing").format(name=spot.name), where=kind.__name__)
    return kind(**values)


def _scaling(data: Mapping[str, Any]) -> RopeScaling:
    values = dict(data)
    kind = values.pop("kind", None)
    if kind not in _SCALING_KINDS:
        raise SpecError(
            _("unknown kind of rotary scaling {kind!r}").format(kind=kind),
            fix=", ".join(_SCALING_KINDS),
        )
    found: RopeScaling = _from_fields(_SCALING_KINDS[kind], values)
    return found


_LISTED = 12
"""Divisors that an error lists at most."""

_TRIED = 10**5
"""Numbers that are tried at most as divisors: up to the root of ten thousand millions."""


def _divisors_near(number: int, wish: int) -> list[int]:
    """The divisors of a number that are nearest to a wish, in order.

    Example:
        >>> _divisors_near(12, 5), _divisors_near(2**40, 3000)[-2:]
        ([1, 2, 3, 4, 6, 12], [2048, 4096])
    """
    found = set()
    for low in range(1, min(math.isqrt(number), _TRIED) + 1):
        if number % low == 0:
            found |= {low, number // low}
    return sorted(sorted(found, key=lambda n: abs(n - wish))[:_LISTED])


def _window(window: Any) -> tuple[int | None, int | None]:
    good = isinstance(window, list | tuple) and len(window) == 2
    for side in window if good else ():
        good = good and (side is None or (isinstance(side, int) and not isinstance(side, bool)))
    if not good:
        raise SpecError(
            _("window={window} is not a pair of distances").format(window=window),
            where=f"AttentionSpec(window={window})",
            fix=_("(left, right), inclusive; w keys that end at the query are (w - 1, 0)"),
        )
    left, right = window
    if (left is not None and left < 0) or (right is not None and right < 0):
        raise SpecError(
            _("window=({left}, {right}) has a negative distance").format(left=left, right=right),
            where=f"AttentionSpec(window=({left}, {right}))",
            why=_(
                "the two numbers are inclusive distances to the left and to the right; "
                "a window of w keys that ends at the query is (w - 1, 0)"
            ),
        )
    return left, right


def _check_base(kind: str, base: float) -> None:
    if not 0 < base < math.inf:
        raise SpecError(
            _("{kind} base {base} is not positive").format(kind=kind, base=base),
            where=f"{kind}(base={base})",
            fix=_("10000 is the value of the paper"),
        )


def _positive(name: str, value: Any, *, owner: str = "AttentionSpec") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise SpecError(
            _("{name}={value!r} is not a positive whole number").format(name=name, value=value),
            where=f"{owner}({name}={value!r})",
        )


def _positive_number(name: str, value: Any, *, owner: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise SpecError(
            _("{name}={value!r} is not a positive number").format(name=name, value=value),
            where=f"{owner}({name}={value!r})",
        )
