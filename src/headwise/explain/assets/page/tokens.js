// The text as chips: colour of the chosen map, click for what happens without a token.

const FEW = 64;
const chips = [];

function buildTokens(body) {
  if (!numTokens) {
    body.append(el("p", { class: "quiet" }, t("tokens.none")));
    return;
  }
  const help = t(data.interventions && data.interventions.length ? "tokens.help" : "tokens.help.plain");
  const list = el("div", { class: "chips", role: "group", "aria-label": help });
  tokens.forEach((token, index) => {
    const chip = el("button", {
      type: "button", class: "chip" + (token.special ? " special" : ""), "aria-pressed": "false",
      onclick: () => set({ token: state.token === index ? null : index }),
    }, tokenText(index), el("span", { class: "score", "aria-hidden": "true" }));
    chips.push(chip);
    list.append(chip);
  });
  roving(list, chips, 1);
  const legend = el("div", { class: "legend" });
  const check = el("input", {
    type: "checkbox", checked: numTokens <= FEW,
    onchange: () => list.classList.toggle("numbers", check.checked),
  });
  list.classList.toggle("numbers", check.checked);
  body.append(el("p", { class: "quiet" }, help), list, legend);
  if (choices.length) body.append(el("label", { class: "toggle" }, check, " ", t("tokens.numbers")));
  const panel = el("div", { id: "panel", role: "region", "aria-live": "polite", hidden: true });
  body.append(panel);
  watch(["map"], () => paintChips(legend));
  watch(["token"], () => chips.forEach((chip, i) => chip.setAttribute("aria-pressed", String(i === state.token))));
  watch(["token", "how"], () => paintPanel(panel));
}

function paintChips(legend) {
  const map = mapNamed(state.map);
  legend.replaceChildren();
  const top = map ? largest(map.scores) : 0;
  const effect = effectOf(state.how);
  const strongest = effect ? largest(effect.effect) : 0;
  chips.forEach((chip, i) => {
    const score = map ? map.scores[i] : null;
    shade(chip, score, top);
    chip.querySelector(".score").textContent = map ? (map.signed ? signed(score, 2) : num(score, 2)) : "";
    const parts = [tokenLabel(i, 200)];
    if (map) parts.push(`${map.label}: ${num(score, 4)}`);
    if (effect) parts.push(`${effect.label}: ${signed(effect.effect[i], 4)}`);
    chip.setAttribute("aria-label", parts.join("; "));
    chip.title = parts.join("\n");
    underline(chip, effect ? effect.effect[i] : null, strongest);
    chip.classList.toggle("asked", i === position);
  });
  if (!map) return;
  legend.append(el("span", {}, t("legend.colour") + " ", words(map.label)), scaleLegend(top, { both: map.signed }));
  const entry = trustOf(map.name);
  if (entry) legend.append(verdict(entry, { inWords: false }));
  if (map.signed) legend.append(el("span", { class: "quiet" }, t("legend.signed")));
  if (effect && !map.measured) {
    legend.append(el("span", { class: "quiet" }, t("legend.underline", { effect: effect.label })));
  }
  if (position !== null) legend.append(el("span", { class: "quiet" }, t("legend.asked")));
}

function underline(chip, value, top) {
  const shareOf = isNumber(value) && top ? Math.abs(value) / top : 0;
  const hue = value < 0 ? "minus" : "plus";
  chip.style.borderBottomColor = shareOf ? `rgba(var(--${hue}), ${(0.15 + 0.85 * shareOf).toFixed(3)})` : "";
  chip.style.borderBottomStyle = shareOf && value < 0 ? "dashed" : "";
}

// -- the panel of a token -----------------------------------------------------------------------

function paintPanel(panel) {
  const index = state.token;
  panel.hidden = index === null;
  panel.replaceChildren();
  if (index === null) return;
  const token = tokens[index];
  const facts = [t("token.place", { index, total: numTokens })];
  if (isNumber(token.id)) facts.push(t("token.id", { id: token.id }));
  if (token.special) facts.push(t("token.special"));
  facts.push(codePoints(token.text));
  panel.append(
    el("div", { class: "bar-of-title" },
      el("h3", {}, shown(token.text, { limit: 200 }, "token")),
      el("button", { type: "button", class: "quiet-button", onclick: () => closePanel(index) }, t("close"))),
    el("p", { class: "quiet facts" }, facts.join(" · ")));
  const effects = data.interventions || [];
  if (effects.length) {
    if (effects.length > 1) {
      panel.append(segments(t("panel.how"), "how", effects.map((e) => [e.name, words(e.label)]), state.how,
        (name) => { set({ how: name }); panel.querySelector("input[name=how]:checked").focus(); }));
    }
    panel.append(afterwards(effectOf(state.how), index));
  }
  panel.append(scoresOf(index));
}

function closePanel(index) {
  set({ token: null });
  chips[index].focus();
}

function afterwards(effect, index) {
  const change = effect.effect[index];
  const after = effect.after ? effect.after[index] : null;
  const before = data.question ? data.question.value : null;
  const box = el("div", {});
  const direction = !isNumber(change) ? "effect.unknown" : change > 0 ? "effect.promotes" : change < 0 ? "effect.suppresses" : "effect.nothing";
  box.append(el("p", { class: "change" },
    el("span", { class: "quiet" }, t("panel.value") + " "),
    el("strong", {}, num(before, 5)), " → ", el("strong", {}, num(after ? after.value : null, 5)),
    el("span", {}, " (", t("panel.effect", { effect: signed(change, 4) }), ") "),
    el("span", { class: "direction" }, t(direction))));
  if (after && after.top && after.top.length) box.append(compared(data.question.top, after.top));
  return box;
}

// Two lists of predictions as one table; what is only in one of them is said to be so.
function compared(before, after) {
  const key = (entry) => `${entry.id} ${entry.text}`;
  const old = new Map(before.map((entry) => [key(entry), entry]));
  const fresh = new Map(after.map((entry) => [key(entry), entry]));
  const order = [...fresh.values(), ...before.filter((entry) => !fresh.has(key(entry)))];
  const outside = () => el("span", { class: "quiet" }, t("panel.outside"));
  const rowsOf = order.map((entry) => {
    const was = old.get(key(entry));
    const is = fresh.get(key(entry));
    return [
      shown(entry.text, { limit: 32 }, "token"), was ? both(was) : outside(), is ? both(is) : outside(),
      was && is ? signed(is.logit - was.logit) : "·",
    ];
  });
  return table(t("panel.predictions"),
    [t("column.token"), t("column.before"), t("column.after"), t("column.change")], rowsOf, { numeric: [1, 2, 3] });
}

const both = (entry) => el("span", {}, percent(entry.probability), " ",
  el("span", { class: "quiet small" }, num(entry.logit, 4)));

function scoresOf(index) {
  const all = estimates;
  if (!all.length) return el("div");
  const errors = signErrors();
  return details(t("panel.scores"), () => table(t("panel.scores"),
    [t("column.map"), t("column.score"), t("column.rank"), ""],
    all.map((map) => [
      words(map.label), num(map.scores[index], 4), rankOf(map.scores, index),
      errors.some((e) => e.map === map.name && e.token === index) ? t("errors.here") : "",
    ]), { numeric: [1, 2] }));
}

function rankOf(scores, index) {
  const size = (value) => (isNumber(value) ? Math.abs(value) : -1);
  if (!isNumber(scores[index])) return "·";
  const rank = 1 + scores.filter((value) => size(value) > size(scores[index])).length;
  return t("rank", { rank, total: scores.length });
}
