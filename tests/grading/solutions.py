"""A right solution, function by function, and many wrong ones, as learners write them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

RIGHT: Mapping[str, str] = {
    "add_positions": """
        def add_positions(x, table):
            return x + table[: x.shape[1]]
    """,
    "project": """
        def project(x, w_q, w_k, w_v):
            return x @ w_q, x @ w_k, x @ w_v
    """,
    "split_heads": """
        def split_heads(x, num_heads):
            b, t, width = x.shape
            return x.view(b, t, num_heads, width // num_heads).transpose(1, 2)
    """,
    "rotate": """
        def rotate(x, cos, sin):
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    """,
    "scores": """
        def scores(q, k):
            return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    """,
    "apply_mask": """
        def apply_mask(scores, keep, causal):
            t_q, t_k = scores.shape[-2:]
            if causal:
                future = torch.ones(t_q, t_k, dtype=torch.bool).triu(1 + t_k - t_q)
                scores = scores.masked_fill(future, float("-inf"))
            if keep is not None:
                scores = scores.masked_fill(~keep[:, None, None, :], float("-inf"))
            return scores
    """,
    "softmax": """
        def softmax(masked_scores):
            return torch.softmax(masked_scores, dim=-1)
    """,
    "aggregate": """
        def aggregate(weights, v):
            return weights @ v
    """,
    "merge_heads": """
        def merge_heads(context):
            b, h, t, d = context.shape
            return context.transpose(1, 2).reshape(b, t, h * d)
    """,
    "output": """
        def output(merged, w_o):
            return merged @ w_o
    """,
    "layer": """
        def layer(x, w_q, w_k, w_v, w_o, num_heads, keep=None, causal=False,
                  table=None, cos=None, sin=None):
            if table is not None:
                x = add_positions(x, table)
            q, k, v = (split_heads(z, num_heads) for z in project(x, w_q, w_k, w_v))
            if cos is not None:
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            weights = softmax(apply_mask(scores(q, k), keep, causal))
            return output(merge_heads(aggregate(weights, v)), w_o)
    """,
}

# name: (function, its wrong code, the fault that explains it)
WRONG: Mapping[str, tuple[str, str, str | None]] = {
    "positions added twice": (
        "add_positions",
        "def add_positions(x, table):\n    return x + 2 * table[: x.shape[1]]",
        "HW-R16",
    ),
    "positions forgotten": (
        "add_positions",
        "def add_positions(x, table):\n    return x",
        "HW-R16",
    ),
    "q and k exchanged": (
        "project",
        "def project(x, w_q, w_k, w_v):\n    return x @ w_k, x @ w_q, x @ w_v",
        "HW-P01",
    ),
    "weights on the wrong side": (
        "project",
        "def project(x, w_q, w_k, w_v):\n    return x @ w_q.T, x @ w_k.T, x @ w_v.T",
        "HW-P04",
    ),
    "bare view split": (
        "split_heads",
        "def split_heads(x, num_heads):\n"
        "    b, t, width = x.shape\n"
        "    return x.view(b, num_heads, t, width // num_heads)",
        "HW-H01",
    ),
    "split with channels first": (
        "split_heads",
        "def split_heads(x, num_heads):\n"
        "    b, t, width = x.shape\n"
        "    return x.view(b, t, width // num_heads, num_heads).permute(0, 3, 1, 2)",
        "HW-H02",
    ),
    "split without transpose": (
        "split_heads",
        "def split_heads(x, num_heads):\n"
        "    b, t, width = x.shape\n"
        "    return x.view(b, t, num_heads, width // num_heads)",
        None,
    ),
    "rotation of neighbours": (
        "rotate",
        "def rotate(x, cos, sin):\n"
        "    a, b = x[..., 0::2], x[..., 1::2]\n"
        "    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)",
        "HW-R01",
    ),
    "rotation forgotten": ("rotate", "def rotate(x, cos, sin):\n    return x", "HW-R17"),
    "missing scale": (
        "scores",
        "def scores(q, k):\n    return q @ k.transpose(-2, -1)",
        "HW-S01",
    ),
    "scale without root": (
        "scores",
        "def scores(q, k):\n    return q @ k.transpose(-2, -1) / q.shape[-1]",
        "HW-S03",
    ),
    "scale by a constant": (
        "scores",
        "def scores(q, k):\n    return q @ k.transpose(-2, -1) / 8",
        "HW-S07",
    ),
    "scale by an odd factor": (
        "scores",
        "def scores(q, k):\n    return q @ k.transpose(-2, -1) / 3",
        None,
    ),
    "scores of keys and queries exchanged": (
        "scores",
        "def scores(q, k):\n    return k @ q.transpose(-2, -1) / math.sqrt(q.shape[-1])",
        None,
    ),
    "padding hides queries": (
        "apply_mask",
        RIGHT["apply_mask"].replace("keep[:, None, None, :]", "keep[:, None, :, None]"),
        "HW-M02",
    ),
    "padding hides heads": (
        "apply_mask",
        RIGHT["apply_mask"].replace("keep[:, None, None, :]", "keep[:, :, None, None]"),
        "HW-M03",
    ),
    "polarity": (
        "apply_mask",
        RIGHT["apply_mask"].replace("~keep", "keep"),
        "HW-M01",
    ),
    "off by one": (
        "apply_mask",
        RIGHT["apply_mask"].replace("1 + t_k", "2 + t_k"),
        "HW-M06",
    ),
    "itself hidden": (
        "apply_mask",
        RIGHT["apply_mask"].replace("1 + t_k", "t_k"),
        "HW-M07",
    ),
    "aligned to the start": (
        "apply_mask",
        RIGHT["apply_mask"].replace("1 + t_k - t_q", "1"),
        "HW-M08",
    ),
    "masked_fill without its result": (
        "apply_mask",
        RIGHT["apply_mask"].replace(
            "scores = scores.masked_fill(~keep", "scores.masked_fill(~keep"
        ),
        "HW-M04",
    ),
    "no causality": (
        "apply_mask",
        RIGHT["apply_mask"].replace("if causal:", "if causal and False:"),
        "HW-M05",
    ),
    "mask after softmax": (
        "apply_mask",
        "def apply_mask(scores, keep, causal):\n"
        "    t_q, t_k = scores.shape[-2:]\n"
        "    visible = torch.ones(t_q, t_k, dtype=torch.bool)\n"
        "    if causal:\n"
        "        visible = visible.tril(t_k - t_q)\n"
        "    if keep is not None:\n"
        "        visible = visible & keep[:, None, None, :]\n"
        "    return scores.softmax(-1) * visible",
        "HW-M12",
    ),
    "mask multiplied": (
        "apply_mask",
        "def apply_mask(scores, keep, causal):\n"
        "    t_q, t_k = scores.shape[-2:]\n"
        "    visible = torch.ones(t_q, t_k, dtype=torch.bool)\n"
        "    if causal:\n"
        "        visible = visible.tril(t_k - t_q)\n"
        "    if keep is not None:\n"
        "        visible = visible & keep[:, None, None, :]\n"
        "    return scores * visible",
        "HW-M13",
    ),
    "tiny fill": (
        "apply_mask",
        RIGHT["apply_mask"].replace('float("-inf")', "-1e-9"),
        "HW-M14",
    ),
    "softmax over queries": (
        "softmax",
        "def softmax(masked_scores):\n    return torch.softmax(masked_scores, dim=-2)",
        "HW-X01",
    ),
    "softmax over heads": (
        "softmax",
        "def softmax(masked_scores):\n    return torch.softmax(masked_scores, dim=1)",
        "HW-X02",
    ),
    "log-softmax": (
        "softmax",
        "def softmax(masked_scores):\n    return torch.log_softmax(masked_scores, dim=-1)",
        "HW-X05",
    ),
    "overflow": (
        "softmax",
        "def softmax(masked_scores):\n"
        "    e = masked_scores.exp()\n"
        "    return e / e.sum(dim=-1, keepdim=True)",
        "HW-X04",
    ),
    "weights transposed": (
        "aggregate",
        "def aggregate(weights, v):\n    return weights.transpose(-2, -1) @ v",
        "HW-A01",
    ),
    "merge without transpose": (
        "merge_heads",
        "def merge_heads(context):\n"
        "    b, h, t, d = context.shape\n"
        "    return context.reshape(b, t, h * d)",
        "HW-G01",
    ),
    "merge with channels first": (
        "merge_heads",
        "def merge_heads(context):\n    return context.permute(0, 2, 3, 1).flatten(2)",
        "HW-G02",
    ),
    "output weight on the wrong side": (
        "output",
        "def output(merged, w_o):\n    return merged @ w_o.T",
        "HW-P04",
    ),
    "gradient cut": (
        "aggregate",
        "def aggregate(weights, v):\n    return weights.detach() @ v",
        "HW-T01",
    ),
    "layer without the mask": (
        "layer",
        RIGHT["layer"].replace("apply_mask(scores(q, k), keep, causal)",
                               "apply_mask(scores(q, k), None, causal)"),
        "HW-M04",
    ),
    "layer masks the weights": (
        "layer",
        RIGHT["layer"].replace(
            "softmax(apply_mask(scores(q, k), keep, causal))",
            "softmax(scores(q, k)) * (apply_mask(scores(q, k), keep, causal) > -1e30)",
        ),
        "HW-M12",
    ),
    "layer sums the keys": (
        "layer",
        RIGHT["layer"].replace(
            "aggregate(weights, v)", "aggregate(weights, k if k.shape == v.shape else v)"
        ),
        "HW-A02",
    ),
    "layer forgets the positions": (
        "layer",
        RIGHT["layer"].replace("if table is not None:", "if table is not None and False:"),
        "HW-R16",
    ),
    "layer turns the queries only": (
        "layer",
        RIGHT["layer"].replace(
            "rotate(q, cos, sin), rotate(k, cos, sin)", "rotate(q, cos, sin), k"
        ),
        "HW-R05",
    ),
    "layer without output": (
        "layer",
        RIGHT["layer"].replace("output(merge_heads(aggregate(weights, v)), w_o)",
                               "merge_heads(aggregate(weights, v))"),
        "HW-O01",
    ),
}  # fmt: skip


def solution(**changes: str) -> str:
    """The text of a file: the right one, with some functions exchanged ("" = left out)."""
    parts = {**RIGHT, **changes}
    codes = [textwrap.dedent(code).strip() for code in parts.values() if code]
    return "\n\n\n".join(["import math\n\nimport torch", *codes]) + "\n"


def wrong(name: str) -> tuple[str, str, str | None]:
    """(the text of a file with one wrong function, the function, the fault)."""
    function, code, fault = WRONG[name]
    return solution(**{function: code}), function, fault
