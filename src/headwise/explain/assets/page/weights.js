// The weights in the file: bytes in text, opened when a head is looked at.

const tokens = data.tokens || [];
const numTokens = tokens.length;
const stored = data.weights || { kept: [], data: {}, row: null, left_out: "" };
const kept = stored.kept || [];
const isCausal = Boolean(data.model && data.model.kind === "causal");
const position = data.question && isNumber(data.question.position) ? data.question.position : null;

function gridSize() {
  const grids = [data.heads && data.heads.ablation_zero, data.heads && data.heads.ablation_mean,
    data.heads && data.heads.decomposition, data.heads && data.heads.detected, data.trust && data.trust.heads];
  let layers = (data.model && data.model.num_layers) || 0;
  let heads = (data.model && data.model.num_heads) || 0;
  for (const grid of grids) {
    if (!grid) continue;
    layers = Math.max(layers, grid.length);
    heads = Math.max(heads, ...grid.map((row) => (row ? row.length : 0)));
  }
  for (const [layer, head] of kept) {
    layers = Math.max(layers, layer + 1);
    heads = Math.max(heads, head + 1);
  }
  return [layers, heads];
}

const [numLayers, numHeads] = gridSize();

function unpack(text) {
  const bytes = atob(text);
  const values = new Uint16Array(bytes.length / 2);
  for (let i = 0; i < values.length; i += 1) {
    values[i] = bytes.charCodeAt(2 * i) | (bytes.charCodeAt(2 * i + 1) << 8);
  }
  return values;
}

const opened = new Map();

// The matrix of a head, row = query, as whole numbers of 1/65535; null if it is not in the file.
function matrixOf(layer, head) {
  const key = `${layer}.${head}`;
  const text = (stored.data || {})[key];
  if (typeof text !== "string") return null;
  if (!opened.has(key)) {
    if (opened.size >= 12) opened.delete(opened.keys().next().value);
    opened.set(key, unpack(text));
  }
  return opened.get(key);
}

const rows = stored.row ? unpack(stored.row) : null;

// Weights of the question's position (or the mean over positions) in a head.
function rowOf(layer, head) {
  const at = (layer * numHeads + head) * numTokens;
  if (!rows || rows.length < at + numTokens) return null;
  return rows.subarray(at, at + numTokens);
}

const weight = (whole) => whole / 65535;
const exact = (whole) => weight(whole).toFixed(5);
const isHidden = (row, column) => isCausal && column > row;

const cellOf = (grid, layer, head) => {
  const value = grid && grid[layer] ? grid[layer][head] : null;
  return value === undefined ? null : value;
};
