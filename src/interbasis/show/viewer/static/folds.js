// Buttons between two columns: what is folded away there, shown or folded again.

import { el } from "./dom.js";
import { foldedBetween, openedLayers } from "./folding.js";

export function foldButton(view, number) {
  const { run, state, columns, box } = view;
  if (number + 1 >= columns.length || state.get("norms")) return null;
  const middle = (box.x[number] + box.widths[number] + box.x[number + 1]) / 2;
  const [left, right] = [columns[number].layer, columns[number + 1].layer];
  const folded = foldedBetween(left, right);
  const opened = openedLayers(state);
  const open = run.layers[left].folded ? [] : opened.filter((layer) => layer > left && isRun(run, left, layer));
  if (!folded.length && !open.length) return null;
  const names = (folded.length ? folded : open).map((layer) => run.layers[layer].name).join(", ");
  const next = folded.length ? [...opened, ...folded] : opened.filter((layer) => !open.includes(layer));
  return el(
    "button",
    {
      type: "button",
      class: "fold",
      style: { left: `${middle}px` },
      "aria-expanded": String(!folded.length),
      "aria-label": `${folded.length ? "Show" : "Fold"} ${names}`,
      title: `${folded.length ? "Show" : "Fold away"} ${names}`,
      onclick: () => state.set({ open: next.sort((a, b) => a - b).join(".") }),
    },
    folded.length ? `+${folded.length}` : "−",
  );
}

// Whether all layers from the one after `left` up to `layer` are ones that are folded by default.
function isRun(run, left, layer) {
  return foldedBetween(left, layer + 1).every((between) => run.layers[between].folded);
}
