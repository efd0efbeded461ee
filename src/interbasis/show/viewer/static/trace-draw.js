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
const BESIDE_LABEL = 30;
const MOST_EDGES = 500;
// Nodes of a layer at one position that stand below each other; more stand beside them.
const TALLEST = 4;

// Where every node stands: positions with nodes have room for their labels, the others only for their token.
export function traceLayout(nodes, { order, trace: { tokens } }, nodeLabel, room, tall) {
  const stacks = new Map();
  for (const node of nodes) {
    const key = `${node.layer}@${node.position}`;
    if (!stacks.has(key)) stacks.set(key, []);
    stacks.get(key).push(node);
  }
  const needs = tokens.map(() => EMPTY_TOKEN);
  const labels = tokens.map(() => 0);
  for (const node of nodes)
    labels[node.position] = Math.max(
      labels[node.position],
      Math.min(textWidth(nodeLabel(node)), MOST_LABEL) + BESIDE_LABEL,
    );
  for (const [{ position }, ...further] of stacks.values())
    needs[position] = Math.max(needs[position], labels[position] * Math.ceil((further.length + 1) / TALLEST));
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
  const minimum = lines.reduce((sum, count) => sum + count * MARK_LINE + LAYER_ROOM, TOP + TOKEN_ROOM);
  const between = LAYER_ROOM + Math.min(Math.max((tall - minimum) / layers.length, 0), MOST_SPARE);
  const rows = [];
  let y = TOP;
  for (let k = layers.length - 1; k >= 0; k--) {
    rows.push({ layer: layers[k], top: y, height: lines[k] * MARK_LINE + between });
    y += lines[k] * MARK_LINE + between;
  }
  const places = new Map();
  for (const { layer, top } of rows) {
    for (const [key, stack] of stacks) {
      if (!key.startsWith(`${layer}@`)) continue;
      stack
        .sort((a, b) => b.influence - a.influence)
        .forEach((node, k) =>
          places.set(node.name, {
            x: x[node.position] + 8 + Math.floor(k / TALLEST) * labels[node.position],
            y: top + between / 2 + ((k % TALLEST) + 0.5) * MARK_LINE,
          }),
        );
    }
  }
  const width = x[x.length - 1] + needs[needs.length - 1] + 20;
  return { x, labels, rows, places, width, bottom: y, height: y + TOKEN_ROOM };
}

export function tracePicture(view) {
  const { box, nodes, edges, graph, nodeLabel } = view;
  const drawn = byInfluence(nodes, edges).slice(0, MOST_EDGES);
  const largest = Math.max(...drawn.map(({ influence }) => influence), 1e-300);
  const mostOfToken = Math.max(...graph.trace.tokens.map(({ influence }) => influence), 1e-300);
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
      box.rows.map(({ layer, top, height }) =>
        svg("text", { class: "layer-name", x: 6, y: top + height / 2 + 4 }, layer),
      ),
    ),
    svg(
      "g",
      { class: "trace-tokens" },
      svg("rect", { class: "strip", x: 0, y: box.bottom, width: box.width, height: TOKEN_ROOM }),
      svg("text", { class: "strip-name", x: 6, y: box.bottom + INFLUENCE_BAR + 2 }, "influence"),
      graph.trace.tokens.map((token) => tokenMark(token, mostOfToken, box)),
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

function nodeMark(node, { places, labels }, label) {
  const { x, y } = places.get(node.name);
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
    svg("text", { x: x + size + 4, y: y + 3.5 }, clipped(label, labels[node.position] - BESIDE_LABEL)),
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
