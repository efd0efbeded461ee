// One traced computation: nodes at positions, signed edges, and what is left when some of them are taken out.

import { decoded } from "./data.js";

export const TARGET = "target";
// The parts of an edge through attention: past it, what is moved, why the query attends there, why as it does.
export const PATHS = ["skip", "value", "key", "query"];

function nodeKind({ feature, whole }) {
  if (feature !== null) return { kind: "feature" };
  return { kind: "error", label: whole ? "whole token: massive activation" : "dropped directions" };
}

export class TraceGraph {
  constructor(trace, run) {
    this.name = trace.name;
    this.trace = trace;
    this.run = run;
    this.nodes = new Map();
    for (const node of trace.nodes) this.nodes.set(node.name, decoded(node, nodeKind(node)));
    this.nodes.set(TARGET, {
      name: TARGET,
      kind: "target",
      layer: TARGET,
      position: trace.target.position,
      activation: trace.target.value,
      label: trace.target.name,
      influence: 1,
      effect: trace.target.value,
      measured: null,
    });
    this.order = [...trace.layers, TARGET];
    this.grids = new Map(trace.layers.map((layer, k) => [layer, trace.grids[k]]));
    this.grids.set(TARGET, trace.grids[trace.grids.length - 1]);
    const { length } = trace.tokens;
    // Whether all layers have the positions of the input, or a single one: then positions are columns.
    this.aligned = [...this.grids.values()].every((grid) => !grid?.length || (grid.length === 1 && grid[0] === length));
    this.level = new Map(this.order.map((layer, k) => [layer, k]));
    this.edges = trace.edges.filter(({ source, target }) => this.nodes.has(source) && this.nodes.has(target));
  }

  // The column of a node where positions are columns: a single position stands below the last one.
  column({ layer, position }) {
    const { length } = this.trace.tokens;
    return this.grids.get(layer)?.length === 0 ? length - 1 : Math.min(position, length - 1);
  }

  // Where a node is, for people: a token, or a place on a grid.
  placeText({ layer, position }) {
    const grid = this.grids.get(layer);
    if (!grid) return this.trace.tokens.find((token) => token.position === position)?.text ?? "";
    const places = [];
    for (const size of [...grid].reverse()) {
      places.unshift(position % size);
      position = Math.floor(position / size);
    }
    return places.join(", ");
  }

  isFolded(layer) {
    return this.run.layers[this.run.layerNumber(layer)]?.folded ?? false;
  }

  // Edges between the nodes kept. A node that is taken out hands on what comes in by the chain rule: an edge s → t
  // and an edge t → u become w(s → t) w(t → u) / f̂(t). The paths through the first attention on the way are scaled
  // likewise.
  between(remaining) {
    const into = new Map();
    const out = new Map();
    const add = (source, target, weight, parts) => {
      if (!out.has(source)) out.set(source, new Map());
      if (!into.has(target)) into.set(target, new Map());
      const known = out.get(source).get(target);
      const sum = {
        weight: weight + (known?.weight ?? 0),
        parts: parts && parts.map((part, k) => part + (known?.parts?.[k] ?? 0)),
      };
      out.get(source).set(target, sum);
      into.get(target).set(source, sum);
    };
    for (const { source, target, weight, paths } of this.edges)
      add(source, target, weight, paths && PATHS.map((key) => paths[key]));
    const removed = [...this.nodes.values()].filter((node) => !remaining.has(node.name));
    removed.sort((a, b) => this.level.get(a.layer) - this.level.get(b.layer));
    for (const { name: through, activation } of removed) {
      for (const [source, first] of activation ? (into.get(through) ?? []) : []) {
        for (const [target, second] of out.get(through) ?? []) {
          const [parts, scale] = first.parts
            ? [first.parts, second.weight / activation]
            : [second.parts, first.weight / activation];
          add(source, target, (first.weight * second.weight) / activation, parts && parts.map((part) => part * scale));
        }
      }
      for (const source of into.get(through)?.keys() ?? []) out.get(source).delete(through);
      for (const target of out.get(through)?.keys() ?? []) into.get(target).delete(through);
      into.delete(through);
      out.delete(through);
    }
    const edges = [...out].flatMap(([source, targets]) =>
      [...targets].map(([target, { weight, parts }]) => ({ source, target, weight, parts })),
    );
    return edges.sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight));
  }
}

// Groups as nodes of their own: edges between members are left out, those of a group are added up.
export function grouped(nodes, edges, groups) {
  const owner = new Map(nodes.map((node) => [node.name, node]));
  const result = new Set(nodes);
  for (const [name, members] of groups) {
    const inside = members.map((member) => owner.get(member)).filter((node) => node && node.kind !== "group");
    if (inside.length < 2) continue;
    const middle = inside[inside.length >> 1];
    const sum = (key) => inside.reduce((total, node) => total + node[key], 0);
    const group = decoded(middle, {
      name: `group ${name}`,
      kind: "group",
      label: name,
      members: inside,
      influence: sum("influence"),
      effect: sum("effect"),
      predicted: null,
      measured: null,
    });
    for (const node of inside) {
      result.delete(node);
      owner.set(node.name, group);
    }
    result.add(group);
  }
  const sums = new Map();
  for (const { source, target, weight } of edges) {
    const [from, to] = [owner.get(source), owner.get(target)];
    if (!from || !to || from === to) continue;
    const key = `${from.name} > ${to.name}`;
    sums.set(key, { source: from.name, target: to.name, weight: (sums.get(key)?.weight ?? 0) + weight });
  }
  return { nodes: [...result], edges: [...sums.values()].sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight)) };
}
