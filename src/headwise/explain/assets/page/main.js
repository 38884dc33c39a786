// Puts the parts together from what the file holds; a part that is not there is left out.

function wholeNumber(text, below) {
  return /^\d{1,7}$/.test(text) && Number(text) < below ? Number(text) : undefined;
}

function firstHead() {
  const sizes = headData.ablation_mean || headData.ablation_zero || headData.decomposition;
  const size = ([layer, head]) => Math.abs(cellOf(sizes, layer, head) || 0);
  if (kept.length) return kept.reduce((best, pair) => (size(pair) > size(best) ? pair : best));
  return numLayers && numHeads ? [0, 0] : null;
}

function declareChoices() {
  const effects = data.interventions || [];
  const showNames = Object.keys(shows);
  const known = (names) => (text) => (names.includes(text) ? text : undefined);
  const reference = trust && effectOf(trust.reference) ? trust.reference : effects.length ? effects[0].name : null;
  choice("map", choices.length ? choices[0].name : null, known(choices.map((map) => map.name)));
  choice("head", firstHead(), (text) => {
    const [layer, head] = text.split(".");
    const pair = [wholeNumber(layer, numLayers), wholeNumber(head || "", numHeads)];
    return pair.includes(undefined) ? undefined : pair;
  });
  choice("token", null, (text) => wholeNumber(text, numTokens));
  choice("query", numTokens > 32 ? (position === null ? 0 : position) : null, (text) => wholeNumber(text, numTokens));
  choice("view", "lines", known(["lines", "matrix"]));
  choice("show", showNames.length ? showNames[0] : null, known(showNames));
  choice("how", reference, known(effects.map((effect) => effect.name)));
  choice("theme", null, known(["light", "dark"]));
}

function build() {
  declareChoices();
  Object.assign(state, readAddress());
  watch(["theme"], () => {
    if (state.theme) root.dataset.theme = state.theme;
    else delete root.dataset.theme;
  }); // first, because pictures are painted in its colours
  guarded(buildHeader);
  section("tokens", t("tokens.title"), buildTokens);
  if (choices.length) section("maps", t("maps.title"), buildMaps);
  if (trust && trust.curves && trust.curves.length) section("curves", t("curves.title"), buildCurves);
  if (numLayers && numHeads && Object.keys(shows).length) {
    section("heads", t("heads.title"), (body) => {
      const [left, right] = [el("div", { class: "grid-side" }), el("div", { class: "head-side" })];
      body.append(el("div", { class: numHeads > 16 ? "sides stacked" : "sides" }, left, right));
      buildGrid(left);
      if (kept.length || rows) buildHead(right);
      else right.remove();
    });
  }
  if (trust && trust.layers && trust.layers.some(Boolean)) section("layers", t("layers.title"), buildLayers);
  if (data.decomposition) section("parts", t("parts.title"), buildParts);
  if (numTokens && (choices.length || data.heads)) section("numbers", t("numbers"), buildNumbers);
  section("notes", t("notes.title"), buildNotes);
  watch(["query"], () => repaintLines());
  watch(["theme"], () => repaintMatrix(true));
  themeButton();
  refresh(Object.keys(state));
  window.addEventListener("hashchange", () => set(readAddress()));
  window.addEventListener("resize", () => guarded(() => repaintMatrix(false)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => refresh(["theme"]));
}

function themeButton() {
  const isDark = () => (state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  document.querySelector("header").append(el("button", {
    type: "button", class: "quiet-button theme", "aria-label": t("theme"), title: t("theme"),
    onclick: () => set({ theme: isDark() ? "light" : "dark" }),
  }, "◐"));
}

guarded(build);
document.body.dataset.ready = String(!document.body.dataset.error);
