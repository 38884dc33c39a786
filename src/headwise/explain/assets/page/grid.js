// All heads at once: layers down, heads across, one quantity as colour and number.

const GLYPHS = ["◆", "▲", "●", "■", "★", "✚", "▼", "◐", "▣", "✦"];
const headData = data.heads || {};

function quantities() {
  const found = {};
  const trusted = trust && trust.heads;
  if (trusted && trusted.some((row) => row && row.some(Boolean))) {
    found.agreement = (l, h) => (cellOf(trusted, l, h) || {}).spearman;
  }
  for (const name of ["ablation_zero", "ablation_mean", "decomposition"]) {
    if (headData[name]) found[name] = (l, h) => cellOf(headData[name], l, h);
  }
  if (kept.length || rows) found.weights = null;
  return found;
}

const shows = quantities();

const detectedIn = (layer, head) => cellOf(headData.detected, layer, head) || [];
const patternNames = [...new Set((headData.detected || []).flat(2).filter(Boolean))];
const patternLabel = (name) => (headData.labels && headData.labels[name]) || name;
const glyphOf = (name) => GLYPHS[patternNames.indexOf(name) % GLYPHS.length];

function headFacts(layer, head) {
  const facts = [];
  for (const [name, read] of Object.entries(shows)) {
    if (!read) continue;
    const value = read(layer, head);
    facts.push(`${t(`show.${name}`)}: ${name === "agreement" ? two(value) : signed(value)}`);
    const entry = name === "agreement" ? cellOf(trust.heads, layer, head) : null;
    if (entry) {
      const adjusted = isNumber(entry.p_adjusted) && entry.family > 1
        ? ", " + t("adjusted", { p: num(entry.p_adjusted, 2), family: entry.family }) : "";
      facts.push(t("head.p", { p: num(entry.p, 2) + adjusted, verdict: t(`verdict.${entry.verdict}`) }));
    }
  }
  const found = detectedIn(layer, head);
  if (found.length) facts.push(t("head.patterns", { patterns: found.map((n) => `${glyphOf(n)} ${patternLabel(n)}`).join(", ") }));
  return facts;
}

function buildGrid(body) {
  const names = Object.keys(shows);
  const readout = el("p", { class: "readout", "aria-live": "polite" }, t("grid.readout"));
  const cells = [];
  const head = el("div", { role: "row", class: "row" }, el("span", { role: "columnheader", class: "corner" }, t("grid.corner")),
    Array.from({ length: numHeads }, (_, h) => el("span", { role: "columnheader" }, String(h))));
  const grid = el("div", { class: "grid", role: "grid", "aria-label": t("grid.title"), "aria-rowcount": numLayers + 1, "aria-colcount": numHeads + 1 }, head);
  grid.style.setProperty("--heads", numHeads);
  for (let layer = 0; layer < numLayers; layer += 1) {
    const line = el("div", { role: "row", class: "row" }, el("span", { role: "rowheader" }, String(layer)));
    for (let h = 0; h < numHeads; h += 1) {
      const about = () => [t("head.name", { layer, head: h }), ...headFacts(layer, h)].join(" · ");
      const cell = el("span", {
        role: "gridcell", class: "cell", "aria-selected": "false",
        onclick: () => set({ head: [layer, h] }),
        onkeydown: (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          set({ head: [layer, h] });
        },
        onfocus: () => { readout.textContent = about(); },
        onmouseenter: () => { readout.textContent = about(); },
      });
      cells.push({ node: cell, layer, h, about });
      line.append(cell);
    }
    grid.append(line);
  }
  roving(grid, cells.map((cell) => cell.node), numHeads);
  body.append(el("p", { class: "quiet" }, t("grid.help")));
  if (names.length > 1) {
    body.append(segments(t("grid.show"), "show", names.map((name) => [name, t(`show.${name}`)]), state.show, (show) => set({ show })));
  }
  const legend = el("div", { class: "legend" });
  body.append(legend, readout, el("div", { class: "scroll" }, grid), patternKey());
  watch(["show", "theme"], () => paintGrid(cells, legend));
  watch(["head"], () => cells.forEach(({ node, layer, h }) => {
    const isChosen = String([layer, h]) === String(state.head);
    node.setAttribute("aria-selected", String(isChosen));
  }));
}

function patternKey() {
  if (!patternNames.length) return headData.detected ? el("p", { class: "quiet" }, t("grid.nothing")) : "";
  const count = (name) => headData.detected.flat().filter((found) => found && found.includes(name)).length;
  return el("p", { class: "keys" }, patternNames.map((name) => el("span", { class: "key" },
    el("span", { class: "glyph-mark", "aria-hidden": "true" }, glyphOf(name)), words(patternLabel(name)),
    el("span", { class: "quiet" }, ` (${count(name)})`))));
}

function paintGrid(cells, legend) {
  const read = shows[state.show];
  const isAgreement = state.show === "agreement";
  const top = isAgreement ? 1 : read ? largest(cells.map(({ layer, h }) => read(layer, h))) : 0;
  const colours = palette();
  for (const { node, layer, h, about } of cells) {
    node.replaceChildren();
    node.setAttribute("aria-label", about());
    node.title = about();
    if (read) {
      const value = read(layer, h);
      const isUnsure = isAgreement && ["chance", "too-little"].includes((cellOf(trust.heads, layer, h) || {}).verdict);
      shade(node, isUnsure ? null : value, top); // a number that chance explains gets no colour
      node.classList.toggle("unsure", isUnsure);
      const text = isNumber(value) ? (isAgreement ? two(value) : short(value)) : "·";
      node.append(el("span", { class: "cell-number" }, text.replace(/^(-?)0\./, "$1.")));
    } else {
      shade(node, null, 0);
      node.classList.remove("unsure");
      node.append(thumbnail(layer, h, colours));
    }
    const found = detectedIn(layer, h);
    if (found.length) node.append(el("span", { class: "marks", "aria-hidden": "true" }, found.map(glyphOf).join("")));
  }
  legend.replaceChildren();
  if (read) legend.append(scaleLegend(top, { both: true }), el("span", { class: "quiet" }, t(`show.${state.show}.help`)));
  else legend.append(el("span", { class: "quiet" }, t("show.weights.help")));
  if (isAgreement) legend.append(el("span", { class: "quiet" }, t("grid.unsure")), el("span", { class: "quiet" }, chanceLine()));
}

const short = (value) => (Math.abs(value) >= 10 ? String(Math.round(value)) : Math.abs(value) >= 1 ? value.toFixed(1) : two(value));

// With hundreds of heads some agree by luck: how many do, and how many luck alone gives.
function chanceLine() {
  const measured = trust.heads.flat().filter((entry) => entry && isNumber(entry.p));
  const low = measured.filter((entry) => entry.p < 0.05).length;
  return t("grid.chance", { found: low, total: measured.length, expected: num(measured.length * 0.05) });
}

// A small picture: the largest weight of every patch, or the row of the question as a strip.
function thumbnail(layer, head, colours) {
  const matrix = matrixOf(layer, head);
  const row = matrix ? null : rowOf(layer, head);
  if (!matrix && !row) return el("span", { class: "quiet" }, "·");
  const size = Math.min(numTokens, 28);
  const patches = new Float32Array(size * size);
  const place = (i) => Math.floor((i * size) / numTokens);
  let top = 0;
  for (let q = 0; q < numTokens; q += 1) {
    for (let k = 0; k < numTokens; k += 1) {
      const at = place(q) * size + place(k);
      patches[at] = Math.max(patches[at], matrix ? matrix[q * numTokens + k] : row[k]);
      top = Math.max(top, patches[at]);
    }
  }
  const picture = pictureOf(size, (r, c) => strength(patches[r * size + c], top), (r, c) => Boolean(matrix) && isHidden(r, c), colours);
  picture.className = matrix ? "thumbnail" : "thumbnail strip";
  picture.setAttribute("aria-hidden", "true");
  return picture;
}
