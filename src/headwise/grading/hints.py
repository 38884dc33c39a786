"""Hints: where to think, never what to write. One per fault that a learner's function can have."""

from __future__ import annotations

from collections.abc import Mapping

from headwise.grading.diagnose import Diagnosis
from headwise.texts import mark as N_
from headwise.texts import translate as _

HINTS: Mapping[str, str] = {
    # ------------------------------------------------------------------ input, projection
    "R16": N_(
        "Compare a token before and after your function: how often was the row of the table added "
        "to it?"
    ),
    "P01": N_(
        "Your queries are the keys of the definition and the other way round. Which matrix makes "
        "which, and in which order are the three results returned?"
    ),
    "P02": N_(
        "What you return as keys are the values, and the other way round. Look at the order in "
        "which the three results are returned."
    ),
    "P03": N_("The three results are right and change places. In which order are they returned?"),
    "P04": N_(
        "A weight is applied on its wrong side. Write down the shapes of both factors: which two "
        "axes have to meet? Square weights hide this."
    ),
    # ------------------------------------------------------------------ heads
    "H01": N_(
        "Every number is there, in the wrong place. In memory the channels of token 0 come first, "
        "then those of token 1: whose numbers does head 0 get if the block is simply read in "
        "another shape? Which two axes still have to change places?"
    ),
    "H02": N_(
        "A head must own a run of neighbouring channels; yours takes one channel here and one "
        "there. Of the two axes that you cut the channels into, which one is the slower?"
    ),
    "H06": N_(
        "Heads of different samples are mixed. Try a batch of one: is it right there? Then look "
        "at the order of the batch and the head axis."
    ),
    "H07": N_("Which axis is the batch, and which is time? Two of them have changed places."),
    "G01": N_(
        "Every number is there, in the wrong place. In memory all tokens of head 0 come first; the "
        "result needs all heads of token 0 first. What has to happen before the last two axes can "
        "become one?"
    ),
    "G02": N_(
        "The channels of one head must stay neighbours; yours are shuffled like cards. Look at the "
        "order of the last two axes before they become one."
    ),
    # ------------------------------------------------------------------ positions
    "R01": N_("Which two channels form a pair? You turn other partners than the text asks for."),
    "R04": N_("What is turned decides how well tokens match. Should the content be turned too?"),
    "R05": N_("Only one side is turned. A distance needs two positions: whose are they?"),
    "R06": N_("Pairs and angles do not belong together: which angle does channel i get?"),
    "R09": N_(
        "The turn goes backwards somewhere. A rotation has two lines: which sign stands in each?"
    ),
    "R17": N_("Nothing is turned. Does the rotated tensor reach the place where it is used?"),
    # ------------------------------------------------------------------ scores
    "S01": N_(
        "The numbers are too large, and the more so the longer the vectors are. What does the "
        "course divide by, and why?"
    ),
    "S02": N_(
        "You divide by the root of a size, but of the wrong one. How many products are added up in "
        "one score: as many as the model is wide, or fewer?"
    ),
    "S03": N_("The scores are too small: is the scale there twice, or is a root missing?"),
    "S04": N_("The scale goes in the wrong direction: should scores shrink or grow?"),
    "S05": N_(
        "You take a size from the wrong axis. A score is a sum over one axis of q: which one?"
    ),
    "S06": N_("The values take no part in a score. Whose length counts here?"),
    "S07": N_(
        "The scale is a fixed number. It has to follow from the sizes of what comes in: from which?"
    ),
    # ------------------------------------------------------------------ mask
    "M01": N_(
        "Real tokens are hidden and padding is shown. What does True mean in keep, and what does "
        "your function do where it is True?"
    ),
    "M02": N_(
        "The padding mask lies along the wrong axis: it blanks rows of queries and hides no key. "
        "Of (B, H, Tq, Tk), which axis are the keys? Where must the axes of length 1 stand?"
    ),
    "M03": N_(
        "The padding mask lies along the heads: it only fits where there are as many heads as "
        "tokens. Of (B, H, Tq, Tk), which axis are the keys? Where must the axes of length 1 stand?"
    ),
    "M04": N_(
        "The padding mask has no effect. Is it applied, and is the result of applying it used?"
    ),
    "M05": N_("Queries see the future although causal is True. Where does it enter?"),
    "M06": N_(
        "Off by one: a query sees the next token as well. What does your triangle do on the "
        "diagonal, and what just above it?"
    ),
    "M07": N_(
        "Off by one: a query does not see itself, and the first one sees nothing. What does your "
        "triangle do on the diagonal?"
    ),
    "M08": N_(
        "With a cache the first of your queries is not token 0. Number the keys from 0: which "
        "number does the last query have? And the first?"
    ),
    "M09": N_(
        "Past and future are exchanged. Does your triangle say what is visible or what is hidden?"
    ),
    "M10": N_("The future is hidden although nobody asked for it: look at what causal says."),
    "M12": N_(
        "Add up a row of weights: it is less than 1. A hidden key has taken part in the sum of the "
        "softmax; when would it have to leave?"
    ),
    "M13": N_("A hidden score of 0 is not hidden: what is exp(0)? Which score gives the weight 0?"),
    "M14": N_(
        "A hidden key keeps a real weight: what is exp of the number that you fill in? Look at its "
        "exponent and its sign."
    ),
    "M15": N_(
        "hidden scores are a number that large real scores can come near; −∞ is below all of them"
    ),
    "M16": N_(
        "Adding a mask of zeros and ones moves a score by 1 and hides nothing. Which number would "
        "have to be added?"
    ),
    "M17": N_("One mask replaces the other. What must hold for a key to be visible: one, or both?"),
    "M18": N_(
        "A sample is masked with the padding of another one. Which axis of keep is the batch?"
    ),
    "M25": N_("keep speaks about keys. What happens to the rows of queries is another matter."),
    "M26": N_("a query that sees nothing gives NaN; the definition gives it the weights 0"),
    "M27": N_(
        "a query that sees nothing gets weights all the same; the definition gives it the weights 0"
    ),
    # ------------------------------------------------------------------ softmax, aggregate, output
    "X01": N_(
        "Add up the weights along each axis: where is the sum 1? It has to be 1 for each query, "
        "over its keys."
    ),
    "X02": N_(
        "Add up the weights of one query over its keys: it is not 1. Which axis did you "
        "normalise over?"
    ),
    "X03": N_("Each head has to be normalised by itself; yours share one sum."),
    "X04": N_(
        "exp of a large score is infinite, and ∞/∞ is not a number. The weights do not change if "
        "the same number is subtracted from a whole row: which one keeps exp small?"
    ),
    "X05": N_("How often is the softmax taken: never, once, twice? Are the weights positive?"),
    "A01": N_(
        "A query must collect with its own row of weights; yours collects with its column. Check "
        "which axis of the weights meets the time axis of v."
    ),
    "A02": N_("What is handed over when a key was found: the key, or something else?"),
    "O01": N_("The result is the merged heads, as they came in: what about w_o?"),
    "O03": N_("The input itself is part of the result. Whose task is it to add it: the layer's?"),
    # ------------------------------------------------------------------ gradients, precision
    "T01": N_(
        "The numbers are right, but nothing can be learned through them: somewhere the path of the "
        "gradient is cut."
    ),
    "D02": N_("exact to about seven digits only: something is computed in float32"),
    "B02": N_("an argument is changed in place; the caller may still need it"),
    # ------------------------------------------------------------------ our own
    "axes": N_(
        "The numbers are right and the axes stand in another order than the text asks for: shape "
        "by shape, which axis should come where?"
    ),
    "factor": N_("Everything is right up to a factor ({factor} here). Which size does it hang on?"),
}
"""By code of the catalogue, or by one of ``axes``, ``factor``. M15, M26, M27, D02 and B02 are
remarks."""

STAGE_HINTS: Mapping[str, str] = {
    "input": N_("Follow one token: which row of the table belongs to it?"),
    "projection": N_("Three products of the same tokens. Write the shapes of both factors beside "
                     "each other."),
    "split": N_("Follow one number: token 1, first channel of head 1. Where is it in x, and where "
                "in your result?"),
    "positions": N_("Follow one pair of channels of token 1 by hand, with one angle."),
    "scores": N_("Compute one score by hand: query 0 with key 1, product by product."),
    "mask": N_("Print which entries are −∞, as a table of queries and keys, for one sample."),
    "softmax": N_("Take one row of three numbers and compute it by hand."),
    "aggregate": N_("Take weights that are 1 for one key, 0 for the others: what must come out?"),
    "merge": N_("Merging what split_heads returns must give back what it was given."),
    "output": N_("Write the shapes of both factors beside each other: which axes have to meet?"),
    "layer": N_("Each function takes what the one before it returned. Follow one tensor from line "
                "to line, and look at what is applied to q, to k and to v."),
}  # fmt: skip
"""Where the numbers fit nothing in the catalogue."""

GRADIENT_HINT = N_(
    "The numbers are right and their gradient is not: look for a part that is treated as a "
    "constant, or for a backward pass of your own."
)
VIEW_HINT = N_(
    "A transposed tensor still lies in memory in its old order, so it can't simply be viewed in "
    "another shape. Section 5 of the course says what has to come first, and why."
)
SCORES_HINT = N_(
    "Every batch and every head by itself: which two of the four axes of k change places, and "
    "which two stay?"
)
SHAPE_HINT = N_("Print the shape after every line and compare with the text of the function.")


def hint(stage: str, diagnosis: Diagnosis | None) -> str:
    """The hint for wrong numbers of a stage, in the current language."""
    if diagnosis is not None and diagnosis.code in HINTS:
        return _(HINTS[diagnosis.code]).format(**diagnosis.fields)
    return _(STAGE_HINTS[stage])


def hint_for_exception(stage: str, text: str) -> str:
    """The hint for a function that raises; "" where the message says it all."""
    if "RuntimeError" not in text:
        return ""
    if "view size is not compatible" in text:
        return _(VIEW_HINT)
    return _(SCORES_HINT) if stage == "scores" else _(SHAPE_HINT)
