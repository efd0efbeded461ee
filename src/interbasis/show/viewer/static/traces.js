// The prompts of a run: a list, and the one that is open as a picture.

import { el, name, replace } from "./dom.js";
import { decimal, percent, plural, visible } from "./format.js";
import { hint } from "./panel.js";
import { tracePicture, traceLayout } from "./trace-draw.js";
import { savePng, saveJson, saveSvg } from "./trace-export.js";
import { TARGET, TraceGraph, grouped } from "./trace-graph.js";
import { tracePanel } from "./trace-panel.js";

const LEAST_ZOOM = 0.25;

export class Traces {
  constructor(page) {
    this.page = page;
    this.state = page.state;
    this.all = page.parts.flatMap(({ run }) => run.record.traces.map((trace) => new TraceGraph(trace, run)));
    this.list = el("nav", { class: "trace-choice", "aria-label": "Prompts" });
    this.head = el("div", { class: "trace-head" });
    this.scroll = el("div", {
      class: "trace-scroll",
      onscroll: () => this.stick(),
      onclick: (event) => this.click(event),
      onkeydown: (event) => this.key(event),
      onpointerover: (event) => this.point(event.target),
      onfocusin: (event) => this.point(event.target),
      onpointerleave: () => this.point(null),
    });
    this.scroll.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.panel = el("aside", { class: "panel trace-panel", hidden: true, "aria-label": "Node", tabindex: "-1" });
    this.element = el(
      "section",
      { class: "text-tab prompts", "aria-label": "Prompts" },
      this.list,
      el("div", { class: "trace-main" }, this.head, this.scroll),
      this.panel,
    );
  }

  // Drawn only while it is in sight, and again only when something about it has changed.
  update() {
    if (this.state.get("tab") !== "prompts") return;
    if (!this.all.length) {
      const text = this.page.parts.some(({ run }) => run.record.model.startsWith("hf:"));
      this.list.hidden = true;
      replace(
        this.head,
        hint("Nothing has been traced yet. One sample of the data is traced by ", "interbasis trace RUN --sample 3"),
        text && hint("and a prompt by ", 'interbasis trace RUN --prompt "…"'),
      );
      return;
    }
    const graph = this.current();
    const older = this.page.parts.reduce((sum, { run }) => sum + run.record.traces_left_out, 0);
    const hidden =
      older > 0 &&
      el(
        "p",
        { class: "hint" },
        `The newest; ${plural(older, "older trace")} of the run ${older > 1 ? "are" : "is"} not on this page.`,
      );
    replace(
      this.list,
      el("h2", {}, plural(this.all.length, "trace")),
      hidden,
      this.all.map((item) =>
        el(
          "button",
          {
            type: "button",
            "aria-current": item === graph ? "true" : null,
            onclick: () => this.state.set({ trace: item.name, node: "", tpins: "", tgroups: "" }),
          },
          name(item.trace.prompt),
          el("small", {}, "→ ", name(visible(item.trace.target.name))),
        ),
      ),
    );
    this.draw(graph);
  }

  current() {
    return this.all.find((item) => item.name === this.state.get("trace")) ?? this.all[0];
  }

  pins() {
    return this.state.get("tpins").split("|").filter(Boolean);
  }

  // [[name, members], …] as the address has them.
  groups() {
    try {
      const value = JSON.parse(this.state.get("tgroups") || "[]");
      return value.filter(([group, members]) => typeof group === "string" && Array.isArray(members));
    } catch {
      return [];
    }
  }

  groupName(node) {
    return this.groups().find(([, members]) => members.includes(node))?.[0] ?? "";
  }

  pin(node) {
    const pins = this.pins();
    const next = pins.includes(node) ? pins.filter((pin) => pin !== node) : [...pins, node];
    this.state.set({ tpins: next.join("|") });
  }

  // Puts a node, or all members of a group, into a group; no name takes them out.
  group(node, text) {
    const members = node.kind === "group" ? node.members.map((member) => member.name) : [node.name];
    const groups = this.groups().map(([group, inside]) => [
      group,
      inside.filter((member) => !members.includes(member)),
    ]);
    const clean = text.trim().slice(0, 60);
    const home = groups.find(([group]) => group === clean);
    if (home) home[1].push(...members);
    else if (clean) groups.push([clean, members]);
    const filled = groups.filter(([, inside]) => inside.length);
    this.state.set({ tgroups: filled.length ? JSON.stringify(filled) : "" });
  }

  // Modules are offered as groups of the pinned nodes.
  groupByModule(graph) {
    const pins = this.pins();
    const modules = graph.trace.groups
      .map((group) => [group.name, group.nodes.filter((node) => pins.includes(node))])
      .filter(([, members]) => members.length > 1);
    this.state.set({ tgroups: modules.length ? JSON.stringify(modules) : "" });
  }

  select(node) {
    this.state.set({ node });
    if (!node) this.scroll.querySelector('.trace-node[tabindex="0"]')?.focus();
  }

  view(graph) {
    const pins = new Set(this.pins().filter((pin) => graph.nodes.has(pin)));
    const only = this.state.get("only") && pins.size > 0;
    const isAble = (node) =>
      node.kind === "target" ||
      (only ? pins.has(node.name) : pins.has(node.name) || this.state.get("norms") || !graph.isFolded(node.layer));
    const able = [...graph.nodes.values()].filter(isAble).sort((a, b) => b.influence - a.influence);
    const shown = only
      ? able
      : able.filter(
          (node, rank) =>
            rank <= this.state.get("marks") || pins.has(node.name) || node.name === this.state.get("node"),
        );
    const edges = graph.between(new Set(shown.map((node) => node.name)));
    const collected = only ? grouped(shown, edges, this.groups()) : { nodes: shown, edges };
    const part = this.page.part(graph.run.place);
    const nodeLabel = (node) => {
      if (node.kind !== "feature") return visible(node.label);
      return part.names.short(graph.run.layerNumber(node.layer), node.feature) || `feature ${node.feature}`;
    };
    return { ...collected, graph, nodeLabel, tab: this, only, able: able.length - 1 };
  }

  draw(graph) {
    /** @type {any} */
    const view = this.view(graph);
    replace(this.head, this.heading(view)); // first: the picture has the height that it leaves
    const room = (this.scroll.clientWidth || window.innerWidth - 260) - 12;
    view.box = traceLayout(view.nodes, graph, view.nodeLabel, room, this.scroll.clientHeight - 16);
    view.picture = tracePicture(view);
    this.shown = view;
    this.fit(view);
    replace(this.scroll, view.picture);
    if (this.scrolledFor !== graph.name) this.showTarget(view);
    this.scrolledFor = graph.name;
    this.stick();
    if (this.paintedAt === undefined)
      requestAnimationFrame(() => setTimeout(() => (this.paintedAt = performance.now())));
    this.mark();
  }

  // As large as fits the window across, between what can be read and its own size, unless somebody zoomed.
  fit({ box, picture }) {
    const room = this.scroll.clientWidth || window.innerWidth - 260;
    const zoom = this.state.get("zoom") * Math.min(Math.max(room / box.width, 0.8), 1);
    picture.setAttribute("width", Math.round(box.width * Math.max(zoom, LEAST_ZOOM)));
    picture.setAttribute("height", Math.round(box.height * Math.max(zoom, LEAST_ZOOM)));
  }

  // With room for what stands beside it.
  showTarget({ box, picture }) {
    const { x } = box.places.get(TARGET);
    this.scroll.scrollLeft = (x / box.width) * Number(picture.getAttribute("width")) - this.scroll.clientWidth / 3;
  }

  // Names of layers and tokens stay in sight when the picture is scrolled.
  stick() {
    const { box, picture } = this.shown;
    const zoom = Number(picture.getAttribute("width")) / box.width;
    const below = box.height - (this.scroll.scrollTop + this.scroll.clientHeight) / zoom;
    picture.querySelector(".layer-names").setAttribute("transform", `translate(${this.scroll.scrollLeft / zoom} 0)`);
    picture.querySelector(".trace-tokens").setAttribute("transform", `translate(0 ${-Math.max(below, 0)})`);
  }

  heading(view) {
    const { trace } = view.graph;
    const { scores, checks } = trace;
    const share = (value) => (value === null ? "undefined" : percent(value));
    const facts = [
      `replacement ${percent(scores.replacement)}`,
      `completeness ${percent(scores.completeness)}`,
      `through error nodes ${percent(scores.error_share)}`,
      checks &&
        `${plural(checks.strongest, "strongest node")}: sign agreement ${share(checks.signs)} (by ` +
          `gradient alone ${share(checks.signs_by_gradient)})`,
      checks &&
        `${plural(checks.spread, "node")} of all sizes: rank correlation ` +
          `${checks.ranks === null ? "undefined" : checks.ranks.toFixed(2)}`,
      checks && `${plural(checks.edges, "edge")}: sign agreement ${share(checks.edge_signs)}`,
    ].filter(Boolean);
    const pins = this.pins().length;
    const flag = (key, text, disabled) =>
      el(
        "label",
        { class: "flag" },
        el("input", {
          type: "checkbox",
          disabled,
          checked: this.state.get(key),
          onchange: (event) => this.state.set({ [key]: event.target.checked }),
        }),
        text,
      );
    return [
      trace.picture && el("img", { class: "trace-input", src: trace.picture, alt: "the traced input" }),
      el("p", { class: trace.trusted ? "trace-summary" : "trace-summary failed" }, name(visible(trace.summary))),
      el("p", { class: "hint" }, facts.join(" · ")),
      el(
        "div",
        { class: "actions" },
        this.slider(view),
        flag("norms", "Show layer norms"),
        flag("only", `Pinned only (${pins})`, pins === 0),
        trace.groups.length > 0 &&
          el(
            "button",
            { type: "button", disabled: pins === 0, onclick: () => this.groupByModule(view.graph) },
            "Group pinned by module",
          ),
        pins > 0 &&
          el(
            "button",
            { type: "button", onclick: () => this.state.set({ tpins: "", tgroups: "", only: false }) },
            "Unpin all",
          ),
        el("span", { class: "spring" }),
        el("button", { type: "button", onclick: () => saveSvg(this.shown) }, "SVG"),
        el("button", { type: "button", onclick: () => savePng(this.shown) }, "PNG"),
        el(
          "button",
          { type: "button", title: "Neuronpedia's schema of attribution graphs", onclick: () => saveJson(this.shown) },
          "JSON",
        ),
      ),
      el(
        "p",
        { class: "key" },
        [
          ["positive", "raises"],
          ["negative", "lowers"],
        ].map(([kind, text]) => el("span", {}, el("i", { class: kind }), text)),
        el("span", {}, "circles: features, squares: dropped directions, size: influence, ring: measured"),
      ),
    ];
  }

  // The nodes with most influence; what flows through the others is handed on by the chain rule.
  slider({ able }) {
    const shown = Math.min(this.state.get("marks"), able);
    const text = el("output", {}, `${shown} of ${able}`);
    const input = el("input", {
      type: "range",
      min: 1,
      max: able,
      value: shown,
      id: "slider-marks",
      onchange: () => this.state.set({ marks: Number(input.value) }),
      oninput: () => replace(text, `${input.value} of ${able}`),
    });
    return el("label", { class: "flag", for: "slider-marks" }, "Nodes", input, text);
  }

  // The open node, its edges, its panel, the pins.
  mark() {
    const { nodes } = this.shown;
    const node = nodes.find((candidate) => candidate.name === this.state.get("node"));
    this.panel.hidden = !node;
    if (node) replace(this.panel, tracePanel(this.shown, node));
    const pins = new Set(this.pins());
    const marks = [...this.scroll.querySelectorAll(".trace-node")];
    for (const mark of marks) {
      mark.classList.toggle("selected", mark.dataset.name === node?.name);
      mark.classList.toggle("pinned", pins.has(mark.dataset.name));
      mark.setAttribute("tabindex", mark.dataset.name === (node?.name ?? TARGET) ? "0" : "-1");
    }
    this.light(node?.name ?? null);
    if (node)
      marks.find((mark) => mark.dataset.name === node.name)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  light(lit) {
    this.scroll.classList.toggle("lit", Boolean(lit));
    for (const edge of this.scroll.querySelectorAll(".trace-edge"))
      edge.classList.toggle("on", edge.dataset.source === lit || edge.dataset.target === lit);
    const near = new Set([
      lit,
      ...this.shown.edges
        .filter(({ source, target }) => source === lit || target === lit)
        .flatMap(({ source, target }) => [source, target]),
    ]);
    for (const mark of this.scroll.querySelectorAll(".trace-node"))
      mark.classList.toggle("on", near.has(mark.dataset.name));
  }

  point(target) {
    const mark = target?.closest?.(".trace-node");
    const lit = mark?.dataset.name ?? (this.state.get("node") || null);
    if (mark) {
      const node = this.shown.nodes.find((candidate) => candidate.name === lit);
      const { right, top } = mark.getBoundingClientRect();
      const label =
        node.kind === "feature"
          ? this.page
              .part(this.shown.graph.run.place)
              .names.known(this.shown.graph.run.layerNumber(node.layer), node.feature)
          : node.label;
      this.page.tip.show(
        right,
        top,
        el("p", {}, el("b", {}, name(node.name))),
        label && el("p", {}, name(label)),
        el(
          "p",
          { class: "hint" },
          `influence ${percent(node.influence)}, effect ` +
            `${decimal(node.effect)}${node.measured === null ? "" : `; set to its mean: ${decimal(node.measured)}`}`,
        ),
      );
    } else this.page.tip.hide();
    if (this.shown && lit !== this.lit) {
      this.lit = lit;
      this.light(lit);
    }
  }

  click(event) {
    const mark = event.target.closest(".trace-node");
    if (mark) this.select(mark.dataset.name);
  }

  wheel(event) {
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
    event.preventDefault();
    const zoom = Math.min(Math.max(this.state.get("zoom") * 1.15 ** -Math.sign(event.deltaY), 0.3), 4);
    this.state.set({ zoom: Math.round(zoom * 1000) / 1000 });
  }

  // Enter opens; arrows up and down follow the strongest edge, left and right go along the layer.
  key(event) {
    const mark = event.target.closest?.(".trace-node");
    if (!mark) return;
    const here = mark.dataset.name;
    if (event.key === "Enter") this.select(here);
    const next = this.neighbour(here, event.key);
    if (!next) return;
    event.preventDefault();
    const button = this.scroll.querySelector(`.trace-node[data-name="${next}"]`);
    mark.setAttribute("tabindex", "-1");
    button.setAttribute("tabindex", "0");
    button.focus();
    button.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  neighbour(here, key) {
    const { edges, nodes, box } = this.shown;
    if (key === "ArrowDown") return edges.find(({ target }) => target === here)?.source;
    if (key === "ArrowUp") return edges.find(({ source }) => source === here)?.target;
    if (key !== "ArrowLeft" && key !== "ArrowRight") return null;
    const { layer } = nodes.find((node) => node.name === here);
    const row = nodes
      .filter((node) => node.layer === layer)
      .sort(
        (a, b) =>
          box.places.get(a.name).x - box.places.get(b.name).x || box.places.get(a.name).y - box.places.get(b.name).y,
      );
    return row[row.findIndex((node) => node.name === here) + (key === "ArrowRight" ? 1 : -1)]?.name;
  }
}
