"""A head built to matter and one built to look only: explain tells them apart, end to end."""

from __future__ import annotations

import warnings
from functools import lru_cache

import pytest

from headwise.explain.explanation import Explanation, explain
from headwise.explain.method import Settings
from headwise.explain.planted_models import Planted, plant_model
from headwise.explain.question import Logit, Question
from headwise.explain.verdicts import Code

transformers = pytest.importorskip("transformers")

LENGTH, KEYS, DECOYS = 20, (1, 4, 8, 13, 16, 18), (3, 6, 11)
HEADS, LAYER, MATTERS, SILENT = 4, 1, 1, 3
GOOD = {Code.WEAK, Code.MODERATE, Code.STRONG}


@lru_cache
def planted(silence: str) -> tuple[Planted, Explanation]:
    """The explanation of a text with six keys and three decoys."""
    from headwise.integrations.subject import HfSubject
    from headwise.integrations.tokens import WordTokenizer

    config = transformers.LlamaConfig(
        vocab_size=7,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        intermediate_size=11,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.LlamaForCausalLM(config).double().eval()
    built = plant_model(
        model, layer=LAYER, matters=MATTERS, silent=SILENT, silence=silence, sharpness=2.0
    )
    ids = [built.ordinary] * LENGTH
    for place in KEYS:
        ids[place] = built.key
    for place in DECOYS:
        ids[place] = built.decoy
    subject = HfSubject("planted", model, WordTokenizer(7, mask_id=built.ordinary), "causal")
    text = " ".join(f"#{i}" for i in ids)
    question = Question(Logit(built.target), LENGTH - 1)
    return built, explain(subject, text, question, settings=Settings(steps=8))


@pytest.fixture(params=["value", "output"])
def found(request) -> tuple[Planted, Explanation]:
    return planted(request.param)


def test_both_heads_look_just_as_hard(found):
    cells = found[1].found["weights"].cells
    share = {h: cells[LAYER, h].double() for h in (MATTERS, SILENT)}
    assert float(share[MATTERS][list(KEYS)].min()) > 4 * float(share[MATTERS][0])
    assert float(share[SILENT][list(DECOYS)].min()) > 4 * float(share[SILENT][0])


@pytest.mark.parametrize("method", ["ablation-zero", "ablation-mean", "decomposition"])
def test_only_the_head_that_matters_has_an_effect(found, method):
    built, e = found
    heads = e.found[method].heads
    assert heads is not None
    # Its mean over the text is much like what it says at the end, so replacing it takes less away.
    assert float(heads[LAYER, MATTERS]) > (0.01 if method == "ablation-mean" else 1.0)
    rest = heads.clone()
    rest[LAYER, MATTERS] = 0.0
    assert float(rest.abs().max()) <= 1e-12
    if method == "ablation-zero":
        ids = e.text.ids[None]
        assert float(heads[LAYER, MATTERS]) == pytest.approx(built.target_logit(ids), abs=1e-5)


@pytest.mark.parametrize("method", ["norms", "gradient-weights", "edges"])
def test_values_gradients_and_cut_edges_see_through_the_silent_head(found, method):
    cells = found[1].found[method].cells
    assert cells is not None
    assert float(cells[LAYER, MATTERS].abs().max()) > 1e-3
    assert float(cells[LAYER, SILENT].abs().max()) <= 1e-12


def test_hiding_the_keys_matters_and_hiding_the_decoys_does_not(found):
    scores = found[1].found["hidden"].scores
    assert scores is not None
    assert float(scores[list(KEYS)].min()) > 1e-3
    others = [i for i in range(LENGTH) if i not in KEYS]
    # Hiding any other token renormalises: the keys get a little more, the target rises a little.
    assert float(scores[others].max()) <= 1e-12


def test_the_verdicts_tell_the_heads_apart(found):
    trust = found[1].trust
    assert trust is not None
    assert trust.heads[LAYER][MATTERS].code in GOOD
    assert trust.heads[LAYER][SILENT].code not in GOOD
    assert trust.heads[0][0].code is Code.TOO_LITTLE  # equal weights: nothing to rank
