// One head: what was measured about it, and its weights as lines or as a matrix.

function buildHead(body) {
  const title = el("h3", { id: "head-title", tabindex: "-1" });
  const step = (by) => () => {
    if (!state.head) return;
    const at = state.head[0] * numHeads + state.head[1] + by;
    const all = numLayers * numHeads;
    const next = (at + all) % all;
    set({ head: [Math.floor(next / numHeads), next % numHeads] });
  };
  const facts = el("p", { class: "facts", "aria-live": "polite" });
  const holder = el("div", {});
  body.append(el("div", { class: "bar-of-title" }, title,
    el("span", {},
      el("button", { type: "button", class: "quiet-button", "aria-label": t("head.previous"), onclick: step(-1) }, "←"), " ",
      el("button", { type: "button", class: "quiet-button", "aria-label": t("head.next"), onclick: step(1) }, "→"))),
  facts, holder);
  watch(["head", "view"], () => paintHead(title, facts, holder));
}

function paintHead(title, facts, holder) {
  holder.replaceChildren();
  if (!state.head) {
    title.textContent = t("head.none");
    facts.textContent = "";
    return;
  }
  const [layer, head] = state.head;
  title.textContent = t("head.name", { layer, head });
  facts.textContent = headFacts(layer, head).join(" · ");
  const matrix = matrixOf(layer, head);
  if (matrix) {
    holder.append(segments(t("view"), "view", [["lines", t("view.lines")], ["matrix", t("view.matrix")]], state.view,
      (view) => { set({ view }); holder.querySelector("input[name=view]:checked").focus(); }));
    if (state.view === "matrix") showMatrix(holder, matrix);
    else showLines(holder, matrix);
    return;
  }
  holder.append(el("p", { class: "quiet" }, words(stored.left_out || t("head.absent"))));
  const row = rowOf(layer, head);
  if (row) holder.append(rowList(row));
}

// What is in the file of a head whose matrix is not: one row, the strongest first.
function rowList(row) {
  const order = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 20);
  const caption = position === null ? t("row.mean") : t("row.asked", { index: position, token: plain(tokens[position].text) });
  return table(caption, [t("column.token"), t("column.weight"), ""],
    order.map((k) => [el("span", {}, el("span", { class: "quiet" }, `${k} `), tokenText(k)), exact(row[k]),
      el("span", { class: "bar", "aria-hidden": "true" }, bar(weight(row[k])))]), { numeric: [1] });
}
