"""The page on benchmarks names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from headwise.bench.peers import PEERS
from headwise.bench.workloads import WORKLOADS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "benchmarks.md").read_text(encoding="utf-8")


def test_every_workload_and_every_peer_has_its_line():
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]
    named = [name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert sorted(named) == sorted([*WORKLOADS, *PEERS])


def test_peers_count_as_the_page_says():
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        for name in re.findall(r"`([^`]+)`", cells[0]) if cells else ():
            if name in PEERS:
                assert PEERS[name].kind == cells[1]


def test_links_lead_to_files():
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", PAGE):
        assert (DOCS / link).exists()
