"""Real weights, where they are pulled: the same numbers as transformers from the same file."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

from headwise.attend.positions import frequencies
from headwise.checkpoints.families import FAMILIES
from headwise.checkpoints.family import Names
from headwise.checkpoints.load import load
from headwise.checkpoints.mapping import write_state
from headwise.checkpoints.pulled import find, path_of, state
from headwise.errors import UsageError
from headwise.numerics import compare, largest, low_precision_allowance
from headwise.verifier.lift import Lift

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "The three primary colours are red,",
    "To be or not to be, that is",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "1, 2, 3, 5, 8, 13,",
    "In 1969, the first people",
    "Photosynthesis is the process by which plants",
    "我喜欢吃",
    "Der schnelle braune Fuchs springt über",
    "SELECT name FROM users WHERE",
    "The opposite of hot is",
    "A short poem about the sea:\n",
    "x",
    "The attention mechanism lets every token look at the others.",
    "Dear Sir or Madam,\n\nI am writing to",
    "https://www.example.org/index.html is",
    "Two plus two equals",
)
SENTENCES = (
    "A cat sits on the mat.",
    "A kitten is sitting on a rug.",
    "Interest rates were raised by the central bank for the third time this year, it said.",
    "No.",
    "How do attention layers treat padding, and why does it matter for sentence embeddings?",
)


def pulled_folder(name):
    try:
        is_there = state(name) == "pulled"
    except UsageError as error:
        pytest.skip(str(error))
    if not is_there:
        pytest.skip(f"{name} is not pulled: headwise models pull {name}")
    return path_of(name)


def quiet(make, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*args, **options)


def exact(official):
    """The same weights in float64."""
    return copy.deepcopy(official).double().eval()


# -- SmolLM2 from GGUF ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2():
    folder = pulled_folder("smollm2-135m")
    options = {"gguf_file": find("smollm2-135m").weights}
    tokenizer = quiet(transformers.AutoTokenizer.from_pretrained, folder, **options)
    official = quiet(
        transformers.AutoModelForCausalLM.from_pretrained,
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        **options,
    ).eval()
    return load("smollm2-135m"), official, tokenizer


def test_every_weight_of_the_file_is_that_of_transformers(smollm2):
    model, official, _ = smollm2
    held = model.stack.state_dict()
    layout = FAMILIES["llama"].layout(Names(spec=model.spec, parameters=held))
    made, want = write_state(held, layout), official.state_dict()
    assert set(want) - set(made) == {"lm_head.weight"}  # tied
    assert all(value.equal(want[name]) for name, value in made.items())


def test_the_pairs_are_shown_by_the_text(smollm2):
    found = smollm2[0].pairing
    assert found.pairs == found.rule == "neighbours" and not found.why
    assert found.errors > 3 and found.losses["neighbours"] < found.losses["halves"]


@pytest.mark.timeout(900)  # a float64 pass through the whole model
def test_logits_of_20_prompts_alone_cached_and_padded(smollm2):
    model, official, tokenizer = smollm2
    true = exact(official)
    rope = model.spec.attention[0].rope
    turns = torch.tensor(frequencies(rope, model.spec.attention[0].head_dim), dtype=torch.float64)
    true.model.rotary_emb.inv_freq = turns
    rows = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    keep = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
    assert len(rows) == 20 and not keep.all()
    where = {"attention_mask": keep.long(), "position_ids": (keep.cumsum(1) - 1).clamp(min=0)}
    with torch.inference_mode():
        theirs = official(ids, **where).logits[keep]
        with Lift():
            want = true(ids, **where).logits[keep]
        padded = model.stack(ids, keep=keep)[keep]
        alone = torch.cat([model.stack(torch.tensor([row]))[0] for row in rows])
        caches = model.stack.caches(batch=len(rows), max_len=longest)
        parts = [
            model.stack(part, keep=real, caches=caches)
            for part, real in zip(ids.split(7, 1), keep.split(7, 1), strict=True)
        ]
        last = model.stack(ids[:1], keep=keep[:1], logits_rows=1)[0]
    cached = torch.cat(parts, dim=1)[keep]
    baseline = largest([theirs.double() - want])
    allowed = low_precision_allowance(baseline, torch.float32, largest([want]))
    for found in (alone, cached, padded):
        result = compare(found, want, allowed=allowed)
        assert result.passed, result.sentence()
        assert compare(found, theirs, allowed=allowed + baseline).passed
    assert compare(last, want[keep[0].sum() - 1][None], allowed=allowed).passed
    assert not compare(alone.roll(1, 0), want, allowed=1000 * allowed).passed


# -- MiniLM ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm():
    folder = pulled_folder("minilm")
    tokenizer = quiet(transformers.AutoTokenizer.from_pretrained, folder)
    official = quiet(
        transformers.AutoModel.from_pretrained,
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
    ).eval()
    return load("minilm"), official, tokenizer


def mean(hidden, keep):
    """Unit vectors: the mean over real tokens, as the pooling of this model says."""
    keep = keep[..., None].to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * keep).sum(1) / keep.sum(1), dim=-1)


def test_sentence_embeddings_of_a_padded_batch(minilm):
    model, official, tokenizer = minilm
    batch = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    keep = batch["attention_mask"].bool()
    assert not keep.all()
    with torch.inference_mode():
        theirs = mean(official(**batch).last_hidden_state, keep)
        with Lift():
            want = mean(exact(official)(**batch).last_hidden_state, keep)
        found = mean(model.stack(batch["input_ids"], keep=keep), keep)
        wider = torch.nn.functional.pad(batch["input_ids"], (0, 9), value=5)
        more = torch.nn.functional.pad(keep, (0, 9))
        padded = mean(model.stack(wider, keep=more), more)
        alone = [
            mean(model.stack(ids[real][None]), real[real][None])
            for ids, real in zip(batch["input_ids"], keep, strict=True)
        ]
    baseline = largest([theirs.double() - want])
    allowed = low_precision_allowance(baseline, torch.float32, largest([want]))
    for one in (found, padded, torch.cat(alone)):
        result = compare(one, want, allowed=allowed)
        assert result.passed, result.sentence()
    near, far = (float(found[0] @ found[n]) for n in (1, 2))
    assert near > far + 0.3  # the cat and the kitten
