// All weights of a head on a canvas: zoom, drag, arrow keys; the cell under the pointer in words.

let repaintMatrix = () => {};

function showMatrix(holder, matrix) {
  repaintLines = () => {};
  const top = matrix.reduce((most, whole) => Math.max(most, whole), 0);
  const readout = el("p", { class: "readout", "aria-live": "polite" }, t("matrix.readout"));
  const canvas = el("canvas", { class: "matrix", tabindex: "0", role: "application", "aria-label": t("matrix.help") });
  const press = (factor) => () => zoom(factor);
  holder.append(
    el("p", { class: "quiet small" }, t("matrix.help")),
    el("div", { class: "matrix-tools" },
      el("button", { type: "button", class: "quiet-button", "aria-label": t("zoom.in"), onclick: press(1.5) }, "+"),
      el("button", { type: "button", class: "quiet-button", "aria-label": t("zoom.out"), onclick: press(1 / 1.5) }, "-"),
      el("button", { type: "button", class: "quiet-button", onclick: () => { view.cell = 0; draw(); } }, t("zoom.fit")),
      scaleLegend(weight(top), { root: true }), el("span", { class: "quiet small" }, t("matrix.root"))),
    el("div", { class: "matrix-frame" }, canvas), readout);

  const view = { cell: 0, x: 0, y: 0 };
  let chosen = state.query !== null ? [state.query, 0] : null;
  let picture = null;
  let size = null;

  function measure() {
    const width = Math.max(220, canvas.parentElement.clientWidth);
    const labels = Math.min(width * 0.28, 110);
    const room = width - labels - 2;
    const whole = Math.min(room, Math.max(240, Math.min(window.innerHeight * 0.75, 640)));
    return { labels, whole, fit: Math.min(whole / numTokens, 34) };
  }

  function draw() {
    size = measure();
    if (!view.cell) Object.assign(view, { cell: size.fit, x: 0, y: 0 });
    view.fitted = Math.abs(view.cell - size.fit) < 1e-6;
    const colours = palette();
    picture = picture || pictureOf(numTokens, (q, k) => strength(matrix[q * numTokens + k], top), isHidden, colours);
    const extent = view.cell * numTokens;
    const side = Math.min(size.whole, extent);
    view.x = Math.max(0, Math.min(view.x, extent - side));
    view.y = Math.max(0, Math.min(view.y, extent - side));
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [size.labels + side + 1, size.labels + side + 1];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.style.touchAction = extent > side + 1 ? "none" : "auto";
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.save();
    pen.beginPath();
    pen.rect(size.labels, size.labels, side, side);
    pen.clip();
    pen.imageSmoothingEnabled = view.cell < 1;
    pen.drawImage(picture, size.labels - view.x, size.labels - view.y, extent, extent);
    if (view.cell >= 12) ruled(pen, side, colours);
    pen.restore();
    pen.strokeStyle = colours.line;
    pen.strokeRect(size.labels + 0.5, size.labels + 0.5, side - 1, side - 1);
    labelled(pen, side, colours);
    if (chosen) framed(pen, side, colours);
  }

  function ruled(pen, side, colours) {
    pen.strokeStyle = colours.line;
    pen.lineWidth = 0.5;
    pen.beginPath();
    for (let i = 0; i <= numTokens; i += 1) {
      const [x, y] = [size.labels - view.x + i * view.cell, size.labels - view.y + i * view.cell];
      pen.moveTo(x, size.labels); pen.lineTo(x, size.labels + side);
      pen.moveTo(size.labels, y); pen.lineTo(size.labels + side, y);
    }
    pen.stroke();
  }

  // Labels stand at least a line apart: every one, every second, every fifth, …
  function labelled(pen, side, colours) {
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * view.cell >= 14) || 2000;
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    const cut = (text) => {
      let shownText = text;
      while (shownText.length > 1 && pen.measureText(shownText).width > size.labels - 12) shownText = [...shownText].slice(0, -2).join("") + "…";
      return shownText;
    };
    for (let i = 0; i < numTokens; i += every) {
      const middle = (i + 0.5) * view.cell;
      const text = cut(pieces(tokens[i].text, { limit: 24 }).map((piece) => piece.text).join("") + (every > 1 || numTokens > FEW ? ` ${i}` : ""));
      if (middle - view.y >= 0 && middle - view.y <= side) {
        pen.textAlign = "right";
        pen.fillStyle = chosen && chosen[0] === i ? colours.ink : colours.soft;
        pen.fillText(text, size.labels - 6, size.labels + middle - view.y);
      }
      if (middle - view.x >= 0 && middle - view.x <= side) {
        pen.save();
        pen.translate(size.labels + middle - view.x, size.labels - 6);
        pen.rotate(-Math.PI / 2);
        pen.textAlign = "left";
        pen.fillStyle = chosen && chosen[1] === i ? colours.ink : colours.soft;
        pen.fillText(text, 0, 0);
        pen.restore();
      }
    }
  }

  function framed(pen, side, colours) {
    const [x, y] = [chosen[1] * view.cell - view.x, chosen[0] * view.cell - view.y];
    pen.save();
    pen.beginPath();
    pen.rect(size.labels - 3, size.labels - 3, side + 6, side + 6);
    pen.clip();
    pen.strokeStyle = colours.mark;
    pen.lineWidth = 2;
    const box = Math.max(view.cell, 5);
    pen.strokeRect(size.labels + x - (box - view.cell) / 2, size.labels + y - (box - view.cell) / 2, box, box);
    pen.restore();
  }

  function zoom(factor, about = null) {
    const before = view.cell;
    const centre = about || { x: Math.min(size.whole, before * numTokens) / 2, y: Math.min(size.whole, before * numTokens) / 2 };
    view.cell = Math.max(size.fit, Math.min(40, before * factor));
    const grown = view.cell / before;
    view.x = (view.x + centre.x) * grown - centre.x;
    view.y = (view.y + centre.y) * grown - centre.y;
    draw();
  }

  function choose(q, k) {
    chosen = [q, k];
    const whole = matrix[q * numTokens + k];
    const fields = { from: tokenText(q, 30), query: String(q), to: tokenText(k, 30), key: String(k), weight: exact(whole) };
    readout.replaceChildren(sentence(isHidden(q, k) ? "pair.hidden" : "pair", fields));
    draw();
  }

  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - size.labels, event.clientY - box.top - size.labels];
    const [k, q] = [Math.floor((x + view.x) / view.cell), Math.floor((y + view.y) / view.cell)];
    return x < 0 || y < 0 || k >= numTokens || q >= numTokens ? null : [q, k];
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY };
    canvas.setPointerCapture(event.pointerId);
    const cell = cellAt(event);
    if (cell) choose(...cell);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && !view.fitted) {
      view.x -= event.clientX - drag.x;
      view.y -= event.clientY - drag.y;
      drag = { x: event.clientX, y: event.clientY };
      draw();
      return;
    }
    const cell = cellAt(event);
    if (cell && String(cell) !== String(chosen)) choose(...cell);
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { drag = null; });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the wheel alone scrolls the page
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, { x: event.clientX - box.left - size.labels, y: event.clientY - box.top - size.labels });
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (move) {
      event.preventDefault();
      const inside = (i) => Math.max(0, Math.min(numTokens - 1, i));
      const [q, k] = chosen || [0, 0];
      const [down, along] = chosen ? [inside(q + move[0]), inside(k + move[1])] : [0, 0];
      reveal(down, along);
      choose(down, along);
    }
  });

  function reveal(q, k) {
    const side = Math.min(size.whole, view.cell * numTokens) - view.cell;
    view.x = Math.max(k * view.cell - side, Math.min(view.x, k * view.cell));
    view.y = Math.max(q * view.cell - side, Math.min(view.y, q * view.cell));
  }

  repaintMatrix = (isTheme) => {
    if (!canvas.isConnected) return;
    if (isTheme) picture = null;
    else if (view.fitted) view.cell = 0; // another width, and still the whole
    draw();
  };
  draw();
  if (chosen) choose(...chosen);
}
