// What the page is told (viewer/schema.py), decoded: runs with layers, sections of edges sorted by strength, and what
// is known about features.

export const SCHEMA = 7;

export class Run {
  constructor(record, place) {
    this.record = record;
    this.place = place;
    // the last part of a path names the model well enough; the whole of it is under "About"
    const model = (record.model || record.family).replace(/[^:]*[/\\]([^/\\]+)$/, "$1");
    this.title = `${record.basis.toUpperCase()} of ${model}`;
    this.layers = record.layers.map(decodedLayer);
    this.sections = record.sections.map(decodedSection);
    this.modules = moduleSizes(this.layers);
    this.tokens = new Map();
  }

  get last() {
    return this.layers.length - 1;
  }

  get ablated() {
    return this.sections.some((section) => section.edges_required);
  }

  // What `interbasis features` found out about a feature; null where it was not looked at.
  feature(layer, index) {
    return this.layers[layer].features.get(index) ?? null;
  }

  // Bands of dataset examples of a feature.
  bands(layer, index) {
    return this.layers[layer].examples.get(index)?.bands ?? [];
  }

  module(layer, index) {
    return this.modules ? (this.layers[layer].modules?.[index] ?? -1) : -1;
  }

  layerNumber(name) {
    return this.layers.findIndex((layer) => layer.name === name);
  }
}

// A record with decoded fields of its own in place of some.
export function decoded(record, fields) {
  return Object.assign(Object.create(record), fields);
}

function decodedLayer(layer) {
  return decoded(layer, {
    eigenvalues: layer.eigenvalues === null ? null : floats(layer.eigenvalues),
    eigenvalue_errors: layer.eigenvalue_errors === null ? null : floats(layer.eigenvalue_errors),
    features: byIndex(layer.features),
    examples: byIndex(layer.examples),
    strengths: null, // filled when features are sorted by them
  });
}

function byIndex(rows) {
  return new Map(rows.map((row) => [row.index, row]));
}

function decodedSection(section) {
  return decoded(section, {
    sources: integers(section.sources),
    targets: integers(section.targets),
    values: floats(section.values),
    errors: section.errors === null ? null : floats(section.errors),
    constant: section.constant === null ? null : floats(section.constant),
    into_all: floats(section.into_all),
    cumulative: null, // filled when edges are chosen by their share
  });
}

function bytes(text) {
  const binary = atob(text);
  const array = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) array[i] = binary.charCodeAt(i);
  return array.buffer;
}

function floats(text) {
  return new Float32Array(bytes(text));
}

function integers(text) {
  return new Uint32Array(bytes(text));
}

// Modules by their number, which is the same in every table and file: 0 is the largest.
function moduleSizes(layers) {
  if (layers.every(({ modules }) => modules === null)) return null;
  const sizes = [];
  for (const { modules } of layers) {
    for (const module of modules ?? []) if (module >= 0) sizes[module] = (sizes[module] ?? 0) + 1;
  }
  return { sizes: Array.from(sizes, (size) => size ?? 0) };
}

// Two runs: for each feature the one of the other run that is most like it.
export class Matches {
  constructor(records, runs) {
    this.byLayer = runs.map(() => new Map());
    for (const match of records) {
      const { layer } = match;
      const sides = [
        [match.first, match.first_overlap],
        [match.second, match.second_overlap],
      ];
      sides.forEach(([indices, overlaps], place) =>
        this.byLayer[place]?.set(layer, { indices: integers(indices), overlaps: floats(overlaps) }),
      );
    }
    this.runs = runs;
  }

  get any() {
    return this.byLayer.length > 1 && this.byLayer[0].size > 0;
  }

  // {place, layer, index, overlap} of the match in the other run; null where there is none.
  of(place, layer, index) {
    const match = this.byLayer[place]?.get(this.runs[place].layers[layer].name);
    if (!match || this.runs.length < 2 || isConstant(this.runs[place], layer, index)) return null;
    const other = 1 - place;
    const there = this.runs[other].layerNumber(this.runs[place].layers[layer].name);
    return { place: other, layer: there, index: match.indices[index], overlap: match.overlaps[index] };
  }
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
