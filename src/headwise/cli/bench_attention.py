"""``headwise bench attention``: speed beside other libraries, measured in one process."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click

from headwise.cli import messages, options
from headwise.cli.messages import CANNOT_RUN, INTERRUPTED
from headwise.document import Document, Table
from headwise.errors import HeadwiseError, TargetError
from headwise.texts import current_language
from headwise.texts import translate as _

DTYPES = ("float32", "bfloat16")


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="attention",
        cls=messages.Command,
        help=_(
            "Time attention beside torch's own calls and other libraries, in turns in one process, "
            "and compare every result with float64. The processor must have nothing else to do."
        ),
    )
    @click.option(
        "--workload",
        "workloads",
        multiple=True,
        metavar="NAME,…",
        help=_("Only these workloads; repeatable."),
    )
    @click.option(
        "--peers", multiple=True, metavar="NAME,…", help=_("Only beside these peers; repeatable.")
    )
    @click.option(
        "--dtype",
        "dtypes",
        multiple=True,
        type=click.Choice(DTYPES),
        help=_("Only this dtype; repeatable."),
    )
    @click.option(
        "--backend",
        "backends",
        multiple=True,
        metavar="NAME",
        help=_("Also time this backend of ours, beside the one that is chosen; repeatable."),
    )
    @click.option(
        "--quick", is_flag=True, help=_("The smallest shape of each workload, one second each.")
    )
    @click.option(
        "--budget",
        type=click.FloatRange(min=0.0),
        metavar="SECONDS",
        help=_("Time for the rounds of one row; 5, or 1 with --quick."),
    )
    @click.option(
        "--threads",
        type=click.IntRange(min=1),
        metavar="N",
        help=_("Threads of every library; torch's own choice if left out."),
    )
    @click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help=_("Seed of the inputs."),
    )
    @click.option("--list", "as_list", is_flag=True, help=_("List workloads and peers, and stop."))
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @options.common_flags
    def attention(*, as_list: bool, **flags: Any) -> int:
        return _list(as_json=flags["as_json"]) if as_list else _run(flags)

    return attention


def _run(flags: dict[str, Any]) -> int:
    import torch

    from headwise.bench import attention as bench

    if flags["threads"]:
        torch.set_num_threads(flags["threads"])
    quick = flags["quick"]
    plan = bench.plan(
        workloads=_names(flags["workloads"]),
        peers=_names(flags["peers"]),
        dtypes=flags["dtypes"],
        quick=quick,
        backends=_backends(flags["backends"]),
        seed=flags["seed"],
        budget_s=flags["budget"] if flags["budget"] is not None else (1.0 if quick else 5.0),
        with_memory=not quick,
    )
    if plan.asked and (missing := bench.missing_peers(plan)):
        messages.show_error(_absent(missing[0]))
        return CANNOT_RUN
    result = bench.run(plan, _notify).to_json()
    if flags["as_json"]:
        from headwise.render.json import render_json

        click.echo(render_json(result), nl=False)
    else:
        from headwise.bench.report import as_document

        messages.show_document(as_document(result), sys.stdout)
    return INTERRUPTED if result["interrupted"] else 0


def _notify(number: int, total: int, what: str) -> None:
    click.echo(f"[{number}/{total}] {what}", err=True)


def _names(given: Iterable[str]) -> list[str]:
    return [name.strip() for text in given for name in text.split(",") if name.strip()]


def _backends(given: Iterable[str]) -> tuple[str, ...]:
    from headwise.attend.backends.dispatch import BACKENDS

    names = tuple(_names(given))
    for name in names:
        BACKENDS[name]  # an unknown one is an error that suggests the nearest
    return names


def _absent(entry: dict[str, str]) -> HeadwiseError:
    return TargetError(
        _("the peer {name!r} was asked for and can't be used here").format(name=entry["name"]),
        where="--peers",
        why=_("{missing} is missing").format(missing=entry["missing"]),
        fix=entry["install"],
    )


def _list(*, as_json: bool) -> int:
    from headwise.bench.peers import PEERS
    from headwise.bench.workloads import WORKLOADS

    if as_json:
        from headwise.render.json import render_json

        data = {
            "workloads": [
                {
                    "name": workload.name,
                    "title": _(workload.title),
                    "shapes": [shape.label for shape in workload.shapes],
                    "dtypes": list(workload.dtypes),
                }
                for workload in WORKLOADS.values()
            ],
            "peers": [
                {"name": peer.name, "kind": peer.kind, "missing": peer.missing()}
                for peer in PEERS.values()
            ],
        }
        click.echo(render_json(data), nl=False)
        return 0
    kinds = {
        "torch": _("torch"),
        "library": _("another library"),
        "shown": _("shown, not counted"),
    }
    workloads = Table(
        (_("workload"), _("what"), _("shapes")),
        tuple(
            (w.name, _(w.title), "\n".join(shape.label for shape in w.shapes))
            for w in WORKLOADS.values()
        ),
    )
    peers = Table(
        (_("peer"), _("counts as"), _("here")),
        tuple((peer.name, kinds[peer.kind], _state(peer.missing())) for peer in PEERS.values()),
    )
    title = _("What is measured, and beside whom")
    messages.show_document(Document(title, (workloads, peers), current_language()), sys.stdout)
    return 0


def _state(missing: str) -> str:
    return _("{missing} is missing").format(missing=missing) if missing else _("can be used")
