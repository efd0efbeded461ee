// The page: reads what it was given, puts the parts together, and tells them what has changed.

import { aboutTab, notesMenu } from "./about.js";
import { Controls } from "./controls.js";
import { curvesTab } from "./curves.js";
import { Matches, Run, SCHEMA } from "./data.js";
import { differencesTab } from "./differences.js";
import { append, el, name, replace } from "./dom.js";
import { integer } from "./format.js";
import { GraphView } from "./graph.js";
import { Help } from "./help.js";
import { Names } from "./labels.js";
import { zoomBy } from "./moving.js";
import { NoteBook } from "./notes.js";
import { Panel } from "./panel.js";
import { Search } from "./search.js";
import { State } from "./state.js";
import { Subgraph } from "./subgraph.js";
import { Tip } from "./tip.js";
import { Traces } from "./traces.js";

// Edges of a section from which on the strongest into each feature are shown, not a share of all.
const MANY_EDGES = 5000;

class Page {
  constructor(payload) {
    this.token = payload.token;
    const runs = payload.runs.map((run, place) => new Run(run, place));
    this.matches = new Matches(payload.matches, runs);
    this.state = new State(defaultsFor(runs, this.matches));
    this.tip = new Tip();
    this.help = new Help();
    this.parts = runs.map((run) => {
      const notes = new NoteBook(run, payload.token);
      const names = new Names(run, notes);
      const part = { run, notes, names, view: new GraphView(run, names, notes, this.state, this) };
      notes.listen(() => this.noted(part));
      notes.onstatus = () => this.panel.element.querySelector(".notes [role=status]")?.replaceChildren(notes.status);
      return part;
    });
    this.selected = this.readSelection();
    this.panel = new Panel(this);
    this.subgraph = new Subgraph(this);
    this.traces = new Traces(this);
    this.controls = new Controls(this);
    this.search = new Search(this);
    this.build();
    this.state.listen((changed) => this.changed(changed));
    document.addEventListener("keydown", (event) => this.key(event));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    window.addEventListener("beforeprint", () => this.print(true));
    window.addEventListener("afterprint", () => this.print(false));
    this.applyTheme();
    this.panel.show(this.selected);
    this.search.update();
  }

  build() {
    document.body.classList.toggle("two", this.parts.length > 1);
    this.graphs = el(
      "div",
      { class: "graphs" },
      this.parts.map(({ view }) => view.element),
    );
    this.rail = el(
      "details",
      { class: "rail", open: window.innerWidth > 760 },
      el("summary", {}, "Settings"),
      this.controls.element,
    );
    this.main = el(
      "main",
      { "data-tab": this.state.get("tab") },
      this.rail,
      this.graphs,
      this.panel.element,
      this.subgraph.element,
      this.traces.element,
      curvesTab(this),
      differencesTab(this),
      aboutTab(this),
    );
    append(document.body, [this.header(), this.main]);
    this.showTab();
  }

  header() {
    const { run } = this.parts[0];
    const features = run.layers.reduce((sum, layer) => sum + layer.size - (layer.constant ? 1 : 0), 0);
    const title = this.parts.map(({ run }, k) => [k > 0 && " and ", name(run.title)]);
    const facts = this.parts.length === 1 && `${integer(run.layers.length)} layers, ${integer(features)} features`;
    return el(
      "header",
      { class: "top" },
      el("h1", {}, title),
      facts && el("p", { class: "facts-line" }, facts),
      el("span", { class: "spring" }),
      this.search.element,
      this.tabs(),
      notesMenu(this),
      this.themeButton(),
      this.help.button,
    );
  }

  tabs() {
    this.tabButtons = [
      ["graph", "Graph"],
      ["prompts", "Traces"],
      ["pinned", "Pinned"],
      ["curves", "Curves"],
      ["differences", "Differences"],
      ["about", "About"],
    ].map(([value, text]) =>
      el("button", { type: "button", "data-value": value, onclick: () => this.state.set({ tab: value }) }, text),
    );
    return el("nav", { "aria-label": "Views" }, this.tabButtons);
  }

  themeButton() {
    const next = { auto: "light", light: "dark", dark: "auto" };
    this.themeText = el("button", {
      type: "button",
      class: "quiet theme",
      onclick: () => this.state.set({ theme: next[this.state.get("theme")] }),
    });
    return this.themeText;
  }

  showTab() {
    const tab = this.state.get("tab");
    this.main.dataset.tab = tab;
    this.subgraph.update();
    this.traces.update();
    for (const button of this.tabButtons) {
      if (button.dataset.value === tab) button.setAttribute("aria-current", "page");
      else button.removeAttribute("aria-current");
    }
  }

  part(place) {
    return this.parts[place];
  }

  changed(changed) {
    this.controls.update();
    if (changed.has("theme")) this.applyTheme();
    if (changed.has("tab")) this.showTab();
    if (changed.has("q")) this.search.update();
    if ([...changed].every((key) => ["theme", "tab", "q"].includes(key))) return;
    this.subgraph.update();
    if (["trace", "norms", "only", "marks", "tpins", "tgroups", "zoom"].some((key) => changed.has(key)))
      this.traces.update();
    else if (changed.has("node") && this.state.get("tab") === "prompts") this.traces.mark();
    if (changed.has("sel")) {
      this.selected = this.readSelection();
      this.panel.show(this.selected);
    }
    const edgesOnly = [...changed].every((key) => ["by", "count", "share", "loss", "scale", "normalise"].includes(key));
    for (const { view } of this.parts) view.later(edgesOnly ? "choose" : "arrange");
  }

  noted(part) {
    this.panel.show(this.selected);
    this.controls.update();
    this.search.update();
    this.subgraph.update();
    this.traces.update();
    part.view.later("arrange");
  }

  // What is like a feature in the other run stands out there.
  markMatch(at) {
    const match = at ? this.matches.of(at.place, at.layer, at.index) : null;
    for (const { run, view } of this.parts) view.nodes.markMatch(match?.place === run.place ? match : null);
  }

  // Two runs side by side are scrolled as one.
  scrollTogether({ run, scroll }) {
    for (const { run: other, view } of this.parts) {
      if (other.place !== run.place && view.scroll.scrollLeft !== scroll.scrollLeft)
        view.scroll.scrollLeft = scroll.scrollLeft;
    }
  }

  select(selected) {
    const before = this.selected;
    this.state.set({ sel: selected ? `${selected.place}.${selected.layer}.${selected.index}` : "" });
    if (!selected && before) this.focusNode(before);
  }

  // Back to where the keyboard was, without lighting it up again.
  focusNode({ place }) {
    const { nodes } = this.parts[place].view;
    requestAnimationFrame(() => {
      nodes.element.querySelector('.node[tabindex="0"]')?.focus();
      nodes.release();
    });
  }

  readSelection() {
    const [place, layer, index] = this.state.get("sel").split(".").map(Number);
    const features = this.parts[place]?.run.layers[layer]?.size ?? 0;
    return Number.isInteger(index) && index >= 0 && index < features ? { place, layer, index } : null;
  }

  // Runs side by side share their scales: relative ones section by section, or one for everything.
  shareScales() {
    const drawn = this.parts.map(({ view }) => view).filter((view) => view.sections);
    const largest = Math.max(...drawn.flatMap((view) => view.sections.map((section) => section.largest)), 0);
    for (const view of drawn) view.scale(this.state.get("normalise") ? (section) => section.largest : () => largest);
  }

  colourRank(run, layer, index) {
    const by = this.state.get("colour");
    if (by === "module") return run.module(layer, index);
    if (by !== "group") return -1;
    const { notes } = this.parts[run.place];
    return notes.groupNames().indexOf(notes.groupName(layer, index));
  }

  key(event) {
    const typing = event.target.matches?.("input:not([type=range]):not([type=checkbox]), textarea, select");
    if (event.key === "Escape") return this.clear();
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      "/": () => this.search.focus(),
      "?": () => this.help.toggle(),
      "+": () => this.parts.forEach(({ view }) => zoomBy(view, 1.25)),
      "-": () => this.parts.forEach(({ view }) => zoomBy(view, 0.8)),
      0: () => this.parts.forEach(({ view }) => zoomBy(view, 0)),
      "[": () => this.parts.forEach(({ view }) => view.scroll.scrollBy({ left: -view.scroll.clientWidth * 0.8 })),
      "]": () => this.parts.forEach(({ view }) => view.scroll.scrollBy({ left: view.scroll.clientWidth * 0.8 })),
      p: () => this.togglePin(),
    };
    if (!Object.hasOwn(actions, event.key) || (this.help.element.open && event.key !== "?")) return;
    event.preventDefault();
    actions[event.key]();
  }

  // Escape: what lies on top goes first, and nothing stays lit.
  clear() {
    if (this.help.element.open) return; // the browser closes it
    for (const { view } of this.parts) view.nodes.release();
    if (this.state.get("tab") === "prompts" && this.state.get("node")) this.traces.select("");
    else if (this.selected) this.select(null);
    else if (this.state.get("q")) this.state.set({ q: "" });
    else if (this.state.get("module") >= 0) this.state.set({ module: -1 });
    for (const menu of document.querySelectorAll("details.menu[open]")) menu.removeAttribute("open");
  }

  togglePin() {
    if (this.state.get("tab") === "prompts") {
      const node = this.state.get("node") || document.activeElement.getAttribute("data-name");
      if (node && node !== "target") this.traces.pin(node);
      return;
    }
    const focused = this.parts
      .map(({ run, view }) => ({ run, at: view.nodes.findPlace(document.activeElement), view }))
      .find(({ at }) => at);
    const column = focused?.view.columns[focused.at.column];
    const { place, layer, index } =
      this.selected ??
      (column && !column.merged
        ? { place: focused.run.place, layer: column.layer, index: column.indices[focused.at.row] }
        : {});
    if (place === undefined) return;
    const { notes } = this.parts[place];
    notes.pin(layer, index, !notes.isPinned(layer, index));
  }

  applyTheme() {
    const theme = this.state.get("theme");
    const shown = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
    replace(this.themeText, "◐", el("span", {}, ` ${shown}`));
    this.themeText.title = `Colours: ${shown.toLowerCase()}`;
    this.themeText.setAttribute("aria-label", `Colours: ${shown}`);
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    this.recolour();
  }

  // On paper the graph has its own size, and colours for white ground.
  print(on) {
    const root = document.documentElement;
    root.classList.toggle("printing", on);
    if (on) root.dataset.theme = "light";
    else this.applyTheme();
    for (const { view } of this.parts) view.arrange();
  }

  recolour() {
    for (const { view } of this.parts) view.later("draw");
  }
}

function defaultsFor(runs, matches) {
  const [run] = runs;
  const output = run.layers[run.last];
  const ablated = runs.every((run) => run.ablated);
  return {
    tab: "graph",
    by: ablated ? "needed" : isDense(runs) ? "into" : "share",
    count: 100,
    share: 0.9,
    into: 0.5,
    loss: 1,
    nodes: rowsThatFit(),
    scale: "plain",
    normalise: true,
    constant: false,
    output: output.outputs && output.size > 40 ? "merge" : "show",
    from: 0,
    to: run.last,
    norms: false,
    open: "",
    zoom: 1,
    sort: matches.any ? "match" : !ablated && isDense(runs) && run.modules ? "module" : "importance",
    colour: runs.some(({ modules }) => modules) ? "module" : "none",
    module: -1,
    sel: "",
    trace: "",
    node: "",
    tpins: "",
    tgroups: "",
    only: false,
    marks: 90,
    q: "",
    theme: "auto",
  };
}

// Whether most of Ê² would be a haze: hundreds of edges in a section.
function isDense(runs) {
  return runs.some(({ sections }) => sections.some(({ nonzero }) => nonzero > MANY_EDGES));
}

// As many features as the window has room for, of those that every run describes (OPENING_FEATURES).
function rowsThatFit() {
  return Math.min(Math.max(Math.floor((window.innerHeight - 150) / 27), 12), 32);
}

function start() {
  const element = document.getElementById("payload");
  const payload = JSON.parse(element.textContent);
  element.remove();
  if (payload.format !== "interbasis-page" || payload.schema_version !== SCHEMA) {
    replace(
      document.body,
      el(
        "main",
        {},
        el(
          "p",
          { class: "hint" },
          `This page reads data of schema ${SCHEMA} and was given schema ${payload.schema_version}; write ` +
            "it again with 'interbasis export RUN --html FILE'.",
        ),
      ),
    );
    return;
  }
  /** @type {any} */ (window).interbasis = new Page(payload);
}

start();
