// State, texts and elements: what every part of the page uses.

const data = JSON.parse(document.getElementById("payload").textContent);
const root = document.documentElement;

// -- texts ------------------------------------------------------------------------------------

function t(key, fields = {}) {
  const text = data.texts[key];
  if (typeof text !== "string") throw new Error(`no text for ${key}`);
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in fields ? String(fields[name]) : whole));
}

// The same with elements in the place of fields, so that a token keeps its own direction.
function sentence(key, fields = {}) {
  const span = el("span");
  for (const piece of t(key).split(/(\{\w+\})/)) {
    const name = piece.startsWith("{") ? piece.slice(1, -1) : "";
    span.append(name in fields ? fields[name] : piece);
  }
  return span;
}

// -- numbers ----------------------------------------------------------------------------------

const isNumber = (value) => typeof value === "number";

function num(value, digits = 3) {
  if (!isNumber(value)) return "·";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(digits - 1).replace("e+", "e");
  if (size >= 10 ** digits) return String(Math.round(value));
  return String(Number(value.toPrecision(digits)));
}

const signed = (value, digits = 3) => (value > 0 ? "+" : "") + num(value, digits);
const two = (value) => (isNumber(value) ? value.toFixed(2).replace(/^-(0\.00)$/, "$1") : "·");
const percent = (value) => (isNumber(value) ? num(value * 100) + "%" : "·");
const largest = (values) => values.reduce((top, v) => (isNumber(v) ? Math.max(top, Math.abs(v)) : top), 0);

// -- elements: text enters through nodes of text alone ----------------------------------------

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function table(caption, columns, rows, { numeric = [], heads = true } = {}) {
  const cell = (tag, content, index, scope) =>
    el(tag, { class: numeric.includes(index) ? "number" : null, scope }, content);
  // The caption stands outside, so that it does not scroll away with a wide table.
  return el("div", {}, el("p", { class: "caption", "aria-hidden": "true" }, caption), el("div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { "aria-label": caption },
      el("thead", {}, el("tr", {}, columns.map((text, i) => cell("th", text, i, "col")))),
      el("tbody", {}, rows.map((row) => el("tr", {},
        row.map((content, i) => (heads && i === 0 ? cell("th", content, i, "row") : cell("td", content, i)))))))));
}

// Long tables are made when somebody opens them.
function details(summary, build) {
  const node = el("details", {}, el("summary", {}, summary));
  node.addEventListener("toggle", () => { if (node.open && node.children.length === 1) node.append(build()); });
  return node;
}

function segments(label, name, options, current, choose) {
  const inputs = options.map(([value, text]) => el("label", { class: "segment" },
    el("input", { type: "radio", name, value, checked: value === current, onchange: () => choose(value) }),
    el("span", {}, text)));
  return el("fieldset", { class: "segments" }, el("legend", {}, label), inputs);
}

// Arrow keys move the focus among the children of a group; Tab leaves it.
function roving(group, items, columns) {
  items.forEach((item, i) => { item.tabIndex = i === 0 ? 0 : -1; });
  const focus = (index) => {
    if (!items[index]) return;
    items.forEach((item, i) => { item.tabIndex = i === index ? 0 : -1; });
    items[index].focus();
  };
  group.addEventListener("keydown", (event) => {
    const at = items.indexOf(event.target);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const start = at - (at % columns);
    const to = {
      ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + columns, ArrowUp: at - columns,
      Home: columns === 1 ? 0 : start,
      End: (columns === 1 ? items.length : Math.min(start + columns, items.length)) - 1,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    focus(to);
  });
  group.addEventListener("focusin", (event) => {
    const at = items.indexOf(event.target);
    if (at >= 0) items.forEach((item, i) => { item.tabIndex = i === at ? 0 : -1; });
  });
}

// -- state: what is chosen, kept in the address so that a view can be linked to ----------------

const state = {};
const defaults = {};
const readers = {};
const watchers = [];

function choice(name, initial, read) {
  state[name] = defaults[name] = initial;
  readers[name] = read;
}

function watch(names, run) {
  watchers.push({ names, run });
}

function refresh(names) {
  for (const watcher of watchers) {
    if (watcher.names.some((name) => names.includes(name))) guarded(watcher.run);
  }
}

function set(changes) {
  const changed = Object.keys(changes).filter((name) => String(changes[name]) !== String(state[name]));
  Object.assign(state, changes);
  if (!changed.length) return;
  refresh(changed);
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value !== null && String(value) !== String(defaults[name])) {
      words.set(name, Array.isArray(value) ? value.join(".") : value);
    }
  }
  try {
    history.replaceState(null, "", "#" + words);
  } catch {
    // A page inside another page has no address of its own; the choice holds all the same.
  }
}

function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const changes = {};
  for (const [name, read] of Object.entries(readers)) {
    const value = words.has(name) ? read(words.get(name)) : defaults[name];
    changes[name] = value === undefined ? defaults[name] : value;
  }
  return changes;
}

// -- failures are shown, and stop only the part they are in -----------------------------------

function report(error) {
  const message = error && error.stack ? error.stack : String(error);
  document.body.dataset.error = [document.body.dataset.error, message].filter(Boolean).join("\n");
  document.getElementById("failure").hidden = false;
  document.getElementById("failure").textContent = t("failed", { error: String(error) });
}

window.addEventListener("error", (event) => report(event.error || event.message));
window.addEventListener("unhandledrejection", (event) => report(event.reason));

function guarded(run) {
  try {
    return run();
  } catch (error) {
    report(error);
    return null;
  }
}

function section(id, title, build) {
  const body = el("section", { id, "aria-labelledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title));
  document.querySelector("main").append(body);
  guarded(() => build(body));
}
