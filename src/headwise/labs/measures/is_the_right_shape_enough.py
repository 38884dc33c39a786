"""Stage shapes of right layers, of every catalogue fault that can be run, and public reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.labs.parts.drawn import generator, parameters
from headwise.labs.parts.lesson import lesson_layer, normal, padding
from headwise.reference import Inputs, Parameters, Trace, attend
from headwise.spec import Alibi, AttentionSpec, Learned, QkNorm, RelativeBias, Rope, Sinusoidal
from headwise.stages import STAGES
from headwise.verifier.faults import FAULTS, masking

LESSON_LINES = (
    ("Q, K, V projection", "[B,T,D]"),
    ("split heads", "[B,H,T,Dh]"),
    ("Q·Kᵀ", "[B,H,T,T]"),
    ("softmax(scores)·V", "[B,H,T,Dh]"),
    ("merge heads", "[B,T,D]"),
)
"""The lines of shapes that the course prints."""


# ------------------------------------------------------------------ right layers
def layers() -> dict[str, tuple[AttentionSpec, int, int]]:
    """Right layers (spec, Tq, Tk) on which the course's lines are read off."""
    plain = AttentionSpec(d_model=16, num_heads=4)
    return {
        "multi-head": (plain, 5, 5),
        "cross attention with Tq ≠ Tk": (plain, 5, 7),
        "grouped heads": (plain.replace(num_kv_heads=2), 5, 5),
        "Dv ≠ Dk": (plain.replace(v_head_dim=6), 5, 5),
        "H·Dh ≠ D": (plain.replace(head_dim=6, v_head_dim=6, scale=None), 5, 5),
    }


def lines_kept(seed: int) -> dict[str, dict[str, bool]]:
    """For every right layer: which of the course's lines are its shapes."""
    found = {}
    for name, (spec, q_len, kv_len) in layers().items():
        g = generator(seed)
        p, x = parameters(spec, g), normal(g, 2, q_len, 16)
        context = normal(g, 2, kv_len, 16) if kv_len != q_len else None
        t = attend(spec, p, Inputs(x=x, context=context))
        d, h = spec.d_model, spec.num_heads
        wanted: dict[str, tuple[tuple[Tensor, ...], tuple[int, ...]]] = {
            LESSON_LINES[0][0]: ((t.q_flat, t.k_flat, t.v_flat), (2, q_len, d)),
            LESSON_LINES[1][0]: ((t.q, t.k, t.v), (2, h, q_len, d // h)),
            LESSON_LINES[2][0]: ((t.scores,), (2, h, q_len, q_len)),
            LESSON_LINES[3][0]: ((t.context,), (2, h, q_len, d // h)),
            LESSON_LINES[4][0]: ((t.merged,), (2, q_len, d)),
        }
        found[name] = {
            line: all(tuple(z.shape) == shape for z in tensors)
            for line, (tensors, shape) in wanted.items()
        }
    return found


def lesson_shapes(seed: int) -> dict[str, str]:
    """The shapes that the lesson's own layer makes, B = 2, T = 5, D = 16, H = 4."""
    layer, x = lesson_layer(16, 4, seed=seed), normal(generator(seed), 2, 5, 16)
    with torch.no_grad():
        q, k, v = layer.heads(x)
        scores = layer.scores(q, k)
        output, weights = layer(x)
        made = {
            "fused qkv": layer.qkv(x),
            LESSON_LINES[0][0]: layer.qkv(x).chunk(3, -1)[0],
            LESSON_LINES[1][0]: v,
            LESSON_LINES[2][0]: scores,
            LESSON_LINES[3][0]: weights @ v,
            LESSON_LINES[4][0]: (weights @ v).transpose(1, 2).flatten(2),
            "output": output,
        }
    return {name: str(tuple(z.shape)) for name, z in made.items()}


def hidden_growth() -> dict[str, str]:
    """One head and a padding mask written as [B,T,1,1]: what the masked scores become."""
    scores, pad = torch.zeros(2, 1, 5, 5), padding([5, 2], 5)
    grown = scores.masked_fill(pad[:, :, None, None], float("-inf"))
    return {"scores": str(tuple(scores.shape)), "masked": str(tuple(grown.shape))}


def library_sizes() -> dict[str, tuple[int, int, int]] | None:
    """(width, heads, head size) of default configurations; None without the library."""
    try:
        import transformers
    except ImportError:
        return None
    found = {}
    for name in ("Bert", "GPT2", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "T5",
                 "GPTNeoX", "Phi", "Olmo2"):  # fmt: skip
        maker = getattr(transformers, f"{name}Config", None)
        if maker is None:
            continue
        config = maker()
        width, heads = config.hidden_size, config.num_attention_heads
        size = getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or width // heads
        found[name] = (width, heads, size)
    return found


# ------------------------------------------------------------------ the catalogue
@dataclass(frozen=True)
class Tried:
    """What running a fault's variants showed.

    Args:
        code, name, stage: of the fault.
        runs: variants × layers that ran and changed a number.
        kept: of these, how many kept the shape of every stage.
        output_kept: of these, how many kept the shape of the output.
        raised: how many raised an error instead.
        first: the first stage whose shape changed ("" if none).
    """

    code: str
    name: str
    stage: str
    runs: int
    kept: int
    output_kept: int
    raised: int
    first: str

    @property
    def group(self) -> str:
        """silent: every shape stays; sometimes; shown; raises; not run."""
        if not self.runs:
            return "raises" if self.raised else "not run"
        return "silent" if self.kept == self.runs else "sometimes" if self.kept else "shown"


def settings(seed: int) -> Iterator[tuple[AttentionSpec, Parameters, Inputs]]:
    """Layers and inputs on which the faults are tried; together they give every fault a chance."""
    base = AttentionSpec(d_model=24, num_heads=4, biases="qkvo")
    rope = Rope(pairs="halves")
    grouped = AttentionSpec(d_model=32, num_heads=4, num_kv_heads=2, is_causal=True, positions=rope)
    specs = [
        base.replace(v_head_dim=5, is_causal=True),
        base,
        base.replace(is_causal=True),
        AttentionSpec(d_model=32, num_heads=4, is_causal=True, positions=rope),
        grouped,
        grouped.replace(qk_norm=QkNorm()),
        grouped.replace(positions=Rope(pairs="neighbours", rotary_dim=4), sinks=True),
        base.replace(is_causal=True, positions=Alibi()),
        base.replace(positions=RelativeBias(num_buckets=8, max_distance=16)),
        base.replace(is_causal=True, positions=Learned(max_len=16)),
        base.replace(is_causal=True, positions=Sinusoidal()),
        base.replace(is_causal=True, window=(2, 0)),
        base.replace(is_causal=True, softcap=2.0),
        base.replace(dropout=0.5),
        AttentionSpec(d_model=32, num_heads=8, num_kv_heads=4, is_causal=True),
    ]
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2], [0] * 7])
    for index, spec in enumerate(specs):
        g = generator(100 * seed + index)
        p = parameters(spec, g)
        x, square = normal(g, 3, 7, spec.d_model), normal(g, 3, 4, spec.d_model)
        yield spec, p, Inputs(x=x)
        yield spec, p, Inputs(x=x, keep=~padding([7, 4, 2], 7, left=True))
        yield spec, p, Inputs(x=x, keep=~padding([7, 4, 2], 7))
        yield spec, p, Inputs(x=square, keep=~padding([4, 2, 3], 4))
        if spec.is_causal:
            yield spec, p, Inputs(x=x, documents=documents)
        if index in (0, 1):
            context, keep = normal(g, 3, 9, spec.d_context), ~padding([9, 5, 6], 9)
            cross = spec.replace(is_causal=False)
            yield cross, p, Inputs(x=x, context=context)
            yield cross, p, Inputs(x=x, context=context, keep=keep)
            yield cross, p, Inputs(x=x, context=context[:, :7])
            both = Inputs(x=x, context=context[:, :7], keep=keep[:, :7], query_keep=keep[:, 2:])
            yield cross, p, both
        if spec.dropout:
            factors = (torch.rand(3, 4, 7, 7, generator=g) < 0.5).double() * 2
            yield spec, p, Inputs(x=x, dropout=factors)
    spec = AttentionSpec(d_model=24, num_heads=4, is_causal=True)
    g = generator(100 * seed + 99)
    for q_len in (1, 3):
        q, k, v = normal(g, 2, 4, q_len, 6), normal(g, 2, 4, 5, 6), normal(g, 2, 4, 5, 6)
        yield spec, Parameters(), Inputs(q=q, k=k, v=v)


def changed(wrong: Trace, right: Trace) -> tuple[bool, str]:
    """Whether any output number differs, and the first stage with another shape."""
    mine, truth = wrong.stage_tensors(), right.stage_tensors()
    for stage in STAGES:
        for name in stage.tensors:
            if name in truth and (name not in mine or mine[name].shape != truth[name].shape):
                return True, stage.name
    return not torch.equal(wrong.output.nan_to_num(1e9), right.output.nan_to_num(1e9)), ""


def try_catalogue(seed: int, limit: int, tick: Callable[[float], None]) -> list[Tried]:
    """Every fault of the catalogue, every variant, every setting where it exists.

    Args:
        seed: of weights and inputs.
        limit: a fault that changed a number in so many runs is not tried in further settings.
        tick: told which share is done.
    """
    faults = {code: fault for code, fault in FAULTS.items() if code != "U00"}  # "unexplained"
    counts: dict[str, list[int]] = {code: [0, 0, 0, 0] for code in faults}
    first: dict[str, str] = {}
    cases = list(settings(seed))
    for done, (spec, p, inputs) in enumerate(cases):
        tick(done / len(cases))
        right = attend(spec, p, inputs)
        for code, fault in faults.items():
            if counts[code][0] >= limit:
                continue
            for variant in fault.variants(spec):
                try:
                    with torch.no_grad():
                        wrong = variant.run(spec, p, inputs)
                except masking.NothingToDoError:
                    continue
                except (RuntimeError, IndexError, HeadwiseError, AttributeError, TypeError):
                    counts[code][3] += 1
                    continue
                differs, stage = changed(wrong, right)
                counts[code][0] += differs
                counts[code][1] += differs and not stage
                counts[code][2] += differs and wrong.output.shape == right.output.shape
                if stage:
                    first.setdefault(code, stage)
    found = []
    for code in sorted(faults):
        runs, kept, output_kept, raised = counts[code]
        name, stage = faults[code].name, faults[code].stage
        opening = first.get(code, "")
        found.append(Tried(code, name, stage, runs, kept, output_kept, raised, opening))
    return found


# ------------------------------------------------------------------ public reports
@dataclass(frozen=True)
class Reported:
    """One kind of fault in the collection of public reports.

    Args:
        id: in the collection (LOG.md of the project's cases).
        family: as the collection names it.
        reports: public threads cited for it.
        cause: axis (order of transposed axes), broadcast (mask along the wrong axis), merge,
            mask (anything else about masks), other.
    """

    id: str
    family: str
    reports: int
    cause: str


REPORTED = tuple(
    Reported(*row)
    for row in (
        ("F01", "mask", 2, "broadcast"), ("F03", "mask", 2, "mask"), ("F05", "mask", 1, "mask"),
        ("F07", "mask", 2, "mask"), ("F09", "mask", 1, "mask"), ("F11", "mask", 4, "mask"),
        ("F13", "mask", 2, "mask"), ("F15", "mask", 2, "mask"), ("F17", "mask", 3, "mask"),
        ("F19", "mask", 2, "mask"), ("F21", "mask", 3, "mask"), ("F23", "NaN", 3, "mask"),
        ("F25", "mask", 3, "mask"), ("F27", "scale", 4, "other"), ("F29", "scale", 1, "other"),
        ("F31", "scale", 2, "other"), ("F33", "scale", 2, "other"), ("F35", "softmax", 2, "axis"),
        ("F39", "heads", 4, "merge"), ("F41", "heads", 2, "axis"), ("F43", "GQA", 4, "other"),
        ("F47", "weights", 1, "other"), ("F49", "RoPE", 4, "other"), ("F51", "RoPE", 3, "other"),
        ("F53", "RoPE", 2, "other"), ("F55", "RoPE", 2, "axis"), ("F59", "positions", 3, "other"),
        ("F61", "ALiBi", 1, "other"), ("F63", "ALiBi", 2, "other"), ("F65", "dropout", 3, "other"),
        ("F67", "gradient", 2, "other"), ("F69", "gradient", 1, "other"),
        ("F73", "QK-norm", 2, "other"), ("F75", "QK-norm", 2, "other"),
        ("F77", "d_v != d_k", 3, "other"),
    )
)  # fmt: skip
"""35 kinds of fault with public reports, from LOG.md of the project's cases (read in 2026). The
families are the collection's; the causes are our reading of its descriptions."""


def families() -> Mapping[str, tuple[int, int]]:
    """Kinds and reports by family."""
    found: dict[str, tuple[int, int]] = {}
    for entry in REPORTED:
        kinds, reports = found.get(entry.family, (0, 0))
        found[entry.family] = (kinds + 1, reports + entry.reports)
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))


def as_row(tried: Tried) -> tuple[str | int, ...]:
    """A row of the table of faults."""
    return (*dataclasses.astuple(tried), tried.group)
