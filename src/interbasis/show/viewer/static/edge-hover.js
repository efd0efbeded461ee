// Which line is under the pointer, and what it says.

import { isConstant } from "./data.js";
import { el, name } from "./dom.js";
import { strokeWidth } from "./draw.js";
import { becomes, foldedBetween } from "./folding.js";
import { decimal, percent } from "./format.js";

const NEAR = 4;

// The line nearest to a point of the layout: {number, edge}; strong ones are easier to hit. Null where none is near.
export function lineAt(sections, x, y) {
  const number = sections.findIndex(({ left, right }) => x > left && x < right);
  if (number < 0) return null;
  const { left, right, size, from, to, y0, y1, weights } = sections[number];
  const t = (x - left) / (right - left);
  const ease = t * t * (3 - 2 * t);
  let best = null;
  let nearest = NEAR;
  for (let edge = 0; edge < size; edge++) {
    const middle = y0[from[edge]] + (y1[to[edge]] - y0[from[edge]]) * ease;
    const away = Math.max(Math.abs(y - middle) - strokeWidth(weights[edge]) / 2, 0);
    if (away < nearest) {
      nearest = away;
      best = { number, edge };
    }
  }
  return best;
}

// What a line is: its ends, Ê with its error, its share of what comes into the right one, and what it passes through.
export function lineText(view, { number, edge }) {
  const { run, names, columns, sections } = view;
  const [left, right] = [columns[number], columns[number + 1]];
  const section = sections[number];
  const source = left.indices[section.from[edge]];
  const value = section.value[edge];
  const end = (column, index) => [
    el("b", {}, name(run.layers[column.layer].name)),
    " ",
    name(column.merged ? "all outputs" : names.boxed(column.layer, index)),
  ];
  const target = right.indices[section.to[edge]];
  const folded = foldedBetween(left.layer, right.layer).map((layer) => run.layers[layer].name);
  const into = squaresInto(section, section.to[edge]);
  return [
    el("p", {}, end(left, source), " → ", end(right, target)),
    el(
      "p",
      {},
      `Ê = ${decimal(value, 4)}`,
      edgeError(run, left.layer, source, target, right),
      el("small", {}, ` ${percent((value * value) / into)} of the Ê² drawn into it`),
    ),
    folded.length > 0 &&
      el("p", { class: "hint" }, `through ${folded.join(" and ")}, `, through(run, left.layer, right.layer, target)),
    isConstant(run, left.layer, source) && el("p", { class: "hint" }, "from the constant: never ablated"),
  ];
}

function squaresInto({ size, to, value }, row) {
  let sum = 0;
  for (let e = 0; e < size; e++) if (to[e] === row) sum += value[e] ** 2;
  return sum || 1;
}

function edgeError(run, layer, source, target, right) {
  const section = run.sections[layer];
  if (!section.errors || right.merged || right.layer !== layer + 1) return null;
  for (let e = 0; e < section.held; e++) {
    if (section.sources[e] === source && section.targets[e] === target) return ` ± ${decimal(section.errors[e], 1)}`;
  }
  return null;
}

// How much of Ê² the strongest edges hold along the fold.
function through(run, from, to, index) {
  const { target, share } = becomes(run, from, to);
  const shares = share.filter((_, k) => target[k] === index);
  return shares.length ? `along edges with ${percent(Math.max(...shares))} of their features' Ê²` : "";
}
