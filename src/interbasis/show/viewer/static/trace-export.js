// A trace as a file: the picture as SVG or PNG, and the graph after the schemas of Neuronpedia and circuit-tracer.

import { el } from "./dom.js";
import { TARGET } from "./trace-graph.js";

const STYLED = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-linejoin",
  "paint-order",
  "font-size",
  "font-family",
  "font-weight",
  "opacity",
];

function download(file, href) {
  const link = el("a", { href, download: file });
  document.body.append(link);
  link.click();
  link.remove();
}

// The picture by itself, with its colours written into it.
function pictureText(picture) {
  const copy = picture.cloneNode(true);
  const [from, to] = [
    [picture, ...picture.querySelectorAll("*")],
    [copy, ...copy.querySelectorAll("*")],
  ];
  from.forEach((element, k) => {
    const style = getComputedStyle(element);
    to[k].removeAttribute("style");
    for (const property of STYLED)
      if (style.getPropertyValue(property)) to[k].setAttribute(property, style.getPropertyValue(property));
  });
  // as if not scrolled
  for (const moved of copy.querySelectorAll(".layer-names, .trace-tokens")) moved.removeAttribute("transform");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [key, value] of Object.entries({
    width: "100%",
    height: "100%",
    fill: getComputedStyle(document.body).backgroundColor,
  }))
    ground.setAttribute(key, value);
  copy.prepend(ground);
  return new XMLSerializer().serializeToString(copy);
}

export function saveSvg(view) {
  download(
    `${view.graph.name}.svg`,
    `data:image/svg+xml;charset=utf-8,${encodeURIComponent(pictureText(view.picture))}`,
  );
}

export async function savePng(view, density = 2) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(pictureText(view.picture))}`;
  await image.decode();
  const canvas = el("canvas", {
    width: Math.round(view.box.width * density),
    height: Math.round(view.box.height * density),
  });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  download(`${view.graph.name}.png`, canvas.toDataURL("image/png"));
}

export function saveJson(view) {
  download(
    `${view.graph.name}.json`,
    `data:application/json;charset=utf-8,${encodeURIComponent(JSON.stringify(attributionGraph(view), null, 1))}`,
  );
}

// Nodes, signed links, pins and groups as Neuronpedia names them. A token is an embedding node, which explains the
// features of the first layer at its position entirely; dropped directions are reconstruction errors.
function attributionGraph({ graph, tab, nodeLabel }) {
  const { trace, run } = graph;
  const { replacement, completeness, error_share } = trace.scores;
  const exportedIds = new Map([...graph.nodes.values()].map((node) => [node.name, nodeId(graph, node)]));
  const first = graph.order[0];
  const inputs = trace.nodes.filter(({ layer, feature }) => layer === first && feature !== null);
  const positions = [...new Set(inputs.map(({ position }) => position))];
  const embedding = (position) => `E_${trace.tokens[position].token ?? 0}_${position}`;
  return {
    metadata: {
      slug: graph.name,
      scan: run.record.model || run.record.family,
      transcoder_list: [],
      schema_version: 1,
      prompt: trace.prompt,
      prompt_tokens: trace.tokens.map(({ text }) => text),
      info: {
        description: trace.summary,
        generator: { name: "interbasis", version: run.record.about.versions.interbasis ?? "" },
      },
      generation_settings: trace.settings,
      scores: { replacement, completeness, error_share },
      layers: graph.order.slice(0, -1),
    },
    qParams: {
      pinnedIds: tab
        .pins()
        .map((pin) => exportedIds.get(pin))
        .filter(Boolean),
      linkType: "both",
      clickedId: exportedIds.get(tab.page.state.get("node")) ?? "",
      sg_pos: "",
      supernodes: [...tab.groups(), ...trace.groups.map((group) => [group.name, group.nodes])]
        .map(([group, members]) => [group, ...members.map((member) => exportedIds.get(member)).filter(Boolean)])
        .filter((list) => list.length > 1),
    },
    nodes: [
      ...positions.map((position) => ({
        node_id: embedding(position),
        feature: trace.tokens[position].token ?? 0,
        layer: "E",
        ctx_idx: position,
        feature_type: "embedding",
        jsNodeId: `${embedding(position)}-0`,
        clerp: `Emb: ${trace.tokens[position].text}`,
        influence: trace.tokens[position].influence,
      })),
      ...[...graph.nodes.values()].map((node) => ({
        node_id: exportedIds.get(node.name),
        feature: node.feature ?? (node.kind === "target" ? (trace.target.output ?? -1) : -1),
        layer: String(graph.level.get(node.layer)),
        ctx_idx: node.position,
        feature_type: { feature: "cross layer transcoder", error: "mlp reconstruction error", target: "logit" }[
          node.kind
        ],
        jsNodeId: `${exportedIds.get(node.name)}-0`,
        clerp: node.kind === "target" ? `target: ${nodeLabel(node)}` : nodeLabel(node),
        influence: node.influence,
        activation: node.activation,
        ...(node.kind === "target" ? { is_target_logit: true, token_prob: trace.target.probability ?? 0 } : {}),
      })),
    ],
    links: [
      ...inputs.map((node) => ({
        source: embedding(node.position),
        target: exportedIds.get(node.name),
        weight: node.activation,
      })),
      ...graph.edges.map(({ source, target, weight }) => ({
        source: exportedIds.get(source),
        target: exportedIds.get(target),
        weight,
      })),
    ],
  };
}

function nodeId(graph, node) {
  const level = graph.level.get(node.layer);
  if (node.name === TARGET) return `${level}_${graph.trace.target.output ?? 0}_${node.position}`;
  return node.kind === "error" ? `0_${level}_${node.position}` : `${level}_${node.feature}_${node.position}`;
}
