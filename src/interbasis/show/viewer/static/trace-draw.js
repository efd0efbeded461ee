// A traced computation as SVG: tokens along x, layers along y, nodes as labelled marks, edges coloured by sign.

import { svg } from "./dom.js";
import { decimal, percent, visible } from "./format.js";
import { textWidth } from "./layout.js";

const MARK_LINE = 18;
const LAYER_ROOM = 14;
const LEFT = 104;
const TOP = 14;
const TOKEN_ROOM = 116;
// The bar of the token with most influence.
const INFLUENCE_BAR = 24;
// Added to the room between layers where the window is tall.
const MOST_SPARE = 64;
const MOST_LABEL = 120;
// How much wider labels may become where the window is wide.
const MOST_STRETCH = 1.7;
const EMPTY_TOKEN = 15;
const BESIDE_LABEL = 46;
// The side of the picture beside a node.
const THUMBNAIL = 26;
const MOST_EDGES = 500;
// Nodes of a layer at one position that stand below each other; more stand beside them.
const TALLEST = 4;

// Where every node stands: positions with nodes have room for their labels, the others only for their token. Where
// layers have positions of their own, as pixels have, their nodes stand side by side in the order of positions.
export function traceLayout(nodes, graph, nodeLabel, room, tall) {
  const { order, aligned } = graph;
  const columns = aligned ? spread(graph) : packed(nodes, order, nodeLabel, room);
  const { tokens, place } = columns;
  const footer = aligned ? TOKEN_ROOM : 0;
  const stacks = new Map();
  for (const node of nodes) {
    const key = `${node.layer}@${place(node)}`;
    if (!stacks.has(key)) stacks.set(key, []);
    stacks.get(key).push(node);
  }
  const needs = tokens.map(() => EMPTY_TOKEN);
  const labels = tokens.map(() => 0);
  for (const node of nodes)
    labels[place(node)] = Math.max(
      labels[place(node)],
      Math.min(textWidth(nodeLabel(node)), MOST_LABEL) + BESIDE_LABEL + (node.field ? THUMBNAIL + 4 : 0),
    );
  for (const [first, ...further] of stacks.values()) {
    const column = place(first);
    needs[column] = Math.max(needs[column], labels[column] * Math.ceil((further.length + 1) / TALLEST));
  }
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const stretch = Math.min(Math.max((room - LEFT - 20) / sum(needs), 1), MOST_STRETCH);
  const spare = Math.max(room - LEFT - 20 - sum(needs) * stretch, 0) / tokens.length;
  needs.forEach((need, position) => (needs[position] = need * stretch + spare));
  labels.forEach((label, position) => (labels[position] = label * stretch));
  const x = [];
  needs.reduce((at, need, position) => ((x[position] = at), at + need), LEFT);
  const layers = order.filter((layer) => nodes.some((node) => node.layer === layer));
  const lines = layers.map((layer) =>
    Math.max(
      ...[...stacks].filter(([key]) => key.startsWith(`${layer}@`)).map(([, stack]) => Math.min(stack.length, TALLEST)),
    ),
  );
  const line = nodes.some(({ field }) => field) ? THUMBNAIL + 3 : MARK_LINE;
  const minimum = lines.reduce((sum, count) => sum + count * line + LAYER_ROOM, TOP + footer);
  const between = LAYER_ROOM + Math.min(Math.max((tall - minimum) / layers.length, 0), MOST_SPARE);
  const rows = [];
  let y = TOP;
  for (let k = layers.length - 1; k >= 0; k--) {
    rows.push({ layer: layers[k], top: y, height: lines[k] * line + between });
    y += lines[k] * line + between;
  }
  const places = new Map();
  for (const { layer, top } of rows) {
    for (const [key, stack] of stacks) {
      if (!key.startsWith(`${layer}@`)) continue;
      stack
        .sort((a, b) => b.influence - a.influence)
        .forEach((node, k) =>
          places.set(node.name, {
            x: x[place(node)] + 8 + Math.floor(k / TALLEST) * labels[place(node)],
            y: top + between / 2 + ((k % TALLEST) + 0.5) * line,
            room: labels[place(node)] - BESIDE_LABEL,
          }),
        );
    }
  }
  const width = x[x.length - 1] + needs[needs.length - 1] + 20;
  return { x, rows, places, width, bottom: y, height: y + footer };
}

// A column for each token.
function spread(graph) {
  return { tokens: graph.trace.tokens, place: (node) => graph.column(node) };
}

// As many columns as the window has room for, filled line by line, each layer in the order of its positions.
function packed(nodes, order, nodeLabel, room) {
  const wide = Math.max(...nodes.map((node) => Math.min(textWidth(nodeLabel(node)), MOST_LABEL)), 20);
  const count = Math.max(Math.floor((room - LEFT - 20) / (wide + BESIDE_LABEL + THUMBNAIL + 4)), 1);
  const columns = new Map();
  for (const layer of order) {
    const inside = nodes.filter((node) => node.layer === layer);
    inside.sort((a, b) => a.position - b.position || b.influence - a.influence);
    inside.forEach((node, k) => columns.set(node.name, Math.floor((k * count) / Math.max(inside.length, count))));
  }
  return { tokens: Array.from({ length: count }), place: (node) => columns.get(node.name) };
}

export function tracePicture(view) {
  const { box, nodes, edges, graph, nodeLabel } = view;
  const drawn = byInfluence(nodes, edges).slice(0, MOST_EDGES);
  const largest = Math.max(...drawn.map(({ influence }) => influence), 1e-300);
  const tokens = graph.aligned ? graph.trace.tokens : [];
  const mostOfToken = Math.max(...tokens.map(({ influence }) => influence), 1e-300);
  const picture = svg(
    "svg",
    {
      class: "trace",
      viewBox: `0 0 ${box.width} ${box.height}`,
      width: box.width,
      height: box.height,
      role: "group",
      "aria-label": `Trace of ${graph.trace.prompt}`,
    },
    graph.trace.picture && svg("defs", {}, inputImage(graph.trace.picture)),
    box.rows.map(
      ({ top, height }, k) => k % 2 === 0 && svg("rect", { class: "band-row", x: 0, y: top, width: box.width, height }),
    ),
    svg("g", { class: "trace-edges" }, drawn.map((edge) => edgePath(edge, box, largest)).reverse()),
    svg(
      "g",
      { class: "trace-nodes" },
      nodes.map((node) => nodeMark(node, box, nodeLabel(node))),
    ),
    svg(
      "g",
      { class: "layer-names" },
      svg("rect", { class: "strip", x: 0, y: 0, width: LEFT - 8, height: box.bottom }),
      box.rows.map(({ layer, top, height }) =>
        svg("text", { class: "layer-name", x: 6, y: top + height / 2 + 4 }, clipped(layer, LEFT - 18)),
      ),
    ),
    svg(
      "g",
      { class: "trace-tokens" },
      tokens.length > 0 && [
        svg("rect", { class: "strip", x: 0, y: box.bottom, width: box.width, height: TOKEN_ROOM }),
        svg("text", { class: "strip-name", x: 6, y: box.bottom + INFLUENCE_BAR + 2 }, "influence"),
      ],
      tokens.map((token) => tokenMark(token, mostOfToken, box)),
    ),
  );
  return picture;
}

function tokenMark({ position, text, influence }, largest, box) {
  const middle = box.x[position] + 8;
  const base = box.bottom + 6 + INFLUENCE_BAR;
  const tall = Math.max((influence / largest) * INFLUENCE_BAR, 0.5);
  const shown = visible(text) || "∅";
  return svg(
    "g",
    { class: "trace-token" },
    svg("title", {}, `position ${position}: ${shown}, influence ${percent(influence)}`),
    svg("rect", { class: "influence", x: middle - 4, y: base - tall, width: 8, height: tall }),
    svg(
      "text",
      { x: middle - 4, y: base + 12, transform: `rotate(50 ${middle - 4} ${base + 12})` },
      shown.length > 14 ? `${shown.slice(0, 13)}…` : shown,
    ),
  );
}

// Edges by the influence that they carry: their share of what comes into a node, times the node's own influence.
// Weights themselves are in the units of each target and do not compare.
function byInfluence(nodes, edges) {
  const influence = new Map(nodes.map((node) => [node.name, node.influence]));
  const into = new Map();
  for (const { target, weight } of edges) into.set(target, (into.get(target) ?? 0) + Math.abs(weight));
  const weighed = edges.map((edge) => ({
    ...edge,
    influence: (Math.abs(edge.weight) / (into.get(edge.target) || 1)) * influence.get(edge.target),
  }));
  return weighed.sort((a, b) => b.influence - a.influence);
}

function edgePath({ source, target, weight, influence }, box, largest) {
  const [from, to] = [box.places.get(source), box.places.get(target)];
  const share = influence / largest;
  const bend = (from.y - to.y) / 2;
  return svg(
    "path",
    {
      class: `trace-edge ${weight < 0 ? "negative" : "positive"}`,
      "data-source": source,
      "data-target": target,
      d: `M${from.x},${from.y} C${from.x},${from.y - bend} ${to.x},${to.y + bend} ${to.x},${to.y}`,
      style: {
        "stroke-width": (0.5 + 5 * share).toFixed(2),
        "stroke-opacity": (0.12 + 0.75 * Math.sqrt(share)).toFixed(2),
      },
    },
    svg("title", {}, `${source} → ${target}: ${decimal(weight, 4)}`),
  );
}

// The input, once for all nodes that show a part of it.
function inputImage(picture) {
  const size = { width: THUMBNAIL, height: THUMBNAIL, preserveAspectRatio: "none" };
  return svg("image", { id: "trace-input", href: picture, ...size });
}

// The input small, with a frame around the part that a node depends on.
function fieldMark([left, top, right, bottom], x, y) {
  return svg(
    "g",
    { class: "field", transform: `translate(${x} ${y - THUMBNAIL / 2})` },
    svg("use", { href: "#trace-input" }),
    svg("rect", {
      x: left * THUMBNAIL,
      y: top * THUMBNAIL,
      width: Math.max((right - left) * THUMBNAIL, 2),
      height: Math.max((bottom - top) * THUMBNAIL, 2),
    }),
  );
}

function nodeMark(node, { places }, label) {
  const { x, y, room } = places.get(node.name);
  const beside = node.field ? THUMBNAIL + 4 : 0;
  const numbered = node.kind === "feature" && label !== `feature ${node.feature}`;
  const number = numbered ? `#${node.feature}` : "";
  const sign = raises(node) ? "positive" : "negative";
  const size = 2.5 + 4.5 * Math.sqrt(Math.min(node.influence, 1));
  const mark =
    node.kind === "error" || node.kind === "group"
      ? svg("rect", {
          class: `mark ${sign}`,
          x: x - size,
          y: y - size,
          width: 2 * size,
          height: 2 * size,
          rx: node.kind === "group" ? 2 : 0,
        })
      : node.kind === "target"
        ? svg("path", { class: `mark ${sign}`, d: `M${x},${y - 7} l7,7 -7,7 -7,-7 z` })
        : svg("circle", { class: `mark ${sign}`, cx: x, cy: y, r: size });
  return svg(
    "g",
    {
      class: `trace-node ${node.kind}${node.measured === null ? "" : " measured"}`,
      "data-name": node.name,
      tabindex: "-1",
      role: "button",
      "aria-label": `${node.name}, ${label}, influence ${percent(node.influence)}`,
    },
    mark,
    node.field && fieldMark(node.field, x + size + 3, y),
    svg(
      "text",
      { x: x + size + 4 + beside, y: y + 3.5 },
      clipped(label, room - beside),
      numbered && svg("tspan", { class: "number", dx: 4 }, number),
    ),
  );
}

// What a node does to the target: by what was measured when it was set to its mean, elsewhere by its effect.
function raises({ effect, measured }) {
  return measured === null ? effect >= 0 : measured <= 0;
}

function clipped(label, room) {
  const limit = Math.floor((label.length * room) / Math.max(textWidth(label), 1));
  return label.length > limit ? `${label.slice(0, Math.max(limit - 1, 1))}…` : label;
}
