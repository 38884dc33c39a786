// Deletion and insertion: the value while tokens leave or return in the order of a map.

const PLOT = { width: 340, height: 210, left: 48, right: 10, top: 10, bottom: 34 };

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

// Tokens taken away at every point; without counts, one more each time.
const countsOf = (curve) => curve.counts || curve.values.map((_, i) => i);

function curvePlot(curve) {
  const series = [curve.values, curve.random, curve.random_low, curve.random_high].map((values) => values || []);
  const all = series.flat().filter(isNumber);
  const low = Math.min(...all);
  const high = Math.max(...all);
  const spread = high - low || Math.abs(high) || 1;
  const [bottom, top] = [low - spread * 0.05, high + spread * 0.05];
  const counts = countsOf(curve);
  const steps = Math.max(1, counts[counts.length - 1]);
  const x = (count) => PLOT.left + (count / steps) * (PLOT.width - PLOT.left - PLOT.right);
  const y = (v) => PLOT.top + ((top - v) / (top - bottom)) * (PLOT.height - PLOT.top - PLOT.bottom);
  const points = (values) => values.map((v, i) => (isNumber(v) ? `${x(counts[i]).toFixed(1)},${y(v).toFixed(1)}` : null)).filter(Boolean);
  const band = [...points(series[2]), ...points(series[3]).reverse()].join(" ");
  const across = [...new Set([0, Math.round(steps / 2), steps])];
  return svg("svg", { viewBox: `0 0 ${PLOT.width} ${PLOT.height}`, class: "plot", role: "img", "aria-label": t("curves.alt", { kind: t(`curve.${curve.kind}`) }) },
    ticks(bottom, top, 4).map((v) => [
      svg("line", { class: "grid", x1: PLOT.left, x2: PLOT.width - PLOT.right, y1: y(v), y2: y(v) }),
      svg("text", { x: PLOT.left - 6, y: y(v) + 4, "text-anchor": "end" }, num(v)),
    ]),
    across.map((i) => svg("text", { x: x(i), y: PLOT.height - PLOT.bottom + 15, "text-anchor": i === steps && steps ? "end" : i ? "middle" : "start" }, String(i))),
    svg("text", { x: (PLOT.left + PLOT.width) / 2, y: PLOT.height - 4, "text-anchor": "middle" }, t(`curve.${curve.kind}.steps`)),
    band ? svg("polygon", { class: "chance", points: band }) : null,
    svg("polyline", { class: "random", points: points(series[1]).join(" ") }),
    svg("polyline", { class: "curve", points: points(series[0]).join(" ") }));
}

const key = (kind, text) => el("span", { class: "key" }, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), text);

function buildCurves(body) {
  const holder = el("div", {});
  body.append(el("p", { class: "quiet" }, t("curves.help")), holder);
  watch(["map"], () => {
    const map = mapNamed(state.map);
    const curves = trust.curves.filter((curve) => curve.map === state.map);
    holder.replaceChildren();
    if (!curves.length) {
      holder.append(el("p", { class: "quiet" }, t("curves.none")));
      return;
    }
    holder.append(el("p", { class: "keys" }, key("curve", words(map.label)), key("random", t("curves.random")), key("chance", t("curves.band"))),
      el("div", { class: "plots" }, curves.map((curve) => el("figure", {},
        el("figcaption", {}, el("strong", {}, t(`curve.${curve.kind}`)), el("br"), words(curve.words || "")),
        curvePlot(curve),
        el("p", { class: "facts" }, t("curve.area", { area: num(curve.area), random: range(curve.random_area, num) })),
        details(t("numbers"), () => table(t(`curve.${curve.kind}`),
          [t("column.step"), t("column.map"), t("column.random"), t("column.random.low"), t("column.random.high")],
          curve.values.map((value, i) => [countsOf(curve)[i], num(value, 4), ...[curve.random, curve.random_low, curve.random_high].map((values) => num((values || [])[i], 4))]),
          { numeric: [0, 1, 2, 3, 4] }))))));
  });
}
