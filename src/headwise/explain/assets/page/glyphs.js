// Strings from outside, made visible: a token may hold anything.
//
// Control characters, characters without a shape and characters that reorder a line are written
// out; a space at an end is a mark; the rest is shown as it is, isolated in its own direction.

const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000\u2800]/u;
const PICTURE = /[\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f]/u;
const SYMBOLS = { "\n": "↵", "\t": "⇥", "\u007f": "DEL" };
const CONTROLS = ("NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB "
  + "CAN EM SUB ESC FS GS RS US").split(" ");

function symbol(character) {
  const code = character.codePointAt(0);
  if (SYMBOLS[character]) return SYMBOLS[character];
  if (code < 32) return CONTROLS[code];
  return "U+" + code.toString(16).toUpperCase().padStart(4, "0");
}

// An emoji of several parts is held together by characters that are not seen.
function joins(characters, i) {
  if (i === 0 || !PICTURE.test(characters[i - 1])) return false;
  if (characters[i] === "\ufe0f") return true;
  return characters[i] === "\u200d" && i + 1 < characters.length && PICTURE.test(characters[i + 1]);
}

// Pieces {kind, text}: plain, symbol, space, empty, cut.
function pieces(text, { limit = Infinity, ends = true } = {}) {
  if (text === "") return [{ kind: "empty", text: t("token.empty") }];
  const characters = [...text];
  const found = [];
  const add = (kind, piece) => {
    const last = found[found.length - 1];
    if (last && last.kind === kind && kind === "plain") last.text += piece;
    else found.push({ kind, text: piece });
  };
  let first = 0;
  let stop = characters.length;
  if (ends) {
    while (first < stop && characters[first] === " ") first += 1;
    while (stop > first && characters[stop - 1] === " ") stop -= 1;
  }
  characters.slice(0, limit).forEach((character, i) => {
    if (i < first || i >= stop) add("space", "␣");
    else if (character === " ") add("plain", " ");
    else if (UNSEEN.test(character) && !joins(characters, i)) add("symbol", symbol(character));
    else if (/\p{M}/u.test(character) && (i === first || UNSEEN.test(characters[i - 1]))) add("plain", "◌" + character);
    else add("plain", character);
  });
  if (characters.length > limit) found.push({ kind: "cut", text: "…" });
  return found;
}

// For places that hold text alone: titles, labels, pictures.
function plain(text, limit = 40) {
  return "\u2068" + pieces(text, { limit }).map((piece) => piece.text).join("") + "\u2069";
}

function shown(text, options, holder) {
  const node = el("bdi", { class: holder });
  for (const piece of pieces(text, options)) {
    if (piece.kind === "plain") node.append(piece.text);
    else node.append(el("span", { class: `glyph ${piece.kind}` }, piece.text));
  }
  return node;
}

const tokenText = (index, limit = 40) => shown(data.tokens[index].text, { limit }, "token");
const words = (text) => shown(text, { ends: false }, "words");
const tokenLabel = (index, limit = 40) => `${index} ${plain(data.tokens[index].text, limit)}`;

// Code points of what was written out, for the panel of a token.
function codePoints(text, limit = 24) {
  const codes = [...text].map((c) => "U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0"));
  return codes.slice(0, limit).join(" ") + (codes.length > limit ? " …" : "");
}
