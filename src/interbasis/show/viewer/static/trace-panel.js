// Everything about one node of a trace: what comes in, what goes out, how predictions held, and the run's feature.

import { el, name } from "./dom.js";
import { decimal, percent, visible } from "./format.js";
import { featureSections, exampleSection } from "./panel.js";
import { PATHS } from "./trace-graph.js";

const LISTED_EDGES = 10;

export function tracePanel(view, node) {
  const { tab } = view;
  const part = tab.page.part(view.graph.run.place);
  const layer = view.graph.run.layerNumber(node.layer);
  const known = node.kind === "feature" && layer >= 0;
  return [
    el(
      "header",
      {},
      el(
        "div",
        {},
        el("h2", {}, name(view.nodeLabel(node))),
        el(
          "p",
          { class: "where" },
          name(node.name),
          node.kind === "feature" && [" · at “", name(visible(view.graph.placeText(node))), "”"],
        ),
      ),
      el(
        "button",
        {
          type: "button",
          class: "quiet close",
          "aria-label": "Close",
          title: "Close (Esc)",
          onclick: () => tab.select(""),
        },
        "×",
      ),
    ),
    el(
      "dl",
      { class: "facts" },
      node.kind !== "error" && [
        el("dt", {}, "Activation", el("small", {}, "0 is its mean over the data")),
        el("dd", {}, decimal(node.activation)),
      ],
      [
        el("dt", {}, "Influence", el("small", {}, "share that passes through it")),
        el("dd", {}, percent(node.influence)),
      ],
      node.kind !== "target" && [
        el("dt", {}, "Effect", el("small", {}, "activation × gradient along all paths, for small changes")),
        el("dd", {}, decimal(node.effect)),
      ],
      checkSection(node),
    ),
    view.graph.trace.picture && fieldPicture(view.graph.trace.picture, node.field),
    node.kind !== "target" && noteRow(view, node, part, layer, known),
    node.kind === "group" &&
      el(
        "section",
        {},
        el("h3", {}, "Members"),
        node.members.map((member) => el("p", {}, jump(view, member))),
      ),
    edgeList(view, "Comes from", node, "target", "source"),
    edgeList(view, "Goes to", node, "source", "target"),
    known && [
      el(
        "p",
        {},
        el(
          "button",
          {
            type: "button",
            class: "link",
            onclick: () =>
              tab.page.state.set({ tab: "graph", sel: `${view.graph.run.place}.${layer}.${node.feature}` }),
          },
          "Show this feature in the graph",
        ),
      ),
      featureSections(view.graph.run, layer, node.feature),
      exampleSection(view.graph.run, layer, node.feature),
    ],
  ];
}

// The input, with a frame around the part that a node depends on.
function fieldPicture(picture, field) {
  const frame = field && {
    left: `${100 * field[0]}%`,
    top: `${100 * field[1]}%`,
    width: `${100 * (field[2] - field[0])}%`,
    height: `${100 * (field[3] - field[1])}%`,
  };
  return el(
    "figure",
    { class: "field-picture" },
    el("span", {}, el("img", { src: picture, alt: "the input" }), frame && el("i", { style: frame })),
    el("figcaption", {}, field ? "the part of the input that it depends on" : "the input"),
  );
}

// What setting it to its mean does, where that was tried.
function checkSection({ predicted, measured }) {
  if (typeof measured !== "number") return null;
  const agree = predicted > 0 === measured > 0;
  return [
    el("dt", {}, "Set to its mean", el("small", {}, "measured change of the target")),
    el("dd", {}, decimal(measured)),
    el(
      "dt",
      {},
      "Predicted",
      el("small", {}, agree ? "from averaged slopes" : "from averaged slopes: wrong direction"),
    ),
    el("dd", {}, decimal(predicted)),
  ];
}

function noteRow(view, node, part, layer, known) {
  const { tab } = view;
  const pinned = tab.pins().includes(node.name);
  const commit = (change) => ({
    onchange: (event) => change(event.target.value),
    onkeydown: (event) => event.key === "Enter" && event.target.blur(),
  });
  return el(
    "div",
    { class: "notes" },
    el(
      "button",
      { type: "button", class: "pin", "aria-pressed": String(pinned), onclick: () => tab.pin(node.name) },
      pinned ? "Pinned" : "Pin",
    ),
    known &&
      el(
        "label",
        {},
        "Name",
        el("input", {
          type: "text",
          maxlength: "200",
          value: part.notes.customName(layer, node.feature),
          placeholder: "your own",
          ...commit((text) => part.notes.rename(layer, node.feature, text)),
        }),
      ),
    el(
      "label",
      {},
      "Group",
      el("input", {
        type: "text",
        maxlength: "60",
        list: "trace-groups",
        value: tab.groupName(node.name),
        placeholder: "none",
        ...commit((text) => tab.group(node, text)),
      }),
    ),
    el(
      "datalist",
      { id: "trace-groups" },
      [
        ...new Set([...tab.groups().map(([group]) => group), ...view.graph.trace.groups.map((group) => group.name)]),
      ].map((group) => el("option", { value: group })),
    ),
  );
}

function jump(view, other) {
  return el(
    "button",
    { type: "button", class: "link", title: other.name, onclick: () => view.tab.select(other.name) },
    name(view.nodeLabel(other)),
    " ",
    el("small", {}, other.name),
  );
}

function edgeList(view, title, node, near, far) {
  const edges = view.edges.filter((edge) => edge[near] === node.name);
  if (!edges.length) return null;
  const sum = edges.reduce((total, { weight }) => total + Math.abs(weight), 0);
  const largest = Math.abs(edges[0].weight);
  const byName = new Map(view.nodes.map((node) => [node.name, node]));
  return el(
    "section",
    { class: "trace-list" },
    el("h3", {}, title, el("small", {}, `signed attribution, and share of |attribution| among ${edges.length}`)),
    el(
      "table",
      { class: "edges-table signed" },
      edges
        .slice(0, LISTED_EDGES)
        .map((edge) => [
          el(
            "tr",
            {},
            el("th", { scope: "row" }, jump(view, byName.get(edge[far]))),
            el(
              "td",
              { class: "bar" },
              el("span", {
                class: edge.weight < 0 ? "negative" : "positive",
                style: {
                  width: `${(Math.abs(edge.weight) / largest) * 50}%`,
                  left: edge.weight < 0 ? `${50 - (Math.abs(edge.weight) / largest) * 50}%` : "50%",
                },
              }),
            ),
            el("td", { class: "number" }, decimal(edge.weight)),
            el("td", { class: "number share" }, percent(Math.abs(edge.weight) / sum)),
          ),
          pathsRow(edge.parts),
        ]),
    ),
  );
}

// Why a head attends: the parts of an edge through attention.
function pathsRow(parts) {
  if (!parts) return null;
  const shown = PATHS.map((path, k) => parts[k] !== 0 && `${path} ${decimal(parts[k], 2)}`).filter(Boolean);
  return (
    shown.length > 0 && el("tr", { class: "paths" }, el("td", { colspan: "4" }, el("small", {}, shown.join(" · "))))
  );
}
