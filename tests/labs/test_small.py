"""The small transformer of the labs: right, deterministic, and it learns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from headwise.labs.parts.grammar import (
    WORDS,
    entropy_rate,
    is_sentence,
    sentence,
    sentences_in,
    text,
)
from headwise.labs.parts.small import (
    IGNORED,
    Size,
    SmallTransformer,
    build,
    evaluate,
    generate,
    generator,
    lookup_task,
    one_thread,
    parameter_count,
    recall_task,
    text_task,
    train,
)
from headwise.reference import Inputs, Parameters, attend
from headwise.spec import AttentionSpec


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    with one_thread():
        yield


TINY = Size(vocab=11, max_len=9, d_model=12, num_heads=6, num_kv_heads=3, layers=2, d_ff=8)


@pytest.mark.parametrize("kv_heads", [6, 3, 1])
def test_attention_is_the_definition(kv_heads: int) -> None:
    size = TINY.replace(num_kv_heads=kv_heads, head_dim=4, v_head_dim=5)
    attention = build(size, 3).blocks[0].attention.double()
    x = torch.randn(2, 7, 12, dtype=torch.float64, generator=generator(0))
    output, weights, _kept = attention(x)
    spec = AttentionSpec(
        d_model=12, num_heads=6, num_kv_heads=kv_heads, head_dim=4, v_head_dim=5, is_causal=True
    )
    a = attention
    parameters = Parameters(q=a.q.weight, k=a.k.weight, v=a.v.weight, o=a.o.weight)
    truth = attend(spec, parameters, Inputs(x=x))
    torch.testing.assert_close(weights, truth.weights, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(output, truth.output, rtol=1e-12, atol=1e-12)


def test_the_cache_changes_nothing() -> None:
    model = build(TINY, 0).double()
    tokens = torch.randint(11, (2, 9), generator=generator(1))
    whole = model(tokens)
    _logits, _weights, cache = model.run(model.embed(tokens[:, :5]))
    for t in range(5, 9):
        step, _weights, cache = model.run(model.embed(tokens[:, t : t + 1], start=t), cache)
        torch.testing.assert_close(step[:, 0], whole[:, t], rtol=1e-12, atol=1e-12)


def test_heads_that_do_not_share_evenly() -> None:
    with pytest.raises(ValueError, match="6 heads can't share 4"):
        SmallTransformer(TINY.replace(num_kv_heads=4))


def test_tied_projections_are_one_matrix() -> None:
    tied = build(TINY.replace(num_kv_heads=None, tied="qkv"), 0).blocks[0].attention
    assert tied.q.weight is tied.k.weight is tied.v.weight
    count = parameter_count(build(TINY.replace(num_kv_heads=None), 0))
    assert parameter_count(build(TINY.replace(num_kv_heads=None, tied="qk"), 0)) == count - 2 * 144


def test_the_global_state_is_left_alone() -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    with one_thread():
        model = build(TINY, 0)
        train(model, text_task(length=9, sentences=30), steps=0, seed=0)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def test_the_grammar_accepts_its_own_sentences_and_no_others() -> None:
    g = generator(0)
    for _ in range(200):
        words = sentence(g)
        assert is_sentence(words)
        assert not is_sentence(words[:-1])
        assert not is_sentence(words[1:])
        assert not is_sentence([*words, "."])
    assert not is_sentence("some cats sees a dog .".split())
    assert not is_sentence("a cats see a dog .".split())
    assert not is_sentence([])


def test_entropy_counts_every_choice() -> None:
    words = [WORDS[i] for i in text(4000, 3).tolist()]
    ends = [i for i, word in enumerate(words) if word == "."]
    length = len(words) / len(ends)
    nouns = sum(words.count(n) + words.count(f"{n}s") for n in ("cat", "dog", "bird"))
    verbs = sum(w.startswith(("see", "like")) for w in words)
    # by hand: a noun phrase has two coins, an adjective or none (0.4) of three, one noun of five
    phrase = 2 * 0.6931 + 0.6730 + 0.4 * 1.0986 + 1.6094
    nats = 2 * phrase + 1.3863 + 0.6931 + 0.5 * (phrase + 1.3863)
    assert entropy_rate() == pytest.approx(nats / 9.0, rel=1e-3)
    assert length == pytest.approx(9.0, rel=0.02)
    assert nouns / 3 / len(ends) == pytest.approx(0.5, rel=0.05)  # 2.5 phrases a sentence, 5 nouns
    assert verbs / 2 / len(ends) == pytest.approx(0.375, rel=0.05)  # 1.5 verbs, 4 kinds


def test_text_predicts_the_next_word() -> None:
    task = text_task(length=12, sentences=50)
    tokens, targets = task.draw(3, generator(0))
    assert tokens.shape == targets.shape == (3, 12)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert int(tokens.max()) < task.vocab == len(WORDS)


@pytest.mark.parametrize("make", [recall_task, lookup_task])
def test_every_answer_was_shown(make: type) -> None:
    task = make(pairs=3, keys=5, values=7)
    tokens, targets = task.draw(20, generator(0))
    assert tokens.shape == targets.shape == (20, task.length)
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        asked = [(t, w) for t, w in zip(row, wanted, strict=True) if w != IGNORED]
        assert len(asked) == 3
        if make is recall_task:
            shown = dict(zip(row[0:6:2], row[1:6:2], strict=True))
        else:
            shown = {5 * 7 + t // 7: t % 7 for t in row[:3]}
        assert all(shown[key] == value for key, value in asked)


def test_training_learns_and_repeats() -> None:
    task = lookup_task(pairs=2, keys=4, values=4)
    size = Size(vocab=task.vocab, max_len=task.length, d_model=16, layers=1, d_ff=0)
    runs, seen = [], []
    for _ in range(2):
        model = build(size, 0)
        losses = train(model, task, steps=120, seed=1, rate=1e-2, watch=lambda s, m: seen.append(s))
        runs.append((losses, evaluate(model, task, seed=2)))
    assert seen == [*range(121), *range(121)]
    assert runs[0] == runs[1]
    loss, accuracy = runs[0][1]
    assert loss < 0.5 * runs[0][0][0]
    assert accuracy > 0.8  # chance is 0.25


def test_generation_repeats_and_is_cut_into_sentences() -> None:
    model = build(TINY.replace(vocab=len(WORDS)), 0)
    start = torch.zeros(2, 1, dtype=torch.long)
    one, two = (generate(model, start, 20, 5) for _ in range(2))
    assert torch.equal(one, two)
    assert one.shape == (2, 21)
    numbers = {word: index for index, word in enumerate(WORDS)}
    words = "cat . the cat sees a dog . some".split()
    tokens = torch.tensor([numbers[w] for w in words])
    assert sentences_in(tokens) == ["the cat sees a dog .".split()]
