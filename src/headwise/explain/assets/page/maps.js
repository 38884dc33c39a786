// Which map to look at, what it promises, and how far interventions agree with it.

const trust = data.trust || null;

const effectOf = (name) => (data.interventions || []).find((effect) => effect.name === name) || null;
const trustOf = (name) => ((trust && trust.maps) || []).find((entry) => entry.name === name) || null;
const signErrors = () => (trust && trust.sign_errors) || [];

// Maps to choose from: those of the file, then the measured effects themselves.
const estimates = (data.maps || []).filter((map) => !effectOf(map.name));
const choices = [
  ...estimates,
  ...(data.interventions || []).map((effect) => ({
    promises: [], notes: [], ...(data.maps || []).find((map) => map.name === effect.name),
    name: effect.name, label: t("map.measured", { effect: effect.label }),
    scores: effect.effect, signed: true, measured: effect.name,
  })),
];
const mapNamed = (name) => choices.find((map) => map.name === name) || null;

// Agreement on a line from -1 to 1: grey is what chance alone gives, the bar is the interval.
function agreementPicture(entry) {
  const x = (value) => (Math.max(-1, Math.min(1, value)) + 1) * 95 + 5;
  const pair = (range) => Array.isArray(range) && range.every(isNumber);
  return svg("svg", { viewBox: "0 0 200 26", class: "agreement", "aria-hidden": "true" },
    pair(entry.null) ? svg("rect", { class: "chance", x: x(entry.null[0]), y: 3, height: 20, width: Math.max(1, x(entry.null[1]) - x(entry.null[0])) }) : null,
    svg("line", { class: "axis", x1: 5, x2: 195, y1: 13, y2: 13 }),
    [-1, 0, 1].map((at) => svg("line", { class: "axis", x1: x(at), x2: x(at), y1: at ? 9 : 3, y2: at ? 17 : 23 })),
    pair(entry.interval) ? svg("line", { class: "interval", x1: x(entry.interval[0]), x2: x(entry.interval[1]), y1: 13, y2: 13 }) : null,
    isNumber(entry.spearman) ? svg("circle", { class: "dot", cx: x(entry.spearman), cy: 13, r: 5 }) : null);
}

function range(pair, format = two) {
  return Array.isArray(pair) ? t("range", { low: format(pair[0]), high: format(pair[1]) }) : "·";
}

function agreementNumbers(entry) {
  return el("span", { class: "numbers" },
    el("strong", {}, two(entry.spearman)), " ", el("span", { class: "quiet" }, range(entry.interval)));
}

function untested(map) {
  if (!map.measured) return "verdict.none";
  return trust && trust.reference === map.measured ? "map.reference" : "map.other";
}

function buildMaps(body) {
  body.append(el("p", { class: "quiet" }, t(trust ? "maps.help" : "maps.untested")));
  const inputs = [];
  const list = el("fieldset", { class: "maps" }, el("legend", { class: "hidden" }, t("maps.title")));
  for (const map of choices) {
    const entry = trustOf(map.name);
    const input = el("input", { type: "radio", name: "map", value: map.name, onchange: () => set({ map: map.name }) });
    inputs.push(input);
    list.append(el("label", { class: "map" }, input, el("span", { class: "label" }, words(map.label)),
      entry ? agreementPicture(entry) : el("span", {}),
      entry ? agreementNumbers(entry) : el("span", {}),
      entry ? verdict(entry, { inWords: false }) : el("span", { class: "quiet" }, t(untested(map)))));
  }
  const chosen = el("div", { class: "chosen", "aria-live": "polite" });
  body.append(list, trust ? el("p", { class: "quiet small" }, t("maps.drawing")) : "", chosen);
  watch(["map"], () => {
    inputs.forEach((input) => { input.checked = input.value === state.map; });
    paintChosen(chosen, mapNamed(state.map), trustOf(state.map));
  });
}

function paintChosen(chosen, map, entry) {
  chosen.replaceChildren();
  if (!map) return;
  chosen.append(el("h3", {}, words(map.label)));
  if (entry) {
    chosen.append(el("p", {}, verdict(entry)), el("p", { class: "facts" }, t("map.numbers", {
      spearman: two(entry.spearman), interval: range(entry.interval), null: range(entry.null),
      kendall: two(entry.kendall), p: num(entry.p, 2), n: num(entry.n),
    }), isNumber(entry.p_adjusted) && entry.family > 1
      ? "; " + t("adjusted", { p: num(entry.p_adjusted, 2), family: entry.family }) : ""));
  }
  const figures = Object.entries(map.figures || {}).map(([name, value]) => `${t(`figure.${name}`)} ${num(value, 4)}`);
  if (figures.length) chosen.append(el("p", { class: "facts quiet" }, words(figures.join(" · "))));
  const list = (title, items) => (items && items.length
    ? chosen.append(el("h4", {}, title), el("ul", {}, items.map((text) => el("li", {}, words(text))))) : null);
  list(t("map.promises"), map.promises);
  list(t("map.notes"), map.notes);
  if (trust && !map.measured) paintErrors(chosen, map);
}

// Tokens that the map shows as important although the value rises without them.
function paintErrors(chosen, map) {
  const errors = signErrors().filter((error) => error.map === map.name);
  chosen.append(el("h4", {}, t("errors.title")));
  if (!errors.length) {
    chosen.append(el("p", { class: "quiet" }, t("errors.none")));
    return;
  }
  chosen.append(el("ul", { class: "errors" }, errors.map((error) => el("li", {},
    el("button", { type: "button", class: "link", onclick: () => { set({ token: error.token }); chips[error.token].focus(); } },
      sentence("errors.one", {
        token: tokens[error.token] ? tokenText(error.token) : String(error.token), index: String(error.token),
        share: percent(error.share), effect: signed(error.effect),
      }))))));
}
