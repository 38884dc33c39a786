"""The definition against attention written once more with loops over Python floats.

No tensor operation is shared: sums are `math.fsum`, the softmax subtracts nothing, masks are
comparisons of slots, buckets are found with whole numbers.
"""

from __future__ import annotations

import math

import pytest
import torch
from tests.reference.draws import allowance, cross_inputs, draw, parameters_for, self_inputs
from tests.sizes import AWKWARD, WIDE

from headwise.masks import Custom
from headwise.numerics import compare
from headwise.reference import attend
from headwise.spec import Alibi, Learned, QkNorm, RelativeBias, Rope, Sinusoidal


# -- the loops -----------------------------------------------------------------------------------
def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def times(matrix, vector, bias):
    """Row by row."""
    found = [math.fsum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]
    return found if bias is None else [a + b for a, b in zip(found, bias, strict=True)]


def norm(vector, kind, gain, offset):
    if kind.kind == "layer":
        mean = math.fsum(vector) / len(vector)
        vector = [a - mean for a in vector]
    size = math.sqrt(math.fsum(a * a for a in vector) / len(vector) + kind.eps)
    offset = offset or [0.0] * len(vector)
    return [a / size * g + o for a, g, o in zip(vector, gain, offset, strict=True)]


def turn(vector, position, rope, n):
    """As a product of complex numbers."""
    turned = list(vector)
    for i in range(n // 2):
        a, b = (i, i + n // 2) if rope.pairs == "halves" else (2 * i, 2 * i + 1)
        angle = position / rope.base ** (2 * i / n)
        both = complex(vector[a], vector[b]) * complex(math.cos(angle), math.sin(angle))
        turned[a], turned[b] = both.real, both.imag
    return turned


def slope(head, num_heads):
    """Heads beyond the largest power of two take the odd terms of the finer series."""
    power = 1
    while 2 * power <= num_heads:
        power *= 2
    exponent = 8 * (head + 1) / power if head < power else 4 * (2 * (head - power) + 1) / power
    return 2.0**-exponent


def bucket(kind, distance):
    """Far buckets by comparing powers of whole numbers: d/exact >= (max/exact)^(s/n)."""
    count, start = kind.num_buckets, 0
    if kind.bidirectional:
        count //= 2
        start = count if distance > 0 else 0
        far = abs(distance)
    else:
        far = max(-distance, 0)
    exact, n = count // 2, count - count // 2
    if far < exact:
        return start + far
    step = 0
    while far**n * exact ** (step + 1) >= kind.max_distance ** (step + 1) * exact**n:
        step += 1
    return start + min(exact + step, count - 1)


def is_visible(spec, q_slot, k_slot):
    left, right = (None, None) if spec.window is None else spec.window
    if spec.is_causal and k_slot > q_slot:
        return False
    if left is not None and q_slot - k_slot > left:
        return False
    return not (right is not None and k_slot - q_slot > right)


def positions_of(length, keep, documents):
    """Counted from the first real token, or from the first of the document."""
    found = []
    for n in range(length):
        if documents is not None:
            found.append(n - documents.index(documents[n]))
        elif keep is not None:
            found.append(max(sum(keep[: n + 1]) - 1, 0))
        else:
            found.append(n)
    return found


def one_sample(spec, p, x, context, values, keep, documents, custom):
    """(weights by head, query, key; output by query)."""
    Tk = len(x if context is None else context)
    k_positions = positions_of(Tk, keep, documents)
    q_positions = k_positions[Tk - len(x) :] if len(x) <= Tk else list(range(len(x)))
    if isinstance(spec.positions, Learned | Sinusoidal):
        for t, (token, position) in enumerate(zip(x, q_positions, strict=True)):
            if isinstance(spec.positions, Learned):
                added = p["positions"][position]
            else:
                added = []
                for c in range(spec.d_model):
                    angle = position / spec.positions.base ** ((c - c % 2) / spec.d_model)
                    added.append(math.cos(angle) if c % 2 else math.sin(angle))
            x[t] = [a + b for a, b in zip(token, added, strict=True)]
    context = x if context is None else context
    values = context if values is None else values
    q_all = [times(p["q"], token, p.get("q_bias")) for token in x]
    k_all = [times(p["k"], token, p.get("k_bias")) for token in context]
    v_all = [times(p["v"], token, p.get("v_bias")) for token in values]
    Dk, Dv = spec.head_dim, spec.v_head_dim

    def placed(vector, position, side):
        kind = spec.qk_norm
        gain, offset = p.get(f"{side}_norm"), p.get(f"{side}_norm_bias")
        if kind is not None and kind.order == "before-rope":
            vector = norm(vector, kind, gain, offset)
        if spec.rope is not None:
            n = Dk if spec.rope.rotary_dim is None else spec.rope.rotary_dim
            vector = turn(vector, position, spec.rope, n)
        if kind is not None and kind.order == "after-rope":
            vector = norm(vector, kind, gain, offset)
        return vector

    all_weights, merged = [], [[] for _ in x]
    for h in range(spec.num_heads):
        g = h // (spec.num_heads // spec.num_kv_heads)
        rows = []
        for i in range(len(x)):
            q = placed(q_all[i][h * Dk : (h + 1) * Dk], q_positions[i], "q")
            exponentials = []
            for j in range(Tk):
                q_slot = i + Tk - len(x)
                seen = is_visible(spec, q_slot, j) and (keep is None or keep[j])
                if documents is not None:
                    seen = seen and documents[q_slot] == documents[j]
                if custom is not None:
                    seen = seen and custom[i][j]
                if not seen:
                    exponentials.append(0.0)
                    continue
                k = placed(k_all[j][g * Dk : (g + 1) * Dk], k_positions[j], "k")
                score = math.fsum(a * b for a, b in zip(q, k, strict=True)) * spec.scale
                if spec.softcap is not None:
                    score = spec.softcap * math.tanh(score / spec.softcap)
                distance = k_positions[j] - q_positions[i]
                if isinstance(spec.positions, Alibi):
                    slopes = spec.positions.slopes
                    score += distance * (slopes[h] if slopes else slope(h, spec.num_heads))
                if isinstance(spec.positions, RelativeBias):
                    score += p["relative_bias"][bucket(spec.positions, distance)][h]
                exponentials.append(math.exp(score))
            total = math.fsum(exponentials) + (math.exp(p["sinks"][h]) if spec.sinks else 0.0)
            weights = [a / total for a in exponentials] if total else exponentials
            rows.append(weights)
            for c in range(g * Dv, (g + 1) * Dv):
                merged[i].append(math.fsum(w * v_all[j][c] for j, w in enumerate(weights)))
        all_weights.append(rows)
    return all_weights, [times(p["o"], row, p.get("o_bias")) for row in merged]


def by_loops(spec, parameters, inputs, custom=None):
    p = {name: value.tolist() for name, value in parameters.items()}

    def of(tensor, n):
        return None if tensor is None else tensor[n].tolist()

    samples = [
        one_sample(
            spec,
            p,
            of(inputs.x, n),
            of(inputs.context, n),
            of(inputs.values, n),
            of(inputs.keep, n),
            of(inputs.documents, n),
            of(custom, n),
        )
        for n in range(inputs.batch)
    ]
    weights, outputs = zip(*samples, strict=True)
    return tensor(weights), tensor(outputs)


# -- the grid ------------------------------------------------------------------------------------

LAYERS = {
    "plain": {},
    "biases": {"biases": "qkvo"},
    "one-kv-head": {"num_kv_heads": 1},
    "plain-heads": {"num_kv_heads": 6},
    "scale-and-cap": {"scale": 0.9, "softcap": 0.7},
    "sinks": {"sinks": True, "biases": "ko"},
    "halves": {"positions": Rope(pairs="halves")},
    "neighbours-in-part": {"positions": Rope(pairs="neighbours", base=30.0, rotary_dim=6)},
    "rms-then-halves": {"positions": Rope(pairs="halves"), "qk_norm": QkNorm()},
    "neighbours-then-layer": {
        "positions": Rope(pairs="neighbours"),
        "qk_norm": QkNorm(order="after-rope", kind="layer", eps=0.01),
    },
    "alibi": {"positions": Alibi()},
    "alibi-slopes": {"positions": Alibi(slopes=(0.1, -0.2, 0.3, 0.0, 1.0, 0.5)), "softcap": 1.0},
    "sinusoidal": {"positions": Sinusoidal(base=50.0)},
    "learned": {"positions": Learned(), "biases": "v"},
    "relative": {"positions": RelativeBias(num_buckets=8, max_distance=5)},
    "relative-causal": {
        "positions": RelativeBias(num_buckets=6, max_distance=7, bidirectional=False),
        "sinks": True,
    },
}
SEEN = {"all": {}, "causal": {"is_causal": True}, "window": {"window": (2, 1)}}
SEEN["causal-window"] = {"is_causal": True, "window": (3, None)}
SAMPLES = {
    "full": {},
    "left": {"keep": torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7]).bool()},
    "right": {"keep": torch.tensor([[1, 1, 1, 1, 0, 0, 0], [0] * 7]).bool()},
    "documents": {"documents": torch.tensor([[0, 0, 0, 1, 1, 1, 1], [3, 5, 5, 5, 5, 4, 4]])},
}


def check(spec, inputs, *, seed=0, custom=None):
    parameters = parameters_for(spec, seed=seed)
    weights, output = by_loops(spec, parameters, inputs, custom)
    t = attend(spec, parameters, inputs)
    for got, want in ((t.weights, weights), (t.output, output)):
        found = compare(got, want, allowed=allowance(spec, t, [want]))
        assert found.passed, found.sentence()
    return t, output


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("layer", LAYERS)
def test_self_attention(layer, seen, sample):
    spec = AWKWARD.spec(**LAYERS[layer], **SEEN[seen])
    inputs = self_inputs(spec, batch=AWKWARD.B, length=AWKWARD.Tk).replace(**SAMPLES[sample])
    check(spec, inputs)


@pytest.mark.parametrize("q_len", [1, 5, 7, 9])
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("layer", LAYERS)
def test_cross_attention_of_any_lengths(layer, seen, q_len):
    spec = AWKWARD.cross_spec(**LAYERS[layer], **SEEN[seen])
    inputs = cross_inputs(spec, batch=AWKWARD.B, q_len=q_len, kv_len=AWKWARD.Tk)
    check(spec, inputs.replace(keep=SAMPLES["left"]["keep"]))


@pytest.mark.parametrize("seed", range(5))
def test_any_table_of_a_mask(seed):
    spec = AWKWARD.spec(is_causal=True)
    inputs = self_inputs(spec, batch=AWKWARD.B, length=AWKWARD.Tk, seed=seed)
    custom = draw(AWKWARD.B, AWKWARD.Tk, AWKWARD.Tk, name="mask", seed=seed) > 0
    check(spec, inputs.replace(mask=Custom(custom[:, None])), seed=seed, custom=custom)


def test_longer_sums():
    spec = WIDE.cross_spec(positions=Rope(pairs="halves"), biases="qkvo")
    check(spec, cross_inputs(spec, batch=WIDE.B, q_len=WIDE.Tq, kv_len=WIDE.Tk))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_kv_heads": 3, "window": (1, 1)},
        {"scale": 0.36},
        {"positions": Rope(pairs="halves")},
        {"positions": Alibi()},
        {"softcap": 30.0},
    ],
    ids=str,
)
def test_the_loops_notice_another_spec(changes):
    """Must fail: the loops run one spec, the definition another with the same parameters."""
    spec, other = AWKWARD.spec(), AWKWARD.spec(**changes)
    inputs = self_inputs(spec, batch=AWKWARD.B, length=AWKWARD.Tk)
    parameters = parameters_for(spec)
    _weights, output = by_loops(spec, parameters, inputs)
    t = attend(other, parameters, inputs)
    assert not compare(t.output, output, allowed=allowance(spec, t, [output])).passed
