// What was run, on what, and what the page leaves out.

import { el, name, replace } from "./dom.js";
import { decimal, integer, percent } from "./format.js";

export function aboutTab(page) {
  return el(
    "section",
    { class: "text-tab about", "aria-label": "About" },
    el("h2", {}, "How to read the graph"),
    el(
      "p",
      { class: "lead" },
      "A column is a node layer of the network, a box in it one feature of the layer's basis, the " +
        "most important at the top. A line is the interaction Ê between two features: the root mean " +
        "square, over the data, of how much of the right one is attributed to the left one. Point at a " +
        "feature to see what it comes from and what it goes to; the colours are explained below the " +
        "graph; open it for its numbers. Arrow keys walk along the strongest edges, Enter opens, Escape " +
        "closes, / searches.",
    ),
    page.parts.map(({ run }) => aboutRun(run)),
  );
}

function aboutRun(run) {
  const { about, digest, outdated, too_few_data, unreadable } = run.record;
  const seconds = Object.values(about.seconds).reduce((sum, value) => sum + value, 0);
  return [
    el("h2", {}, name(run.title)),
    facts([
      ["Run", run.record.name || "in memory"],
      run.record.model && ["Model", run.record.model],
      [
        "Samples",
        Object.entries(about.samples)
          .map(([key, value]) => `${key.replaceAll("_", " ")} ${integer(value)}`)
          .join(", "),
      ],
      ["Computed in", `${decimal(seconds)} s`],
      ["Settings", settings(about.settings)],
      about.precision && ["Precision", about.precision],
      [
        "Versions",
        Object.entries(about.versions)
          .map(([key, value]) => `${key} ${value}`)
          .join(", "),
      ],
      ["Weights, SHA-256", about.model_fingerprint.slice(0, 12)],
      digest && ["Graph, SHA-256", digest.slice(0, 12)],
    ]),
    el(
      "table",
      { class: "about-table" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["Node layer", "Width", "Features", "Noise", "Unused"].map((title) => el("th", { scope: "col" }, title)),
        ),
      ),
      el(
        "tbody",
        {},
        run.layers.map((layer) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, name(layer.name)),
            [layer.width, layer.size, layer.dropped_as_noise, layer.dropped_as_unused].map((value) =>
              el("td", {}, integer(value)),
            ),
          ),
        ),
      ),
    ),
    el(
      "p",
      { class: "hint" },
      "Width and features count the constant. Noise: directions whose variance is rounding. Unused: " +
        "directions without effect on the next layer.",
    ),
    run.sections.length > 0 && [
      el(
        "table",
        { class: "about-table" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            ["Section", "Edges", "In this page", "Share of Ê² in this page"].map((title) =>
              el("th", { scope: "col" }, title),
            ),
          ),
        ),
        el(
          "tbody",
          {},
          run.sections.map((section) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, name(section.source), " → ", name(section.target)),
              el("td", {}, integer(section.nonzero)),
              el("td", {}, integer(section.held)),
              el("td", {}, percent(section.held_share)),
            ),
          ),
        ),
      ),
      el("p", { class: "hint" }, "Edges larger than 0, those of the constant left out."),
    ],
    el(
      "ul",
      { class: "known" },
      resultList(run).map(([meaning, available, maker]) =>
        el(
          "li",
          { class: available ? "" : "absent" },
          available
            ? `${meaning}: available`
            : [
                `${meaning}: ${outdated.includes(maker) ? "outdated, measured on an older graph" : "not yet"}; run `,
                el("code", {}, `interbasis ${maker} RUN`),
              ],
        ),
      ),
    ),
    too_few_data && el("p", { class: "hint" }, name(too_few_data)),
    unreadable.map((problem) => el("p", { class: "hint unreadable" }, name(problem))),
  ];
}

function resultList({ record, modules }) {
  return [
    ["edges and features required", record.ablation, "ablate"],
    ["sparsity curves", record.curves, "curves"],
    ["modules", modules, "modules"],
    ["labels and what features respond to", record.labelled, "features"],
    ["dataset examples", record.examples, "features"],
  ];
}

function settings(values) {
  return Object.entries(values)
    .filter(([, value]) => value !== null)
    .map(([key, value]) => `${key.replaceAll("_", " ")} ${value}`)
    .join(", ");
}

function facts(rows) {
  return el(
    "dl",
    { class: "about-facts" },
    rows.filter(Boolean).map(([key, value]) => [el("dt", {}, key), el("dd", {}, name(value))]),
  );
}

export function notesMenu(page) {
  const menu = el("details", { class: "menu" });
  const file = el("input", {
    type: "file",
    accept: "application/json,.json",
    hidden: true,
    onchange: () => readNotes(page, file),
  });
  const status = el("p", { class: "hint", role: "status" });
  page.notesStatus = status;
  return replace(
    menu,
    el("summary", {}, "Notes"),
    el(
      "div",
      { class: "menu-box" },
      el(
        "p",
        { class: "hint" },
        page.token
          ? "Pins, names and groups are saved to the run as you make them."
          : "This page is a single file: download your notes to keep them, and open them here to restore them.",
      ),
      el("button", { type: "button", onclick: () => downloadNotes(page) }, "Download notes"),
      el("button", { type: "button", onclick: () => file.click() }, "Open notes…"),
      file,
      status,
    ),
  );
}

// One run's notes as they are on disk; two runs' notes under the names of the graphs.
function downloadNotes(page) {
  const notes = page.parts.map(({ run, notes: book }) => ({ graph: run.record.digest, ...book.plain() }));
  const text = JSON.stringify({ format: "interbasis-notes", schema: 1, notes }, null, 1);
  const link = el("a", {
    href: `data:application/json;charset=utf-8,${encodeURIComponent(text)}`,
    download: `${page.parts[0].run.record.name || "graph"}-notes.json`,
  });
  document.body.append(link);
  link.click();
  link.remove();
}

async function readNotes(page, input) {
  const [file] = input.files;
  input.value = "";
  if (!file) return;
  try {
    const { format, notes } = JSON.parse(await file.text());
    if (format !== "interbasis-notes" || !Array.isArray(notes)) throw new Error("not notes");
    const fitting = page.parts.map(({ run }) => notes.find(({ graph }) => graph === run.record.digest));
    if (!fitting.some(Boolean)) {
      replace(page.notesStatus, "These notes belong to another graph.");
      return;
    }
    page.parts.forEach(({ notes: book }, k) => fitting[k] && book.replaceBy(fitting[k]));
    replace(page.notesStatus, "Notes opened.");
  } catch {
    replace(page.notesStatus, "This file does not contain notes from such a page.");
  }
}
