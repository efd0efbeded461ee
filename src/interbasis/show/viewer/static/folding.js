// Layer norms are folded away: their layers are left out, and an edge into one is followed to the next layer shown,
// along the strongest edge of every feature on the way.

import { isIsolated } from "./data.js";

// Which layers have a column: all but those that are folded and that nobody asked for.
export function shownLayers(run, state, wanted) {
  const from = Math.min(Math.max(state.get("from"), 0), run.last);
  const to = Math.min(Math.max(state.get("to"), from), run.last);
  const opened = new Set(openedLayers(state));
  const all = Array.from({ length: to - from + 1 }, (_, k) => from + k).filter(
    (layer) => layer < run.last || state.get("output") !== "hide",
  );
  const shown = all.filter(
    (layer) => state.get("norms") || !run.layers[layer].folded || opened.has(layer) || wanted(layer).length,
  );
  return shown.length > 1 ? shown : all;
}

export function openedLayers(state) {
  return state.get("open").split(".").filter(Boolean).map(Number);
}

// The layers between two columns that are folded away.
export function foldedBetween(left, right) {
  return Array.from({ length: Math.max(right - left - 1, 0) }, (_, k) => left + 1 + k);
}

// For every feature of layer `from + 1`, the feature of layer `to` that it becomes, -1 where it is lost, and the share
// of Ê² that the strongest edges hold on the way.
export function becomes(run, from, to) {
  const key = `${from}>${to}`;
  run.becomes ??= new Map();
  if (!run.becomes.has(key)) run.becomes.set(key, followed(run, from + 1, to));
  return run.becomes.get(key);
}

function followed(run, first, last) {
  const size = run.layers[first].size;
  const target = Int32Array.from({ length: size }, (_, index) => index);
  const share = new Float32Array(size).fill(1);
  for (let layer = first; layer < last; layer++) {
    const step = strongest(run, layer);
    for (let index = 0; index < size; index++) {
      const here = target[index];
      if (here < 0) continue;
      target[index] = step.target[here];
      share[index] *= step.share[here];
    }
  }
  return { target, share };
}

// Where a feature's strongest edge leads. The variance goes to all, so it is followed nowhere.
function strongest(run, layer) {
  const section = run.sections[layer];
  const target = new Int32Array(run.layers[layer].size).fill(-1);
  const share = new Float32Array(target.length);
  for (let e = 0; e < section.held; e++) {
    const source = section.sources[e];
    if (target[source] >= 0 || isIsolated(run, layer, source)) continue;
    target[source] = section.targets[e];
    share[source] = (section.values[e] / (section.into_all[source] || 1)) ** 2;
  }
  return { target, share };
}

// Edges of a feature to another layer, through what is folded between: {rows, count, sum}, strongest first.
export function neighboursThrough(run, from, to, index, side) {
  const section = run.sections[from];
  const { target, share } = becomes(run, from, to);
  const rows = new Map();
  for (let e = 0; e < section.held; e++) {
    const [source, end] = [section.sources[e], target[section.targets[e]]];
    if (end < 0 || (side === "out" ? source : end) !== index) continue;
    const other = side === "out" ? end : source;
    const row = rows.get(other) ?? { index: other, square: 0, value: 0, error: 0, share: share[section.targets[e]] };
    row.square += section.values[e] ** 2;
    row.error = Math.max(row.error, section.errors?.[e] ?? 0);
    row.value = Math.sqrt(row.square);
    rows.set(other, row);
  }
  const list = [...rows.values()].sort((a, b) => b.value - a.value);
  return {
    rows: list,
    count: list.length,
    total: section.nonzero,
    sum: list.reduce((sum, row) => sum + row.square, 0),
  };
}
