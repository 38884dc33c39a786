"""Imports point down: the layers of the design, read from the source, and what a start imports."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "headwise"

# What each part may import, beside itself. Everything may import the vocabulary.
VOCABULARY = {"errors", "registry", "document", "texts", "axes", "files", "processor"}
MEANING = {"spec", "hf_config", "stages", "masks", "numerics"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "files": set(),
    "processor": set(),
    "texts": {"errors"},
    "registry": {"errors"},
    "document": set(),
    "axes": {"errors", "texts"},
    "stages": VOCABULARY,
    "numerics": VOCABULARY | {"stages"},
    "hf_config": VOCABULARY | {"spec"},
    "spec": VOCABULARY | {"hf_config"},
    "masks": VOCABULARY | {"numerics", "spec", "stages"},
    "reference": VOCABULARY | MEANING,
    "report": VOCABULARY,
    "render": {"document", "texts"},
    "attend": VOCABULARY | MEANING,
    "cost": VOCABULARY | {"spec", "stages"},
    "explain": VOCABULARY | MEANING,
    "checkpoints": VOCABULARY | MEANING | {"attend"},
    "generate": VOCABULARY | MEANING | {"attend", "checkpoints"},
    "verifier": VOCABULARY | MEANING | {"reference", "report"},
    "labs": VOCABULARY
    | MEANING
    | {"verifier", "explain", "checkpoints", "attend", "cost", "reference", "report"},
    "grading": VOCABULARY | MEANING | {"verifier", "labs", "reference"},
    "integrations": VOCABULARY
    | MEANING
    | {"reference", "report", "verifier", "attend", "explain", "checkpoints", "generate"},
    "bench": VOCABULARY
    | MEANING
    | {"attend", "cost", "reference", "integrations", "checkpoints", "generate"},
    "receipts": VOCABULARY | MEANING | {"attend", "cost", "reference", "checkpoints"},
    "cli": VOCABULARY
    | MEANING
    | {
        "report",
        "render",
        "verifier",
        "labs",
        "grading",
        "explain",
        "checkpoints",
        "cost",
        "",
        "integrations",
        "attend",
        "bench",
        "receipts",
        "generate",
    },
    "demo": VOCABULARY | MEANING | {"report", "render", "verifier", "cli"},
    "__main__": {"cli"},
}
TORCH_FREE = (
    "errors",
    "files",
    "processor",
    "texts",
    "registry",
    "document",
    "stages",
    "report",
    "render",
    "cli",
)
HEAVY = ("torch", "numpy", "transformers", "jinja2", "rich", "matplotlib", "babel")


def part_of(module: str) -> str:
    """``headwise.render.text`` belongs to ``render``; the package itself is the empty part."""
    return [*module.split("."), ""][1]


def imports(source: str) -> set[str]:
    """Modules of Headwise that a file imports, at its top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            for alias in node.names:
                if alias.name == "__version__":
                    continue
                inner = f"{module}.{alias.name}"
                found.add(inner if module == "headwise" and _is_module(inner) else module)
    return {name for name in found if name.split(".")[0] == "headwise"}


def _is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").exists() or path.is_dir()


def violations(part: str, source: str) -> list[str]:
    """Imports of a file that its part is not allowed."""
    allowed = ALLOWED[part] | {part}
    return sorted(name for name in imports(source) if part_of(name) not in allowed)


def files() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        inner = path.relative_to(SOURCE)
        part = inner.parts[0] if len(inner.parts) > 1 else inner.stem
        if part != "__init__":
            found.append((part, path))
    return found


# -- layers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "path"), files(), ids=[str(path.relative_to(SOURCE)) for _, path in files()]
)
def test_imports_point_down(part, path):
    assert part in ALLOWED, f"give {part} its place in the layers"
    assert violations(part, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("part", "source", "expected"),
    [
        ("verifier", "from headwise.attend import attention", ["headwise.attend"]),
        ("reference", "import headwise.attend.module", ["headwise.attend.module"]),
        ("attend", "def f():\n    from headwise.reference import attend", ["headwise.reference"]),
        ("render", "from headwise.report import Report", ["headwise.report"]),
        ("render", "from headwise import report", ["headwise.report"]),
        ("cost", "from headwise.masks import Mask", ["headwise.masks"]),
        ("verifier", "from headwise.cli.main import main", ["headwise.cli.main"]),
        ("grading", "from headwise.cli.grade import command", ["headwise.cli.grade"]),
        ("labs", "from headwise.grading import skeleton", ["headwise.grading"]),
        ("document", "from headwise.texts import translate", ["headwise.texts"]),
        ("report", "from headwise import verify", ["headwise"]),
    ],
)
def test_a_forged_violation_is_caught(part, source, expected):
    if "import report" in source:
        assert _is_module("headwise.report")
    assert violations(part, source) == expected


def test_the_layers_have_no_cycle():
    """Except a spec and its reading from configurations, which are one concept in two files."""
    graph = {part: set() for part in ALLOWED}
    for part, path in files():
        found = {part_of(name) for name in imports(path.read_text(encoding="utf-8"))}
        graph[part] |= {other for other in found if other} - {part}
    graph["hf_config"].discard("spec")
    graph["texts"].discard("errors")  # inside a function: the error that names the languages
    assert cycle(graph) is None


def test_a_forged_cycle_is_caught():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """Some cycle of a graph, or None."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for other in sorted(graph.get(node, ())):
            found = visit(other, [*path, node])
            if found:
                return found
        done.add(node)
        return None

    for node in sorted(graph):
        found = visit(node, [])
        if found:
            return found
    return None


def test_no_part_has_the_name_of_a_public_function():
    """``headwise.attention`` and ``headwise.verify`` are functions: a package would hide them."""
    parts = {part for part, _ in files()}
    assert not parts & {"attention", "verify", "trace"}


# -- what a start imports -----------------------------------------------------------------------


def heavy_after(code: str) -> list[str]:
    """Heavy libraries that a fresh process has imported after some code."""
    script = (
        f"{code}\nimport json, sys\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_the_package_imports_nothing_heavy():
    assert heavy_after("import headwise") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["verify", "--help"],
        ["bench", "--help"],
        ["cost", "--help"],
        ["grade", "--help"],
    ],
)
def test_help_imports_nothing_heavy(arguments):
    code = (
        "from headwise.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as error:\n    assert error.code == 0"
    )
    assert heavy_after(code) == []


def test_the_parent_of_a_verification_imports_no_torch():
    code = (
        "from headwise.cli import grade, main, messages, options, process, trace, verify\n"
        "verify.command(); trace.command(); grade.command()\n"
        "options.request('verify', 'torch.nn:MultiheadAttention', {'timeout': 1.0, 'heads': 2})"
    )
    assert heavy_after(code) == []


def test_these_checks_can_fail():
    assert "rich" in heavy_after("import headwise.render.text")


@pytest.mark.parametrize("part", TORCH_FREE)
def test_torch_free_parts_do_not_import_torch_at_their_top(part):
    for other, path in files():
        if other == part:
            tops = [
                node
                for node in ast.parse(path.read_text(encoding="utf-8")).body
                if isinstance(node, (ast.Import, ast.ImportFrom))
            ]
            names = {
                name.split(".")[0]
                for node in tops
                for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
                + ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [])
            }
            assert "torch" not in names, path
