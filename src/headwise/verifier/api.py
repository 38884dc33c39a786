"""``headwise.verify`` and ``headwise.trace``: what Python, the command line and tests call."""

from __future__ import annotations

import time

_STARTED = time.perf_counter()

import contextlib  # noqa: E402
from collections.abc import Callable, Mapping, Sequence  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from headwise.document import Document  # noqa: E402
from headwise.errors import TargetError  # noqa: E402
from headwise.report import Reason, Report  # noqa: E402
from headwise.spec import AttentionSpec  # noqa: E402
from headwise.texts import current_language, use_language  # noqa: E402
from headwise.texts import translate as _  # noqa: E402
from headwise.verifier.engine import Engine  # noqa: E402
from headwise.verifier.findings import findings_of, inferred_of  # noqa: E402
from headwise.verifier.subject import Subject  # noqa: E402
from headwise.verifier.target import (  # noqa: E402
    IMPORTS,
    load_imports,
    load_subject,
    target_label,
)

IMPORT_SECONDS = time.perf_counter() - _STARTED

Phase = Callable[[str], None]


def verify(
    target: Any,
    spec: AttentionSpec | None = None,
    *,
    init: Mapping[str, Any] | None = None,
    padding_mask: str | None = None,
    cross: bool = False,
    attn_implementation: str | None = None,
    imports: Sequence[str] = (),
    case: str | None = None,
    seed: int = 0,
    lang: str | None = None,
    **words: Any,
) -> Report:
    """Compare a target with the definition: outputs, gradients, properties; name what is wrong.

    Works on a copy of a module, in this process.

    Args:
        target: a layer class, a module, a function of q, k and v, or a name: ``file.py:Name``,
            ``package.module:Name``, ``hf:TYPE``, ``CHECKPOINT:LAYER``.
        spec: what the layer is meant to be; everything in it is declared.
        init: constructor arguments that the specification does not imply.
        padding_mask: ``keep`` or ``ignore``: what True means in the target's padding mask.
        cross: the layer is cross attention.
        attn_implementation: for ``hf:`` targets, the name of what computes the attention:
            ``eager``, ``sdpa``, ``headwise``, or a name that was registered.
        imports: files and modules that are imported before the target is built, such as one that
            registers an implementation.
        case: restrict to one case by name.
        seed: of weights and inputs.
        lang: ``en`` or ``zh``.
        words: words of the specification instead of ``spec`` (``num_heads=4``, ``causal=True``).

    Returns:
        A ``Report``; its first finding is the diagnosis.

    Raises:
        UsageError: the target can't be found or its arguments can't be filled.

    Example:
        >>> report = verify(torch.nn.functional.scaled_dot_product_attention)
        >>> report.verdict
        'matches'
    """
    request = {
        "target": target,
        "spec": {**(_words_of(spec) if spec is not None else {}), **words},
        "init": dict(init or {}),
        "attn_implementation": attn_implementation,
        "imports": list(imports),
        "case": case,
        "seed": seed,
    }
    if padding_mask is not None:
        request["spec"]["padding_mask"] = padding_mask
    if cross:
        request["spec"]["cross"] = True
    with use_language(lang or current_language()):
        try:
            return verify_request(request, lambda name: None)
        except TargetError as error:
            return cannot_run(request, error)


def _words_of(spec: AttentionSpec) -> dict[str, Any]:
    """A spec in the flat words of the command line, everything declared."""
    names = ("d_model", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "scale")
    sizes = {name: getattr(spec, name) for name in names}
    rope = None if spec.rope is None else spec.rope.pairs
    return {"spec": spec, "causal": spec.is_causal, "rope": rope, **sizes}


def cannot_run(request: Mapping[str, Any], error: TargetError) -> Report:
    """The report for a target that can't be run."""
    target = request["target"]
    return Report(
        target=target if isinstance(target, str) else target_label(target),
        verdict="cannot-run",
        reason=Reason(what=error.what, where=error.where, why=error.why, fix=error.fix),
    )


def subject_of(request: Mapping[str, Any]) -> Subject:
    """The subject of a request: its target, loaded and bound."""
    words = dict(request.get("spec") or {})
    padding_mask = words.pop("padding_mask", None)
    cross = bool(words.pop("cross", False))
    load_imports(request.get("imports") or ())
    subject = load_subject(
        request["target"],
        words=words,
        init=request.get("init") or {},
        attn_implementation=request.get("attn_implementation"),
        padding_mask=padding_mask,
        cross=cross,
        seed=request.get("seed") or 0,
    )
    if "spec" in words and words["spec"] is not None:
        everything = {"causal", "rope", "scale", "window", "qk_norm", "positions", "alibi"}
        subject.declared = subject.declared | everything
    return subject


def verify_request(request: Mapping[str, Any], phase: Phase) -> Report:
    """Answer a request of the command line (its form: ``headwise.cli.process``).

    Raises:
        UsageError: exit code 2.
        TargetError: the target can't be run, exit code 3.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are tiny: more threads only wait for each other
    try:
        return _verify_request(request, phase)
    finally:
        torch.set_num_threads(threads)


def _verify_request(request: Mapping[str, Any], phase: Phase) -> Report:
    phase("importing the target")
    started, imports = time.perf_counter(), IMPORTS.seconds
    subject = subject_of(request)
    imports = IMPORTS.seconds - imports + subject.import_s
    seed = request.get("seed") or 0
    only = (request["case"],) if request.get("case") else ()
    engine = Engine(subject, seed=seed, only=only, phase=phase)
    with torch.random.fork_rng(devices=[]):
        engine.run()
    found = findings_of(engine, str(request.get("command") or ""))
    phase("done")
    return Report(
        target=subject.label,
        verdict=verdict_of(engine, [f.kind for f in found]),  # type: ignore[arg-type]
        spec=engine.reading.spec.to_json(),
        inferred=inferred_of(engine),
        checks=tuple(engine.checks),
        findings=tuple(found),
        elapsed_s=max(time.perf_counter() - started - imports, 0.0),
        import_s=IMPORT_SECONDS + imports,
    )


def verdict_of(engine: Engine, kinds: list[str]) -> str:
    """The verdict that findings amount to."""
    if engine.unstable:
        return "unstable"
    if any(kind in ("bug", "unexplained") for kind in kinds):
        return "differs"
    return "matches"


def trace(
    target: Any,
    spec: AttentionSpec | None = None,
    *,
    init: Mapping[str, Any] | None = None,
    seed: int = 0,
    **words: Any,
) -> Document:
    """Shapes, strides and source lines of a target's own code, stage by stage.

    Args:
        target: as for ``verify``.
        spec: what the layer is meant to be.
        init: constructor arguments.
        seed: of weights and inputs.
        words: words of the specification.

    Returns:
        A ``Document``; ``headwise.render`` shows it.
    """
    request = {
        "target": target,
        "spec": {**(_words_of(spec) if spec is not None else {}), **words},
        "init": dict(init or {}),
        "seed": seed,
    }
    return Document.from_json(trace_request(request, lambda name: None)["document"])


def trace_request(request: Mapping[str, Any], phase: Phase) -> dict[str, Any]:
    """Answer a trace request: a document in JSON form."""
    from headwise.verifier.tracing import trace_subject

    phase("importing the target")
    subject = subject_of(request)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        document = trace_subject(
            subject, seed=request.get("seed") or 0, case=request.get("case"), phase=phase
        )
    return {
        "document": document.to_json(),
        "title": _("trace of {label}").format(label=subject.label),
    }
