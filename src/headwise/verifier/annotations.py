"""What annotations say about parameters: the classes they name, and values they list.

An annotation is a statement about a signature and not about what code computes; whatever is handed
over because of one is printed as inferred.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of a function's parameters, evaluated; those that can't be are left out.

    Names that are imported for type checkers alone are imported.
    """
    plain = inspect.unwrap(function)
    plain = getattr(plain, "__func__", plain)
    names = getattr(plain, "__globals__", {})
    found: dict[str, Any] = {}
    for name, annotation in getattr(plain, "__annotations__", {}).items():
        value = _evaluated(annotation, names)
        if name != "return" and value is not None:
            found[name] = value
    return found


def _evaluated(annotation: Any, names: Mapping[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    more: dict[str, Any] = {}
    for _attempt in range(4):  # one name more each time
        try:
            value = eval(annotation, dict(names), more)  # noqa: S307 - as importing it would
            return _evaluated(value, names) if isinstance(value, str) else value
        except NameError as error:
            home = _imports_for_checkers(names).get(str(error.name))
            if home is None:
                return None
            try:
                more[str(error.name)] = getattr(importlib.import_module(home[0]), home[1])
            except (ImportError, AttributeError):
                return None
        except Exception:
            return None
    return None


def _imports_for_checkers(names: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Names that a module imports under ``if TYPE_CHECKING``: (module, name there)."""
    module = sys.modules.get(str(names.get("__name__")))
    found: dict[str, tuple[str, str]] = {}
    with contextlib.suppress(OSError, TypeError, SyntaxError):
        tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                for inner in node.body:
                    if isinstance(inner, ast.ImportFrom) and inner.module and not inner.level:
                        for alias in inner.names:
                            found[alias.asname or alias.name] = (inner.module, alias.name)
    return found


def classes_in(annotation: Any) -> tuple[type, ...]:
    """The classes of an annotation, the members of a union apart, without None.

    Example:
        >>> classes_in(int | None), classes_in(typing.Optional[str])
        ((<class 'int'>,), (<class 'str'>,))
    """
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(c for part in typing.get_args(annotation) for c in classes_in(part))
    if isinstance(annotation, type) and annotation is not types.NoneType:
        return (annotation,)
    return ()


def values_in(annotation: Any) -> tuple[Any, ...]:
    """The values that an annotation lists.

    Example:
        >>> values_in(typing.Literal[False, "per-head"] | None)
        (False, 'per-head')
    """
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(v for part in typing.get_args(annotation) for v in values_in(part))
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()


def maker_from_spec(cls: type, spec_class: type) -> Callable[..., Any] | None:
    """A classmethod that makes an object for a specification: its first argument is one."""
    for name, member in inspect.getmembers_static(cls):
        if name.startswith("_") or not isinstance(member, classmethod):
            continue
        bound = getattr(cls, name)
        first = next(iter(inspect.signature(bound).parameters), "")
        annotated = classes_in(annotations_of(bound).get(first))
        if first and (first == "spec" if not annotated else spec_class in annotated):
            made: Callable[..., Any] = bound
            return made
    return None
