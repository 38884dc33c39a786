"""``headwise bench attention``: speed beside other libraries, measured in one process."""

from __future__ import annotations

import sys
from typing import Any

import click

from headwise.cli import messages, options
from headwise.texts import translate as _


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(name="attention", cls=messages.Command)
    @click.option("--workload", "workloads", multiple=True, metavar="NAME")
    @click.option("--peers", default="", metavar="NAME,…")
    @click.option("--dtype", "dtypes", multiple=True, type=click.Choice(["float32", "bfloat16"]))
    @click.option("--backend", "backends", multiple=True)
    @click.option("--quick", is_flag=True)
    @click.option("--threads", type=click.IntRange(min=1))
    @click.option("--seed", type=int, default=0)
    @click.option("--budget", type=float, default=5.0)
    @click.option("--json", "as_json", is_flag=True)
    @options.common_flags
    def attention(**flags: Any) -> int:
        import torch

        from headwise.bench import attention as bench

        if flags["threads"]:
            torch.set_num_threads(flags["threads"])
        plan = bench.plan(
            workloads=flags["workloads"],
            peers=[n for n in flags["peers"].split(",") if n],
            dtypes=flags["dtypes"],
            quick=flags["quick"],
            backends=flags["backends"],
            seed=flags["seed"],
            budget_s=flags["budget"],
            with_memory=not flags["quick"],
        )
        result = bench.run(plan, lambda d, t, w: click.echo(f"[{d}/{t}] {w}", err=True)).to_json()
        if flags["as_json"]:
            from headwise.render.json import render_json

            click.echo(render_json(result), nl=False)
            return 0
        for row in result["rows"]:
            print(f"{row['workload']} {row['shape']} {row['dtype']} [{row['backend']}] ours {row['ours_ms']} ms, torch {row['best_torch']} x{row['torch_ratio']}, peer {row['best_peer']} x{row['ratio']}, {row['limit_share']:.0%} of limit, peak {row['peak_bytes']} / {row['torch_peak_bytes']}, err {row['error']}")
            for name, e in row["peers"].items():
                if "ms" in e: print("     ", name, e["ms"], e["ratio"], e["error"])
                elif "failed" in e: print("     ", name, e)
        return 0

    return attention
