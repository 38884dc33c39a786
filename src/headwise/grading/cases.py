"""The inputs that a learner's functions are tried on: few, deterministic, chosen to be awkward.

Pairwise different sizes show an exchanged axis; sizes that coincide show a mask that broadcasts
along the wrong axis only then.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from headwise.reference import Inputs, Parameters, Trace, attend
from headwise.reference.positions import rotary_angles
from headwise.reference.setting import Setting
from headwise.spec import AttentionSpec, Learned, Positions, Rope
from headwise.texts import mark as N_


@dataclass(frozen=True, eq=False)
class Sample:
    """One input for every stage.

    Args:
        name: what is special about it, source text.
        spec, parameters, inputs: for the definition.
        only: ``remark``: it can't make a function wrong, only remarkable; ``forward``: gradients
            are not compared, since a query that sees nothing may have any.
    """

    name: str
    spec: AttentionSpec
    parameters: Parameters
    inputs: Inputs
    only: Literal["", "forward", "remark"] = ""

    @property
    def trace(self) -> Trace:
        """The definition's run; made once."""
        return _trace(self)

    @property
    def setting(self) -> Setting:
        """What the definition's stages read."""
        return Setting(self.spec, self.parameters, self.inputs)

    def sizes(self) -> str:
        """The sizes in the letters of the skeleton."""
        s, i = self.spec, self.inputs
        time = f"T{i.q_len}" if i.context is None else f"Tq{i.q_len} Tk{i.kv_len}"
        return f"B{i.batch} {time} H{s.num_heads} Dh{s.head_dim} Dv{s.v_head_dim} D{s.d_model}"


@lru_cache(maxsize=64)
def _trace(sample: Sample) -> Trace:
    return attend(sample.spec, sample.parameters, sample.inputs)


EMPTY = N_("a query that sees nothing")
DIFFERENT = {"batch": 2, "tokens": 5, "heads": 3, "head_dim": 4, "v_head_dim": 6, "d_model": 11}
EQUAL = {"batch": 4, "tokens": 4, "heads": 4, "head_dim": 4, "v_head_dim": 4, "d_model": 16}
ALONE = {"batch": 1, "tokens": 1, "heads": 2, "head_dim": 2, "v_head_dim": 3, "d_model": 5}


def make(
    name: str,
    sizes: dict[str, int],
    *,
    keys: int | None = None,
    lengths: tuple[int, ...] = (),
    left: bool = False,
    causal: bool = False,
    positions: str = "",
    factor: float = 1.0,
) -> Sample:
    """A sample.

    Args:
        name: source text.
        sizes: one of the tables above.
        keys: number of keys, if they are more than the queries.
        lengths: real tokens per sample; () = no padding mask.
        left: padding on the left.
        causal: later keys are hidden.
        positions: ``table``, ``rope`` or none.
        factor: of the query weights: makes large scores.
    """
    generator = torch.Generator().manual_seed(sum(map(ord, name)) + sizes["batch"])

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    b, t, h, d = sizes["batch"], sizes["tokens"], sizes["heads"], sizes["d_model"]
    d_k, d_v = sizes["head_dim"], sizes["v_head_dim"]
    rope = Rope(pairs="halves")
    kinds: dict[str, Positions] = {"table": Learned(), "rope": rope}
    spec = AttentionSpec(
        d_model=d, num_heads=h, head_dim=d_k, v_head_dim=d_v, is_causal=causal,
        positions=kinds.get(positions),
    )  # fmt: skip
    shrink = d**-0.5
    parameters = Parameters(
        q=normal(h * d_k, d) * shrink * 2 * factor,
        k=normal(h * d_k, d) * shrink * 2,
        v=normal(h * d_v, d) * shrink,
        o=normal(d, h * d_v) * (h * d_v) ** -0.5,
        positions=normal(t + 3, d) if positions == "table" else None,
    )
    slots = torch.arange(keys or t)
    real = torch.tensor(lengths)[:, None]
    keep = (slots >= len(slots) - real if left else slots < real) if lengths else None
    inputs = Inputs(x=normal(b, t, d), keep=keep)
    if keys is not None:
        inputs = inputs.replace(context=normal(b, keys, d))
    if positions == "rope":
        angle = rotary_angles(torch.arange(t)[None], rotary_dim=d_k, base=rope.base)
        inputs = inputs.replace(angles=(angle.cos(), angle.sin()))
    return Sample(name, spec, parameters, inputs)


@lru_cache(maxsize=1)
def samples() -> dict[str, tuple[Sample, ...]]:
    """The inputs by stage."""
    plain = (
        make(N_("sizes that all differ"), DIFFERENT),
        make(N_("sizes that coincide"), EQUAL),
    )
    unequal = make(N_("fewer queries than keys"), {**DIFFERENT, "tokens": 3}, keys=7)
    alone = make(N_("a single token"), ALONE)
    left = make(
        N_("causal, padding on the left"), DIFFERENT, lengths=(3, 5), left=True, causal=True
    )
    padded = make(N_("padding"), DIFFERENT, lengths=(5, 3))
    padded_equal = make(N_("padding, sizes that coincide"), EQUAL, lengths=(3, 4, 2, 1))
    causal = make(N_("causal"), DIFFERENT, causal=True)
    return {
        "input": (
            make(N_("sizes that all differ"), DIFFERENT, positions="table"),
            make(N_("sizes that coincide"), EQUAL, positions="table"),
        ),
        "projection": plain,
        "split": (*plain, alone),
        "positions": (
            make(N_("sizes that all differ"), DIFFERENT, positions="rope"),
            make(N_("sizes that coincide"), EQUAL, positions="rope"),
        ),
        "scores": (*plain, unequal),
        "mask": (
            make(N_("nothing to hide"), DIFFERENT),
            causal,
            padded,
            padded_equal,
            left,
            make(
                N_("causal, fewer queries than keys"),
                {**DIFFERENT, "tokens": 3},
                keys=7,
                causal=True,
            ),
        ),
        "softmax": (
            make(N_("causal and padding"), DIFFERENT, lengths=(5, 3), causal=True),
            make(N_("causal, sizes that coincide"), EQUAL, causal=True),
            make(N_("large scores"), DIFFERENT, causal=True, factor=400.0),
            dataclasses.replace(left, name=EMPTY, only="remark"),
        ),
        "aggregate": (*plain, unequal),
        "merge": (*plain, alone),
        "output": plain,
        "layer": (
            *plain,
            causal,
            padded,
            dataclasses.replace(left, only="forward"),
            padded_equal,
            make(N_("a table of positions, causal"), DIFFERENT, causal=True, positions="table"),
            make(N_("rotation, causal"), DIFFERENT, causal=True, positions="rope"),
        ),
    }
