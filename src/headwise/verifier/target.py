"""From what the user wrote to a ``Subject``: load the code, build the object, bind the call."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from torch import nn

from headwise.errors import HeadwiseError, TargetError, UsageError, did_you_mean
from headwise.texts import translate as _
from headwise.verifier.binding import bind_function, bind_layer
from headwise.verifier.construct import construct
from headwise.verifier.declared import declared_subject
from headwise.verifier.subject import Subject

SCHEMES: dict[str, str] = {"hf": "headwise.integrations.transformers:subject"}
"""Kinds of targets that other packages provide: ``scheme:NAME`` → module and function."""

CHECKPOINTS = (
    "headwise.checkpoints.places:is_checkpoint",
    "headwise.integrations.checkpoint_layers:subject",
)
"""The same for ``PATH:LAYER``: what tells whether a text names a checkpoint, and the provider."""


class ImportClock:
    """Seconds spent on importing targets, apart from building and calling them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._started


IMPORTS = ImportClock()

ADAPTERS = ("build", "run", "steps", "cross", "documents", "weights")


def load_subject(
    target: Any,
    *,
    words: Mapping[str, Any],
    init: Mapping[str, Any] | None = None,
    attn_implementation: str | None = None,
    padding_mask: str | None = None,
    cross: bool = False,
    seed: int = 0,
) -> Subject:
    """A ``Subject`` for a target given by name or as a Python object.

    Args:
        target: ``path.py:Name``, ``path.py``, ``package.module:Name``, ``hf:TYPE``,
            ``CHECKPOINT:LAYER``, a class, a module instance or a function.
        words: words of the specification that the user gave as flags.
        init: constructor arguments that the specification does not imply.
        attn_implementation: for ``hf:`` targets.
        padding_mask: ``keep`` or ``ignore``, what True means in the target's padding mask.
        cross: the layer is cross attention.
        seed: for targets that are built at random.

    Raises:
        UsageError: the name does not lead to anything, or arguments can't be filled.
        TargetError: the code can't be imported or built.
    """
    init = dict(init or {})
    if not isinstance(target, str):
        return _from_object(target, target_label(target), words, init, padding_mask, cross, seed)
    scheme, _colon, rest = target.partition(":")
    if scheme in SCHEMES:
        if not rest:
            raise UsageError(
                _("{target!r} names no model type").format(target=target), fix=f"{scheme}:llama"
            )
        result: Subject = _provider(SCHEMES[scheme])(
            rest,
            words=words,
            init=init,
            attn_implementation=attn_implementation or "eager",
            seed=seed,
        )
        return result
    if attn_implementation is not None:
        raise UsageError(
            _("--attn-implementation only applies to hf: targets"), where=f"target {target!r}"
        )
    place, _colon, name = target.rpartition(":") if ":" in target else (target, "", "")
    is_checkpoint, layer_of_checkpoint = CHECKPOINTS
    if name and _provider(is_checkpoint)(place):
        if cross:
            raise UsageError(
                _("--cross says nothing about a layer of a checkpoint"),
                where=f"target {target!r}",
                why=_("it takes its keys and values from its own sequence"),
            )
        found: Subject = _provider(layer_of_checkpoint)(place, name, words=words, init=init)
        return found
    if place.endswith(".py") or "/" in place or target.endswith(".py"):
        path = Path(target if target.endswith(".py") and ":" not in target else place)
        module = load_file(path)
        return _from_module(module, name, target, words, init, padding_mask, cross, seed)
    if not name:
        raise UsageError(
            _("{target!r} is not a target").format(target=target),
            fix=_("path/to/file.py:Name, package.module:Name, hf:TYPE, or CHECKPOINT:LAYER"),
        )
    module = load_module(place)
    return _from_module(module, name, target, words, init, padding_mask, cross, seed)


def _provider(place: str) -> Callable[..., Any]:
    """A function of another package, which is imported only now."""
    home, _colon, name = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(home), name)
    return found


def target_label(target: Any) -> str:
    """A name for a Python object."""
    cls = target if inspect.isclass(target) or inspect.isroutine(target) else type(target)
    return f"{getattr(cls, '__module__', '?')}:{getattr(cls, '__qualname__', repr(target))}"


def load_imports(names: Iterable[str]) -> None:
    """Import what has to be there before the target is built: files and modules, in order.

    Raises:
        UsageError: there is no such file or module.
        TargetError: it raises while it is imported.
    """
    for name in names:
        if is_file(name):
            load_file(Path(name))
        else:
            load_module(name)


def is_file(name: str) -> bool:
    """Whether a name is a path, and not that of a module."""
    return name.endswith(".py") or "/" in name or "\\" in name


def load_file(path: Path) -> ModuleType:
    """Import a source file under a private name.

    Raises:
        UsageError: no such file.
        TargetError: it raises while it is imported.
    """
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        near = did_you_mean(path.name, [p.name for p in folder.glob("*.py")])
        raise UsageError(
            _("there is no file {path}").format(path=path),
            fix=_("did you mean {near!r}?").format(near=near) if near else "",
        )
    name = f"headwise_target_{path.stem}".replace("-", "_").replace(".", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(_("{path} is not a Python file").format(path=path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder_name = str(path.parent.resolve())
    sys.path.insert(0, folder_name)
    try:
        with IMPORTS:
            spec.loader.exec_module(module)
    except HeadwiseError:
        raise
    except SystemExit as error:
        raise TargetError(
            _("{path} exits while it is imported (sys.exit({code!r}))").format(
                path=path, code=error.code
            ),
            fix=_('put the script part under `if __name__ == "__main__":`'),
        ) from error
    except Exception as error:
        raise TargetError(
            _("{path} can't be imported: {kind}: {message}").format(
                path=path, kind=type(error).__name__, message=error
            ),
            where=place_in(error, path),
        ) from error
    finally:
        if folder_name in sys.path:
            sys.path.remove(folder_name)
    return module


def place_in(error: BaseException, path: Path) -> str:
    """file:line of the innermost frame of an exception that lies in a file."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve() == path.resolve():
            found = f"{path}:{trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.lineno is not None:
        found = f"{error.filename}:{error.lineno}"
    return found


def load_module(name: str) -> ModuleType:
    """Import a module by its dotted name."""
    try:
        with IMPORTS:
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(
                _("there is no module {name!r}").format(name=name),
                fix=_("install it, or give a file: path/to/file.py:Name"),
            ) from error
        raise TargetError(
            _("{name} can't be imported: {message}").format(name=name, message=error)
        ) from error
    except SystemExit as error:
        raise TargetError(
            _("{path} exits while it is imported (sys.exit({code!r}))").format(
                path=name, code=error.code
            )
        ) from error
    except Exception as error:
        raise TargetError(
            _("{path} can't be imported: {kind}: {message}").format(
                path=name, kind=type(error).__name__, message=error
            )
        ) from error


def _own(module: ModuleType) -> list[str]:
    """Names of classes and functions that a module itself defines and that could be targets."""
    return [
        name
        for name, value in vars(module).items()
        if (inspect.isclass(value) and issubclass(value, nn.Module))
        and value.__module__ == module.__name__
    ] or [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith(("_", "headwise_"))
    ]


def _from_module(
    module: ModuleType,
    name: str,
    label: str,
    words: Mapping[str, Any],
    init: Mapping[str, Any],
    padding_mask: str | None,
    cross: bool,
    seed: int,
) -> Subject:
    declared = getattr(module, "HEADWISE", None)
    adapters = {
        key: getattr(module, f"headwise_{key}")
        for key in ADAPTERS
        if hasattr(module, f"headwise_{key}")
    }
    if declared is not None and not isinstance(declared, dict):
        raise UsageError(
            _("HEADWISE is a {kind}, not a dictionary").format(kind=type(declared).__name__),
            where=label,
        )
    if not name and "build" not in adapters:
        own = _own(module)
        if len(own) != 1:
            raise UsageError(
                _("{label} does not say which of its names to verify").format(label=label),
                fix=", ".join(f"{label}:{n}" for n in own[:6])
                or _("it defines no class or function"),
            )
        name = own[0]
    if name and not hasattr(module, name):
        options = [n for n in vars(module) if not n.startswith("__")]
        near = did_you_mean(name, options)
        raise UsageError(
            _("{label} has no name {name!r}").format(label=label.rpartition(":")[0], name=name),
            fix=_("did you mean {near!r}?").format(near=near)
            if near
            else ", ".join(_own(module)[:8]),
        )
    thing = getattr(module, name) if name else None
    if "run" in adapters or "build" in adapters or "cross" in adapters:
        make = _maker(adapters.get("build"), thing, words, init, declared, cross, seed)
        return declared_subject(
            module, label, make, adapters, declared or {}, words, padding_mask=padding_mask
        )
    merged = {**(declared or {}), **words}
    return _from_object(thing, label, merged, init, padding_mask, cross, seed)


def _maker(
    build: Callable[[], Any] | None,
    thing: Any,
    words: Mapping[str, Any],
    init: Mapping[str, Any],
    declared: Mapping[str, Any] | None,
    cross: bool,
    seed: int,
) -> Callable[[], Any]:
    if build is not None:
        return build
    if inspect.isclass(thing) and issubclass(thing, nn.Module):
        merged = {**(declared or {}), **words}
        return lambda: construct(thing, merged, init, cross=cross, seed=seed)[0]
    return lambda: thing


def _from_object(
    thing: Any,
    label: str,
    words: Mapping[str, Any],
    init: Mapping[str, Any],
    padding_mask: str | None,
    cross: bool,
    seed: int,
) -> Subject:
    if inspect.isclass(thing):
        if not issubclass(thing, nn.Module):
            raise UsageError(
                _("{label} is a class, but not a torch.nn.Module").format(label=label),
                fix=_("name a layer or a function; or write the adapter headwise_run"),
            )
        made, used, arguments = construct(thing, words, init, cross=cross, seed=seed)
        return bind_layer(
            made,
            label,
            words,
            make=lambda: construct(thing, words, init, cross=cross, seed=seed)[0],
            padding_mask=padding_mask,
            cross=cross,
            used=used,
            built=arguments,
        )
    if init:
        raise UsageError(_("--init applies to classes, and {label} is not one").format(label=label))
    if isinstance(thing, nn.Module):
        return bind_layer(
            thing, label, words, make=lambda: thing, padding_mask=padding_mask, cross=cross, used={}
        )
    if callable(thing):
        return bind_function(thing, label, words, padding_mask=padding_mask)
    raise UsageError(
        _("{label} is a {kind}: neither a layer nor a function").format(
            label=label, kind=type(thing).__name__
        )
    )
