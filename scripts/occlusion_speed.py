"""Occluding every token of a 64-token prompt: ours beside captum's FeatureAblation, in one run.

    python scripts/occlusion_speed.py [ROUNDS] [MODEL]

Captum is called as its documentation does: one forward pass of the model per feature. Both replace
a token by the same one and ask for the same logit; the effects are compared too.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from captum.attr import FeatureAblation
from torch import Tensor

from headwise.explain import methods as _methods  # noqa: F401 - registers every method
from headwise.explain.method import METHODS, Settings, silent
from headwise.explain.question import Logit, Question
from headwise.explain.subject import Text
from headwise.integrations.loading import load

TOKENS = 64
TEXT = (
    "The quick brown fox jumps over the lazy dog while the old farmer watches from the wooden "
    "fence near the river, and the children laugh because the dog does not move at all even when "
    "the fox jumps again and again over its back, so the farmer finally calls the dog by its name "
    "and walks slowly home through the fields before the evening rain begins"
)


def main(rounds: int = 3, name: str = "smollm2-135m") -> int:
    """Print one JSON object."""
    subject = load(name)
    read = subject.read(TEXT)
    text = Text(TEXT, read.ids[:TOKENS], read.shown[:TOKENS], read.is_special[:TOKENS])
    ids, last = text.ids[None], TOKENS - 1
    logits = subject.run(ids, position=last).logits
    assert logits is not None
    token = int(logits[0].argmax())
    question = Question(Logit(token), last)

    @torch.no_grad()
    def forward(x: Tensor) -> Tensor:
        found: Tensor = subject.model(x).logits[:, -1, token]
        return found

    ablation = FeatureAblation(forward)

    def theirs() -> Tensor:
        found: Tensor = ablation.attribute(ids, baselines=subject.mask_id)[0]
        return found

    def ours() -> Tensor:
        found = METHODS["replaced"].explain(
            subject, text, question, settings=Settings(), progress=silent
        )
        assert found.scores is not None
        return found.scores

    def hidden() -> Tensor:
        found = METHODS["hidden"].explain(
            subject, text, question, settings=Settings(), progress=silent
        )
        assert found.scores is not None
        return found.scores

    ways: dict[str, Callable[[], Tensor]] = {"captum": theirs, "replaced": ours, "hidden": hidden}
    took: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, Tensor] = {}
    for _round in range(rounds):
        for way, run in ways.items():
            start = time.perf_counter()
            found[way] = run()
            took[way].append(time.perf_counter() - start)
    ratios = [a / b for a, b in zip(took["captum"], took["replaced"], strict=True)]
    gap = float((found["captum"].double() - found["replaced"]).abs().max())
    report = {
        "model": name,
        "tokens": TOKENS,
        "threads": torch.get_num_threads(),
        "median_s": {way: statistics.median(times) for way, times in took.items()},
        "ratio_per_round": ratios,
        "ratio": statistics.median(ratios),
        "largest_difference": gap,
        "largest_effect": float(found["captum"].abs().max()),
    }
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(main(int(arguments[0]) if arguments else 3, *arguments[1:2]))
