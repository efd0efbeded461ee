// Features as buttons: they can be focused, read out, and walked through with the arrow keys.

import { moduleColour } from "./colours.js";
import { el, name, replace } from "./dom.js";
import { decimal, integer } from "./format.js";
import { foldButton } from "./folds.js";
import { matchText } from "./matched.js";
import { strongestNeighbour } from "./paths.js";

export class NodeColumns {
  constructor(view) {
    this.view = view;
    this.buttons = [];
    this.empty = el("button", { class: "node", type: "button", tabindex: "-1" });
    this.element = el("div", {
      class: "columns",
      onpointerover: (event) => this.point(event.target),
      onpointerleave: () => this.point(null),
      onfocusin: (event) => this.point(event.target, true),
      onfocusout: () => this.point(null),
      onclick: (event) => this.open(event.target),
      onkeydown: (event) => this.walk(event),
    });
  }

  // Made again only where something has changed.
  build(columns, box) {
    const { state, notes } = this.view;
    const kind = [
      state.get("colour"),
      notes.version,
      JSON.stringify(box),
      columns.map(({ layer, indices }) => `${layer}:${indices}`),
    ].join("|");
    this.columns = columns;
    if (kind === this.kind) return this.markSelected();
    this.kind = kind;
    const focused = this.element.contains(document.activeElement);
    this.box = box;
    this.pointed = null;
    this.element.style.setProperty("--node-height", `${box.nodeHeight}px`);
    this.element.style.setProperty("--zoom", String(box.zoom));
    this.buttons = columns.map((column, number) =>
      column.indices.map((index, row) => this.button(column, number, index, row)),
    );
    replace(
      this.element,
      columns.map((column, number) => [this.column(column, number), foldButton(this.view, number)]),
    );
    this.idle = null;
    this.marked = null;
    const home = this.homePlace();
    this.rove(home);
    this.markSelected();
    this.markFound();
    if (focused && home) this.buttons[home.column][home.row].focus({ preventScroll: true });
  }

  // Where the keyboard was last, if that feature is still there.
  homePlace() {
    const column = this.columns.findIndex(({ layer }) => layer === this.home?.layer);
    const row = column < 0 ? -1 : (this.columns[column].row[this.home.index] ?? -1);
    return row < 0 ? null : { column, row };
  }

  column(column, number) {
    const layer = this.view.run.layers[column.layer];
    const features = layer.size - (layer.constant ? 1 : 0);
    const shown = column.indices.filter((index) => !(layer.constant && index === 0)).length;
    const text = column.merged
      ? `${integer(features)} as one`
      : shown < features
        ? `${integer(shown)} of ${integer(features)}`
        : integer(features);
    return el(
      "div",
      {
        class: "column",
        role: "group",
        "aria-label": `Node layer ${layer.name}, ${integer(shown)} of ${integer(features)} features`,
        style: {
          left: `${this.box.x[number]}px`,
          width: `${this.box.widths[number]}px`,
          height: `${this.box.height}px`,
        },
      },
      el(
        "div",
        { class: "column-title", title: layer.hook ? `${layer.name}\n${layer.hook} in TransformerLens` : layer.name },
        name(layer.name),
        el("small", {}, text),
      ),
      this.buttons[number],
    );
  }

  // There may be thousands: each is a copy of an empty one, and its tooltip is written when it is pointed at.
  button(column, number, index, row) {
    const { run, names, notes, page } = this.view;
    const layer = run.layers[column.layer];
    const label = column.merged ? "all outputs" : names.label(column.layer, index);
    const rank = column.merged ? -1 : page.colourRank(run, column.layer, index);
    const button = this.empty.cloneNode();
    button.dataset.at = `${number},${row}`;
    button.style.top = `${this.box.top[number] + row * this.box.row}px`;
    button.setAttribute(
      "aria-label",
      column.merged ? `All outputs of ${layer.name} as one` : this.spoken(column.layer, index, label),
    );
    if (rank >= 0) {
      button.style.setProperty("--tint", moduleColour(rank));
      button.classList.add("tinted");
    }
    if (!column.merged && notes.isPinned(column.layer, index)) button.classList.add("pinned");
    if (!column.merged && layer.constant && index === 0) button.classList.add("constant");
    const short = column.merged ? label : names.short(column.layer, index);
    if (short.startsWith("e.g. ")) button.classList.add("unnamed");
    if (!column.merged) button.append(el("span", { class: "number" }, String(index)));
    button.append(el("span", { class: "label" }, name(short)));
    return button;
  }

  // The whole label, where it is, and what it is worth.
  describe({ column, row }) {
    const { layer, indices, merged } = this.columns[column];
    const { run, names, page } = this.view;
    const { left, right, top, height } = this.buttons[column][row].getBoundingClientRect();
    if (merged) return page.tip.show(right, top, el("p", {}, "All outputs as one; click to see each"));
    const index = indices[row];
    const { eigenvalues, ranked_by: kind, name: where, hook, constant } = run.layers[layer];
    const module = run.module(layer, index);
    const facts = [
      eigenvalues &&
        !(constant && index === 0) &&
        `${kind === "lambda" ? "Λ" : "variance"} ${decimal(eigenvalues[index])}`,
      module >= 0 && `module ${module}`,
    ].filter(Boolean);
    page.tip.show(
      right + 200 > window.innerWidth ? left : right - 8,
      top + height / 2,
      el("p", {}, el("b", {}, name(where)), ` feature ${index}`),
      names.known(layer, index) && el("p", {}, name(names.known(layer, index))),
      facts.length > 0 && el("p", { class: "hint" }, facts.join(" · ")),
      hook && el("p", { class: "hint" }, name(hook)),
      matchText(page, run.place, layer, index),
    );
  }

  spoken(layer, index, label) {
    const { run } = this.view;
    const { eigenvalues, ranked_by: kind, name: where } = run.layers[layer];
    const number = `feature ${index}`;
    const parts = [`${where}, ${number}`];
    if (label !== number) parts.push(label);
    if (eigenvalues && !(run.layers[layer].constant && index === 0)) {
      parts.push(`${kind === "lambda" ? "Lambda" : "variance"} ${decimal(eigenvalues[index])}`);
    }
    return parts.join(", ");
  }

  findPlace(target) {
    const button = target?.closest?.(".node");
    if (!button || !this.element.contains(button)) return null;
    const [column, row] = button.dataset.at.split(",").map(Number);
    return { column, row };
  }

  // The node to light up: pointed at or focused, else the selected one.
  lit() {
    return this.pointed ?? this.selectedPlace();
  }

  selectedPlace() {
    const selected = this.view.page.selected;
    if (!selected || selected.place !== this.view.run.place || !this.columns) return null;
    const column = this.columns.findIndex((candidate) => candidate.layer === selected.layer && !candidate.merged);
    const row = column < 0 ? -1 : (this.columns[column].row[selected.index] ?? -1);
    return row < 0 ? null : { column, row };
  }

  point(target, byKeyboard = false) {
    const place = this.findPlace(target);
    if (byKeyboard && target && !target.matches?.(":focus-visible")) return;
    if (place?.column === this.pointed?.column && place?.row === this.pointed?.row) return;
    this.pointed = place;
    if (place) this.describe(place);
    else this.view.page.tip.hide();
    this.view.drawHighlight();
    this.view.page.markMatch(
      place && {
        place: this.view.run.place,
        layer: this.columns[place.column].layer,
        index: this.columns[place.column].indices[place.row],
      },
    );
  }

  // Nothing is pointed at until the pointer or the keyboard moves.
  release() {
    this.pointed = null;
    this.view.page.tip.hide();
    this.view.drawHighlight();
  }

  // The feature that is most like one of the other run.
  markMatch(match) {
    this.element.querySelector(".node.matched")?.classList.remove("matched");
    const column = match
      ? this.columns.findIndex((candidate) => candidate.layer === match.layer && !candidate.merged)
      : -1;
    const row = column < 0 ? -1 : this.columns[column].row[match.index];
    if (row >= 0) this.buttons[column][row].classList.add("matched");
  }

  open(target) {
    const place = this.findPlace(target);
    if (!place) return;
    const { layer, indices, merged } = this.columns[place.column];
    this.rove(place);
    if (merged) this.view.state.set({ output: "show" });
    else this.view.page.select({ place: this.view.run.place, layer, index: indices[place.row] });
  }

  markSelected() {
    this.element.querySelector(".node.selected")?.classList.remove("selected");
    const place = this.selectedPlace();
    if (place) {
      this.buttons[place.column][place.row].classList.add("selected");
      this.rove(place);
    }
  }

  // One node can be reached with Tab; the arrows go on from there.
  rove(place = null) {
    const last = this.element.querySelector('.node[tabindex="0"]');
    const button = place
      ? this.buttons[place.column]?.[place.row]
      : (last ?? this.buttons.find((column) => column.length)?.[0]);
    if (!button) return;
    if (place)
      this.home = { layer: this.columns[place.column].layer, index: this.columns[place.column].indices[place.row] };
    if (last && last !== button) last.tabIndex = -1;
    button.tabIndex = 0;
  }

  walk(event) {
    const place = this.findPlace(event.target);
    if (!place) return;
    const next = this.step(place, event.key);
    if (!next) return;
    event.preventDefault();
    this.rove(next);
    const button = this.buttons[next.column][next.row];
    button.focus();
    button.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  step({ column, row }, key) {
    const rows = this.buttons[column].length;
    if (key === "ArrowDown") return { column, row: Math.min(row + 1, rows - 1) };
    if (key === "ArrowUp") return { column, row: Math.max(row - 1, 0) };
    if (key === "Home") return { column, row: 0 };
    if (key === "End") return { column, row: rows - 1 };
    if (key !== "ArrowLeft" && key !== "ArrowRight") return null;
    const right = key === "ArrowRight";
    const next = column + (right ? 1 : -1);
    if (!this.buttons[next]?.length) return { column, row };
    const section = this.view.sections[right ? column : next];
    const strongest = right
      ? strongestNeighbour(section, row, "from", "to")
      : strongestNeighbour(section, row, "to", "from");
    return { column: next, row: strongest >= 0 ? strongest : Math.min(row, this.buttons[next].length - 1) };
  }

  // Features that the search has found.
  markFound(hits = this.hits ?? []) {
    this.hits = hits;
    for (const button of this.element.querySelectorAll(".node.found")) button.classList.remove("found");
    for (const { place, layer, index } of hits) {
      const number =
        place === this.view.run.place
          ? (this.columns ?? []).findIndex((column) => column.layer === layer && !column.merged)
          : -1;
      const row = number < 0 ? -1 : this.columns[number].row[index];
      if (row >= 0) this.buttons[number][row].classList.add("found");
    }
  }

  // Features without an edge in sight step back.
  markIdle(sections) {
    const busy = this.columns.map((column) => new Uint8Array(column.indices.length));
    sections.forEach((section, number) => {
      for (let e = 0; e < section.size; e++) {
        busy[number][section.from[e]] = 1;
        busy[number + 1][section.to[e]] = 1;
      }
    });
    this.toggle(
      "idle",
      busy.map((column) => column.map((value) => 1 - value)),
      this.idle,
    );
    this.idle = busy.map((column) => column.map((value) => 1 - value));
  }

  // Features on the paths of the lit one stay bright.
  markPaths(steps) {
    const marks = steps && steps.map((column) => Uint8Array.from(column, (step) => (step >= 0 ? 1 : 0)));
    this.toggle("on-path", marks ?? this.buttons.map((column) => new Uint8Array(column.length)), this.marked);
    this.marked = marks;
  }

  toggle(kind, now, before) {
    now.forEach((column, number) => {
      for (let row = 0; row < column.length; row++) {
        if (column[row] !== (before?.[number]?.[row] ?? 0))
          this.buttons[number][row].classList.toggle(kind, column[row] === 1);
      }
    });
  }
}
