"""What the methods compute, against naive loops, finite differences and the model's own hooks."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tests.integrations.hf_models import LENGTH, questions_of, subject_of, text_of

from headwise.errors import TargetError, UsageError
from headwise.explain.change import Change
from headwise.explain.explanation import compared
from headwise.explain.method import Settings, silent
from headwise.explain.methods import METHODS
from headwise.explain.methods.integrated import path
from headwise.explain.methods.occlusion import occlude
from headwise.explain.methods.rollout import rollout
from headwise.explain.question import EmbeddingNorm, Logit, LogitDifference, Question
from headwise.explain.tap import Tap, Watch
from headwise.integrations.registration import implementation, own_attention, watching
from headwise.numerics import compare, eps, float64_allowance
from headwise.verifier.lift import Lift

pytest.importorskip("transformers")

DECODERS = ("llama", "gpt2", "mistral", "gemma2")
EXACT = 2**14 * eps(torch.float64)
"""As in the tests of the promises: two layers of sums of some hundred products each."""


@pytest.fixture(autouse=True)
def _exact():
    """Softmax and norms in float64 too."""
    with Lift():
        yield


def subject64(model_type):
    return subject_of(model_type, dtype=torch.float64)


def explained(name, subject, text, question, **settings):
    return METHODS[name].explain(
        subject, text, question, settings=Settings(**settings), progress=silent
    )


def check(got, want, *, scale=None):
    size = float(want.abs().max()) if scale is None else scale
    found = compare(got, want, allowed=EXACT * max(size, 1.0))
    assert found.passed, found.sentence()


# ------------------------------------------------------------------------------------ weights
def test_rollout_by_hand():
    """Two layers of two heads on two tokens, worked out on paper.

    Layer 0: the mean of (1, 0; ½, ½) and (1, 0; 1, 0) is (1, 0; ¾, ¼); with half the identity
    (1, 0; ⅜, ⅝). Layer 1: the mean of (0, 1; 1, 0) and (0, 1; ½, ½) is (0, 1; ¾, ¼), mixed
    (½, ½; ⅜, ⅝). Product, later layer on the left: (½ + ½·⅜, ½·⅝) and (⅜ + ⅝·⅜, ⅝·⅝).
    """
    first = torch.tensor([[[1, 0], [0.5, 0.5]], [[1, 0], [1, 0]]])
    second = torch.tensor([[[0, 1], [1, 0]], [[0, 1], [0.5, 0.5]]])
    one, two = rollout([first, second])
    assert one.tolist() == [[1, 0], [3 / 8, 5 / 8]]
    assert two.tolist() == [[11 / 16, 5 / 16], [39 / 64, 25 / 64]]
    assert two.dtype == torch.float64
    assert rollout([second, first])[-1].tolist() != two.tolist()


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_rollout_of_a_model_is_the_product_of_its_own_matrices(model_type):
    subject = subject64(model_type)
    text = text_of(subject)
    got = explained("rollout", subject, text, Question(Logit(7), 5))
    with implementation(subject.model, "eager"), torch.no_grad():
        own = subject.model(input_ids=text.ids[None], output_attentions=True).attentions
    running = torch.eye(LENGTH, dtype=torch.float64)
    for layer, weights in enumerate(own):
        running = (weights[0].mean(0) + torch.eye(LENGTH)) / 2 @ running
        check(got.layers[layer], running[5])
    check(got.scores, running[5])


@pytest.mark.parametrize("model_type", [*DECODERS, "bert"])
def test_weights_are_rows_of_the_models_own(model_type):
    subject = subject64(model_type)
    text = text_of(subject)
    with implementation(subject.model, "eager"), torch.no_grad():
        own = subject.model(input_ids=text.ids[None], output_attentions=True).attentions
    for place in (0, 5):
        got = explained("weights", subject, text, Question(Logit(7), place))
        want = torch.stack([weights[0, :, place] for weights in own])
        rounded = eps(torch.float32)  # shown in float32
        assert compare(got.cells, want, allowed=rounded).passed
        assert compare(got.layers, want.mean(1), allowed=rounded).passed
        assert compare(got.scores, want[-1].mean(0), allowed=rounded).passed
    whole = explained("weights", subject, text, Question(EmbeddingNorm(), None))
    want = torch.stack([weights[0].mean(1) for weights in own])
    assert compare(whole.cells, want, allowed=rounded).passed


def test_a_sink_takes_its_share_and_the_note_says_so():
    subject = subject_of("gpt_oss")
    text = text_of(subject)
    got = explained("weights", subject, text, Question(Logit(7), 5))
    assert got.figures["smallest_row_sum"] < 0.99
    assert any("the rest goes to a sink" in note for note in got.notes)
    assert float(got.scores.sum()) < 1
    plain = explained("weights", subject64("llama"), text, Question(Logit(7), 5))
    assert not any("sink" in note for note in plain.notes)


@pytest.mark.parametrize("model_type", [*DECODERS, "bert"])
@pytest.mark.parametrize("place", [5, None])
def test_norms_against_a_loop(model_type, place):
    subject = subject64(model_type)
    text, model = text_of(subject, 6), subject.model
    question = Question(Logit(7), place) if place else Question(EmbeddingNorm(), None)
    got = explained("norms", subject, text, question)
    watch = Watch(weights=True, values=True)
    with implementation(model), watching(Tap(watch)) as tap, torch.no_grad():
        model(input_ids=text.ids[None])
    names = ("o_proj", "c_proj", "attention.output.dense")
    outputs = [m for n, m in model.named_modules() if n.endswith(names) and "mlp" not in n]
    H = model.config.num_attention_heads
    for layer, module in enumerate(outputs):
        bias = 0.0 if module.bias is None else module.bias
        weights, values = tap.seen.weights[layer][0], tap.seen.values[layer][0]
        group = H // values.shape[0]
        queries = range(6) if place is None else [place]
        for key in range(6):
            per_head, added = torch.zeros(H), 0.0
            for query in queries:
                total = 0.0
                for head in range(H):
                    x = torch.zeros(1, 1, H, values.shape[-1], dtype=torch.float64)
                    x[0, 0, head] = weights[head, query, key] * values[head // group, key]
                    with torch.no_grad():  # the projection itself, not its weight
                        sent = module(x.flatten(2))[0, 0] - bias
                    per_head[head] += float(sent.norm()) / len(queries)
                    total = total + sent
                added += float(total.norm()) / len(queries)
            rounded = 64 * eps(torch.float32)  # the tally above is float32
            assert compare(
                got.cells[layer, :, key], per_head, allowed=rounded * float(got.cells.max())
            ).passed
            assert math.isclose(float(got.layers[layer, key]), added, rel_tol=1e-9)
    assert torch.equal(got.scores, got.layers[-1])


# ------------------------------------------------------------------------------------ gradients
@pytest.mark.parametrize("model_type", [*DECODERS, "bert"])
def test_gradient_weights_against_finite_differences(model_type):
    """Each column of one head is scaled by 1 ± h, without renormalising, its diagonal left out."""
    subject = subject64(model_type)
    text, question = text_of(subject, 6), Question(LogitDifference(7, 9), 4)
    got = explained("gradient-weights", subject, text, question)
    step = 2.0**-17  # about the cube root of eps: both errors of a central difference are ~1e-10
    for layer in range(subject.num_layers):
        for head in (0, subject.num_heads - 1):
            for key in range(6):
                ends = [
                    target_with_scaled_column(
                        subject, text, question, layer, head, key, 1 + sign * step
                    )
                    for sign in (1, -1)
                ]
                want = (ends[0] - ends[1]) / (2 * step)
                assert abs(float(got.cells[layer, head, key]) - want) < 1e-8 * max(1, abs(want))
    check(got.layers, got.cells.sum(1))
    check(got.scores, got.cells.sum((0, 1)))


def target_with_scaled_column(subject, text, question, layer, head, key, factor):
    """The target where one key of one head has ``factor`` times its weight, by plain code."""
    calls = []

    def attend(module, query, k, value, attention_mask, **kwargs):
        context, weights = own_attention(module)(module, query, k, value, attention_mask, **kwargs)
        if len(calls) == layer:
            scaled = weights.clone()
            scaled[0, head, :, key] *= factor
            scaled[0, head, key, key] = weights[0, head, key, key]
            value = value.repeat_interleave(weights.shape[1] // value.shape[1], 1)
            context = (scaled @ value).transpose(1, 2)
        calls.append(module)
        return context, weights

    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register("scaled", attend)
    AttentionMaskInterface.register("scaled", eager_mask)
    try:
        with implementation(subject.model, "scaled"), torch.no_grad():
            logits = subject.model(input_ids=text.ids[None]).logits
    finally:
        AttentionInterface._global_mapping.pop("scaled")
        AttentionMaskInterface._global_mapping.pop("scaled")
    target = question.target
    return float(
        logits[0, question.position, target.token] - logits[0, question.position, target.against]
    )


@pytest.mark.parametrize("steps", [1, 2, 5, 32])
def test_the_path_integrates_polynomials_exactly(steps):
    points, shares = path(steps)
    assert points.shape == shares.shape == (steps,)
    assert bool(((points > 0) & (points < 1)).all())
    for power in range(2 * steps):  # Gauss-Legendre is exact up to degree 2n - 1
        got = float((shares * points**power).sum())
        assert abs(got - 1 / (power + 1)) <= float64_allowance(terms=steps, scale=1.0)


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_more_steps_close_the_gap(model_type):
    subject = subject64(model_type)
    text, question = text_of(subject), Question(Logit(7), 5)
    gaps = [
        abs(explained("integrated", subject, text, question, steps=n).figures["gap"])
        for n in (1, 4, 16, 64)
    ]
    assert gaps[0] > 1e-4
    assert gaps[3] < 1e-3 * gaps[0]


def test_batches_of_the_path_change_nothing():
    subject = subject64("llama")
    text, question = text_of(subject), Question(Logit(7), 5)
    one, eight = (
        explained("integrated", subject, text, question, steps=12, batch=batch) for batch in (1, 5)
    )
    check(one.scores, eight.scores)


# ------------------------------------------------------------------------------------ taken away
@pytest.mark.parametrize("how", ["hidden", "replaced"])
@pytest.mark.parametrize("model_type", [*DECODERS, "bert"])
def test_prefixes_and_batches_change_nothing(model_type, how, monkeypatch):
    subject = subject64(model_type)
    text = text_of(subject)
    for question in questions_of(subject, position=7).values():
        found = {}
        for batch in (1, 3, 64):
            found[batch] = occlude(
                subject, text, question, how, settings=Settings(batch=batch), progress=silent
            )
        if model_type != "bert":
            assert subject.prefixes(text.ids[None, :8]) is not None
            assert max(tokens for _rows, tokens in found[1].runs[1:]) < 8
            monkeypatch.setattr(type(subject), "prefixes", lambda _self, _ids: None)
        found["whole"] = occlude(subject, text, question, how, settings=Settings(), progress=silent)
        monkeypatch.undo()
        for one in found.values():
            check(one.after, found["whole"].after)
            check(one.logits, found["whole"].logits)
            assert one.logits.shape == (LENGTH, subject.vocab_size)


@pytest.mark.parametrize("how", ["hidden", "replaced"])
def test_the_logits_of_every_occlusion_hold_the_target(how):
    subject = subject64("llama")
    text, question = text_of(subject), Question(Logit(7), 5)
    found = occlude(subject, text, question, how, settings=Settings(), progress=silent)
    check(found.logits[:, 7], found.after)
    assert abs(float(found.logits_before[7]) - found.before) < EXACT
    check(found.effect, found.before - found.after)


@pytest.mark.parametrize("model_type", DECODERS)
def test_edges_through_a_prefix_are_edges_of_whole_runs(model_type, monkeypatch):
    subject = subject64(model_type)
    text, question = text_of(subject, 6), Question(Logit(7), 5)
    with_prefix = explained("edges", subject, text, question, batch=3)
    monkeypatch.setattr(type(subject), "prefixes", lambda _self, _ids: None)
    whole = explained("edges", subject, text, question)
    check(with_prefix.cells, whole.cells)
    assert float(whole.cells.abs().max()) > 1e-3


def test_too_many_edges_are_cut_by_layer():
    subject = subject64("llama")
    text, question = text_of(subject, 6), Question(Logit(7), 5)
    got = explained("edges", subject, text, question, edges=10)
    assert got.cells is None
    assert got.figures["cuts"] == 2 * 6
    assert any("more than 10" in note for note in got.notes)
    change = Change(edges={1: torch.zeros(1, 1, 6, 6, dtype=torch.bool)})
    change.edges[1][0, 0, 5, 2] = True
    before, after = (
        float(subject.run(text.ids[None], position=5, change=c).logits[0, 7])
        for c in (None, change)
    )
    assert abs(float(got.layers[1, 2]) - (before - after)) < EXACT


def test_edges_of_a_whole_text_are_cut_for_every_query():
    subject = subject64("bert")
    text, question = text_of(subject, 5), Question(EmbeddingNorm(), None)
    got = explained("edges", subject, text, question)
    edges = torch.zeros(1, 4, 5, 5, dtype=torch.bool)
    edges[0, 3, :, 2] = True
    edges[0, 3, 2, 2] = False
    before, after = (
        float(question.value(subject.run(text.ids[None], change=change))[0])
        for change in (None, Change(edges={1: edges}))
    )
    assert abs(float(got.cells[1, 3, 2]) - (before - after)) < EXACT
    assert before != after


@pytest.mark.parametrize("name", ["ablation-zero", "ablation-mean"])
def test_batches_of_heads_change_nothing(name):
    subject = subject64("gemma2")
    text, question = text_of(subject), Question(Logit(7), 5)
    one, seven = (explained(name, subject, text, question, batch=batch) for batch in (1, 7))
    check(one.heads, seven.heads)
    assert float(one.heads.abs().max()) > 1e-3


# ------------------------------------------------------------------------------------ taken apart
def without_final_cap(model_type):
    subject = copy.deepcopy(subject64(model_type))
    subject.model.config.final_logit_softcapping = None
    return subject


DECOMPOSED = {
    "gpt2": lambda: subject64("gpt2"),
    "llama": lambda: subject64("llama"),
    "mistral": lambda: subject64("mistral"),
    "qwen2": lambda: subject64("qwen2"),
    "gemma2": lambda: without_final_cap("gemma2"),
    "opt": lambda: subject64("opt"),
}


@pytest.mark.parametrize("model_type", DECOMPOSED)
def test_the_parts_of_a_logit_sum_to_it(model_type):
    subject = DECOMPOSED[model_type]()
    text = text_of(subject)
    for question in questions_of(subject, position=5).values():
        got = explained("decomposition", subject, text, question)
        parts = got.extra["parts"]
        size = sum(abs(h) for layer in parts.heads for h in layer) + abs(parts.value)
        assert abs(parts.gap) <= EXACT * max(size, 1.0)
        with torch.no_grad():
            logits = subject.model(input_ids=text.ids[None]).logits[0, 5]
        want = float(question.target.value(type("R", (), {"logits": logits[None]})())[0])
        assert abs(parts.value - want) <= EXACT * max(1.0, abs(want))
        assert float(got.heads.abs().max()) > 1e-3


def test_the_parts_of_an_embedding_sum_to_its_length():
    bert = subject64("bert")
    subject = copy.copy(bert)
    subject.model, subject.kind = bert.model.bert, "encoder"
    text = text_of(subject)
    for pool in ("mean", "first"):
        got = explained("decomposition", subject, text, Question(EmbeddingNorm(pool), None))
        parts = got.extra["parts"]
        assert abs(parts.gap) <= EXACT * max(1.0, abs(parts.value))
        assert parts.value > 0.1


def test_a_cap_on_the_logits_shows_a_gap():
    subject = subject64("gemma2")
    got = explained("decomposition", subject, text_of(subject), Question(Logit(7), 5))
    assert abs(got.figures["gap"]) > 1e-6
    assert "gap" in got.notes[0]


def test_parts_of_gpt2_by_hand():
    """Every write recorded by hooks, pushed through the last norm (its size held) and the head."""
    subject = subject64("gpt2")
    text, model, place = text_of(subject), subject.model, 5
    parts = explained("decomposition", subject, text, Question(Logit(7), place)).extra["parts"]
    kept = {}

    def keep(name, *, inputs=False):
        def hook(_module, args, output):
            kept[name] = args[0] if inputs else output

        return hook

    blocks = model.transformer.h
    handles = [model.transformer.drop.register_forward_hook(keep("start"))]
    handles += [model.transformer.ln_f.register_forward_hook(keep("last", inputs=True))]
    for i, block in enumerate(blocks):
        handles.append(block.attn.c_proj.register_forward_hook(keep(("context", i), inputs=True)))
        handles.append(block.mlp.c_proj.register_forward_hook(keep(("mlp", i))))
    with torch.no_grad():
        logits = model(input_ids=text.ids[None, : place + 1]).logits
    for handle in handles:
        handle.remove()
    norm = model.transformer.ln_f
    size = (kept["last"][0, place].var(unbiased=False) + norm.eps).rsqrt()

    def pushed(write):
        with torch.no_grad():
            return float((write - write.mean()) * size * norm.weight @ model.lm_head.weight[7])

    check(torch.tensor(parts.embedding), torch.tensor(pushed(kept["start"][0, place])))
    for i, block in enumerate(blocks):
        context = kept["context", i][0, place].view(subject.num_heads, -1)
        weight = block.attn.c_proj.weight.view(subject.num_heads, -1, 48)  # Conv1D: (in, out)
        for head in range(subject.num_heads):
            assert abs(parts.heads[i][head] - pushed(context[head] @ weight[head])) < EXACT
        assert abs(parts.attention_bias[i] - pushed(block.attn.c_proj.bias)) < EXACT
        assert abs(parts.feed_forward[i] - pushed(kept["mlp", i][0, place])) < EXACT
    bias = (norm.bias @ model.lm_head.weight[7]).detach()
    assert abs(parts.constant - float(bias)) < EXACT
    assert abs(parts.total - float(logits[0, place, 7])) < EXACT


# ------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize("name", ["weights", "rollout", "norms"])
def test_weights_that_are_no_numbers_are_named(name):
    subject = copy.deepcopy(subject_of("gpt2"))
    block = subject.model.transformer.h[1]
    with torch.no_grad():  # the third of four heads of 12 channels: its queries
        block.attn.c_attn.weight[:, 24:36] = math.nan
    with pytest.raises(UsageError, match="layer 1, head 2 are not numbers") as caught:
        explained(name, subject, text_of(subject), Question(Logit(7), 5))
    assert caught.value.why == f"{LENGTH * LENGTH} of {LENGTH * LENGTH} cells are NaN or infinite"


def test_a_model_without_one_output_projection_is_named():
    subject = copy.copy(subject_of("llama"))
    subject._projections = []
    text = text_of(subject)
    for name in ("norms", "decomposition"):
        with pytest.raises(TargetError, match="not one output projection"):
            explained(name, subject, text, Question(Logit(7), 5))


def test_a_model_without_logits_is_asked_for_its_norm():
    subject = subject64("bert")
    with pytest.raises(UsageError, match="gives no logits") as caught:
        explained("gradient-input", subject, text_of(subject), Question(Logit(7), None))
    assert "norm" in caught.value.fix


def test_a_path_with_too_few_steps_is_said_to_break_its_promise():
    """Three steps through a rough model leave a gap; 32 through a smooth one do not."""
    from headwise.integrations.loading import tiny

    smooth, rough = (tiny("llama", dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        for parameter in rough.model.model.layers.parameters():
            parameter.mul_(3.0)

    def notes(subject, steps: int) -> tuple[str, ...]:
        text = subject.read("the cat sat on the mat because it was tired")
        found = METHODS["integrated"].explain(
            subject,
            text,
            Question(Logit(7), len(text) - 1),
            settings=Settings(steps=steps),
            progress=silent,
        )
        share = abs(found.figures["gap"]) / abs(found.figures["change"])
        assert any("too few" in note for note in found.notes) == (share > 0.05)
        return found.notes

    assert len(notes(rough, 3)) == 3
    assert len(notes(smooth, 32)) == 2


# ------------------------------------------------------------------------------------ first token
@pytest.mark.parametrize("name", ["weights", "norms", "nearness"])
def test_the_norm_of_the_first_token_asks_its_own_row(name):
    subject = subject_of("bert")
    text = text_of(subject)
    first = Question(EmbeddingNorm("first"), None)
    mean = Question(EmbeddingNorm("mean"), None)
    same = explained(name, subject, text, Question(Logit(0), 0)).scores
    assert torch.equal(explained(name, subject, text, first).scores, same)
    assert not torch.equal(explained(name, subject, text, mean).scores, same)


def test_the_own_token_of_a_question_has_no_effect_in_a_causal_model_and_one_in_an_encoder():
    for name, is_zero in (("llama", True), ("bert", False)):
        subject = subject_of(name)
        text = text_of(subject)
        if subject.kind == "causal":
            place = len(text) - 1
            question = Question(Logit(3), place)
        else:
            place, question = 0, Question(EmbeddingNorm("first"), None)
        found = explained("hidden", subject, text, question)
        assert (float(found.scores[place]) == 0.0) is is_zero
        assert not bool(compared(subject, text, question)[place])
        assert any("0 there" in note for note in found.notes) is is_zero


class Odd:
    """A subject whose second layer is cut off from the input, or has more keys than tokens."""

    def __init__(self, inner, extra_keys: int):
        self._inner, self._extra = inner, extra_keys

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def run(self, *args, **kwargs):
        run = self._inner.run(*args, **kwargs)
        weights = run.seen.weights.get(1)
        if weights is not None:
            extra = weights.new_zeros(*weights.shape[:-1], self._extra)
            run.seen.weights[1] = torch.cat([weights.detach(), extra], -1)
        return run


def test_weights_without_a_path_to_the_input_have_no_gradient():
    subject = subject_of("llama")
    text = text_of(subject)
    question = Question(Logit(7), len(text) - 1)
    method = METHODS["gradient-weights"]
    found, whole = (
        method.explain(one, text, question, settings=Settings(), progress=silent)
        for one in (Odd(subject, 0), subject)
    )
    assert torch.equal(found.cells[0], whole.cells[0])
    assert found.cells[1].abs().max() == 0 < whole.cells[1].abs().max()


def test_a_layer_with_more_keys_than_tokens_is_refused():
    subject = Odd(subject_of("llama"), 2)
    text = text_of(subject)
    with pytest.raises(TargetError, match="layer 1 does not attend from token to token"):
        METHODS["weights"].explain(
            subject, text, Question(Logit(7), 3), settings=Settings(), progress=silent
        )


def test_weights_that_would_not_fit_are_refused_before_the_run(monkeypatch):
    from headwise.explain.methods import rows

    subject = subject_of("llama")
    text = text_of(subject)
    monkeypatch.setattr(rows, "WEIGHTS_BYTES", 4 * subject.num_layers * subject.num_heads * 5**2)
    monkeypatch.setattr(type(subject), "run", None)
    with pytest.raises(UsageError, match="too many") as error:
        rows.look(subject, text, Question(Logit(7), 3))
    assert "at most 5 tokens" in error.value.fix
