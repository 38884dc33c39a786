"""One explanation from end to end, on tiny random models."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from headwise.errors import UsageError
from headwise.explain.asking import ask
from headwise.explain.explanation import REFERENCE, Explanation, compared, explain
from headwise.explain.measuring import noise, with_hidden
from headwise.explain.method import METHODS, Settings, silent
from headwise.explain.question import EmbeddingNorm, Logit, LogitDifference, Question
from headwise.explain.summary import summary
from headwise.explain.tap import Watch
from headwise.explain.verdicts import Code
from headwise.render.text import render_text
from headwise.texts import use_language

TEXT = "the cat sat on the mat because it was very tired and slept there"

pytest.importorskip("transformers")


@lru_cache
def subject(name: str = "llama"):
    from headwise.integrations.loading import tiny

    return tiny(name, dtype=torch.float64)


@lru_cache
def found(name: str = "llama") -> Explanation:
    s = subject(name)
    return explain(s, TEXT, ask(s, s.read(TEXT)), settings=Settings(steps=8))


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_every_method_runs_and_the_payload_is_plain_json(name):
    e = found(name)
    assert set(e.found) == set(METHODS)
    payload = json.loads(json.dumps(e.to_payload(), allow_nan=False))
    count = len(TEXT.split())
    assert len(payload["tokens"]) == count
    assert all(len(m["scores"]) == count for m in payload["maps"])
    assert {i["name"] for i in payload["interventions"]} == {"hidden", "replaced"}
    assert all(len(i["after"]) == count for i in payload["interventions"])
    assert len(payload["trust"]["heads"]) == e.subject.num_layers
    assert payload["model"]["num_heads"] == 4
    kept = payload["weights"]["kept"]
    assert len(kept) == 8 and payload["weights"]["left_out"] == ""


def test_the_effect_of_a_token_is_the_value_minus_the_value_after():
    e = found()
    for entry in e.to_payload()["interventions"]:
        for effect, after in zip(entry["effect"], entry["after"], strict=True):
            assert effect == pytest.approx(e.value - after["value"], abs=1e-5)


def test_the_question_is_about_the_last_token_and_its_most_likely_successor():
    e = found()
    assert e.question.position == len(e.text) - 1
    assert isinstance(e.question.target, Logit)
    assert e.question.target.token == e.top[0][0]
    assert e.top[0][1] == pytest.approx(e.value)
    assert "tired" not in e.question_words and "there" in e.question_words


def test_only_tokens_that_can_have_an_effect_are_compared():
    s, text = subject(), subject().read(TEXT)
    keep = compared(s, text, Question(Logit(3), 4))
    assert keep.tolist() == [True] * 4 + [False] * (len(text) - 4)
    e = explain(s, TEXT, Question(Logit(3), 4), methods=["weights", "hidden"], with_curves=False)
    assert e.trust is not None and e.trust.tokens == 4
    assert e.trust.maps["weights"].code is Code.TOO_LITTLE
    hidden = e.found["hidden"].scores
    assert hidden is not None and hidden[5:].abs().max() == 0  # the future


def test_measured_maps_agree_with_the_reference_and_the_control_is_a_map_among_others():
    e = found()
    assert e.trust is not None
    assert REFERENCE not in e.trust.maps
    assert {"weights", "rollout", "nearness", "replaced"} <= set(e.trust.maps)
    assert all(len(row) == 4 for row in e.trust.heads)


def test_without_the_reference_there_is_no_verdict():
    s = subject()
    e = explain(s, TEXT, ask(s, s.read(TEXT)), methods=["weights", "rollout"])
    assert e.trust is None
    assert e.to_payload()["trust"] is None
    assert "weights" in e.to_payload()["heads"]["labels"] or e.detected


def test_the_same_seed_gives_the_same_numbers():
    s = subject()
    question = ask(s, s.read(TEXT))
    names = ["weights", "hidden", "rollout"]
    first, second = (explain(s, TEXT, question, methods=names).to_payload() for _ in range(2))
    assert first["trust"] == second["trust"] and first["maps"] == second["maps"]


def test_progress_grows_to_one_and_names_what_is_done():
    s, told = subject(), []
    explain(
        s,
        TEXT,
        ask(s, s.read(TEXT)),
        methods=["weights", "hidden"],
        progress=lambda what, share: told.append((what, share)),
    )
    shares = [share for _what, share in told]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert len({what for what, _share in told}) >= 3


def test_an_interruption_goes_through_and_leaves_the_model_as_it_was():
    s = subject()

    def stop(what: str, share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    before = s.model.config._attn_implementation
    with pytest.raises(KeyboardInterrupt):
        explain(s, TEXT, ask(s, s.read(TEXT)), methods=["weights", "hidden"], progress=stop)
    assert s.model.config._attn_implementation == before


def test_a_position_outside_the_text_is_refused_with_both_numbers():
    s = subject()
    with pytest.raises(UsageError, match="there is no token 99") as error:
        explain(s, TEXT, Question(Logit(1), 99))
    assert "14 tokens" in error.value.why


def test_a_model_that_gives_nan_is_refused():
    from headwise.integrations.loading import tiny

    s = tiny("llama")
    with torch.no_grad():
        s.model.lm_head.weight[3] = math.nan
    with pytest.raises(UsageError, match="not a number"):
        explain(s, TEXT, Question(Logit(3), 2))


def test_nan_weights_are_refused_with_layer_and_head():
    from headwise.integrations.loading import tiny

    s = tiny("llama", dtype=torch.float64)
    size = s.model.config.head_dim
    with torch.no_grad():
        s.model.model.layers[1].self_attn.q_proj.weight[2 * size : 3 * size] = math.nan
    text = s.read(TEXT)
    with pytest.raises(UsageError, match="layer 1, head 2"):
        METHODS["weights"].explain(
            s, text, Question(Logit(3), 2), settings=Settings(), progress=silent
        )


def test_a_method_that_a_model_can_t_have_is_noted_and_the_others_go_on(monkeypatch):
    s = subject()
    monkeypatch.setattr(type(s), "decompose", type(s).output_projection)
    e = explain(replace_projections(s), TEXT, ask(s, s.read(TEXT)), methods=["weights", "norms"])
    assert "weights" in e.found and "norms" not in e.found
    assert any("norms of weighted values" in note for note in e.notes)


def replace_projections(s):
    """The same subject, as if nothing that follows its attention were an output projection."""
    other = replace(s)
    other._projections = []
    return other


# ------------------------------------------------------------------------------- measuring
def test_sets_of_hidden_tokens_equal_hiding_them_one_by_one():
    s = subject()
    text, question = s.read(TEXT), ask(s, s.read(TEXT))
    hidden = METHODS["hidden"].explain(s, text, question, settings=Settings(), progress=silent)
    rows = torch.eye(len(text), dtype=torch.bool)
    values = with_hidden(s, text, question, rows, batch=5, progress=silent)
    plain = s.run(text.ids[None], position=question.position, watch=Watch())
    base = float(question.value(plain)[0])
    assert hidden.scores is not None
    allowed = noise(s, text, question, batch=5)  # prefixes come from another kernel
    assert (base - values - hidden.scores).abs().max() <= allowed < 1e-5


def test_the_noise_is_measured_and_small_in_float64_and_larger_in_float32():
    from headwise.integrations.loading import tiny

    s32, s64 = tiny("gpt2"), subject("gpt2")  # whose softmax is not pinned to float32
    q = Question(Logit(5), 8)
    small = noise(s64, s64.read(TEXT), q, batch=4)
    large = noise(s32, s32.read(TEXT), q, batch=4)
    assert 0 < small < 1e-11 < large < 1e-3


# ------------------------------------------------------------------------------- asking
def test_targets_in_words():
    s = subject()
    text = s.read(TEXT)
    assert ask(s, text, target="#7").target == Logit(7)
    assert ask(s, text, target="#7", against="#8").target == LogitDifference(7, 8)
    assert ask(s, text, target="#7", position=-2).position == len(text) - 2
    assert ask(s, text, target="norm").target == EmbeddingNorm("mean")
    assert ask(s, text, target="norm:first").position is None


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ({"target": "#999"}, "outside the vocabulary"),
        ({"target": "class:1"}, "no classes"),
        ({"position": 99}, "no token 99"),
        ({"position": -99}, "no token -99"),
        ({"target": "two words"}, "not one token"),
        ({"target": "norm", "against": "#3"}, "no position and no second token"),
        ({"target": "norm:last"}, "no target"),
    ],
)
def test_a_target_that_the_model_has_not_is_refused(words, what):
    s = subject()
    with pytest.raises(UsageError, match=what):
        ask(s, s.read(TEXT), **words)


# ------------------------------------------------------------------------------- words
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_summary_is_legible_at_eighty_columns(language):
    with use_language(language):
        text = render_text(summary(found()), width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "Spearman" in text
    assert "0.1" in text


def test_the_page_is_made_in_the_language_that_is_asked_for():
    e = found()
    with use_language("zh"):
        zh = e.to_payload()
    with use_language("en"):
        en = e.to_payload()
    assert (zh["language"], en["language"]) == ("zh", "en")
    assert zh["maps"][0]["label"] != en["maps"][0]["label"]


def test_a_notebook_shows_the_page():
    html = found()._repr_html_()
    assert html.lstrip().startswith("<iframe") and "srcdoc" in html


# ------------------------------------------------------------------------------- random weights
def test_attention_of_random_weights_is_chance():
    """Over several random models and texts, hardly any head is called useful."""
    from headwise.integrations.loading import tiny

    words = [f"w{i}" for i in range(200)]
    codes = []
    for seed in range(4):
        s = tiny("gpt2", seed=seed, dtype=torch.float64)
        g = torch.Generator().manual_seed(seed)
        text = " ".join(words[int(i)] for i in torch.randint(0, 200, (32,), generator=g))
        e = explain(s, text, ask(s, s.read(text)), methods=["weights", "hidden"], with_curves=False)
        assert e.trust is not None
        codes += [a.code for row in e.trust.heads for a in row]
    useful = [code for code in codes if code in {Code.WEAK, Code.MODERATE, Code.STRONG}]
    assert len(useful) <= 0.1 * len(codes)
    assert codes.count(Code.CHANCE) >= 0.8 * len(codes)
