// Everything known about one feature.

import { bars, histogram, profile } from "./charts.js";
import { isConstant, isIsolated } from "./data.js";
import { el, name, replace } from "./dom.js";
import { exampleBands } from "./examples.js";
import { neighboursThrough } from "./folding.js";
import { decimal, integer, percent, plural, visible } from "./format.js";
import { matchSection } from "./matched.js";

// At most so many are listed.
const NEIGHBOURS = 8;
const CLASSES = 12;
const TERMS = 8;

export class Panel {
  constructor(page) {
    this.page = page;
    this.element = el("aside", { class: "panel", hidden: true, "aria-label": "Feature", tabindex: "-1" });
  }

  show(selected) {
    this.element.hidden = !selected;
    if (!selected) return replace(this.element);
    const { run, names, notes } = this.page.part(selected.place);
    const { layer, index } = selected;
    replace(
      this.element,
      this.head(run, names, layer, index),
      this.numbers(run, layer, index),
      noteFields(notes, layer, index),
      matchSection(this.page, selected.place, layer, index),
      edgeTables(this.page, run, names, layer, index),
      featureSections(run, layer, index),
      exampleSection(run, layer, index),
    );
    this.element.scrollTop = 0;
  }

  head(run, names, layer, index) {
    return el(
      "header",
      {},
      el(
        "div",
        {},
        el("h2", {}, name(names.label(layer, index))),
        el(
          "p",
          { class: "where" },
          name(run.layers[layer].name),
          ` · feature ${index}`,
          this.page.parts.length > 1 && [" · ", name(run.title)],
        ),
      ),
      el(
        "button",
        {
          type: "button",
          class: "quiet close",
          "aria-label": "Close",
          title: "Close (Esc)",
          onclick: () => this.page.select(null),
        },
        "×",
      ),
    );
  }

  numbers(run, layer, index) {
    const { eigenvalues, eigenvalue_errors: errors, ranked_by: kind, constant, size } = run.layers[layer];
    if (isConstant(run, layer, index)) {
      return el("p", { class: "hint" }, "The constant 1 that stands in front of every layer: biases are its edges.");
    }
    const alone =
      isIsolated(run, layer, index) &&
      el("p", { class: "hint" }, "The variance that the layer norm divides by, kept apart from the other features.");
    const module = run.module(layer, index);
    const first = constant ? 1 : 0;
    const rank =
      eigenvalues &&
      eigenvalues.subarray(first).reduce((above, value) => above + (value > eigenvalues[index] ? 1 : 0), 1);
    const meaning = kind === "lambda" ? "how strongly the next layer responds to it" : "its variance over the data";
    return [
      alone,
      el(
        "dl",
        { class: "facts" },
        eigenvalues && [
          el(
            "dt",
            {},
            kind === "lambda" ? "Λ" : "Variance",
            el("small", {}, kind === "lambda" ? meaning : "over the data"),
          ),
          el(
            "dd",
            {},
            decimal(eigenvalues[index]),
            errors && ` ± ${decimal(errors[index], 1)}`,
            el("small", {}, `${ordinal(rank)} of ${integer(size - first)} in this layer`),
          ),
        ],
        run.modules && [el("dt", {}, "Module"), el("dd", {}, module < 0 ? "none" : String(module))],
      ),
    ];
  }
}

// What the feature responds to and does.
export function featureSections(run, layer, index) {
  if (!run.record.labelled) return hint("Labels, spectra and histograms are made by ", "interbasis features RUN");
  const feature = run.feature(layer, index);
  if (!feature) {
    const { constant, outputs } = run.layers[layer];
    if (outputs || isConstant(run, layer, index)) return null;
    return hint("This feature is described by ", `interbasis features RUN --top ${index + 1 - Number(constant)}`);
  }
  const { fourier, classes, positions, effects, mean_effects: moved, evidence, histogram: counts } = feature;
  return [
    evidence.length > 0 &&
      section(
        "Evidence",
        "what it responds to, as share of its variance; what it does, as share of its squared effect on all outputs",
        evidenceTable(evidence),
      ),
    fourier?.length > 0 &&
      section(
        "Fourier terms",
        "share of the feature's variance",
        bars(
          fourier.slice(0, TERMS).map(({ text, share }) => ({ label: text, value: share })),
          percent,
        ),
      ),
    classes && section("Classes", classMeaning(classes), classBars(classes), aurocSentence(classes)),
    positions &&
      section(
        "Positions",
        `mean activation by position; position explains ${percent(positions.share)} of its variance`,
        profile(positions.means),
      ),
    effects &&
      section(
        "Direct effect on the output",
        "outputs it raises and lowers most, by one standard deviation of it; first and last hold " +
          `${percent(effects.share)} of its squared effect`,
        effectBars(effects),
      ),
    moved &&
      section(
        "Mean effect on the output",
        "through all blocks above, averaged over the data; ± standard error; first and last hold " +
          `${percent(moved.share)}`,
        effectBars(moved),
      ),
    counts.counts.length > 0 && section("Activations", "histogram over the data", histogram(counts)),
  ];
}

export function hint(text, command) {
  return el("p", { class: "hint" }, text, el("code", {}, command));
}

function section(title, meaning, ...children) {
  return el("section", {}, el("h3", {}, title, el("small", {}, meaning)), children);
}

function ordinal(rank) {
  const tens = rank % 100;
  const ending = tens > 10 && tens < 14 ? "th" : (["th", "st", "nd", "rd"][rank % 10] ?? "th");
  return `${integer(rank)}${ending}`;
}

function classMeaning({ means, explained }) {
  const which =
    means.length > CLASSES
      ? `mean activation; the ${CLASSES} of ${integer(means.length)} classes farthest from 0`
      : "mean activation of each class";
  return `${which}; the class explains ${percent(explained)} of its variance`;
}

function classBars({ names, means }) {
  const rows = means.map((value, k) => ({ label: names[k], value }));
  if (rows.length <= CLASSES) return bars(rows);
  return bars(
    rows
      .sort((a, b) => Math.abs(b.value) - Math.abs(a.value))
      .slice(0, CLASSES)
      .sort((a, b) => b.value - a.value),
  );
}

// The class that the feature separates best from the others.
function aurocSentence({ auroc, names }) {
  const best = auroc.reduce((lead, area, k) => (Math.abs(area - 0.5) > Math.abs(auroc[lead] - 0.5) ? k : lead), 0);
  if (!Number.isFinite(auroc[best])) return null;
  return el(
    "p",
    { class: "hint" },
    "This feature alone separates ",
    name(names[best]),
    ` from the others with AUROC ${decimal(Math.max(auroc[best], 1 - auroc[best]))} (0.5 is chance).`,
  );
}

function effectBars({ rows }) {
  return rows.length
    ? bars(rows.map(({ name: label, value, error }) => ({ label: visible(label), value, error })))
    : null;
}

function evidenceTable(evidence) {
  return el(
    "table",
    { class: "evidence" },
    evidence.map(({ kind, text, share, low }) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, low && kind !== "identity" && "low: ", name(visible(text))),
        el("td", {}, el("small", {}, kind)),
        el("td", { class: "number" }, percent(share)),
      ),
    ),
  );
}

function noteFields(notes, layer, index) {
  const pinned = notes.isPinned(layer, index);
  const commit = (change) => ({
    onchange: (event) => change(event.target.value),
    onkeydown: (event) => event.key === "Enter" && event.target.blur(),
  });
  return el(
    "div",
    { class: "notes" },
    el(
      "button",
      {
        type: "button",
        class: "pin",
        "aria-pressed": String(pinned),
        title: "A pinned feature is always shown",
        onclick: () => notes.pin(layer, index, !pinned),
      },
      pinned ? "Pinned" : "Pin",
    ),
    el(
      "label",
      {},
      "Name",
      el("input", {
        type: "text",
        maxlength: "200",
        value: notes.customName(layer, index),
        placeholder: "your own",
        ...commit((text) => notes.rename(layer, index, text)),
      }),
    ),
    el(
      "label",
      {},
      "Group",
      el("input", {
        type: "text",
        maxlength: "200",
        list: "groups",
        value: notes.groupName(layer, index),
        placeholder: "none",
        ...commit((text) => notes.group(layer, index, text)),
      }),
    ),
    el(
      "datalist",
      { id: "groups" },
      notes.groupNames().map((group) => el("option", { value: group })),
    ),
    notes.status && el("p", { class: "hint", role: "status" }, notes.status),
  );
}

function edgeTables(page, run, names, layer, index) {
  if (!run.sections.length) return null;
  const shown = page.part(run.place).view.columns?.map((column) => column.layer) ?? [];
  const before = shown.filter((other) => other < layer).pop() ?? layer - 1;
  const after = shown.find((other) => other > layer) ?? layer + 1;
  const table = (title, other, strongest) => {
    const { rows, total, count, sum } = strongest();
    const between = Math.abs(other - layer) - 1;
    const where = layerName(run, other) + (between ? `, through ${plural(between, "folded layer")}` : "");
    return section(
      title,
      count ? `${where}; Ê, and share of Ê² among its ${plural(count, "edge")} here` : where,
      rows.length
        ? el(
            "table",
            { class: "edges-table" },
            rows.slice(0, NEIGHBOURS).map((row) => edgeRow(page, run, names, other, row, sum, rows[0].value)),
          )
        : el("p", { class: "hint" }, total ? "Its edges are too weak to be included in this page." : "None."),
    );
  };
  return [
    layer > 0 && before >= 0 && table("Comes from", before, () => neighboursThrough(run, before, layer, index, "in")),
    layer < run.last &&
      !isConstant(run, layer, index) &&
      table("Goes to", after, () => neighboursThrough(run, layer, after, index, "out")),
  ];
}

function layerName(run, layer) {
  return run.layers[layer].name;
}

function edgeRow(page, run, names, layer, { index, value, error }, sum, largest) {
  const jump = () => page.select({ place: run.place, layer, index });
  return el(
    "tr",
    {},
    el(
      "th",
      { scope: "row" },
      el(
        "button",
        { type: "button", class: "link", onclick: jump, title: names.full(layer, index) },
        name(names.boxed(layer, index)),
      ),
    ),
    el(
      "td",
      { class: "bar" },
      el("span", { class: "positive", style: { left: "0", width: `${(value / largest) * 100}%` } }),
    ),
    el("td", { class: "number" }, decimal(value), error > 0 && el("small", {}, ` ± ${decimal(error, 1)}`)),
    el("td", { class: "number share" }, percent((value * value) / sum)),
  );
}

export function exampleSection(run, layer, index) {
  const kind = run.record.examples;
  if (!kind) return run.record.labelled ? hint("Dataset examples are made by ", "interbasis features RUN") : null;
  const bands = run.bands(layer, index).filter((band) => band.examples.length);
  if (!bands.length) return null;
  const between = bands.length > 2 ? ", and bands of quantiles between" : "";
  const coloured = kind === "tokens" ? "; tokens coloured by activation" : "";
  return section("Examples from the data", `both ends${between}${coloured}`, exampleBands(bands, kind));
}
