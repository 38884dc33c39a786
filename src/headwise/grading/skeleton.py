"""The functions that a learner writes, and the file that asks for them.

One function per stage, in the words of the course, and one that puts them together. This file knows
no torch: the command line reads it before anything is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headwise.errors import UsageError, did_you_mean
from headwise.stages import STAGE_NAMES
from headwise.texts import mark as N_
from headwise.texts import translate as _


@dataclass(frozen=True)
class Part:
    """A function that is graded.

    Args:
        name: of the function.
        stage: the stage that it is, or ``layer`` for the whole.
        arguments: as they stand in the skeleton.
        asks: what it has to do, with shapes; becomes its docstring.
        axes: the axes of what it returns, in words.
    """

    name: str
    stage: str
    arguments: str
    asks: str
    axes: tuple[str, ...]

    @property
    def signature(self) -> str:
        """Name and arguments."""
        return f"{self.name}({self.arguments})"


TOKEN, CHANNEL = N_("token"), N_("channel")
BATCH, HEAD, QUERY, KEY = N_("batch"), N_("head"), N_("query"), N_("key")

PARTS: tuple[Part, ...] = (
    Part(
        "add_positions",
        "input",
        "x, table",
        N_(
            "Tell every token where it stands: add a vector for its position.\n\n"
            "x       (B, T, D)    tokens\n"
            "table   (T_max, D)   one row per position, T_max >= T\n"
            "return  (B, T, D)    token t with row t of the table added"
        ),
        (BATCH, TOKEN, CHANNEL),
    ),
    Part(
        "project",
        "projection",
        "x, w_q, w_k, w_v",
        N_(
            "Make queries, keys and values from the tokens: Q = X·Wq, K = X·Wk, V = X·Wv.\n\n"
            "x         (B, T, D)\n"
            "w_q, w_k  (D, H·Dh)\n"
            "w_v       (D, H·Dv)\n"
            "return    q, k, v: (B, T, H·Dh), (B, T, H·Dh), (B, T, H·Dv)"
        ),
        (BATCH, TOKEN, CHANNEL),
    ),
    Part(
        "split_heads",
        "split",
        "x, num_heads",
        N_(
            "Cut the channels of every token into heads; the head axis goes before time.\n\n"
            "x       (B, T, H·Dh)   the first Dh channels are head 0, the next Dh head 1, …\n"
            "return  (B, H, T, Dh)\n\n"
            "It is called for q, k and v in turn."
        ),
        (BATCH, HEAD, TOKEN, CHANNEL),
    ),
    Part(
        "rotate",
        "positions",
        "x, cos, sin",
        N_(
            "Turn pairs of channels by an angle that grows with the position (RoPE).\n\n"
            "x         (B, H, T, Dh)   queries or keys\n"
            "cos, sin  (T, Dh/2)       of the angle of pair i at time t\n"
            "return    (B, H, T, Dh)\n\n"
            "Pair i is channel i together with channel i + Dh/2. A pair (a, b) becomes\n"
            "(a·cos − b·sin, a·sin + b·cos)."
        ),
        (BATCH, HEAD, TOKEN, CHANNEL),
    ),
    Part(
        "scores",
        "scores",
        "q, k",
        N_(
            "How well every query matches every key: dot products, scaled so that their size\n"
            "does not grow with the length of the vectors.\n\n"
            "q       (B, H, Tq, Dh)\n"
            "k       (B, H, Tk, Dh)\n"
            "return  (B, H, Tq, Tk)"
        ),
        (BATCH, HEAD, QUERY, KEY),
    ),
    Part(
        "apply_mask",
        "mask",
        "scores, keep, causal",
        N_(
            "Hide the keys that a query must not see. This comes before the softmax.\n\n"
            "scores  (B, H, Tq, Tk)\n"
            "keep    (B, Tk) bool, True = a real token, False = padding; or None\n"
            "causal  True: a query must not see later keys\n"
            "return  (B, H, Tq, Tk)   visible scores as they were, hidden ones −∞\n\n"
            "There can be fewer queries than keys (the rest is in a cache): then the queries\n"
            "are the LAST Tq of the Tk tokens."
        ),
        (BATCH, HEAD, QUERY, KEY),
    ),
    Part(
        "softmax",
        "softmax",
        "masked_scores",
        N_(
            "Turn the scores of each query into weights that sum to 1.\n\n"
            "masked_scores  (B, H, Tq, Tk)   −∞ where hidden\n"
            "return         (B, H, Tq, Tk)\n\n"
            "Scores can be as large as 1000: exp must not overflow."
        ),
        (BATCH, HEAD, QUERY, KEY),
    ),
    Part(
        "aggregate",
        "aggregate",
        "weights, v",
        N_(
            "Collect what was found: the weighted sum of the values.\n\n"
            "weights  (B, H, Tq, Tk)\n"
            "v        (B, H, Tk, Dv)\n"
            "return   (B, H, Tq, Dv)"
        ),
        (BATCH, HEAD, QUERY, CHANNEL),
    ),
    Part(
        "merge_heads",
        "merge",
        "context",
        N_(
            "Put the heads of every token side by side again: the way back of split_heads.\n\n"
            "context  (B, H, T, Dv)\n"
            "return   (B, T, H·Dv)   the channels of head 0 first"
        ),
        (BATCH, TOKEN, CHANNEL),
    ),
    Part(
        "output",
        "output",
        "merged, w_o",
        N_(
            "Mix the heads and return to the width of the model.\n\n"
            "merged  (B, T, H·Dv)\n"
            "w_o     (H·Dv, D)\n"
            "return  (B, T, D)"
        ),
        (BATCH, TOKEN, CHANNEL),
    ),
    Part(
        "layer",
        "layer",
        "x, w_q, w_k, w_v, w_o, num_heads, keep=None, causal=False, table=None, cos=None, sin=None",
        N_(
            "The whole layer: put your functions together.\n\n"
            "x             (B, T, D)\n"
            "keep, causal  as for apply_mask\n"
            "table         None = no positions are added\n"
            "cos, sin      None = nothing is turned\n"
            "return        (B, T, D)"
        ),
        (BATCH, TOKEN, CHANNEL),
    ),
)
"""In the order of the data."""

HEADER = N_(
    "Attention, written by you.\n\n"
    "Fill in the functions in any order and ask as often as you like:\n\n"
    "    headwise grade {file}\n\n"
    "Each function is compared with the definition by its numbers and by its gradients.\n"
    "While a function raises NotImplementedError, the definition stands in for it, so the\n"
    "others can be graded all the same.\n\n"
    "B batch   T tokens   Tq queries   Tk keys   D width of the model\n"
    "H heads   Dh channels of a query or key head   Dv channels of a value head"
)
"""Docstring of the skeleton."""

WIDTH = 95
"""Longest line of a signature before its arguments are put below each other."""


def find_part(text: str) -> Part:
    """A part by the name of its function or of its stage.

    Raises:
        UsageError: unknown, with the nearest name.

    Example:
        >>> find_part("apply_mask").stage, find_part("mask").name
        ('mask', 'apply_mask')
    """
    for part in PARTS:
        if text in (part.name, part.stage):
            return part
    known = [*(part.name for part in PARTS), *STAGE_NAMES]
    near = did_you_mean(text, known)
    raise UsageError(
        _("there is no function or stage {name!r} to grade").format(name=text),
        fix=_("did you mean {near!r}?").format(near=near)
        if near
        else _("one of {names}").format(names=", ".join(part.name for part in PARTS)),
    )


def skeleton(file: str = "attention.py") -> str:
    """The text of the skeleton in the current language.

    Args:
        file: its name, for the command in its docstring.
    """
    header = _(HEADER).format(file=file)
    pieces = [f'"""{header}\n"""\n\nimport torch\n']
    pieces += [_function(part) for part in PARTS]
    return "\n\n".join(pieces)


def _function(part: Part) -> str:
    line = f"def {part.signature}:"
    if len(line) > WIDTH:
        split = part.arguments.index(", keep")
        first, rest = part.arguments[: split + 1], part.arguments[split + 2 :]
        line = f"def {part.name}(\n    {first}\n    {rest},\n):"
    lines = [f"    {text}".rstrip() for text in _(part.asks).split("\n")]
    lines[0] = f'    """{lines[0].strip()}'
    return "\n".join([line, *lines, '    """', "    raise NotImplementedError\n"])


def write_skeleton(path: Path) -> None:
    """Write the skeleton to a file that does not exist yet.

    Raises:
        UsageError: it exists, is no Python file, or can't be written.
    """
    if path.suffix != ".py":
        raise UsageError(
            _("{path} is not a Python file").format(path=path),
            fix=_("a name that ends in .py, such as {name}").format(name=f"{path.stem}.py"),
        )
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(skeleton(path.name))
    except FileExistsError as error:
        raise UsageError(
            _("{path} exists already").format(path=path),
            why=_("your work is not overwritten"),
            fix=_("another name, or remove the file first"),
        ) from error
    except OSError as error:
        raise UsageError(
            _("can't write {path}").format(path=path),
            why=error.strerror or str(error),
            fix=_("choose another place"),
        ) from error
