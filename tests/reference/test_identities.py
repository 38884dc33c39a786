"""What must hold for any weights: invariances, equivariances, and special cases of one another.

Every identity that a mask, a rotation or a grouping breaks has a twin that shows it broken.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.draws import (
    allowance,
    cross_inputs,
    draw,
    head_inputs,
    parameters_for,
    self_inputs,
)
from tests.sizes import AWKWARD

from headwise.masks import Causal, Window
from headwise.numerics import compare, float64_allowance, largest
from headwise.reference import STAGE_FUNCTIONS, Inputs, Parameters, Setting, attend
from headwise.reference.positions import rotary_angles, rotate
from headwise.spec import Alibi, AttentionSpec, Learned, QkNorm, RelativeBias, Rope, Sinusoidal
from headwise.stages import STAGE_NAMES, STAGES

B, T = AWKWARD.B, AWKWARD.Tk


def same(spec, trace, got, want):
    """Whether two tensors agree within what rounding explains."""
    return compare(got, want, allowed=allowance(spec, trace, [want]))


def run(spec, inputs=None, parameters=None, **replace):
    inputs = self_inputs(spec, batch=B, length=T) if inputs is None else inputs
    parameters = parameters_for(spec) if parameters is None else parameters
    return attend(spec, parameters, inputs, replace=replace)


SPECS = {
    "plain": AWKWARD.spec(),
    "causal": AWKWARD.spec(is_causal=True, biases="qkvo"),
    "window": AWKWARD.spec(window=(2, 1)),
    "halves": AWKWARD.spec(positions=Rope(pairs="halves"), is_causal=True),
    "neighbours": AWKWARD.spec(positions=Rope(pairs="neighbours", rotary_dim=6), biases="qv"),
    "alibi": AWKWARD.spec(positions=Alibi(), is_causal=True),
    "sinusoidal": AWKWARD.spec(positions=Sinusoidal()),
    "learned": AWKWARD.spec(positions=Learned()),
    "relative": AWKWARD.spec(positions=RelativeBias(num_buckets=8, max_distance=5)),
    "softcap": AWKWARD.spec(softcap=0.7, scale=0.9),
    "sinks": AWKWARD.spec(sinks=True, is_causal=True),
    "qk-norm": AWKWARD.spec(qk_norm=QkNorm(), positions=Rope(pairs="halves")),
    "layer-norm": AWKWARD.spec(
        qk_norm=QkNorm(order="after-rope", kind="layer"), positions=Rope(pairs="neighbours")
    ),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


# -- softmax -------------------------------------------------------------------------------------


def test_a_constant_added_to_a_row_of_scores_changes_nothing():
    spec = AWKWARD.spec()
    shift = 5 * draw(B, AWKWARD.Hq, T, 1, name="shift")

    def shifted(t, s):
        STAGE_FUNCTIONS["scores"](t, s)
        t.scores = t.scores + shift

    t, moved = run(spec), run(spec, scores=shifted)
    found = same(spec, moved, moved.weights, t.weights)
    assert found.passed, found.sentence()
    assert same(spec, moved, moved.output, t.output).passed


def test_but_a_sink_notices_it():
    spec = AWKWARD.spec(sinks=True)

    def shifted(t, s):
        STAGE_FUNCTIONS["scores"](t, s)
        t.scores = t.scores + 1.0

    assert not same(spec, run(spec), run(spec, scores=shifted).weights, run(spec).weights).passed


@pytest.mark.parametrize("positions", [None, Alibi(), Sinusoidal()])
def test_a_key_bias_without_rotation_is_dead(positions):
    spec = AWKWARD.spec(biases="qkvo", positions=positions, is_causal=True)
    parameters = parameters_for(spec)
    without = dataclasses.replace(parameters, k_bias=None)
    t, other = run(spec, parameters=parameters), run(spec, parameters=without)
    assert not same(spec, t, other.scores, t.scores).passed
    found = same(spec, t, other.output, t.output)
    assert found.passed, found.sentence()


@pytest.mark.parametrize(
    "changes",
    [{"positions": Rope(pairs="halves")}, {"softcap": 1.0}, {"sinks": True}, {"qk_norm": QkNorm()}],
    ids=["rope", "softcap", "sinks", "qk-norm"],
)
def test_but_rotation_cap_sink_and_norm_bring_it_to_life(changes):
    spec = AWKWARD.spec(biases="k", **changes)
    parameters = parameters_for(spec)
    without = dataclasses.replace(parameters, k_bias=None)
    t = run(spec, parameters=parameters)
    assert not same(spec, t, run(spec, parameters=without).output, t.output).passed


@every_spec
def test_a_single_token_has_the_weight_one(spec):
    if spec.sinks:
        spec = spec.replace(sinks=False)
    t = run(spec, self_inputs(spec, batch=B, length=1))
    assert t.weights.equal(torch.ones_like(t.weights))


def test_but_a_sink_takes_its_share_of_a_single_token():
    spec = AWKWARD.spec(sinks=True)
    assert (run(spec, self_inputs(spec, batch=B, length=1)).weights < 1).all()


# -- heads ---------------------------------------------------------------------------------------


def by_heads(matrix, heads, order):
    """The rows of a matrix, head by head in another order."""
    return matrix.unflatten(0, (heads, -1))[list(order)].flatten(0, 1)


def test_the_order_of_heads_does_not_matter_if_the_output_follows():
    spec = AWKWARD.spec(biases="qkv")
    Hq, Hkv = spec.num_heads, spec.num_kv_heads
    groups = [2, 0, 1]
    heads = [g * spec.group_size + n for g in groups for n in range(spec.group_size)]
    p = parameters_for(spec)
    moved = dataclasses.replace(
        p,
        q=by_heads(p.q, Hq, heads),
        q_bias=by_heads(p.q_bias, Hq, heads),
        k=by_heads(p.k, Hkv, groups),
        k_bias=by_heads(p.k_bias, Hkv, groups),
        v=by_heads(p.v, Hkv, groups),
        v_bias=by_heads(p.v_bias, Hkv, groups),
        o=by_heads(p.o.T, Hq, heads).T,
    )
    t, other = run(spec, parameters=p), run(spec, parameters=moved)
    assert same(spec, t, other.weights, t.weights[:, heads]).passed
    found = same(spec, t, other.output, t.output)
    assert found.passed, found.sentence()
    # Twin: query heads moved out of their group read another key.
    wrong = dataclasses.replace(moved, q=by_heads(p.q, Hq, [1, 2, 3, 4, 5, 0]))
    assert not same(spec, t, run(spec, parameters=wrong).output, t.output).passed


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 6], ids="kv{}".format)
def test_grouping_is_plain_heads_with_copied_keys_and_values(num_kv_heads):
    spec = AWKWARD.spec(num_kv_heads=num_kv_heads, is_causal=True)
    plain = spec.replace(num_kv_heads=spec.num_heads)
    p = parameters_for(spec)
    copies = [h * num_kv_heads // spec.num_heads for h in range(spec.num_heads)]
    copied = dataclasses.replace(
        p, k=by_heads(p.k, num_kv_heads, copies), v=by_heads(p.v, num_kv_heads, copies)
    )
    t, other = run(spec, parameters=p), run(plain, parameters=copied)
    assert same(spec, t, other.weights, t.weights).passed
    found = same(spec, t, other.output, t.output)
    assert found.passed, found.sentence()
    if 1 < num_kv_heads < spec.num_heads:
        tiled = [h % num_kv_heads for h in range(spec.num_heads)]
        wrong = dataclasses.replace(
            p, k=by_heads(p.k, num_kv_heads, tiled), v=by_heads(p.v, num_kv_heads, tiled)
        )
        assert not same(spec, t, run(plain, parameters=wrong).output, t.output).passed


# -- order of tokens -----------------------------------------------------------------------------

ORDER = [3, 0, 6, 1, 5, 2, 4]


def permuted(spec):
    """A run, and the run on the tokens in another order, put back into the first one."""
    inputs = self_inputs(spec, batch=B, length=T)
    t, other = run(spec, inputs), run(spec, inputs.replace(x=inputs.x[:, ORDER]))
    back = torch.argsort(torch.tensor(ORDER))
    return t, other.output[:, back]


def test_without_mask_and_positions_order_does_not_exist():
    spec = AWKWARD.spec(biases="qkvo", softcap=2.0, qk_norm=QkNorm(), sinks=True)
    t, back = permuted(spec)
    found = same(spec, t, back, t.output)
    assert found.passed, found.sentence()


@pytest.mark.parametrize(
    "changes",
    [
        {"is_causal": True},
        {"window": (1, 1)},
        {"positions": Rope(pairs="halves")},
        {"positions": Alibi()},
        {"positions": Sinusoidal()},
        {"positions": Learned()},
        {"positions": RelativeBias(num_buckets=8, max_distance=5)},
    ],
    ids=str,
)
def test_but_masks_and_positions_see_it(changes):
    spec = AWKWARD.spec(**changes)
    t, back = permuted(spec)
    assert not same(spec, t, back, t.output).passed


# -- rotation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_rotated_scores_depend_on_the_distance_alone(pairs):
    spec = AWKWARD.spec(positions=Rope(pairs=pairs, rotary_dim=6))
    inputs = head_inputs(spec, batch=B, q_len=T, kv_len=T)
    shift, slots = 40, torch.arange(T)[None]
    scores = []
    for positions in (slots, slots + shift, 2 * slots):
        angle = rotary_angles(positions, rotary_dim=6, base=10000.0)
        t = attend(spec, Parameters(), inputs.replace(angles=(angle.cos(), angle.sin())))
        scores.append(t.scores)
    # The angle itself is rounded, by eps times the largest position.
    allowed = float64_allowance(terms=spec.head_dim, scale=largest(scores), sharpness=shift + T)
    found = compare(scores[1], scores[0], allowed=allowed)
    assert found.passed, found.sentence()
    assert not compare(scores[2], scores[0], allowed=allowed).passed
    # The tables handed over are those of the formula.
    assert scores[0].equal(attend(spec, Parameters(), inputs).scores)


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("rotary_dim", [2, 6, 8])
def test_rotation_keeps_the_length_of_every_pair_and_turns_back(pairs, rotary_dim):
    x = draw(B, 3, T, 8, name="x")
    angle = rotary_angles(torch.arange(T).expand(B, T), rotary_dim=rotary_dim, base=100.0)
    turned = rotate(x, angle.cos(), angle.sin(), pairs=pairs)
    allowed = float64_allowance(terms=4, scale=largest([x]) ** 2)
    assert compare(turned.square().sum(-1), x.square().sum(-1), allowed=8 * allowed).passed
    assert turned[..., rotary_dim:].equal(x[..., rotary_dim:])
    assert turned[:, :, 0].equal(x[:, :, 0]), "position 0 is not turned"
    assert not compare(turned[:, :, 1], x[:, :, 1], allowed=allowed).passed
    back = rotate(turned, angle.cos(), -angle.sin(), pairs=pairs)
    assert compare(back, x, allowed=allowed).passed


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_values_are_not_rotated(pairs):
    plain, turned = AWKWARD.spec(), AWKWARD.spec(positions=Rope(pairs=pairs))
    t, other = run(plain), run(turned)
    assert other.v_shared.equal(t.v_shared)
    assert other.v.equal(t.v)
    assert not other.k_pos.equal(t.k_pos)


def test_the_two_pairings_are_one_rotation_of_reordered_channels():
    x = draw(B, 3, T, 8, name="x")
    angle = rotary_angles(torch.arange(T)[None], rotary_dim=8, base=100.0)
    to_halves = [0, 2, 4, 6, 1, 3, 5, 7]
    halves = rotate(x[..., to_halves], angle.cos(), angle.sin(), pairs="halves")
    neighbours = rotate(x, angle.cos(), angle.sin(), pairs="neighbours")
    assert halves.equal(neighbours[..., to_halves])
    assert not halves.equal(neighbours)


# -- one mask as another, one run as several -----------------------------------------------------


def test_masks_that_say_the_same():
    causal = AWKWARD.spec(is_causal=True)
    want = run(causal).output
    assert run(AWKWARD.spec(window=(None, 0))).output.equal(want)
    inputs = self_inputs(causal, batch=B, length=T)
    assert run(AWKWARD.spec(), inputs.replace(mask=Causal())).output.equal(want)
    assert run(AWKWARD.spec(window=(T, T))).output.equal(run(AWKWARD.spec()).output)
    assert run(causal.replace(window=(2, None))).output.equal(
        run(AWKWARD.spec(), inputs.replace(mask=Causal() & Window(2, 0))).output
    )


@every_spec
def test_packed_documents_are_separate_runs(spec):
    inputs = self_inputs(spec, batch=1, length=T)
    packed = run(spec, inputs.replace(documents=torch.tensor([[4] * 3 + [2] * (T - 3)])))
    first = run(spec, Inputs(x=inputs.x[:, :3]))
    second = run(spec, Inputs(x=inputs.x[:, 3:]))
    found = same(spec, packed, packed.output, torch.cat([first.output, second.output], 1))
    assert found.passed, found.sentence()


@every_spec
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_a_shorter_sequence(spec, side):
    inputs = self_inputs(spec, batch=B, length=T)
    keep = torch.ones(B, T, dtype=torch.bool)
    real = slice(2, T) if side == "left" else slice(0, T - 2)
    keep[:] = False
    keep[:, real] = True
    padded, alone = run(spec, inputs.replace(keep=keep)), run(spec, Inputs(x=inputs.x[:, real]))
    found = same(spec, padded, padded.output[:, real], alone.output)
    assert found.passed, found.sentence()


@every_spec
@pytest.mark.parametrize("q_len", [1, 3])
def test_the_last_queries_alone_give_the_last_rows(spec, q_len):
    """What a cache relies on, on the level of heads."""
    inputs = head_inputs(spec, batch=B, q_len=T, kv_len=T)
    parameters = parameters_for(spec)
    whole = attend(spec, parameters, inputs)
    last = attend(spec, parameters, inputs.replace(q=inputs.q[:, :, T - q_len :]))
    found = same(spec, whole, last.context, whole.context[:, :, T - q_len :])
    assert found.passed, found.sentence()


# -- stages --------------------------------------------------------------------------------------


@every_spec
def test_a_stage_replaced_by_itself_changes_nothing(spec):
    t = run(spec)
    for name, function in STAGE_FUNCTIONS.items():
        other = run(spec, **{name: function})
        for tensor, value in t.all_tensors().items():
            assert other.all_tensors()[tensor].equal(value), (name, tensor)


def other_numbers(name):
    """A stage whose tensors are all another quarter larger."""
    tensors = next(stage.tensors for stage in STAGES if stage.name == name)
    tensors += ("x_v",) if name == "input" else ()  # where values come from: no stage lists it

    def changed(t, s):
        STAGE_FUNCTIONS[name](t, s)
        for tensor in tensors:
            setattr(t, tensor, getattr(t, tensor) * 1.25)

    return changed


@pytest.mark.parametrize("name", STAGE_NAMES)
def test_a_replaced_stage_changes_its_own_and_all_later_tensors_and_no_earlier_one(name):
    spec = AWKWARD.cross_spec(positions=Rope(pairs="halves"), sinks=True, biases="qkvo")
    inputs = cross_inputs(spec, batch=B, q_len=AWKWARD.Tq, kv_len=AWKWARD.Tk)
    t = run(spec, inputs).stage_tensors()
    other = run(spec, inputs, **{name: other_numbers(name)}).stage_tensors()
    changed = {tensor for tensor in t if not other[tensor].equal(t[tensor])}
    later = STAGES[STAGE_NAMES.index(name) :]
    assert changed == {tensor for stage in later for tensor in stage.tensors}


def test_a_run_leaves_its_inputs_and_parameters_alone():
    spec = SPECS["qk-norm"].replace(sinks=True, biases="qkvo")
    inputs, parameters = self_inputs(spec, batch=B, length=T), parameters_for(spec)
    x, before = inputs.x.clone(), parameters.map(torch.clone)
    run(spec, inputs, parameters)
    assert inputs.x.equal(x)
    assert all(dict(before.items())[name].equal(value) for name, value in parameters.items())


# -- any spec ------------------------------------------------------------------------------------

positions = st.one_of(
    st.none(),
    st.builds(
        Rope,
        pairs=st.sampled_from(["halves", "neighbours"]),
        base=st.sampled_from([10.0, 10000.0]),
        rotary_dim=st.sampled_from([None, 2, 4]),
    ),
    st.builds(Alibi),
    st.builds(Sinusoidal),
    st.builds(Learned),
    st.builds(
        RelativeBias,
        num_buckets=st.just(8),
        max_distance=st.integers(5, 9),
        bidirectional=st.booleans(),
    ),
)
near = st.one_of(st.none(), st.integers(0, 3))


@st.composite
def runs(draw_from):
    """A spec, parameters and inputs: self-attention with padding or documents."""
    num_kv_heads = draw_from(st.integers(1, 3))
    spec = AttentionSpec(
        d_model=draw_from(st.integers(1, 7)),
        num_heads=num_kv_heads * draw_from(st.integers(1, 3)),
        num_kv_heads=num_kv_heads,
        head_dim=draw_from(st.sampled_from([4, 6])),
        v_head_dim=draw_from(st.integers(1, 5)),
        is_causal=draw_from(st.booleans()),
        window=draw_from(st.one_of(st.none(), st.tuples(near, near))),
        positions=draw_from(positions),
        softcap=draw_from(st.sampled_from([None, 0.5, 20.0])),
        sinks=draw_from(st.booleans()),
        qk_norm=draw_from(
            st.one_of(
                st.none(),
                st.builds(
                    QkNorm,
                    order=st.sampled_from(["before-rope", "after-rope"]),
                    kind=st.sampled_from(["rms", "layer"]),
                ),
            )
        ),
        biases=draw_from(st.sampled_from(["", "qkvo", "kv"])),
    )
    seed = draw_from(st.integers(0, 99))
    batch, length = draw_from(st.integers(1, 3)), draw_from(st.integers(1, 6))
    inputs = self_inputs(spec, batch=batch, length=length, seed=seed)
    bits = st.lists(st.booleans(), min_size=length, max_size=length)
    if draw_from(st.booleans()):
        keep = draw_from(st.lists(bits, min_size=batch, max_size=batch))
        inputs = inputs.replace(keep=torch.tensor(keep))
    if draw_from(st.booleans()):
        documents = draw_from(st.lists(bits, min_size=batch, max_size=batch))
        inputs = inputs.replace(documents=torch.tensor(documents).long())
    return spec, parameters_for(spec, seed=seed), inputs


anything = settings(deadline=None, derandomize=True, max_examples=40)


@anything
@given(runs())
def test_weights_are_a_distribution_over_what_is_visible(case):
    spec, _parameters, _inputs = case
    t = attend(*case)
    assert t.weights.masked_fill(t.visible, 0).count_nonzero() == 0
    assert (t.weights >= 0).all()
    total, seen = t.weights.sum(-1), t.visible.any(-1).expand(t.weights.shape[:-1])
    one = allowance(spec, t, [torch.ones(1)])
    if spec.sinks:
        assert (total <= 1 + one).all()
        assert (total[seen] > 0).all()
    else:
        assert compare(total, seen.double(), allowed=one).passed
    assert total[~seen].count_nonzero() == 0
    assert t.context[~seen].count_nonzero() == 0
    for name, value in t.all_tensors().items():
        if name not in ("masked_scores", "shifted_scores"):
            assert value.isfinite().all(), name


@anything
@given(runs())
def test_a_context_lies_between_the_values(case):
    spec, _parameters, _inputs = case
    t = attend(*case)
    room = allowance(spec, t, [t.v])
    # An empty row, and with a sink every row, is drawn towards zero.
    low = t.v_shared.amin(-2, keepdim=True).clamp(max=0.0) - room
    high = t.v_shared.amax(-2, keepdim=True).clamp(min=0.0) + room
    assert ((low <= t.context) & (t.context <= high)).all()


@anything
@given(runs())
def test_samples_do_not_know_of_each_other(case):
    spec, parameters, inputs = case
    t = attend(*case)
    for n in range(inputs.batch):
        alone = inputs.replace(
            x=inputs.x[n : n + 1],
            keep=None if inputs.keep is None else inputs.keep[n : n + 1],
            documents=None if inputs.documents is None else inputs.documents[n : n + 1],
        )
        got = attend(spec, parameters, alone).output
        assert same(spec, t, got, t.output[n : n + 1]).passed


@anything
@given(runs())
def test_what_is_hidden_has_no_influence(case):
    spec, parameters, inputs = case
    t = attend(*case)
    # The first key in every sample, replaced: rows that do not see it, and are not it, stay.
    x = inputs.x.clone()
    x[:, 0] = -3.0 * x[:, 0] + 1.0
    other = attend(spec, parameters, inputs.replace(x=x))
    blind = ~t.visible[:, 0, :, 0]
    blind[:, 0] = False
    allowed = max(allowance(spec, run, [run.output]) for run in (t, other))
    found = compare(other.output, t.output, allowed=allowed, where=blind[..., None])
    assert found.passed, found.sentence()


@anything
@given(runs())
def test_dropping_no_rule_and_replacing_no_rule_is_the_mask_itself(case):
    spec, parameters, inputs = case
    setting, t = Setting(spec, parameters, inputs), attend(*case)
    assert setting.visible().equal(t.visible)
    assert setting.visible(**setting.rules).equal(t.visible)
    everything = setting.visible(without=tuple(setting.rules))
    assert everything.all()
    # A rule can only hide.
    for name in setting.rules:
        assert (setting.visible(without=(name,)) >= t.visible).all()
