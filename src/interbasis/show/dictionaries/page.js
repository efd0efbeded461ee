"use strict";
// The page of a graph between dictionaries: a list of features, and one feature with its neighbours at a time.
const data = JSON.parse(document.getElementById("data").textContent);
const SHOWN = 200; // features in the list
const NEIGHBOURS = 10; // on either side of a feature

const numbers = (text, Kind) =>
  new Kind(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer);
const layers = data.layers.map((layer) => ({
  ...layer,
  frequency: numbers(layer.frequency, Float32Array),
  variance: numbers(layer.variance, Float32Array),
  described: new Map(layer.described.map(([feature, words, examples]) => [feature, {
    description: words && { relation: words[0], tokens: words[1], size: words[2], precision: words[3], recall: words[4] },
    examples: examples.map(([value, place, tokens]) => ({ value, place, tokens })),
  }])),
}));
const pairs = data.pairs.map((pair) => ({
  ...pair,
  source: numbers(pair.sources, Uint32Array),
  target: numbers(pair.targets, Uint32Array),
  rms: numbers(pair.rms, Float32Array),
  mean: numbers(pair.mean, Float32Array),
}));
const state = { tab: "features", layer: Math.min(1, layers.length - 1), feature: null, trace: 0 };

function make(name, attributes = {}, ...children) {
  const spaces = ["svg", "g", "path", "circle", "text", "line", "title", "rect"];
  const element = spaces.includes(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "click") element.addEventListener("click", value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

const visible = (token) => token.replaceAll("\n", "↵").replaceAll(" ", "␣");
const word = (token) => (data.tokens[token] === undefined ? String(token) : visible(data.tokens[token]));
const percent = (share) => `${(100 * share).toFixed(share < 0.01 ? 2 : share < 0.1 ? 1 : 0)} %`;
const amount = (value) => (value === null ? "–" : Number(value.toPrecision(3)).toString());

function label(layer, feature) {
  const known = layers[layer].described.get(feature);
  if (!known || !known.description) return null;
  const { relation, tokens, size } = known.description;
  const words = tokens.map(word).join(" · ");
  const more = size > tokens.length ? ` +${size - tokens.length}` : "";
  return `${relation === "token" ? "" : `${relation} `}${words}${more}`;
}

function described(layer, feature) {
  const text = label(layer, feature);
  if (text) return make("span", { class: "words" }, text);
  const known = layers[layer].described.get(feature);
  const example = known && known.examples[0] ? `e.g. ${word(known.examples[0].tokens[known.examples[0].place])}` : "";
  return make("span", { class: "words none" }, example || "no short description");
}

function open(layer, feature) {
  Object.assign(state, { tab: "features", layer, feature });
  draw();
}

function drawTabs() {
  const tabs = [["features", "Features"]];
  if (data.traces.length) tabs.push(["traces", "Traces"]);
  tabs.push(["about", "About"]);
  document.getElementById("tabs").replaceChildren(...tabs.map(([name, text]) => make("button", {
    type: "button", role: "tab", "aria-selected": state.tab === name,
    click: () => { state.tab = name; draw(); },
  }, text)));
}

function ranked(layer) {
  const { variance, frequency } = layers[layer];
  const by = document.getElementById("rank").value;
  const key = { strength: (j) => variance[j], often: (j) => frequency[j], seldom: (j) => -frequency[j] }[by];
  const orders = (layers[layer].orders ??= {});
  orders[by] ??= Array.from(variance.keys()).filter((j) => frequency[j] > 0).sort((a, b) => key(b) - key(a));
  return orders[by];
}

function matches(layer, feature, words) {
  if (!words) return true;
  if (String(feature) === words) return true;
  const text = (label(layer, feature) || "").toLowerCase();
  return text.includes(words.replaceAll(" ", "␣")) || text.includes(words);
}

function drawList() {
  const words = document.getElementById("search").value.trim().toLowerCase();
  document.getElementById("layers").replaceChildren(...layers.map((layer, k) => make("button", {
    type: "button", role: "tab", "aria-selected": state.layer === k,
    click: () => { state.layer = k; draw(); },
  }, layer.place)));
  const found = ranked(state.layer).filter((feature) => matches(state.layer, feature, words));
  const rows = found.slice(0, SHOWN).map((feature) => make("li", {}, make("button", {
    type: "button", "aria-selected": state.feature === feature,
    click: () => open(state.layer, feature),
  }, make("span", { class: "id" }, `#${feature}`), described(state.layer, feature))));
  if (!rows.length) rows.push(make("li", { class: "none" }, "No feature matches."));
  if (found.length > SHOWN) rows.push(make("li", { class: "facts" }, `${found.length - SHOWN} more: search for them`));
  document.getElementById("list").replaceChildren(...rows);
}

function neighbours(pair, side, feature) {
  const here = side === "in" ? pair.target : pair.source;
  const other = side === "in" ? pair.source : pair.target;
  const result = [];
  for (let k = 0; k < here.length && result.length < NEIGHBOURS; k += 1) {
    if (here[k] === feature) result.push({ feature: other[k], rms: pair.rms[k], mean: pair.mean[k] });
  }
  return result;
}

function drawNeighbours(layer, feature) {
  const before = layer > 0 ? neighbours(pairs[layer - 1], "in", feature) : [];
  const after = layer < pairs.length ? neighbours(pairs[layer], "out", feature) : [];
  const rows = Math.max(before.length, after.length, 1);
  const height = 34 + 24 * rows, middle = 22 + 12 * rows;
  const svg = make("svg", { viewBox: `0 0 960 ${height}`, class: "wide", role: "img", "aria-label": "Neighbours of the feature" });
  const side = (list, x, anchor, index, title) => {
    if (!list.length) return;
    svg.append(make("text", { x, y: 14, "text-anchor": anchor, class: "soft" }, title));
    const largest = list[0].rms;
    list.forEach((edge, k) => {
      const y = 36 + 24 * k + 12 * (rows - list.length);
      const inner = anchor === "end" ? x + 8 : x - 8, end = anchor === "end" ? 440 : 520;
      const bend = (inner + end) / 2;
      const line = make("path", {
        d: `M${inner},${y} C${bend},${y} ${bend},${middle} ${end},${middle}`, fill: "none",
        class: edge.mean < 0 ? "minus" : "plus", "stroke-width": Math.max(0.7, (6 * edge.rms) / largest),
        "stroke-opacity": 0.75,
      }, make("title", {}, `Ê ${amount(edge.rms)}, mean ${amount(edge.mean)}`));
      const name = `#${edge.feature}  ${label(index, edge.feature) || ""}`;
      const text = make("text", { x, y: y + 4, "text-anchor": anchor },
        name.length > 46 ? `${name.slice(0, 45)}…` : name);
      const node = make("g", { class: "node", tabindex: 0, role: "link", click: () => open(index, edge.feature) }, text);
      node.addEventListener("keydown", (event) => { if (event.key === "Enter") open(index, edge.feature); });
      svg.append(line, node);
    });
  };
  side(before, 330, "end", layer - 1, layer > 0 ? `from ${layers[layer - 1].place}` : "");
  side(after, 630, "start", layer + 1, layer < pairs.length ? `to ${layers[layer + 1].place}` : "");
  svg.append(make("circle", { cx: 480, cy: middle, r: 16, fill: "var(--accent)" }));
  svg.append(make("text", { x: 480, y: middle + 34, "text-anchor": "middle" }, `#${feature}`));
  return svg;
}

function listNeighbours(layer, feature) {
  const sides = [
    [layer - 1, layer > 0 ? neighbours(pairs[layer - 1], "in", feature) : [], "from"],
    [layer + 1, layer < pairs.length ? neighbours(pairs[layer], "out", feature) : [], "to"],
  ];
  return make("div", { class: "narrow" }, ...sides.filter(([, list]) => list.length).flatMap(([index, list, word]) => [
    make("h4", {}, `${word} ${layers[index].place}`),
    make("ol", {}, ...list.map((edge) => make("li", {}, make("button", {
      type: "button", click: () => open(index, edge.feature),
    }, make("span", { class: edge.mean < 0 ? "id lowers" : "id raises" }, amount(edge.rms)),
    make("span", { class: "id" }, `#${edge.feature}`), described(index, edge.feature))))),
  ]));
}

function drawFeature() {
  const { layer, feature } = state;
  const known = layers[layer].described.get(feature);
  const description = known && known.description;
  const card = make("div", { class: "card" });
  card.append(make("h2", {}, `${layers[layer].place} #${feature}`), make("div", {}, described(layer, feature)));
  const facts = [`active at ${percent(layers[layer].frequency[feature])} of the tokens`];
  if (description) {
    facts.push(`held-out text: precision ${percent(description.precision)}, recall ${percent(description.recall)}`);
  }
  card.append(make("p", { class: "facts" }, facts.join(" · ")));
  card.append(make("h3", {}, "What acts on it, and what it acts on"), drawNeighbours(layer, feature),
    listNeighbours(layer, feature));
  card.append(make("p", { class: "facts legend" }, make("i", { class: "raises" }), "raises on average  ",
    make("i", { class: "lowers" }), "lowers on average; width: RMS over all tokens"));
  if (known && known.examples.length) {
    card.append(make("h3", {}, "Where it is most active"));
    for (const example of known.examples) {
      const line = make("p", { class: "example" });
      example.tokens.forEach((token, k) => {
        const text = data.tokens[token] ?? `[${token}]`;
        line.append(k === example.place ? make("mark", {}, text) : text);
      });
      line.append(make("small", {}, amount(example.value)));
      card.append(line);
    }
  }
  return card;
}

function drawTrace() {
  const trace = data.traces[state.trace];
  const wide = Math.max(90, Math.min(140, 900 / trace.tokens.length)), tall = 120;
  const width = 110 + wide * trace.tokens.length, height = 60 + tall * trace.layers.length;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Trace of the prompt" });
  svg.style.minWidth = `${width}px`;
  const places = trace.layers.map((layer, k) => {
    const count = new Map();
    return layer.nodes.map((node) => {
      const place = count.get(node.position) || 0;
      count.set(node.position, place + 1);
      return { x: 120 + wide * node.position + 22 * (place % 4), y: height - 70 - tall * k - 22 * Math.floor(place / 4) };
    });
  });
  const largest = Math.max(...trace.layers.flatMap((layer) => layer.nodes.map((node) => Math.abs(node.effect))));
  trace.layers.forEach((layer, k) => {
    svg.append(make("text", { x: 8, y: height - 66 - tall * k, class: "soft" }, layer.place));
    for (const edge of layer.edges.slice(0, 150)) {
      const a = places[k - 1][edge.source], b = places[k][edge.target];
      svg.append(make("line", { x1: a.x, y1: a.y, x2: b.x, y2: b.y, class: edge.value < 0 ? "minus" : "plus",
        "stroke-opacity": 0.25 }));
    }
  });
  trace.layers.forEach((layer, k) => layer.nodes.forEach((node, n) => {
    const { x, y } = places[k][n], index = layers.findIndex((other) => other.place === layer.place);
    const text = `${layer.place} #${node.feature} ${label(index, node.feature) || ""}: effect ${amount(node.effect)}, ` +
      `to first order ${amount(node.gradient)}`;
    svg.append(make("g", { class: "node", tabindex: 0, role: "link", click: () => open(index, node.feature) },
      make("circle", { cx: x, cy: y, r: 3 + 7 * Math.sqrt(Math.abs(node.effect) / largest),
        class: node.effect < 0 ? "minus" : "plus" }), make("title", {}, text)));
  }));
  trace.tokens.forEach((token, k) =>
    svg.append(make("text", { x: 120 + wide * k, y: height - 24 }, word(token).slice(0, 14))));
  const card = make("div", { class: "card" });
  if (data.traces.length > 1) {
    card.append(make("div", {}, ...data.traces.map((other, k) => make("button", {
      type: "button", "aria-selected": k === state.trace, click: () => { state.trace = k; draw(); },
    }, other.name))));
  }
  card.append(make("h2", {}, `Next token: ${word(trace.target)}`));
  const nodes = trace.layers.reduce((total, layer) => total + layer.nodes.length, 0);
  card.append(make("p", { class: "facts" }, `${nodes} nodes. Their size is what the logit loses, as measured, when the ` +
    `feature is set to 0 there, or to its mean if it is usually active. Edges have the sign of what taking out the ` +
    `source does to the target in ${percent(trace.sign_agreement)} of the checked cases (rank correlation ` +
    `${amount(trace.correlation)}).`));
  card.append(make("div", { class: "scroll" }, svg));
  const list = make("ol");
  const all = trace.layers.flatMap((layer) => layer.nodes.map((node) => ({ ...node, place: layer.place })));
  all.sort((a, b) => Math.abs(b.effect) - Math.abs(a.effect));
  for (const node of all.slice(0, 25)) {
    const index = layers.findIndex((layer) => layer.place === node.place);
    list.append(make("li", {}, make("button", { type: "button", click: () => open(index, node.feature) },
      make("span", { class: "id" }, `${node.effect > 0 ? "+" : "−"}${amount(Math.abs(node.effect))}`),
      make("span", { class: "id" }, `${node.place} #${node.feature} at ${word(trace.tokens[node.position])}`),
      described(index, node.feature))));
  }
  card.append(make("h3", {}, "Largest measured effects on the logit"), list);
  return card;
}

function drawAbout() {
  const card = make("div", { class: "card" }, make("h2", {}, "About this graph"));
  for (const line of data.about) card.append(make("p", {}, line));
  return card;
}

function draw() {
  drawTabs();
  drawList();
  if (state.feature === null) state.feature = ranked(state.layer)[0] ?? 0;
  const views = { features: drawFeature, traces: drawTrace, about: drawAbout };
  document.getElementById("view").replaceChildren(views[state.tab]());
}

document.getElementById("search").addEventListener("input", drawList);
document.getElementById("rank").addEventListener("change", drawList);
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
});
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
draw();
