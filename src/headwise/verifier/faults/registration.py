"""Faults of how a right function is handed to a framework: M30.

The numbers alone can't name them: the function computes what others compute that lack a mask. So
they count only where the target's provider has seen the registry itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from headwise.reference.setting import Setting
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, register
from headwise.verifier.faults.masking import FEW, NothingToDoError, variants


def no_mask_at_all(s: Setting) -> Tensor:
    """Every rule of the mask is gone: the mask arrives as None."""
    if not s.rules:
        raise NothingToDoError("no rules")
    return s.visible(without=tuple(s.rules))


def only_causal(s: Setting) -> Tensor:
    """The function makes a causal mask of its own when it is given None, as ``sdpa`` does."""
    others = tuple(name for name in s.rules if name != "causal")
    if not others:
        raise NothingToDoError("only causal")
    return s.visible(without=others)


def mask_never_made(spec: AttentionSpec) -> Iterable[Variant]:
    yield from variants(no_mask_at_all, "no mask", FEW[:1])
    if spec.is_causal:
        yield from variants(only_causal, "causal by itself", FEW)


register(
    Fault(
        code="M30",
        name="mask-missing-in-registry",
        rank=10,
        shown_by=("in the model",),
        what=N_(
            "an attention function is registered under a name for which no mask function is: its "
            "mask arrives as None"
        ),
        why=N_(
            "the model makes a mask only for names that have a mask function, and says nothing "
            "about the others. A causal model then sees the future, padding counts like text, and "
            "a window hides nothing"
        ),
        fix=N_(
            "register a mask function under the same name, one that makes what the function "
            "takes: eager_mask for a mask that is added, sdpa_mask for a boolean one, which is "
            "None where is_causal says it all"
        ),
        bad='AttentionInterface.register("mine", my_attention)',
        good=(
            'AttentionInterface.register("mine", my_attention)\n'
            'AttentionMaskInterface.register("mine", eager_mask)'
        ),
        with_evidence=mask_never_made,
    ),
)
