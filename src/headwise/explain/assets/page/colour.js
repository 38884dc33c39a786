// Two hues that colour-blind readers tell apart: blue for plus, orange for minus. A sign is never
// shown by colour alone: minus is also hatched or dashed, and its number stands beside it.

function shade(node, value, top, strongest = 0.5) {
  if (!isNumber(value) || !top) {
    node.style.backgroundColor = "";
    node.classList.remove("minus");
    return;
  }
  const share = Math.min(Math.abs(value) / top, 1);
  const alpha = (share * strongest).toFixed(3);
  node.style.backgroundColor = `rgba(var(--${value < 0 ? "minus" : "plus"}), ${alpha})`;
  node.style.setProperty("--hatch", (0.1 + 0.4 * share).toFixed(3));
  node.classList.toggle("minus", value < 0);
}

// Colours for a canvas, as numbers.
function palette() {
  const style = getComputedStyle(root);
  const triple = (name) => style.getPropertyValue(name).split(",").map(Number);
  const plainColour = (name) => style.getPropertyValue(name).trim();
  return {
    paper: triple("--paper-rgb"), plus: triple("--plus"), closed: triple("--closed"),
    ink: plainColour("--ink"), soft: plainColour("--soft"), mark: plainColour("--focus"),
    line: plainColour("--line"),
  };
}

// Weights are spread over decades: the square root keeps the small ones visible.
const strength = (weight, top) => (top ? Math.sqrt(weight / top) : 0);

function pictureOf(size, value, isClosed, colours) {
  const canvas = el("canvas", { width: size, height: size });
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  for (let row = 0, at = 0; row < size; row += 1) {
    for (let column = 0; column < size; column += 1, at += 4) {
      const ground = isClosed(row, column) ? colours.closed : colours.paper;
      const alpha = value(row, column);
      for (let part = 0; part < 3; part += 1) {
        image.data[at + part] = ground[part] + (colours.plus[part] - ground[part]) * alpha;
      }
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function scaleLegend(top, { both = false, root: isRoot = false } = {}) {
  return el("div", { class: "scale" },
    el("span", { class: "number" }, both ? num(-top) : "0"),
    el("span", { class: both ? "ramp both" : isRoot ? "ramp rooted" : "ramp", "aria-hidden": "true" }),
    el("span", { class: "number" }, (both ? "+" : "") + num(top)));
}
