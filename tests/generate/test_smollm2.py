"""SmolLM2-135M itself, where it is pulled: the tokens of transformers, by text and by tokenizer."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from tests.generate.words import TEXTS

from headwise.checkpoints.pulled import path_of, state
from headwise.errors import UsageError
from headwise.generate import Decoder
from headwise.generate.prompts import read_prompts

pytest.importorskip("transformers")

NAME = "smollm2-135m"
pytestmark = pytest.mark.slow


def _absent():
    try:
        return state(NAME) != "pulled"
    except UsageError:  # no cache folder
        return True


if _absent():
    pytest.skip(f"headwise models pull {NAME} obtains the weights", allow_module_level=True)

PROMPTS = ("The capital of France is", "def fibonacci(n):", "今天天气", "Once upon a time, 12  34")


@pytest.fixture(scope="module")
def both():
    """The same weights in transformers and here."""
    from headwise.integrations.from_checkpoint import causal_lm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return causal_lm(path_of(NAME) / "SmolLM2-135M-Instruct.Q4_1.gguf", dtype=torch.float32)


@pytest.fixture(scope="module")
def official_tokenizer():
    import transformers
    from tokenizers import pre_tokenizers

    folder = path_of(NAME)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = transformers.AutoTokenizer.from_pretrained(
            str(folder), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf"
        )
    # Its conversion drops what the original tokenizer.json and the name "smollm" say: digits are
    # cut off one by one first. With spaces before a number that makes a difference.
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), made.backend_tokenizer.pre_tokenizer]
    )
    return made


def likeliest(model, prompt, new):
    """(token, gap between the two largest logits) for each new token."""
    ids, cache, found = torch.tensor([prompt]), None, []
    with torch.inference_mode():
        for _step in range(new):
            made = model(ids, use_cache=True, logits_to_keep=1, **cache_argument(model, cache))
            cache = getattr(made, "cache", None) or made.past_key_values
            logits = made.logits[0, -1]
            largest = logits.topk(2).values
            found.append((int(logits.argmax()), float(largest[0] - largest[1])))
            ids = logits.argmax().view(1, 1)
    return found


def cache_argument(model, cache):
    import inspect

    named = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in named else "past_key_values": cache}


def rounding(model, prompt):
    """What float32 does to the logits of a prompt: the error against float64, by the same code."""
    import copy

    ids = torch.tensor([prompt])
    with torch.inference_mode():
        rough = model(ids, logits_to_keep=1).logits[0, -1]
        exact = copy.deepcopy(model).double()(ids, logits_to_keep=1).logits[0, -1]
    return float((rough - exact).abs().max())


def test_a_hundred_tokens_are_those_of_transformers(both):
    official, model = both
    words = read_prompts(model)
    prompts = [words.encode(text) for text in PROMPTS]
    want = [likeliest(official, prompt, 100) for prompt in prompts]
    made = Decoder(model.stack)
    together = made.complete(prompts, max_tokens=100)
    for prompt, row, theirs in zip(prompts, together, want, strict=True):
        alone = made.complete([prompt], max_tokens=100)[0]
        for tokens in (row.tokens, alone.tokens):
            assert len(tokens) == 100
            place = next((i for i in range(100) if tokens[i] != theirs[i][0]), None)
            if place is not None:  # then the two likeliest were nearer than both roundings
                text = [*prompt, *tokens[:place]]
                assert theirs[place][1] <= 4 * rounding(official, text)


def test_another_model_would_be_noticed(both):
    official, model = both
    prompt = read_prompts(model).encode(PROMPTS[0])
    want = [token for token, _gap in likeliest(official, prompt, 20)]
    weights = [layer.self_attn.q_proj.weight for layer in official.model.layers]
    with torch.no_grad():
        for weight in weights:
            weight.mul_(2.0)
        other = [token for token, _gap in likeliest(official, prompt, 20)]
        for weight in weights:
            weight.div_(2.0)
    assert other != want


def test_without_a_cache_and_in_chunks(both):
    _official, model = both
    prompt = read_prompts(model).encode(PROMPTS[0] + " " + " ".join(TEXTS))
    made = Decoder(model.stack)
    want = made.complete([prompt], max_tokens=12)[0].tokens
    assert made.complete([prompt], max_tokens=12, chunk=7)[0].tokens == want
    assert made.complete([prompt], max_tokens=12, use_cache=False)[0].tokens == want


def test_the_tokenizer_is_that_of_transformers(both, official_tokenizer):
    words = read_prompts(both[1])
    drawn = random.Random(0)
    alphabet = (
        " |  |\n|a|the|9|12|你|好|👋|🏽|é|\t|'ll|!|—|<|im_end|>|\x00|ß|İ|\u2028|\u3000".split("|")
    )
    texts = TEXTS + ["".join(drawn.choices(alphabet, k=drawn.randint(1, 14))) for _ in range(2000)]
    for text in texts:
        assert words.encode(text) == official_tokenizer(text)["input_ids"], repr(text)


def test_the_chat_is_that_of_transformers(both, official_tokenizer):
    words = read_prompts(both[1])
    message = [{"role": "user", "content": "What is 2  12?\n你好"}]
    want = official_tokenizer.apply_chat_template(
        message, tokenize=False, add_generation_prompt=True
    )
    assert words.chat(message[0]["content"]) == want
    assert words.encode_chat(message[0]["content"]) == official_tokenizer(want)["input_ids"]
