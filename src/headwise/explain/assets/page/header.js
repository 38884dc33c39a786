// What was explained: question, value, predictions, and whether the chosen map may be believed.

const TONES = {
  strong: ["good", "✓"], moderate: ["good", "✓"], weak: ["warn", "!"], chance: ["bad", "✗"],
  opposite: ["bad", "✗"], "too-little": ["quiet", "?"],
};

function verdict(entry, { inWords = true } = {}) {
  const [tone, sign] = TONES[entry.verdict] || ["quiet", "?"];
  const text = inWords && entry.words ? words(entry.words) : t(`verdict.${entry.verdict}`);
  return el("span", { class: `verdict ${tone}` }, el("span", { "aria-hidden": "true" }, sign + " "), text);
}

const KINDS = ["causal", "masked", "classifier", "encoder"];

function modelLine(model) {
  const kind = KINDS.includes(model.kind) ? t(`kind.${model.kind}`) : model.kind;
  const facts = [model.type, kind, model.dtype, model.device];
  if (model.num_layers && model.num_heads) {
    const shared = model.num_kv_heads && model.num_kv_heads !== model.num_heads;
    facts.splice(2, 0, t(shared ? "model.shape.shared" : "model.shape", {
      layers: model.num_layers, heads: model.num_heads, kv: model.num_kv_heads,
    }));
  }
  return el("p", { class: "quiet" }, el("strong", {}, words(model.name || "")), " ",
    words(facts.filter(Boolean).join(" · ")));
}

// Predictions as a list with bars; the length says the probability again.
function predictions(top) {
  return el("ol", { class: "predictions" }, top.map((entry) => el("li", {},
    shown(entry.text, { limit: 24 }, "token"),
    el("span", { class: "bar", "aria-hidden": "true" },
      bar(isNumber(entry.probability) ? entry.probability : 0)),
    el("span", { class: "number" }, percent(entry.probability)),
    el("span", { class: "number quiet" }, t("logit.short", { value: num(entry.logit, 4) })))));
}

function bar(share) {
  const node = el("span", {});
  node.style.width = `${(Math.max(0, Math.min(1, share)) * 100).toFixed(1)}%`;
  return node;
}

function buildHeader() {
  const header = document.querySelector("header");
  const question = data.question;
  header.append(el("h1", {}, question ? words(question.words) : t("title.matrices")));
  if (data.model) header.append(modelLine(data.model));
  if (question && isNumber(question.value)) {
    header.append(el("p", { class: "value" }, el("span", { class: "quiet" }, t("question.value") + " "),
      el("strong", {}, num(question.value, 5))));
  }
  const verdictLine = el("div", { id: "verdict", "aria-live": "polite" });
  header.append(verdictLine);
  watch(["map"], () => {
    const map = mapNamed(state.map);
    const entry = trustOf(state.map);
    verdictLine.replaceChildren();
    verdictLine.hidden = !map;
    if (!map) return;
    verdictLine.append(el("span", { class: "quiet" }, words(map.label), " "));
    if (map.measured) verdictLine.append(t("verdict.measured"));
    else verdictLine.append(entry ? verdict(entry) : el("span", { class: "verdict quiet" }, t("verdict.none")));
  });
  if (question && question.top && question.top.length) {
    header.append(el("h2", { class: "small" }, t("predictions")), predictions(question.top));
  }
}
