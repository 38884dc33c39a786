"""Every promise of every method, tested for what claims it; and a forgery that must be caught."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from tests.integrations.hf_models import LENGTH, questions_of, subject_of, text_of

from headwise.explain.method import PROMISES, Promise, Settings, silent
from headwise.explain.methods import METHODS
from headwise.explain.question import Logit, Question
from headwise.explain.subject import Text
from headwise.numerics import eps
from headwise.verifier.lift import Lift

pytest.importorskip("transformers")

SETTINGS = Settings(steps=16)
EXACT = 2**14 * eps(torch.float64)
"""Two layers of sums of at most some hundred products each, one after the other, and a mean over
rows: far more than float64 rounding needs, far less than any effect here."""


@pytest.fixture(autouse=True)
def _exact():
    """Softmax and norms in float64 too."""
    with Lift():
        yield


def explained(method, subject, text, question):
    return method.explain(subject, text, question, settings=SETTINGS, progress=silent)


def subjects():
    return [subject_of(name, dtype=torch.float64) for name in ("llama", "gpt2", "mistral", "bert")]


def fresh(model_type):
    """A subject whose model may be changed."""
    return copy.deepcopy(subject_of(model_type, dtype=torch.float64))


# ------------------------------------------------------------------------------------ checks
def sums_to_one(method):
    """Complaints about the sums of the scores, of each layer and of each head."""
    found = []
    for subject in subjects():
        text = text_of(subject)
        for name, question in questions_of(subject, position=5).items():
            got = explained(method, subject, text, question)
            for part, scores in (("all", got.scores), ("layer", got.layers), ("cell", got.cells)):
                if scores is not None:
                    off = float((scores.double().sum(-1) - 1).abs().max())
                    # Weights are shown in float32: T of them, each rounded.
                    if off > LENGTH * eps(torch.float32):
                        found.append((subject.name, name, part, off))
    return found


def sums_to_change(method):
    """Complaints about scores, change and gap that do not belong together."""
    found = []
    for subject in subjects():
        text = text_of(subject)
        for name, question in questions_of(subject, position=5).items():
            got = explained(method, subject, text, question)

            def target(ids, subject=subject, question=question):
                with torch.no_grad():
                    logits = subject.model(input_ids=ids).logits[:, question.position]
                against = logits[0, 9] if question.target.kind == "logit-difference" else 0.0
                return float(logits[0, 7] - against)

            change = target(text.ids[None])
            if got.scores is not None:  # the baseline is a text of mask tokens, not nothing
                change -= target(torch.full_like(text.ids, subject.mask_id)[None])
                total = float(got.scores.sum())
            else:
                parts = got.extra["parts"]
                total = float(got.heads.sum()) + parts.embedding + parts.constant
                total += sum(parts.attention_bias) + sum(parts.feed_forward)
            off = abs(abs(total - change) - abs(got.figures["gap"]))
            if off > EXACT:
                found.append((subject.name, name, off))
    return found


def zero_for_ignored(method):
    """Complaints about scores of tokens after the question, and of a token that is padding."""
    found = []
    for model_type in ("llama", "gpt2", "mistral"):
        subject = subject_of(model_type, dtype=torch.float64)
        got = explained(method, subject, text_of(subject), Question(Logit(7), 5))
        if off := largest_at(got, slice(6, None)):
            found.append((model_type, "after", off))
    for model_type in ("llama", "gpt2", "bert"):
        subject = fresh(model_type)

        def cut_off(_model, args, kwargs):
            kwargs["attention_mask"][:, 2] = 0
            return args, kwargs

        subject.model.register_forward_pre_hook(cut_off, with_kwargs=True)
        got = explained(method, subject, text_of(subject), Question(Logit(7), 5))
        if (off := largest_at(got, 2)) > EXACT:
            found.append((model_type, "padding", off))
    return found


def largest_at(got, places):
    parts = [part for part in (got.scores, got.layers, got.cells) if part is not None]
    return max(float(part[..., places].abs().max()) for part in parts)


def symmetric(method):
    """Complaints about a token that stands twice in a text whose order does not matter."""
    subject = fresh("bert")
    table = subject.model.bert.embeddings.position_embeddings.weight
    with torch.no_grad():
        table.zero_()
    ids = text_of(subject).ids.clone()
    ids[[1, 7]] = 11
    text = Text("", ids, ("x",) * LENGTH, (False,) * LENGTH)
    got = explained(method, subject, text, Question(Logit(7), 5))
    off = float((got.scores[1] - got.scores[7]).abs())
    return [off] if off > EXACT * float(got.scores.abs().max()) else []


def not_negative(method):
    """Complaints about scores below zero."""
    found = []
    for subject in subjects():
        text = text_of(subject)
        for name, question in questions_of(subject, position=5).items():
            got = explained(method, subject, text, question)
            parts = [part for part in (got.scores, got.layers, got.cells) if part is not None]
            lowest = min(float(part.min()) for part in parts)
            if lowest < 0:
                found.append((subject.name, name, lowest))
    return found


def measured(method):
    """Complaints about effects that are not those of runs made by hand."""
    found = []
    for model_type in ("llama", "gpt2", "gemma2", "bert"):
        subject = subject_of(model_type, dtype=torch.float64)
        text = text_of(subject, 6)
        got = explained(method, subject, text, Question(Logit(7), 4))
        want = BY_HAND[method.name](subject.model, text.ids[None], subject.mask_id, 4, 7)
        scores = got.heads if got.heads is not None else got.scores
        off = float((scores - want).abs().max())
        if off > EXACT * max(1.0, float(want.abs().max())):
            found.append((model_type, off))
    return found


# ------------------------------------------------------------------------------------ by hand
def logit(model, ids, place, token, **inputs):
    with torch.no_grad():
        return float(model(input_ids=ids, **inputs).logits[0, place, token])


def attention_modules(model):
    """Modules that call attention, in the order of their layers."""
    found = []

    def note(module, _args, _kwargs):
        found.append(module)

    kinds = [m for m in model.modules() if type(m).__name__.endswith("SelfAttention")] or [
        m for m in model.modules() if type(m).__name__.endswith("Attention")
    ]
    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for m in kinds]
    with torch.no_grad():
        model(input_ids=torch.ones(1, 2, dtype=torch.long))
    for handle in handles:
        handle.remove()
    return found


def output_projections(model):
    names = ("o_proj", "c_proj", "attention.output.dense")
    return [m for n, m in model.named_modules() if n.endswith(names) and "mlp" not in n]


def cutting(model, layers, cut):
    """Hooks that close cells of the mask of some layers; the model has to run on eager."""

    def close(_module, args, kwargs):
        args = list(args)
        mask = kwargs.get("attention_mask")
        T = cut.shape[-1]
        if mask is None:
            mask = torch.zeros(1, 1, T, T, dtype=torch.float64)
        kwargs["attention_mask"] = mask.masked_fill(cut, -1e300)
        return tuple(args), kwargs

    modules = attention_modules(model)
    return [modules[i].register_forward_pre_hook(close, with_kwargs=True) for i in layers]


def with_cut(model, ids, place, token, layers, cut):
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    handles = cutting(model, layers, cut)
    try:
        return logit(model, ids, place, token)
    finally:
        for handle in handles:
            handle.remove()
        model.set_attn_implementation(before)


def hidden_by_hand(model, ids, _mask_id, place, token):
    T, L = ids.shape[1], model.config.num_hidden_layers
    before, found = logit(model, ids, place, token), []
    for key in range(T):
        cut = torch.zeros(1, 1, T, T, dtype=torch.bool)
        cut[..., key] = True
        cut[..., key, key] = False
        found.append(before - with_cut(model, ids, place, token, range(L), cut))
    return torch.tensor(found, dtype=torch.float64)


def replaced_by_hand(model, ids, mask_id, place, token):
    found = []
    for key in range(ids.shape[1]):
        other = ids.clone()
        other[0, key] = mask_id
        found.append(logit(model, ids, place, token) - logit(model, other, place, token))
    return torch.tensor(found, dtype=torch.float64)


def edges_by_hand(model, ids, _mask_id, place, token):
    """The sum over single cuts, one run for each."""
    T, H, L = ids.shape[1], model.config.num_attention_heads, model.config.num_hidden_layers
    before, found = logit(model, ids, place, token), torch.zeros(T, dtype=torch.float64)
    for layer in range(L):
        for head in range(H):
            for key in range(T):
                cut = torch.zeros(1, H, T, T, dtype=torch.bool)
                cut[0, head, place, key] = key != place
                found[key] += before - with_cut(model, ids, place, token, [layer], cut)
    return found


def ablation_by_hand(fill):
    def by_hand(model, ids, _mask_id, place, token):
        """Columns of the input of the output projection, changed one head at a time."""
        H = model.config.num_attention_heads
        if not hasattr(model, "bert"):  # a mean over what the question can see
            ids = ids[:, : place + 1]
        before = logit(model, ids, place, token)
        found = []
        for module in output_projections(model):
            for head in range(H):

                def change(_module, args, head=head):
                    x = args[0].clone().reshape(*args[0].shape[:-1], H, -1)
                    mean = x[..., head, :].mean(-2, keepdim=True)
                    x[..., head, :] = mean if fill == "mean" else 0.0
                    return (x.reshape(args[0].shape),)

                handle = module.register_forward_pre_hook(change)
                found.append(before - logit(model, ids, place, token))
                handle.remove()
        return torch.tensor(found, dtype=torch.float64).view(-1, H)

    return by_hand


BY_HAND = {
    "hidden": hidden_by_hand,
    "replaced": replaced_by_hand,
    "edges": edges_by_hand,
    "ablation-zero": ablation_by_hand("zero"),
    "ablation-mean": ablation_by_hand("mean"),
}

CHECKS = {
    Promise.SUMS_TO_ONE: sums_to_one,
    Promise.SUMS_TO_CHANGE: sums_to_change,
    Promise.ZERO_FOR_IGNORED: zero_for_ignored,
    Promise.SYMMETRIC: symmetric,
    Promise.NOT_NEGATIVE: not_negative,
    Promise.MEASURED: measured,
}

CLAIMS = [
    pytest.param(promise, name, id=f"{promise}-{name}")
    for name, method in METHODS.items()
    for promise in sorted(method.promises)
]


@pytest.mark.parametrize(("promise", "name"), CLAIMS)
def test_a_method_keeps_what_it_promises(promise, name):
    assert CHECKS[promise](METHODS[name]) == []


# ------------------------------------------------------------------------------------ forgeries
@dataclass
class Forged:
    """A method whose results are changed a little before anyone sees them."""

    inner: object
    change: object

    @property
    def name(self):
        return self.inner.name

    def explain(self, subject, text, question, **how):
        return self.change(self.inner.explain(subject, text, question, **how))


def shifted(by):
    def change(got):
        return replace(got, scores=got.scores + by, cells=None, layers=None)

    return change


def wrong_gap(got):
    return replace(got, figures={**got.figures, "gap": got.figures["gap"] + 1e-6})


def one_cell(got):
    """A single cell of one head, in the place of an ignored token."""
    cells = got.cells.clone()
    cells[0, 1, 2] += 1e-6
    cells[0, 1, 7:] -= 1e-6
    return replace(got, cells=cells)


def lopsided(got):
    return replace(got, scores=got.scores * torch.linspace(1, 1.001, len(got.scores)))


def heads_shifted(got):
    return replace(got, heads=got.heads.roll(1, 1))


FORGERIES = [
    (Promise.SUMS_TO_ONE, "weights", shifted(1e-5)),
    (Promise.SUMS_TO_ONE, "rollout", shifted(1e-5)),
    (Promise.SUMS_TO_CHANGE, "integrated", shifted(1e-6)),
    (Promise.SUMS_TO_CHANGE, "integrated", wrong_gap),
    (Promise.SUMS_TO_CHANGE, "decomposition", wrong_gap),
    (Promise.SUMS_TO_CHANGE, "decomposition", lambda got: replace(got, heads=got.heads * 1.001)),
    (Promise.ZERO_FOR_IGNORED, "gradient-input", shifted(1e-6)),
    (Promise.ZERO_FOR_IGNORED, "weights", one_cell),
    (Promise.SYMMETRIC, "integrated", lopsided),
    (Promise.NOT_NEGATIVE, "norms", shifted(-100.0)),
    (Promise.NOT_NEGATIVE, "weights", one_cell),
    (Promise.MEASURED, "replaced", shifted(1e-6)),
    (Promise.MEASURED, "hidden", lopsided),
    (Promise.MEASURED, "ablation-zero", heads_shifted),
]


@pytest.mark.parametrize(
    ("promise", "name", "change"),
    [pytest.param(*forgery, id=f"{forgery[0]}-{forgery[1]}") for forgery in FORGERIES],
)
def test_a_forged_method_is_caught(promise, name, change):
    assert CHECKS[promise](Forged(METHODS[name], change))


def test_every_promise_is_claimed_checked_forged_and_in_words():
    claimed = {promise for method in METHODS.values() for promise in method.promises}
    assert claimed == set(Promise) == set(CHECKS) == set(PROMISES) == {p for p, _n, _c in FORGERIES}
    assert {n for n, m in METHODS.items() if Promise.MEASURED in m.promises} == set(BY_HAND)
