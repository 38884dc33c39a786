// Layers, the parts of the value, and every number of the page as text.

function buildLayers(body) {
  const numbered = trust.layers.map((entry, layer) => [layer, entry]).filter(([, entry]) => entry);
  body.append(table(t("layers.help"),
    [t("column.layer"), "Spearman", t("column.verdict"), t("column.picture"), t("column.interval"), t("column.null")],
    numbered.map(([layer, entry]) => [layer, two(entry.spearman), verdict(entry, { inWords: false }), agreementPicture(entry), range(entry.interval), range(entry.null)]),
    { numeric: [1, 4, 5] }));
}

// A bar to the right of the middle for plus, to the left for minus.
function diverging(value, top) {
  const node = el("span", { class: value < 0 ? "part minus" : "part plus" });
  const share = isNumber(value) && top ? (Math.abs(value) / top) * 50 : 0;
  node.style.width = `${share.toFixed(2)}%`;
  node.style.left = `${(value < 0 ? 50 - share : 50).toFixed(2)}%`;
  return el("span", { class: "diverging", "aria-hidden": "true" }, node);
}

function buildParts(body) {
  const parts = data.decomposition;
  const attention = parts.attention || [];
  const mlp = parts.mlp || [];
  const lone = [["embedding", parts.embedding], ["constant", parts.constant]].filter(([, value]) => isNumber(value));
  const top = largest([...attention, ...mlp, ...lone.map(([, value]) => value)]);
  const cell = (value) => (isNumber(value) ? el("span", { class: "part-cell" }, el("span", { class: "number" }, signed(value)), diverging(value, top)) : "");
  const layers = Array.from({ length: Math.max(attention.length, mlp.length) }, (_, i) => i);
  body.append(
    el("p", { class: "quiet" }, t("parts.help")),
    el("p", { class: "facts" }, t("parts.sum", { sum: num(parts.sum, 5), value: num(parts.value, 5), gap: num(parts.gap, 2) })),
    table(t("parts.lone"), [t("column.part"), t("column.adds")], lone.map(([name, value]) => [t(`part.${name}`), cell(value)])),
    table(t("parts.layers"), [t("column.layer"), t("part.attention"), t("part.mlp")],
      layers.map((i) => [i, cell(attention[i]), cell(mlp[i])])));
}

function buildNumbers(body) {
  const effects = data.interventions || [];
  const maps = estimates;
  body.append(details(t("numbers.open"), () => table(t("numbers.title"),
    ["#", t("column.token"), ...maps.map((map) => words(map.label)), ...effects.map((effect) => words(effect.label))],
    tokens.map((token, i) => [i, tokenText(i, 60), ...maps.map((map) => num(map.scores[i], 4)), ...effects.map((effect) => signed(effect.effect[i], 4))]),
    { numeric: [...maps, ...effects].map((_, i) => i + 2) })));
  if (Object.keys(shows).some((name) => shows[name])) body.append(details(t("numbers.heads"), headNumbers));
}

function headNumbers() {
  const names = Object.keys(shows).filter((name) => shows[name]);
  const all = Array.from({ length: numLayers * numHeads }, (_, i) => [Math.floor(i / numHeads), i % numHeads]);
  return table(t("numbers.heads"), [t("column.head"), ...names.map((name) => t(`show.${name}`)), t("column.verdict"), t("column.patterns")],
    all.map(([l, h]) => {
      const entry = cellOf(trust && trust.heads, l, h);
      return [`${l}.${h}`, ...names.map((name) => num(shows[name](l, h))), entry ? t(`verdict.${entry.verdict}`) : "·", words(detectedIn(l, h).map(patternLabel).join(", "))];
    }), { numeric: names.map((_, i) => i + 1) });
}

function buildNotes(body) {
  const notes = data.notes || [];
  if (location.protocol !== "about:") body.append(el("p", { class: "quiet" }, t("address")));
  if (notes.length) body.append(el("ul", {}, notes.map((note) => el("li", {}, words(note)))));
  if (data.repeat) body.append(el("h3", {}, t("repeat")), el("pre", { tabindex: "0" }, el("code", {}, words(data.repeat))));
  const facts = [["headwise", data.headwise].filter(Boolean).join(" ")];
  if (isNumber(data.seed)) facts.push(t("seed", { seed: data.seed }));
  if (isNumber(data.elapsed_s)) facts.push(t("elapsed", { seconds: num(data.elapsed_s) }));
  body.append(el("p", { class: "quiet" }, words(facts.join(" · "))));
}
