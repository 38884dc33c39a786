// Token to token: two columns, a line for every weight, its opacity the weight.

const STEP = 24;
const GAP = 150;
const MOST_LINES = 1500;
const SMALLEST = 0.01;

function showLines(holder, matrix) {
  const readout = el("p", { class: "readout", "aria-live": "polite" }, t("lines.readout"));
  const canvas = svg("svg", { width: GAP, height: numTokens * STEP, viewBox: `0 0 ${GAP} ${numTokens * STEP}`, preserveAspectRatio: "none", class: "threads", "aria-hidden": "true" });
  const side = (kind) => tokens.map((token, index) => el("button", {
    type: "button", class: `thread-token ${kind}`, title: tokenLabel(index, 200),
    "aria-label": t(kind === "from" ? "lines.from" : "lines.to", { token: tokenLabel(index) }),
    onclick: kind === "from" ? () => set({ query: state.query === index ? null : index }) : null,
    onmouseenter: () => light({ [kind]: index }), onfocus: () => light({ [kind]: index }),
    onmouseleave: () => light(), onblur: () => light(),
  }, el("span", { class: "index" }, String(index)), tokenText(index, 60), el("span", { class: "number" })));
  const from = side("from");
  const to = side("to");
  const columnOf = (name, items, label) => {
    const column = el("div", { class: `thread-column ${name}`, role: "group", "aria-label": label }, items);
    roving(column, items, 1);
    return column;
  };
  const count = el("p", { class: "quiet small" });
  const frame = el("div", { class: "threads-frame", tabindex: "-1" },
    el("div", { class: "threads-body" }, columnOf("from", from, t("lines.queries")), canvas, columnOf("to", to, t("lines.keys"))));
  holder.append(
    el("div", { class: "threads-titles quiet", "aria-hidden": "true" }, el("span", {}, t("lines.queries")), el("span", {}, t("lines.keys"))),
    frame, readout, count);

  function light(where = {}) {
    const query = "from" in where ? where.from : "to" in where ? null : state.query;
    const isKey = "to" in where;
    const at = (q, k) => matrix[q * numTokens + k];
    draw(query, isKey ? where.to : null);
    from.forEach((node, q) => mark(node, isKey ? at(q, where.to) : null, q === query));
    to.forEach((node, k) => mark(node, query !== null ? at(query, k) : null, isKey && k === where.to));
    if (query === null && !isKey) readout.replaceChildren(t("lines.readout"));
    else readout.replaceChildren(summary(query, isKey ? where.to : null, at));
  }

  function mark(node, whole, isChosen) {
    node.querySelector(".number").textContent = whole === null ? "" : exact(whole);
    shade(node, whole === null ? null : weight(whole), 1);
    node.classList.toggle("lit", isChosen);
  }

  function summary(query, chosenKey, at) {
    const fixed = query === null ? chosenKey : query;
    const others = tokens.map((_, i) => [i, query === null ? at(i, fixed) : at(fixed, i)])
      .filter(([, whole]) => whole > 0).sort((a, b) => b[1] - a[1]).slice(0, 5);
    const list = el("span", {});
    others.forEach(([i, whole], n) => list.append(n ? ", " : "", tokenText(i, 20), ` (${i}) ${exact(whole)}`));
    return sentence(query === null ? "lines.read.by" : "lines.reads", { token: tokenText(fixed, 20), index: String(fixed), list });
  }

  function draw(query, chosenKey) {
    const found = [];
    let total = 0;
    for (let q = 0; q < numTokens; q += 1) {
      if (query !== null && q !== query) continue;
      for (let k = 0; k < numTokens; k += 1) {
        if (chosenKey !== null && k !== chosenKey) continue;
        const whole = matrix[q * numTokens + k];
        total += whole;
        if (whole) found.push([q, k, whole]);
      }
    }
    const isOne = query !== null || chosenKey !== null;
    const drawn = found.filter(([, , whole]) => isOne || weight(whole) >= SMALLEST).sort((a, b) => b[2] - a[2]).slice(0, MOST_LINES);
    const held = drawn.reduce((sum, [, , whole]) => sum + whole, 0);
    const top = drawn.length ? drawn[0][2] : 0;
    canvas.replaceChildren(...drawn.reverse().map(([q, k, whole]) => thread(q, k, whole, top)));
    count.textContent = t("lines.count", {
      shown: drawn.length, total: found.length, share: total ? percent(held / total) : "0%", top: exact(top),
    });
  }

  function thread(q, k, whole, most) {
    const [top, bottom] = [(q + 0.5) * STEP, (k + 0.5) * STEP];
    const shape = `M0 ${top}C${GAP / 2} ${top} ${GAP / 2} ${bottom} ${GAP} ${bottom}`;
    const share = whole / most;
    const line = svg("path", { d: shape, class: "thread", "stroke-width": (1 + 3 * share).toFixed(2), "stroke-opacity": Math.max(0.04, share).toFixed(3) });
    const hit = svg("path", { d: shape, class: "thread-hit" });
    return svg("g", {
      onmouseenter: (event) => {
        event.currentTarget.classList.add("hot");
        readout.replaceChildren(sentence("pair", { from: tokenText(q, 20), query: String(q), to: tokenText(k, 20), key: String(k), weight: exact(whole) }));
      },
      onmouseleave: (event) => event.currentTarget.classList.remove("hot"),
    }, line, hit);
  }

  repaintLines = () => {
    from.forEach((node, q) => node.setAttribute("aria-pressed", String(q === state.query)));
    light();
  };
  repaintLines();
  if (state.query !== null) frame.scrollTop = Math.max(0, state.query * STEP - frame.clientHeight / 2);
}

let repaintLines = () => {};
