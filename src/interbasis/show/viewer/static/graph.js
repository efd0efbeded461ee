// The graph of one run: columns of real buttons over a canvas of edges.

import { canvasColours } from "./colours.js";
import { drawEdges } from "./draw.js";
import { el, name, replace } from "./dom.js";
import { lineAt, lineText } from "./edge-hover.js";
import { integer, percent, plural } from "./format.js";
import { Haze } from "./haze.js";
import { drawLine, drawPaths } from "./highlight.js";
import { TITLE_HEIGHT, layout, textWidth } from "./layout.js";
import { besideMatches } from "./matched.js";
import { movable } from "./moving.js";
import { NodeColumns } from "./nodes.js";
import { pathsThrough } from "./paths.js";
import { drawnEdges, visibleColumns, weigh } from "./visible.js";

export class GraphView {
  constructor(run, names, notes, state, page) {
    this.run = run;
    this.names = names;
    this.notes = notes;
    this.state = state;
    this.page = page;
    this.afterZoom = null;
    this.haze = new Haze();
    this.base = el("canvas", { class: "edges", "aria-hidden": "true" });
    this.over = el("canvas", { class: "edges over", "aria-hidden": "true" });
    this.nodes = new NodeColumns(this);
    this.extent = el("div", { class: "extent" }, this.nodes.element);
    this.scroll = el(
      "div",
      {
        class: "scroll",
        onscroll: () => this.scrolled(),
        onpointermove: (event) => this.pointLine(event),
        onpointerleave: () => this.pointLine(null),
      },
      this.extent,
    );
    this.more = el("button", {
      type: "button",
      class: "more",
      hidden: true,
      onclick: () => this.scroll.scrollBy({ left: this.scroll.clientWidth * 0.8, behavior: "smooth" }),
    });
    this.stage = el("div", { class: "stage" }, this.base, this.over, this.scroll, this.more);
    this.status = el("p", { class: "status", role: "status" });
    this.key = el(
      "p",
      { class: "key" },
      [
        ["incoming", "comes from"],
        ["outgoing", "goes to"],
      ].map(([kind, text]) => el("span", {}, el("i", { class: kind }), text)),
    );
    this.heading = el("h2", { class: "graph-title" }, name(run.title), " ", el("span", {}, run.record.name));
    this.element = el(
      "section",
      { class: "graph", "aria-label": `Interaction graph, ${run.title}` },
      this.heading,
      this.stage,
      el("div", { class: "foot" }, this.status, this.key),
    );
    new ResizeObserver(() => this.later("arrange")).observe(this.stage);
    movable(this);
  }

  // Work is put off to the next frame and done once: arrange includes draw.
  later(work) {
    this.work = work === "arrange" || this.work === "arrange" ? "arrange" : this.work === "choose" ? "choose" : work;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      const due = this.work;
      this.work = null;
      if (due === "arrange") this.arrange();
      else if (due === "choose") this.choose();
      else this.draw();
    });
  }

  // Columns and rows, then edges.
  arrange() {
    const selected = this.page.selected?.place === this.run.place ? this.page.selected : null;
    this.columns = visibleColumns(
      this.run,
      this.state,
      (layer) => [...this.notes.pinnedIn(layer), ...(selected?.layer === layer ? [selected.index] : [])],
      this.run.place === 1 && this.page.matches.any
        ? (layer, shown) => besideMatches(this.page, 1, layer, shown)
        : null,
    );
    for (const column of this.columns) /** @type {any} */ (column).needs = this.neededWidth(column);
    const width = this.stage.clientWidth;
    const height = this.stage.clientHeight;
    if (!width || !height) return;
    this.box = layout(this.columns, width, height, this.state.get("zoom"));
    this.extent.style.width = `${this.box.width}px`;
    this.extent.style.height = `${this.box.height}px`;
    this.nodes.build(this.columns, this.box);
    this.afterZoom?.();
    this.showMore();
    this.choose();
  }

  // What the longest label of a column and its title need.
  neededWidth({ layer, indices, merged }) {
    const title = textWidth(this.run.layers[layer].name) * 1.15;
    const labels = merged ? ["all outputs"] : indices.map((index) => this.names.short(layer, index));
    const longest = labels.reduce((best, label) => (label.length > best.length ? label : best), "");
    const candidates = labels.filter((label) => label.length > longest.length * 0.8);
    return Math.max(title, ...candidates.map((label) => textWidth(label) + 52));
  }

  scrolled() {
    this.page.tip.hide();
    this.showMore();
    this.page.scrollTogether(this);
    this.later("draw");
  }

  // How many columns are out of sight on the right.
  showMore() {
    const edge = this.scroll.scrollLeft + this.scroll.clientWidth;
    const hidden = this.box.x.filter((x, number) => x + this.box.widths[number] > edge + 2).length;
    this.more.hidden = !hidden;
    replace(this.more, `${plural(hidden, "more column")} →`);
  }

  // The line under the pointer, where there is no box.
  pointLine(event) {
    if (!this.sections || !this.box) return;
    const free = event && event.buttons === 0 && !event.target.closest(".node, .fold, .column-title");
    const { left, top } = this.stage.getBoundingClientRect();
    const line = free
      ? lineAt(
          this.sections,
          event.clientX - left + this.scroll.scrollLeft,
          event.clientY - top + this.scroll.scrollTop,
        )
      : null;
    if (line) this.page.tip.show(event.clientX, event.clientY, lineText(this, line));
    else if (this.line) this.page.tip.hide();
    if (line?.number === this.line?.number && line?.edge === this.line?.edge) return;
    this.line = line;
    this.drawHighlight();
  }

  // Which edges, how strong.
  choose() {
    if (!this.columns || !this.box) return this.arrange();
    this.sections = [];
    for (let number = 0; number + 1 < this.columns.length; number++) this.sections.push(this.section(number));
    this.page.shareScales();
    this.nodes.markIdle(this.sections);
    this.writeStatus();
    this.draw();
  }

  section(number) {
    const [left, right] = [this.columns[number], this.columns[number + 1]];
    const edges = drawnEdges(this.run, this.state, left, right);
    const middles = (column, which) =>
      Float32Array.from(column.indices, (_, row) => this.box.top[which] + (row + 0.5) * this.box.row - 1);
    return {
      ...edges,
      k: left.layer,
      left: this.box.x[number] + this.box.widths[number],
      right: this.box.x[number + 1],
      y0: middles(left, number),
      y1: middles(right, number + 1),
      largest: edges.value.subarray(0, edges.size).reduce((maximum, value) => Math.max(maximum, value), 0),
      colours: this.edgeColours(edges, left, right),
    };
  }

  // Weights, once the scales of all runs are known.
  scale(largestFor) {
    for (const section of this.sections) {
      const needed = this.run.sections[section.k]?.edges_required?.epsilon;
      const weakest = section.size ? section.value[Math.max(Math.min(section.chosen, section.size) - 1, 0)] : 1;
      const epsilon = this.state.get("by") === "needed" && needed > 0 ? Math.min(needed, weakest) : weakest * 0.8;
      section.weights = weigh(section, this.state.get("scale"), largestFor(section), epsilon);
    }
  }

  // An edge inside a module has its colour; any other is grey.
  edgeColours(edges, left, right) {
    if (this.state.get("colour") === "none") return null;
    const rank = (column, row) =>
      column.merged ? -2 : this.page.colourRank(this.run, column.layer, column.indices[row]);
    return Uint8Array.from({ length: edges.size }, (_, e) => {
      const a = rank(left, edges.from[e]);
      const b = rank(right, edges.to[e]);
      const same = a === b || b === -2 ? a : -1;
      return same >= 0 && same < 8 ? same + 1 : 0;
    });
  }

  draw() {
    if (!this.sections || !this.box) return;
    const view = {
      x: this.scroll.scrollLeft,
      y: this.scroll.scrollTop,
      width: this.scroll.clientWidth,
      height: this.scroll.clientHeight,
    };
    const colours = canvasColours();
    const palette = [colours.edge, ...colours.modules];
    const picture = { sections: this.sections, palette };
    const context = sized(this.base, view);
    drawEdges(context, this.haze, picture, view);
    context.clearRect(0, 0, view.width, TITLE_HEIGHT - 8); // titles stay on top when rows scroll
    this.drawHighlight(view, colours);
  }

  // The node under the pointer or the keyboard, else the one that is open.
  drawHighlight(view = null, colours = canvasColours()) {
    if (!this.sections) return;
    view ??= {
      x: this.scroll.scrollLeft,
      y: this.scroll.scrollTop,
      width: this.scroll.clientWidth,
      height: this.scroll.clientHeight,
    };
    const place = this.nodes.lit();
    this.stage.classList.toggle("lit", Boolean(place));
    const context = sized(this.over, view);
    context.clearRect(0, 0, view.width, view.height);
    if (this.line && this.sections[this.line.number])
      drawLine(context, this.sections[this.line.number], this.line.edge, view, colours);
    if (!place) return this.nodes.markPaths(null);
    const paths = pathsThrough(this.sections, this.columns, place.column, place.row);
    drawPaths(context, this.sections, paths, place, view, colours);
    context.clearRect(0, 0, view.width, TITLE_HEIGHT - 8);
    this.nodes.markPaths(paths.steps);
  }

  // One line on what is shown and what is not.
  writeStatus() {
    if (!this.run.sections.length) {
      replace(this.status, "This run was built without edges; build it again without --edge-method none to see them.");
      return;
    }
    let shown = 0;
    let squares = 0;
    let between = 0;
    let hidden = 0;
    let total = 0;
    let possible = 0;
    for (const section of this.sections) {
      const source = this.run.sections[section.k];
      shown += section.counted;
      hidden += section.chosen - section.counted;
      squares += section.squares / (section.between || 1);
      between += section.between / (source.sum_of_squares || 1);
      possible += source.nonzero;
      total += 1;
    }
    const missing = this.run.sections.filter((section) => section.held < section.nonzero);
    const parts = [`${integer(shown)} of ${plural(possible, "edge")} drawn`];
    if (total)
      parts.push(
        `${percent(squares / total)} of Ê² between the features shown, which have ${percent(between / total)} of all ` +
          "(means over sections)",
      );
    const unknown =
      this.state.get("by") === "needed" ? this.sections.filter(({ k }) => !this.run.sections[k].edges_required) : [];
    if (unknown.length)
      parts.push(
        `${plural(unknown.length, "section")} not ablated: the strongest edges with ` +
          `${percent(this.state.get("share"))} of Ê² there`,
      );
    if (hidden) parts.push(`${integer(hidden)} more belong to features not shown`);
    const folded = this.columns.reduce(
      (sum, { layer }, number) => sum + (number ? layer - this.columns[number - 1].layer - 1 : 0),
      0,
    );
    if (folded) parts.push(`${plural(folded, "layer")} of layer norms folded away`);
    if (missing.length) {
      const left = missing.reduce((sum, section) => sum + section.nonzero - section.held, 0);
      const largest = Math.max(...missing.map((section) => 1 - section.held_share));
      parts.push(
        `the page leaves out the ${integer(left)} weakest edges, at most ${percent(largest)} of a section's Ê²`,
      );
    }
    if (this.run.record.too_few_data) parts.push("too few data for some layers, see About");
    if (this.run.record.outdated.length)
      parts.push(`results of an older graph are left out: ${this.run.record.outdated.join(", ")}`);
    if (this.run.record.unreadable.length)
      parts.push(`${plural(this.run.record.unreadable.length, "result")} could not be read, see About`);
    replace(this.status, parts.join(" · "));
  }
}

// A canvas as large as its view, sharp on dense screens; its context in CSS pixels.
function sized(canvas, view) {
  const density = Math.min(window.devicePixelRatio || 1, 2);
  const width = Math.max(Math.round(view.width * density), 1);
  const height = Math.max(Math.round(view.height * density), 1);
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
    canvas.style.width = `${view.width}px`;
    canvas.style.height = `${view.height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  return context;
}
