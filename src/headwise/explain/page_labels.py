"""Labels of the page of an explanation, by the keys that its scripts use."""

from __future__ import annotations

from collections.abc import Mapping

from headwise.texts import mark as N_

LABELS: Mapping[str, str] = {
    # the page
    "failed": N_("A part of this page could not be shown: {error}"),
    "no-script": N_("This page needs JavaScript. All of it is inside this file: no network."),
    "theme": N_("light or dark"),
    "close": N_("close"),
    "numbers": N_("All numbers"),
    "range": N_("{low} to {high}"),
    # the question
    "title": N_("Explanation"),
    "title.matrices": N_("Attention weights without a question"),
    "model.shape": N_("{layers} layers of {heads} heads"),
    "model.shape.shared": N_("{layers} layers of {heads} heads over {kv} for keys and values"),
    "kind.causal": N_("causal"),
    "kind.masked": N_("masked"),
    "kind.classifier": N_("classifier"),
    "kind.encoder": N_("encoder"),
    "question.value": N_("value"),
    "predictions": N_("Predictions"),
    "logit.short": N_("logit {value}"),
    # verdicts
    "verdict.strong": N_("strong agreement"),
    "verdict.moderate": N_("moderate agreement"),
    "verdict.weak": N_("weak agreement"),
    "verdict.chance": N_("no better than chance"),
    "verdict.opposite": N_("says the opposite"),
    "verdict.too-little": N_("too little data"),
    "verdict.none": N_("not tested against interventions"),
    "verdict.measured": N_("This is the measurement itself."),
    # tokens
    "tokens.title": N_("The text"),
    "tokens.help": N_(
        "Choose a token to see what becomes of the value without it. Arrow keys move between "
        "tokens."
    ),
    "tokens.help.plain": N_("Choose a token to read its numbers. Arrow keys move between tokens."),
    "tokens.none": N_("There are no tokens in this file."),
    "tokens.numbers": N_("numbers below the tokens"),
    "token.empty": N_("(empty)"),
    "token.place": N_("token {index} of {total}, counted from 0"),
    "token.id": N_("id {id}"),
    "token.special": N_("added by the tokenizer"),
    "legend.colour": N_("Colour:"),
    "legend.signed": N_("blue promotes the answer; orange, hatched suppresses it"),
    "legend.underline": N_("line below: measured effect, {effect} (dashed = suppresses)"),
    "legend.asked": N_("framed: the position of the question"),
    # the panel of a token
    "panel.how": N_("Without the token:"),
    "panel.value": N_("value"),
    "panel.effect": N_("effect {effect}"),
    "effect.promotes": N_("The token promotes the answer."),
    "effect.suppresses": N_("The token suppresses the answer."),
    "effect.nothing": N_("The token changes nothing."),
    "effect.unknown": N_("This was not measured."),
    "panel.predictions": N_("Predictions with the token and without it"),
    "panel.outside": N_("not in the list"),
    "panel.scores": N_("This token in every map"),
    "rank": N_("{rank} of {total}"),
    # columns
    "column.token": N_("token"),
    "column.before": N_("with: probability, logit"),
    "column.after": N_("without: probability, logit"),
    "column.change": N_("change of the logit"),
    "column.map": N_("map"),
    "column.score": N_("score"),
    "column.rank": N_("rank by size"),
    "column.step": N_("tokens"),
    "column.random": N_("random, mean"),
    "column.random.low": N_("random, low"),
    "column.random.high": N_("random, high"),
    "column.weight": N_("weight"),
    "column.layer": N_("layer"),
    "column.head": N_("head"),
    "column.interval": N_("interval"),
    "column.null": N_("chance alone"),
    "column.picture": N_("from -1 to 1"),
    "column.verdict": N_("verdict"),
    "column.part": N_("part"),
    "column.adds": N_("adds"),
    "column.patterns": N_("patterns"),
    # maps
    "maps.title": N_("Which map, and may it be believed?"),
    "maps.help": N_(
        "Every map claims which tokens matter. The number is its rank agreement (Spearman) with "
        "what happened when the tokens were really taken away, on this very text."
    ),
    "maps.untested": N_(
        "Nothing was taken away on this text, so there is no measure of how far these maps may be "
        "believed."
    ),
    "maps.drawing": N_(
        "The line runs from -1 to 1. Grey: what shuffled scores give. Thick: interval of the "
        "agreement. Dot: the agreement."
    ),
    "map.measured": N_("measured: {effect}"),
    "map.reference": N_("what the maps are compared with"),
    "map.other": N_("a second measurement"),
    "map.promises": N_("What it promises"),
    "figure.smallest_row_sum": N_("smallest sum of a row"),
    "figure.largest_row_sum": N_("largest sum of a row"),
    "figure.sum": N_("sum of the scores"),
    "figure.gap": N_("gap"),
    "figure.change": N_("change from the baseline"),
    "figure.at_baseline": N_("value at the baseline"),
    "figure.cuts": N_("edges cut one by one"),
    "figure.before": N_("value before"),
    "figure.total": N_("sum of all parts"),
    "figure.value": N_("value"),
    "map.notes": N_("What to know about it"),
    "map.numbers": N_(
        "Spearman {spearman}, interval {interval}; chance alone {null}; Kendall {kendall}; p {p}; "
        "{n} tokens"
    ),
    "adjusted": N_("p {p} after correction for {family} maps judged together"),
    "errors.title": N_("Sign errors"),
    "errors.none": N_("No token stands out in this map while it suppresses the answer."),
    "errors.one": N_("{token} ({index}) holds {share} of this map, but its effect is {effect}"),
    "errors.here": N_("sign error"),
    # curves
    "curves.title": N_("Taking tokens away in the order of the map"),
    "curves.help": N_(
        "A map that finds what matters changes the value sooner than a random order does."
    ),
    "curves.none": N_("There are no curves for this map."),
    "curves.random": N_("random order, mean"),
    "curves.band": N_("random order, range"),
    "curves.alt": N_("{kind}: value against the number of tokens; the numbers are in the table"),
    "curve.deletion": N_("Deletion"),
    "curve.insertion": N_("Insertion"),
    "curve.deletion.steps": N_("tokens taken away"),
    "curve.insertion.steps": N_("tokens put back"),
    "curve.area": N_("area {area}; random order {random}"),
    # heads
    "heads.title": N_("Heads"),
    "grid.title": N_("Layers down, heads across"),
    "grid.corner": N_("layer"),
    "grid.help": N_(
        "Layers run down, heads across, counted from 0. Arrow keys move, Enter opens a head."
    ),
    "grid.show": N_("Show:"),
    "grid.readout": N_("Point at a head to read its numbers."),
    "grid.nothing": N_("No head has a known pattern on this text."),
    "grid.unsure": N_("no colour, dotted: no better than chance, or too little data"),
    "grid.chance": N_(
        "{found} of {total} heads have p below 0.05; chance alone gives about {expected}."
    ),
    "show.agreement": N_("agreement"),
    "show.ablation_zero": N_("effect of zeroing"),
    "show.ablation_mean": N_("effect of averaging"),
    "show.decomposition": N_("direct share"),
    "show.weights": N_("weights"),
    "show.agreement.help": N_("rank agreement of the weights of a head with the interventions"),
    "show.ablation_zero.help": N_(
        "value minus value with the output of the head set to zero; plus = the head promotes"
    ),
    "show.ablation_mean.help": N_(
        "value minus value with the output of the head set to its mean; plus = the head promotes"
    ),
    "show.decomposition.help": N_("what the head adds to the value directly"),
    "show.weights.help": N_(
        "weights of every head, query down, key across; a strip is one row, where the file has no "
        "more"
    ),
    "head.name": N_("Layer {layer}, head {head}"),
    "head.none": N_("No head is chosen."),
    "head.previous": N_("previous head"),
    "head.next": N_("next head"),
    "head.p": N_("p {p}: {verdict}"),
    "head.patterns": N_("patterns: {patterns}"),
    "head.absent": N_("The weights of this head are not in the file."),
    "row.mean": N_("Mean weight over all queries, the largest first"),
    "row.asked": N_("Weights of query {index} {token}, the largest first"),
    "view": N_("View:"),
    "view.lines": N_("lines"),
    "view.matrix": N_("matrix"),
    "lines.queries": N_("query: reads"),
    "lines.keys": N_("key: is read"),
    "lines.from": N_("query {token}"),
    "lines.to": N_("key {token}"),
    "lines.readout": N_("Point at a token or a line; click a query to keep it."),
    "lines.reads": N_("{token} ({index}) reads {list}"),
    "lines.read.by": N_("{token} ({index}) is read by {list}"),
    "lines.count": N_(
        "{shown} of {total} weights above zero are drawn; they hold {share} of their sum. "
        "The darkest line is {top}."
    ),
    "matrix.help": N_(
        "Query down, key across. Arrow keys move, + and - zoom, drag moves a zoomed picture."
    ),
    "matrix.readout": N_("Point at a cell to read its weight."),
    "matrix.root": N_("colour grows with the square root of the weight"),
    "zoom.in": N_("zoom in"),
    "zoom.out": N_("zoom out"),
    "zoom.fit": N_("whole"),
    "pair": N_("{from} ({query}) reads {to} ({key}): {weight}"),
    "pair.hidden": N_("{from} ({query}) can't see {to} ({key}), which comes later: {weight}"),
    # layers, parts, numbers, notes
    "layers.title": N_("Agreement by layer"),
    "layers.help": N_("The weights of a layer, mean of its heads, against the interventions."),
    "parts.title": N_("What the value is made of"),
    "parts.help": N_(
        "Attention, MLPs and embedding write into one sum, so the value splits into what each adds."
    ),
    "parts.sum": N_("sum of the parts {sum}; value {value}; gap {gap}"),
    "parts.lone": N_("Outside the layers"),
    "parts.layers": N_("By layer"),
    "part.embedding": N_("embedding"),
    "part.constant": N_("constant"),
    "part.attention": N_("attention"),
    "part.mlp": N_("MLP"),
    "numbers.open": N_("Every token in every map"),
    "numbers.title": N_("Scores and effects"),
    "numbers.heads": N_("Every head"),
    "notes.title": N_("Notes"),
    "repeat": N_("To repeat this"),
    "address": N_("The address of this page holds what is chosen: copy it to link to a view."),
    "seed": N_("seed {seed}"),
    "elapsed": N_("{seconds} s"),
}
"""English texts; `headwise.explain.page.page_texts` gives them in the current language."""
