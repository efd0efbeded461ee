// What is shown: the features of each column in their order, and the edges between them with their weights.

import { isConstant } from "./data.js";
import { becomes, shownLayers } from "./folding.js";
import { neededCount } from "./needed.js";

// Edges into one feature, at most, where the strongest into each are shown.
const MOST_INTO = 4;

// Columns: {layer, indices, row: index -> row or -1, merged}. Features that are pinned or selected are always there.
export function visibleColumns(run, state, wanted, matched = null) {
  return shownLayers(run, state, wanted).map((layer) => {
    const merged = layer === run.last && state.get("output") === "merge";
    const indices = merged ? [0] : shownFeatures(run, layer, state, wanted, matched);
    const row = new Int32Array(merged ? 1 : run.layers[layer].size).fill(-1);
    indices.forEach((index, place) => (row[index] = place));
    return { layer, indices, row, merged };
  });
}

function shownFeatures(run, layer, state, wanted, matched) {
  const { size, outputs } = run.layers[layer];
  const isolated = state.get("module") < (run.modules?.sizes.length ?? 0) ? state.get("module") : -1;
  const hidden = (index) =>
    (!state.get("constant") && isConstant(run, layer, index)) ||
    (isolated >= 0 && run.modules && run.module(layer, index) !== isolated && !isConstant(run, layer, index));
  const order = [];
  for (let index = 0; index < size; index++) if (!hidden(index)) order.push(index);
  if (state.get("sort") === "strength" && !outputs) {
    const strength = strengths(run, layer);
    order.sort(
      (a, b) => Number(isConstant(run, layer, b)) - Number(isConstant(run, layer, a)) || strength[b] - strength[a],
    );
  }
  const limit = state.get("nodes") + (state.get("constant") && run.layers[layer].constant ? 1 : 0);
  const shown = order.slice(0, limit);
  const there = new Set(shown);
  for (const index of wanted(layer)) if (index < size && !there.has(index)) shown.push(index);
  if (state.get("sort") === "match" && matched) return matched(layer, shown);
  if (state.get("sort") === "module" && run.modules) {
    const rank = (index) => (isConstant(run, layer, index) ? -1 : (run.module(layer, index) + 1e6) % 1e6);
    const last = (index) => (run.module(layer, index) < 0 && !isConstant(run, layer, index) ? 1 : 0);
    shown.sort((a, b) => last(a) - last(b) || rank(a) - rank(b) || a - b);
  }
  return shown;
}

// Σ Ê² of the edges that a feature has, in and out; from the edges that the page holds.
function strengths(run, layer) {
  const cache = run.layers[layer];
  if (cache.strengths) return cache.strengths;
  const sums = new Float64Array(cache.size);
  const before = run.sections[layer - 1];
  const after = run.sections[layer];
  before?.values.forEach((value, e) => (sums[before.targets[e]] += value * value));
  after?.into_all.forEach((value, index) => (sums[index] += value * value));
  cache.strengths = sums;
  return sums;
}

// How many of a section's strongest edges are chosen by the slider; a share is one of Ê² between the features shown.
function chosenCount(run, left, right, end, state) {
  const section = run.sections[left.layer];
  if (state.get("by") === "needed") {
    const count = neededCount(run, section, state.get("loss"));
    if (count !== null) return Math.min(count, section.held);
  }
  if (state.get("by") === "count") return Math.min(state.get("count"), section.held);
  if (state.get("by") === "into" || state.get("share") >= 1) return section.held;
  return countForShare(section, state.get("share"), isShown(section, left, right, end));
}

// Whether both ends of an edge are shown.
function isShown({ sources, targets }, left, right, end) {
  if (right.merged) return (e) => left.row[sources[e]] >= 0;
  return (e) => left.row[sources[e]] >= 0 && end[targets[e]] >= 0 && right.row[end[targets[e]]] >= 0;
}

// The fewest of the strongest edges that hold a share of Ê² over the edges shown.
function countForShare({ held, values }, share, shown) {
  let total = 0;
  for (let e = 0; e < held; e++) if (shown(e)) total += values[e] ** 2;
  let sum = 0;
  for (let e = 0; e < held; e++) {
    if (shown(e)) sum += values[e] ** 2;
    if (sum >= total * share * (1 - 1e-7)) return e + 1;
  }
  return held;
}

// Of the edges into each feature the fewest that hold a share of Ê² among them, and no more than a few.
function intoEach(edges, share) {
  const totals = new Map();
  const taken = new Map();
  for (let e = 0; e < edges.size; e++) {
    const square = edges.value[e] ** 2;
    totals.set(edges.to[e], (totals.get(edges.to[e]) ?? 0) + square);
  }
  let size = 0;
  let squares = 0;
  for (let e = 0; e < edges.size; e++) {
    const [sum, count] = taken.get(edges.to[e]) ?? [0, 0];
    if (sum >= share * totals.get(edges.to[e]) || count >= MOST_INTO) continue;
    taken.set(edges.to[e], [sum + edges.value[e] ** 2, count + 1]);
    squares += edges.value[e] ** 2;
    edges.from[size] = edges.from[e];
    edges.to[size] = edges.to[e];
    edges.value[size++] = edges.value[e];
  }
  return { ...edges, size, squares, counted: size };
}

// The edges of one section that are drawn, strongest first, as typed arrays of rows and values.
export function drawnEdges(run, state, left, right) {
  const k = left.layer;
  const section = run.sections[k];
  if (!section) return emptyEdges();
  const end = becomes(run, k, right.layer).target;
  const chosen = chosenCount(run, left, right, end, state);
  const all = right.merged
    ? mergedEdges(section, left, chosen, state)
    : plainEdges(section, left, right, chosen, end);
  const edges = state.get("by") === "into" && !right.merged ? intoEach(all, state.get("into")) : all;
  edges.chosen = state.get("by") === "into" ? edges.counted : chosen;
  edges.between = squaresBetween(section, left, right, end);
  if (state.get("constant") && section.constant && left.row[0] >= 0)
    addConstant(edges, section, left, right, chosen, end);
  return edges;
}

// Σ Ê² over the edges that the page holds between the features shown.
function squaresBetween(section, left, right, end) {
  const shown = isShown(section, left, right, end);
  let sum = 0;
  for (let e = 0; e < section.held; e++) if (shown(e)) sum += section.values[e] ** 2;
  return sum;
}

function emptyEdges() {
  return {
    size: 0,
    chosen: 0,
    counted: 0,
    squares: 0,
    between: 0,
    from: new Int32Array(0),
    to: new Int32Array(0),
    value: new Float32Array(0),
  };
}

// Two edges that end at one feature behind a fold are one line, with the root of the sum of their squares.
function plainEdges(section, left, right, chosen, end) {
  const room = chosen + (section.constant?.length ?? 0);
  const edges = {
    ...emptyEdges(),
    from: new Int32Array(room),
    to: new Int32Array(room),
    value: new Float32Array(room),
  };
  const { sources, targets, values } = section;
  const folded = right.layer > left.layer + 1;
  const lines = new Map();
  let size = 0;
  for (let e = 0; e < chosen; e++) {
    const from = left.row[sources[e]];
    const to = end[targets[e]] < 0 ? -1 : right.row[end[targets[e]]];
    if (from < 0 || to < 0) continue;
    edges.counted++;
    edges.squares += values[e] * values[e];
    const line = folded ? lines.get(from * 65536 + to) : undefined;
    if (line !== undefined) {
      edges.value[line] = Math.hypot(edges.value[line], values[e]);
      continue;
    }
    if (folded) lines.set(from * 65536 + to, size);
    edges.from[size] = from;
    edges.to[size] = to;
    edges.value[size++] = values[e];
  }
  edges.size = size;
  return folded ? inOrder(edges) : edges;
}

// Strongest first, as everything that draws expects.
function inOrder(edges) {
  const order = Array.from({ length: edges.size }, (_, e) => e).sort((a, b) => edges.value[b] - edges.value[a]);
  const sorted = (array) => {
    const copy = array.slice();
    order.forEach((from, to) => (copy[to] = array[from]));
    return copy;
  };
  return { ...edges, from: sorted(edges.from), to: sorted(edges.to), value: sorted(edges.value) };
}

// All outputs as one: Ê² of the chosen edges of a feature, summed over the outputs.
function mergedEdges(section, left, chosen, state) {
  const sums = new Float64Array(left.row.length);
  const all = state.get("by") === "share" && state.get("share") >= 1;
  if (all) section.into_all.forEach((value, index) => (sums[index] = value * value));
  else for (let e = 0; e < chosen; e++) sums[section.sources[e]] += section.values[e] ** 2;
  const order = left.indices.filter((index) => sums[index] > 0).sort((a, b) => sums[b] - sums[a]);
  const edges = { ...emptyEdges(), from: new Int32Array(order.length + 1), to: new Int32Array(order.length + 1) };
  edges.value = new Float32Array(order.length + 1);
  order.forEach((index, e) => {
    edges.from[e] = left.row[index];
    edges.value[e] = Math.sqrt(sums[index]);
    edges.squares += sums[index];
  });
  edges.size = order.length;
  for (let e = 0; e < chosen; e++) if (left.row[section.sources[e]] >= 0) edges.counted++;
  return edges;
}

// Edges from the constant come free: they are not counted, and shown where they match the weakest one chosen.
function addConstant(edges, section, left, right, chosen, end) {
  const weakest = chosen ? section.values[chosen - 1] : Infinity;
  if (right.merged) {
    const sum = section.constant.reduce((total, value) => total + (value >= weakest ? value * value : 0), 0);
    if (sum > 0) pushEdge(edges, left.row[0], 0, Math.sqrt(sum));
    return;
  }
  section.constant.forEach((value, target) => {
    const row = end[target] < 0 ? -1 : right.row[end[target]];
    if (value >= weakest && row >= 0) pushEdge(edges, left.row[0], row, value);
  });
}

function pushEdge(edges, from, to, value) {
  edges.from[edges.size] = from;
  edges.to[edges.size] = to;
  edges.value[edges.size++] = value;
}

// Strengths to weights between 0 and 1: Ê², Ê, √Ê, or log(Ê/ε) with ε the weakest edge needed, or shown.
export function weigh(edges, scale, largest, epsilon) {
  const weights = new Float32Array(edges.size);
  if (!(largest > 0)) return weights;
  const spread = Math.log(largest / epsilon);
  for (let e = 0; e < edges.size; e++) {
    const relative = Math.min(edges.value[e] / largest, 1);
    if (scale === "square") weights[e] = relative * relative;
    else if (scale === "plain") weights[e] = relative;
    else if (scale === "root") weights[e] = Math.sqrt(relative);
    else weights[e] = spread > 0 ? Math.max(1 + Math.log(relative) / spread, 0) : 1;
  }
  return weights;
}
