// What can be done on a page, from its `?`.

import { append, el } from "./dom.js";

const KEYS = [
  ["?", "this help"],
  ["/", "search features by label, token, layer or number"],
  ["Tab, then ← → ↑ ↓", "go to the features, walk along the strongest edges, up and down a column"],
  ["Enter", "open the feature: its numbers, edges, examples, effects"],
  ["p", "pin or unpin the open feature, or the open node of a prompt"],
  ["Esc", "close what is open, then the search, then a module shown alone"],
  ["+ − 0", "zoom in, zoom out, back to the size that fits"],
  ["[ ]", "scroll a screen to the left or right"],
];

const POINTER = [
  ["Point at a box", "its full label; what acts on it and what it acts on light up"],
  ["Point at a line", "its ends and its strength Ê"],
  ["Click a box", "everything known about the feature"],
  ["Wheel", "zoom; with Shift, or sideways, scroll"],
  ["Drag the background", "move the graph"],
  ["+2 between columns", "show the layer norms that are folded away there"],
];

export class Help {
  constructor(rows = { keys: KEYS, pointer: POINTER }) {
    const table = (list) =>
      el(
        "table",
        { class: "help-table" },
        list.map(([what, does]) => el("tr", {}, el("th", { scope: "row" }, what), el("td", {}, does))),
      );
    this.element = el(
      "dialog",
      {
        class: "help",
        "aria-label": "Help",
        onclick: (event) => event.target === this.element && this.element.close(),
      },
      el(
        "header",
        {},
        el("h2", {}, "Help"),
        el(
          "button",
          { type: "button", class: "quiet close", "aria-label": "Close help", onclick: () => this.toggle() },
          "×",
        ),
      ),
      el("h3", {}, "Keyboard"),
      table(rows.keys),
      el("h3", {}, "Pointer"),
      table(rows.pointer),
    );
    this.button = el(
      "button",
      { type: "button", class: "quiet", title: "Help (?)", "aria-label": "Help", onclick: () => this.toggle() },
      "?",
    );
    append(document.body, [this.element]);
  }

  toggle() {
    if (this.element.open) this.element.close();
    else this.element.showModal();
  }
}
