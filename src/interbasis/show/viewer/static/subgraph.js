// Pinned features alone, as one picture: groups are drawn as one node, edges between nodes are added up.

import { moduleColour } from "./colours.js";
import { el, name, replace, svg } from "./dom.js";
import { neighboursThrough, shownLayers } from "./folding.js";
import { decimal, plural } from "./format.js";
import { textWidth } from "./layout.js";

const LINE = 44;
const BOX = 28;
const BETWEEN = 110;
const LONGEST = 34;

export class Subgraph {
  constructor(page) {
    this.page = page;
    this.element = el("section", { class: "text-tab pinned-tab", "aria-label": "Pinned features" });
    this.opened = new Set();
  }

  update() {
    if (this.page.state.get("tab") !== "pinned") return;
    replace(
      this.element,
      this.page.parts.map((part) => this.part(part)),
    );
  }

  part(part) {
    const { run, notes } = part;
    const places = notes.pinnedPlaces();
    const title = this.page.parts.length > 1 && el("h2", {}, name(run.title));
    if (!places.length) {
      return [
        title,
        el(
          "p",
          { class: "hint" },
          "Nothing is pinned yet. Open a feature and choose Pin, or press p; features of one group are " +
            "drawn as one node here.",
        ),
      ];
    }
    const groups = notes.groupNames();
    return [
      title,
      el(
        "div",
        { class: "actions" },
        run.modules &&
          el("button", { type: "button", onclick: () => this.groupByModule(part, places) }, "Group by module"),
        groups.length > 0 && el("button", { type: "button", onclick: () => notes.ungroup(places) }, "Ungroup all"),
        el("button", { type: "button", onclick: () => notes.unpinAll() }, "Unpin all"),
      ),
      this.picture(part, buildSubgraph(this.page, part, places, this.opened)),
      el(
        "p",
        { class: "hint" },
        "A line is the root of the sum of Ê² between two nodes, through layer norms that are folded " +
          "away; features of layers that are not adjacent have no line.",
      ),
    ];
  }

  // Modules are offered as groups: those of several pinned features.
  groupByModule({ run, notes }, places) {
    for (const { layer, index } of places) {
      const module = run.module(layer, index);
      if (module >= 0 && !notes.groupName(layer, index)) notes.group(layer, index, `module ${module}`);
    }
  }

  picture(part, { nodes, lines, layers }) {
    const columns = layers.map((layer) => nodes.filter((node) => node.column === layer));
    const widths = columns.map((column) => Math.max(90, ...column.map((node) => textWidth(node.text) + 30)));
    const tall = Math.max(...columns.map((column) => column.length)) * LINE + 40;
    let x = 4;
    columns.forEach((column, number) => {
      column.forEach((node, row) =>
        Object.assign(node, { x, width: widths[number], y: 36 + ((tall - 40) * (row + 0.5)) / column.length }),
      );
      x += widths[number] + BETWEEN;
    });
    const largest = Math.max(...lines.map(({ value }) => value), 1e-300);
    return svg(
      "svg",
      {
        class: "subgraph",
        viewBox: `0 0 ${x - BETWEEN + 8} ${tall}`,
        width: x - BETWEEN + 8,
        height: tall,
        role: "group",
        "aria-label": "Pinned features",
      },
      columns.map(
        (column, number) =>
          column.length > 0 &&
          svg("text", { class: "subgraph-title", x: column[0].x, y: 14 }, part.run.layers[layers[number]].name),
      ),
      lines.map((line) => this.line(line, largest)),
      nodes.map((node) => this.node(part, node)),
    );
  }

  line({ from, to, value }, largest) {
    const [x0, x1] = [from.x + from.width, to.x];
    const third = (x1 - x0) / 3;
    return svg(
      "path",
      {
        class: "subgraph-line",
        d: `M${x0},${from.y} C${x0 + third},${from.y} ${x1 - third},${to.y} ${x1},${to.y}`,
        style: { "stroke-width": String(0.8 + 5 * (value / largest)) },
      },
      svg("title", {}, `${from.text} → ${to.text}: Ê = ${decimal(value, 4)}`),
    );
  }

  node(part, node) {
    const open = () => {
      if (node.members.length === 1) return this.page.select({ place: part.run.place, ...node.members[0] });
      this.opened.add(node.group);
      return this.update();
    };
    const close = node.group && node.members.length === 1;
    const rank = this.page.colourRank(part.run, node.members[0].layer, node.members[0].index);
    const meaning = node.members.map(({ layer, index }) => part.names.full(layer, index)).join("; ");
    return svg(
      "g",
      {
        class: node.members.length > 1 ? "subgraph-node group" : "subgraph-node",
        tabindex: "0",
        role: "button",
        "aria-label":
          node.members.length > 1 ? `Group ${node.group}, ${plural(node.members.length, "feature")}` : meaning,
        onclick: open,
        onkeydown: (event) => event.key === "Enter" && open(),
      },
      svg("title", {}, meaning),
      svg("rect", {
        x: node.x,
        y: node.y - BOX / 2,
        width: node.width,
        height: BOX,
        rx: 5,
        style: rank >= 0 ? { stroke: moduleColour(rank) } : {},
      }),
      node.members.length > 1 &&
        svg("rect", { class: "behind", x: node.x + 3, y: node.y - BOX / 2 + 3, width: node.width, height: BOX, rx: 5 }),
      svg("text", { x: node.x + 9, y: node.y + 4 }, node.text),
      close && svg("text", { class: "subgraph-title", x: node.x, y: node.y - BOX / 2 - 3 }, node.group),
    );
  }
}

// Nodes {members, column, text, group} and lines {from, to, value} between the pinned features of a run.
function buildSubgraph(page, { run, notes, names }, places, opened = new Set()) {
  const shown = shownLayers(run, page.state, (layer) => places.filter((place) => place.layer === layer));
  const groups = new Map();
  for (const place of places) {
    const group = notes.groupName(place.layer, place.index);
    const key = group && !opened.has(group) ? `group ${group}` : `${place.layer}.${place.index}`;
    if (!groups.has(key)) groups.set(key, { group, members: [] });
    groups.get(key).members.push({ layer: place.layer, index: place.index });
  }
  const nodes = [...groups.values()].map(({ group, members }) => ({
    group,
    members,
    column: middleLayer(members),
    text: groupText(names, group, members),
  }));
  const owner = new Map(nodes.flatMap((node) => node.members.map(({ layer, index }) => [`${layer}.${index}`, node])));
  const sums = new Map();
  for (const { layer, index } of places) {
    const next = shown[shown.indexOf(layer) + 1];
    if (next === undefined || !run.sections.length) continue;
    for (const row of neighboursThrough(run, layer, next, index, "out").rows) {
      const [from, to] = [owner.get(`${layer}.${index}`), owner.get(`${next}.${row.index}`)];
      if (!to || from === to) continue;
      const key = `${nodes.indexOf(from)} ${nodes.indexOf(to)}`;
      sums.set(key, { from, to, square: (sums.get(key)?.square ?? 0) + row.square });
    }
  }
  const lines = [...sums.values()]
    .map(({ from, to, square }) => ({ from, to, value: Math.sqrt(square) }))
    .sort((a, b) => a.value - b.value);
  return { nodes, lines, layers: [...new Set(nodes.map(({ column }) => column))].sort((a, b) => a - b) };
}

function groupText(names, group, members) {
  const [{ layer, index }] = members;
  const text = members.length > 1 ? `${group} (${members.length})` : names.boxed(layer, index);
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
}

function middleLayer(members) {
  const layers = members.map(({ layer }) => layer).sort((a, b) => a - b);
  return layers[layers.length >> 1];
}
