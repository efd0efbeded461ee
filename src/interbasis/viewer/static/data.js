// The payload, decoded: runs with layers, sections of edges sorted by strength, and what is known about features.

export class Run {
  constructor(payload, place) {
    this.place = place;
    this.payload = payload;
    // a path's last part names the model well enough; the whole of it is under "About"
    const model = (payload.model || payload.family).replace(/[^:]*[/\\]([^/\\]+)$/, "$1");
    this.title = `${payload.basis.toUpperCase()} of ${model}`;
    this.layers = payload.layers.map((layer, k) => decodedLayer(layer, k, payload));
    this.sections = payload.sections.map(decodedSection);
    this.results = payload.results;
    this.language = !["mlp", "modadd"].includes(payload.family);
    this.modules = moduleRanks(payload.results.modules, this.layers);
  }

  get last() {
    return this.layers.length - 1;
  }

  // What `interbasis features` found out about a feature, or nothing.
  known(layer, index) {
    return this.layers[layer].known.get(index) ?? {};
  }

  examples(layer, index) {
    const bands = this.layers[layer].examples.get(index)?.bands;
    return Array.isArray(bands) ? bands : [];
  }

  module(layer, index) {
    return this.modules ? this.modules.ranks[layer][index] : -1;
  }

  layerNumber(name) {
    return this.layers.findIndex((layer) => layer.name === name);
  }
}

function decodedLayer(layer, k, payload) {
  const { features, examples } = payload.results;
  return {
    ...layer,
    eigenvalues: layer.eigenvalues === null ? null : floats(layer.eigenvalues),
    eigenvalue_errors: layer.eigenvalue_errors === null ? null : floats(layer.eigenvalue_errors),
    known: byIndex(sameName(features?.layers, layer.name)?.features),
    examples: byIndex(sameName(examples?.layers, layer.name)?.features),
  };
}

function sameName(layers, name) {
  return Array.isArray(layers) ? layers.find((layer) => layer?.name === name) : undefined;
}

// The row of a result that is about a section: results may hold some sections only.
export function sectionOf(result, { from, to }) {
  const rows = result?.sections;
  return Array.isArray(rows) ? rows.find((row) => row?.from === from && row?.to === to) : undefined;
}

function byIndex(features) {
  return new Map((Array.isArray(features) ? features : []).filter(Boolean).map((feature) => [feature.index, feature]));
}

function decodedSection(section) {
  return {
    ...section,
    sources: integers(section.sources),
    targets: integers(section.targets),
    values: floats(section.values),
    errors: section.errors === null ? null : floats(section.errors),
    constant: section.constant === null ? null : floats(section.constant),
    intoAll: floats(section.into_all),
  };
}

function bytes(text) {
  const binary = atob(text);
  const array = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) array[i] = binary.charCodeAt(i);
  return array.buffer;
}

export function floats(text) {
  return new Float32Array(bytes(text));
}

export function integers(text) {
  return new Uint32Array(bytes(text));
}

// Modules numbered by size, the largest 0, so that the first colours go to what matters most.
function moduleRanks(result, layers) {
  if (!Array.isArray(result?.layers)) return null;
  const sizes = new Map();
  for (const layer of layers) {
    for (const module of assignmentOf(result, layer)) if (module >= 0) sizes.set(module, (sizes.get(module) ?? 0) + 1);
  }
  const order = [...sizes.keys()].sort((a, b) => sizes.get(b) - sizes.get(a) || a - b);
  const rank = new Map(order.map((module, k) => [module, k]));
  const ranks = layers.map((layer) => {
    const assignment = assignmentOf(result, layer);
    return Int32Array.from({ length: layer.features }, (_, i) => rank.get(assignment[i]) ?? -1);
  });
  return { ranks, sizes: order.map((module) => sizes.get(module)), ids: order };
}

function assignmentOf(result, layer) {
  const assignment = sameName(result.layers, layer.name)?.assignment;
  return Array.isArray(assignment) ? assignment : [];
}

// The variance that a layer norm divides by stands alone, behind the constant.
export function isIsolated(run, layer, index) {
  const { constant, isolated } = run.layers[layer];
  const place = index - (constant ? 1 : 0);
  return place >= 0 && place < isolated;
}

export function isConstant(run, layer, index) {
  return run.layers[layer].constant && index === 0;
}
