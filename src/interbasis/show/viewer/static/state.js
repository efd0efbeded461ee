// What is being looked at, kept in the address so that a view can be shared and comes back on reload.

const KINDS = {
  tab: "text",
  by: "text",
  count: "number",
  share: "number",
  into: "number",
  loss: "number",
  nodes: "number",
  scale: "text",
  normalise: "flag",
  constant: "flag",
  norms: "flag",
  open: "text",
  zoom: "number",
  output: "text",
  from: "number",
  to: "number",
  sort: "text",
  colour: "text",
  module: "number",
  sel: "text",
  trace: "text",
  node: "text",
  tpins: "text",
  tgroups: "text",
  only: "flag",
  marks: "number",
  q: "text",
  theme: "text",
};

const BOUNDS = {
  count: [1, 1e6],
  share: [0.001, 1],
  into: [0.001, 1],
  loss: [1, 500],
  nodes: [1, 1000],
  from: [0, 1e5],
  to: [0, 1e5],
  module: [-1, 1e5],
  zoom: [0.3, 4],
  marks: [1, 1e5],
};

const CHOICES = {
  tab: ["graph", "prompts", "pinned", "curves", "differences", "about"],
  by: ["into", "count", "share", "needed"],
  scale: ["square", "plain", "root", "log"],
  output: ["show", "merge", "hide"],
  sort: ["importance", "strength", "module", "match"],
  colour: ["none", "module", "group"],
  theme: ["auto", "light", "dark"],
};

export class State {
  constructor(defaults) {
    this.defaults = defaults;
    this.values = { ...defaults, ...readHash(location.hash, defaults) };
    this.listeners = [];
    window.addEventListener("hashchange", () => {
      const values = { ...defaults, ...readHash(location.hash, defaults) };
      if (JSON.stringify(values) !== JSON.stringify(this.values)) this.set(values);
    });
  }

  get(name) {
    return this.values[name];
  }

  set(changes) {
    const changed = Object.keys(changes).filter((key) => changes[key] !== this.values[key]);
    if (!changed.length) return;
    Object.assign(this.values, changes);
    for (const listener of this.listeners) listener(new Set(changed));
    clearTimeout(this.writing);
    this.writing = setTimeout(() => writeHash(this.values, this.defaults), 150);
  }

  listen(listener) {
    this.listeners.push(listener);
  }
}

function readHash(hash, defaults) {
  const values = {};
  for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!Object.hasOwn(defaults, key)) continue;
    if (KINDS[key] === "flag") values[key] = text === "1";
    else if (KINDS[key] === "text") {
      if (!Object.hasOwn(CHOICES, key) || CHOICES[key].includes(text)) values[key] = text;
    } else if (text !== "" && Number.isFinite(Number(text))) values[key] = withinBounds(key, Number(text));
  }
  return values;
}

// Whatever stands in an address, the page can show it.
function withinBounds(key, value) {
  const [low, high] = BOUNDS[key];
  return Math.min(Math.max(["share", "into", "zoom"].includes(key) ? value : Math.round(value), low), high);
}

function writeHash(values, defaults) {
  const parameters = new URLSearchParams();
  for (const key of Object.keys(KINDS)) {
    if (values[key] === defaults[key]) continue;
    parameters.set(key, KINDS[key] === "flag" ? (values[key] ? "1" : "0") : String(values[key]));
  }
  const text = parameters.toString();
  try {
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  } catch {
    // a page inside a notebook has no address of its own
  }
}
