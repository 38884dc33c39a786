"""Attention implementations by name, as transformers knows them: which there are, and which halves.

Transformers keeps two tables under the same names: how attention is computed (`AttentionInterface`)
and how its mask is made (`AttentionMaskInterface`). A name in the first alone gets
``attention_mask=None`` in every call (`missing_mask`), which is fault M30. `look_up` is what the
verifier asks before it builds a model.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from headwise.errors import UsageError, did_you_mean
from headwise.report import short_path
from headwise.texts import translate as _
from headwise.verifier.subject import Evidence

BUILT_IN = ("eager", "sdpa", "headwise")
"""What can be named without registering anything."""

_OURS = str(Path(__file__).parent.parent)
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@dataclass(frozen=True)
class Implementation:
    """An attention implementation, and where its code is.

    Args:
        name: under which it is registered.
        function: what computes the attention; None for ``eager``, which every model has itself.
        file, line: where a function of the user is defined; None for a library's.
        mask: what makes the mask under the same name; None if nothing is registered.
    """

    name: str
    function: Callable[..., Any] | None = None
    file: str | None = None
    line: int | None = None
    mask: Callable[..., Any] | None = None

    @property
    def sentence(self) -> str:
        """Its name, and where it is defined if the user wrote it."""
        if self.file is None:
            return self.name
        return f"{self.name} ({short_path(self.file)}:{self.line})"

    def evidence(self) -> dict[str, Evidence]:
        """What the tables prove: M30, if the mask's half of the registration is missing."""
        if self.function is None or self.mask is not None:
            return {}
        sentences = [
            _("AttentionInterface holds {name!r}, AttentionMaskInterface does not").format(
                name=self.name
            )
        ]
        if _is_local_mask(self.name):
            sentences.append(
                _("an item of ALL_MASK_ATTENTION_FUNCTIONS is not looked at: register it")
            )
        own = (self.line,) if self.line else ()
        found = registration_of(self)
        if found is None:
            file = self.file or inspect.getsourcefile(inspect.unwrap(self.function))
            reason = _("this function is registered without a mask function")
            return {"M30": Evidence(tuple(sentences), file, own, reason)}
        file, line = found
        lines = (line, *own) if file == self.file else (line,)
        reason = _("the attention function is registered here, and its mask function nowhere")
        return {"M30": Evidence(tuple(sentences), file, lines, reason)}

    def evidence_of_mask(self, mask: Tensor | None) -> dict[str, Evidence]:
        """What a mask that should be plainly causal proves, where the model sees the future: M05.

        Args:
            mask: as the model hands it over, (B, 1, T, T), boolean or added; or None.
        """
        if self.function is None or self.mask is None:
            return {}
        if mask is None:
            sentence = _(
                "attention_mask is None where only the causal rule applies: the mask function "
                "leaves it to is_causal"
            )
            return {"M05": Evidence((sentence,))}
        seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        later = int(seen[0, 0].triu(diagonal=1).sum())
        if not later:
            return {}
        sentence = _("the mask that the model hands over shows {count} of {total} later keys")
        length = seen.shape[-1]
        counted = sentence.format(count=later, total=length * (length - 1) // 2)
        file, line = definition_of(self.mask)
        reason = _("this function makes the mask")
        return {"M05": Evidence((counted,), file, (line,) if line else (), reason)}


def look_up(name: str) -> Implementation:
    """An implementation by its name; ``headwise`` is registered by this.

    Args:
        name: ``eager``, ``sdpa``, ``headwise``, or what code registered with transformers.

    Raises:
        UsageError: nothing is registered under the name.

    Example:
        >>> look_up("sdpa").mask.__name__
        'sdpa_mask'
    """
    if name == "headwise":
        from headwise.integrations.registration import register

        register()
    if name == "eager":
        return Implementation(name)
    functions, masks = _tables()
    if name not in functions:
        near = did_you_mean(name, (*BUILT_IN, *functions))
        raise UsageError(
            _("unknown attention implementation {name!r}").format(name=name),
            where=f"--attn-implementation {name}",
            why=_("a mask function is registered under this name, an attention function is not")
            if name in masks
            else "",
            fix=_("did you mean {near!r}?").format(near=near)
            if near and near != name
            else _("one of: {names}; or --import FILE that registers it").format(
                names=", ".join(BUILT_IN)
            ),
        )
    function = functions[name]
    file, line = definition_of(function)
    return Implementation(name, function, file, line, masks.get(name))


def _tables() -> tuple[Any, Any]:
    """Attention functions as models look them up, and mask functions that are looked at."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    # Models see items that were put into the one instance of the first table. Of the second they
    # look at what was registered, which is what a new instance holds.
    return ALL_ATTENTION_FUNCTIONS, AttentionMaskInterface()


def _is_local_mask(name: str) -> bool:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    return name in ALL_MASK_ATTENTION_FUNCTIONS


# ---------------------------------------------------------------------------------- source lines
def definition_of(function: Any) -> tuple[str | None, int | None]:
    """File and line where a function of the user begins; None, None for code of a library."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__"):
        function = getattr(function, "__func__", None) or type(function).__call__
    code = getattr(function, "__code__", None)
    if code is None or not _is_users(code.co_filename):
        return None, None
    return code.co_filename, code.co_firstlineno


def raised_at(error: BaseException) -> str:
    """file:line of the innermost frame of the user's code that a model has called; or nothing."""
    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(_OURS):
            found = ""  # whoever called us is not what the model has called
        elif _is_users(file):
            found = f"{short_path(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def registration_of(implementation: Implementation) -> tuple[str, int] | None:
    """File and line that put a function into the table under its name; None if none is found."""
    for module in _modules(implementation.file):
        file = str(module.__file__)
        try:
            text = Path(file).read_text(encoding="utf-8")
            tree = ast.parse(text) if "register" in text or "ATTENTION" in text else None
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree) if tree is not None else ():
            if _registers(node, implementation.name, module):
                return file, node.lineno  # type: ignore[attr-defined]
    return None


def _modules(first: str | None) -> Iterator[ModuleType]:
    """Modules of the user, the one in a file first."""
    own = [
        module
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType) and _is_users(getattr(module, "__file__", None))
    ]
    yield from sorted(own, key=lambda module: module.__file__ != first)


def _is_users(file: str | None) -> bool:
    return bool(file) and not str(file).startswith((_OURS, *_LIBRARIES, "<"))


def _registers(node: ast.AST, name: str, module: ModuleType) -> bool:
    """Whether a piece of source registers an attention function under a name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        table = ast.unparse(node.func.value)
        key = next((k.value for k in node.keywords if k.arg == "key"), None)
        key = node.args[0] if node.args else key
        called = node.func.attr == "register" and "Mask" not in table and "MASK" not in table
        return called and _is_name(key, name, module)
    if isinstance(node, ast.Assign):
        return any(
            isinstance(target, ast.Subscript)
            and "ATTENTION" in (table := ast.unparse(target.value))
            and "MASK" not in table
            and _is_name(target.slice, name, module)
            for target in node.targets
        )
    return False


def _is_name(node: ast.AST | None, name: str, module: ModuleType) -> bool:
    if isinstance(node, ast.Name):
        return getattr(module, node.id, None) == name
    return isinstance(node, ast.Constant) and node.value == name
