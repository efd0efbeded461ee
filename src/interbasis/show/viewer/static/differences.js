// What the run's model computes differently from other models.

import { el, name, replace } from "./dom.js";
import { hint } from "./panel.js";

export function differencesTab(page) {
  const element = el("section", { class: "text-tab differences", "aria-label": "Differences" });
  const runs = page.parts.map(({ run }) => run).filter(({ record }) => record.differences.length);
  if (!runs.length) {
    const words = "Where another model computes something else is measured by ";
    return replace(element, hint(words, "interbasis diff RUN MODEL"));
  }
  return replace(
    element,
    runs.map((run) => run.record.differences.map((difference) => differenceParts(run, difference))),
  );
}

function differenceParts(run, { name: stored, second, findings, tables }) {
  return [
    el("h2", {}, name(run.title), " / ", name(second), el("small", {}, ` diffs/${stored}`)),
    findings.map((sentence) => el("p", { class: "lead" }, sentence)),
    tables.map(tableParts),
  ];
}

function tableParts({ title, columns, rows, note }) {
  return [
    el("h3", {}, title),
    el(
      "table",
      { class: "about-table" },
      el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col" }, column)))),
      el(
        "tbody",
        {},
        rows.map(([first, ...cells]) =>
          el("tr", {}, el("th", { scope: "row" }, first), cells.map((cell) => el("td", {}, cell))),
        ),
      ),
    ),
    note && el("p", { class: "hint" }, note),
  ];
}
