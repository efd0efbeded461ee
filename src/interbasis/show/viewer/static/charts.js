// Small charts as SVG and lists of bars, each with its numbers beside it.

import { el, name, svg } from "./dom.js";
import { decimal, integer } from "./format.js";

// Rows of a name, a bar and a number; with negative values the bars grow from the middle.
export function bars(rows, show = decimal) {
  const largest = Math.max(...rows.map(({ value }) => Math.abs(value)), 1e-300);
  const signed = rows.some(({ value }) => value < 0);
  return el(
    "table",
    { class: signed ? "bars signed" : "bars" },
    rows.map(({ label, value, button, error, beside }) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, button ?? name(label)),
        el("td", { class: "bar" }, bar(value / largest, signed)),
        el(
          "td",
          { class: "number" },
          show(value),
          error !== undefined && error !== null && el("small", {}, ` ± ${show(error, 1)}`),
        ),
        beside && el("td", { class: "share" }, beside),
      ),
    ),
  );
}

function bar(share, signed) {
  const width = `${Math.abs(share) * (signed ? 50 : 100)}%`;
  const left = signed ? `${share < 0 ? 50 - Math.abs(share) * 50 : 50}%` : "0";
  return el("span", { class: share < 0 ? "negative" : "positive", style: { width, left } });
}

const WIDTH = 320;
const HEIGHT = 96;
const FOOT = 16;

function frame(label, ...children) {
  return svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT + FOOT}`, role: "img", "aria-label": label },
    children,
  );
}

function tick(x, text, anchor) {
  return svg("text", { x, y: HEIGHT + 12, "text-anchor": anchor }, text);
}

export function histogram({ edges, counts }) {
  const largest = Math.max(...counts, 1);
  const low = edges[0];
  const high = edges[edges.length - 1];
  const x = (value) => ((value - low) / (high - low || 1)) * WIDTH;
  const zero = low < 0 && high > 0;
  const zeroFits = zero && x(0) > 50 && x(0) < WIDTH - 50;
  return frame(
    `Histogram of activations from ${decimal(low)} to ${decimal(high)}, at most ${integer(largest)} in a bar`,
    counts.map((count, i) => {
      const height = (count / largest) * (HEIGHT - 4);
      return svg("rect", {
        class: "fill",
        x: x(edges[i]),
        y: HEIGHT - height,
        width: Math.max(x(edges[i + 1]) - x(edges[i]) - 0.6, 0.4),
        height,
      });
    }),
    svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
    zero && svg("line", { class: "axis", x1: x(0), x2: x(0), y1: HEIGHT, y2: HEIGHT + 4 }),
    tick(0, decimal(low), "start"),
    zeroFits && tick(x(0), "0", "middle"),
    tick(WIDTH, decimal(high), "end"),
  );
}

// A value at every position of the context.
export function profile(means) {
  const low = Math.min(...means, 0);
  const high = Math.max(...means, 0);
  const x = (position) => (means.length > 1 ? (position / (means.length - 1)) * (WIDTH - 4) + 2 : WIDTH / 2);
  const y = (value) => HEIGHT - 3 - ((value - low) / (high - low || 1)) * (HEIGHT - 14);
  const points = means.map((value, position) => `${x(position).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return frame(
    `Mean activation at ${integer(means.length)} positions, from ${decimal(low)} to ${decimal(high)}`,
    svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: y(0), y2: y(0) }),
    svg("polyline", { class: "line", points }),
    means.length <= 24 &&
      means.map((value, position) => svg("circle", { class: "fill", cx: x(position), cy: y(value), r: 2.2 })),
    svg(
      "text",
      { x: WIDTH, y: 9, "text-anchor": "end" },
      `largest ${decimal(Math.max(...means))}, least ${decimal(Math.min(...means))}`,
    ),
    tick(0, "position 0", "start"),
    tick(WIDTH, String(means.length - 1), "end"),
  );
}
