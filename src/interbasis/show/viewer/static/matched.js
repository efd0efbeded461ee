// Features of two runs side by side: which is like which.

import { el, name } from "./dom.js";
import { percent } from "./format.js";

export function matchText(page, place, layer, index) {
  const match = page.matches.of(place, layer, index);
  if (!match) return null;
  const { run, names } = page.part(match.place);
  return el(
    "p",
    { class: "hint" },
    "In ",
    name(run.title),
    ": ",
    name(names.boxed(match.layer, match.index)),
    `, overlap ${percent(match.overlap)}`,
  );
}

// The size of an overlap: models with different weights have no common activations to correlate.
function overlapText(page) {
  const [first, second] = page.parts.map(({ run }) => run.record.about.model_fingerprint);
  return first === second
    ? "the size of their correlation over the data"
    : "the cosine of their directions in the metrics of both runs, since the weights differ";
}

// A section of the panel with the feature of the other run that is most like this one.
export function matchSection(page, place, layer, index) {
  const match = page.matches.of(place, layer, index);
  if (!match) return null;
  const { run, names } = page.part(match.place);
  const jump = () => page.select({ place: match.place, layer: match.layer, index: match.index });
  return el(
    "section",
    { class: "match" },
    el(
      "h3",
      {},
      "In the other run",
      el("small", {}, `the feature that overlaps most; overlap is ${overlapText(page)}`),
    ),
    el(
      "p",
      {},
      el("button", { type: "button", class: "link", onclick: jump }, name(names.boxed(match.layer, match.index))),
      el("small", {}, name(run.title), `, overlap ${percent(match.overlap)}`),
    ),
  );
}

// The second run's features beside their matches in the first: each takes the row of the feature it is most like,
// as far as that is free, the strongest overlaps first; the rest fill the rows that are left.
export function besideMatches(page, place, layer, shown) {
  const other = page.parts[1 - place].view.columns?.find(
    (column) => page.parts[1 - place].run.layers[column.layer].name === page.parts[place].run.layers[layer].name,
  );
  if (!other) return shown;
  const rows = new Array(shown.length).fill(-1);
  const waiting = [];
  const matches = shown.map((index) => ({ index, match: page.matches.of(place, layer, index) }));
  matches.sort((a, b) => (b.match?.overlap ?? 0) - (a.match?.overlap ?? 0));
  for (const { index, match } of matches) {
    const row = match ? other.row[match.index] : -1;
    if (row >= 0 && row < rows.length && rows[row] < 0) rows[row] = index;
    else waiting.push(index);
  }
  waiting.sort((a, b) => a - b);
  return rows.map((index) => (index < 0 ? waiting.shift() : index));
}
