// Sliders and switches. All act at once.

import { el, replace } from "./dom.js";
import { decimal, integer, percent } from "./format.js";
import { Legend } from "./legend.js";
import { LOSSES, lowerIsBetter, metricName } from "./needed.js";
import { hint } from "./panel.js";

export class Controls {
  constructor(page) {
    this.page = page;
    this.state = page.state;
    this.run = page.parts[0].run;
    this.element = el("form", {
      class: "controls",
      "aria-label": "What is shown",
      onsubmit: (event) => event.preventDefault(),
    });
    this.updates = [];
    this.legend = new Legend(page);
    this.build();
    this.update();
  }

  build() {
    const largest = Math.max(1, ...this.page.parts.flatMap(({ run }) => run.sections.map((section) => section.held)));
    const widest = Math.max(...this.page.parts.flatMap(({ run }) => run.layers.map((layer) => layer.size)));
    const ablated = this.page.parts.every(({ run }) => run.ablated);
    replace(
      this.element,
      this.group(
        "Edges",
        this.choice(
          "by",
          "Strongest",
          [
            ["into", "per feature"],
            ["share", "share"],
            ["count", "count"],
            ["needed", "needed"],
          ],
          ablated ? [] : ["needed"],
        ),
        this.slider("into", {
          hidden: () => this.state.get("by") !== "into",
          label: "Share of Ê² into each feature, by at most 4 edges",
          min: 0,
          max: 100,
          step: 1,
          to: (share) => share * 100,
          from: (position) => Math.max(position / 100, 0.001),
          show: percent,
        }),
        this.slider("share", {
          hidden: () => this.state.get("by") !== "share",
          label: "Share of Ê² between the features shown",
          min: 0,
          max: 100,
          step: 0.5,
          to: (share) => share * 100,
          from: (position) => Math.max(position / 100, 0.001),
          show: percent,
        }),
        this.slider("count", {
          hidden: () => this.state.get("by") !== "count",
          label: "Edges in each section",
          min: 0,
          max: 1000,
          step: 1,
          to: (count) => (Math.log(count) / Math.log(largest)) * 1000 || 0,
          from: (position) => Math.round(largest ** (position / 1000)),
          show: integer,
        }),
        this.slider("loss", {
          hidden: () => this.state.get("by") !== "needed",
          label: () => this.lossLabel(),
          min: 0,
          max: LOSSES.length - 1,
          step: 1,
          to: (loss) => LOSSES.findIndex((value) => value >= loss),
          from: (position) => LOSSES[position],
          show: (loss) => this.lossText(loss),
        }),
        !ablated && hint("The edges needed to keep the accuracy are found by ", "interbasis ablate RUN"),
      ),
      this.group(
        "Strength",
        this.select("scale", "Line width and opacity show", [
          ["square", "Ê²"],
          ["plain", "Ê"],
          ["root", "√Ê"],
          ["log", "log (Ê/ε)"],
        ]),
        this.flag("normalise", "Each section on its own scale"),
      ),
      this.group(
        "Features",
        this.slider("nodes", {
          label: "In each layer, at most",
          min: 1,
          max: Math.min(widest, 200),
          step: 1,
          to: Number,
          from: Number,
          show: integer,
        }),
        this.select(
          "sort",
          "In order of",
          [
            ["importance", "importance"],
            ["strength", "strength of their edges"],
            ["module", "module"],
            ...(this.page.matches.any ? [["match", "match with the first run"]] : []),
          ],
          this.hasModules() ? [] : ["module"],
        ),
        this.select("output", "Last layer", [
          ["show", "every feature"],
          ["merge", "as one node"],
          ["hide", "hidden"],
        ]),
        this.flag("constant", "Show the constant"),
      ),
      this.layerRange(),
      this.group(
        "Colours",
        this.select(
          "colour",
          "Features are coloured by",
          [
            ["none", "nothing"],
            ["module", "module"],
            ["group", "your groups"],
          ],
          this.hasModules() ? [] : ["module"],
        ),
        this.legend.element,
      ),
    );
    this.updates.push(() => this.legend.update());
  }

  hasModules() {
    return this.page.parts.some(({ run }) => run.modules);
  }

  lossLabel() {
    if (!this.run.record.ablation) return "Needed edges";
    const { metric } = this.run.record.ablation;
    const measured = this.page.parts.filter(({ run }) => run.record.ablation?.metric === metric);
    const baselines = new Set(measured.map(({ run }) => decimal(run.record.ablation.baseline, 4)));
    return (
      `Allowed ${lowerIsBetter(metric) ? "rise" : "loss"} of ${metricName(metric)} ` +
      `(${baselines.size > 1 ? "full models" : "full model"}: ${[...baselines].join(" and ")})`
    );
  }

  lossText(loss) {
    return decimal((this.run.record.ablation?.tolerance ?? 0) * loss);
  }

  group(title, ...children) {
    return el("fieldset", {}, el("legend", {}, title), children);
  }

  slider(key, { label, min, max, step, to, from, show, hidden = undefined }) {
    const output = el("output", {});
    const text = el("span", {});
    const input = el("input", {
      type: "range",
      min,
      max,
      step,
      id: `slider-${key}`,
      oninput: () => this.state.set({ [key]: from(Number(input.value)) }),
    });
    const row = el("div", { class: "slider" }, el("label", { for: `slider-${key}` }, text, output), input);
    this.updates.push(() => {
      const value = this.state.get(key);
      replace(text, typeof label === "function" ? label() : label);
      if (document.activeElement !== input || from(Number(input.value)) !== value) input.value = to(value);
      const shown = show(value);
      output.textContent = shown;
      input.setAttribute("aria-valuetext", shown);
      if (hidden) row.hidden = hidden();
    });
    return row;
  }

  choice(key, label, options, disabled) {
    const buttons = options.map(([value, text]) =>
      el(
        "button",
        {
          type: "button",
          "data-value": value,
          disabled: disabled.includes(value),
          onclick: () => this.state.set({ [key]: value }),
        },
        text,
      ),
    );
    this.updates.push(() =>
      buttons.forEach((button) =>
        button.setAttribute("aria-pressed", String(button.dataset.value === this.state.get(key))),
      ),
    );
    return el("div", { class: "choice", role: "group", "aria-label": label }, buttons);
  }

  select(key, label, options, disabled = []) {
    const input = el(
      "select",
      { id: `select-${key}`, onchange: () => this.state.set({ [key]: input.value }) },
      options.map(([value, text]) => el("option", { value, disabled: disabled.includes(value) }, text)),
    );
    this.updates.push(() => (input.value = this.state.get(key)));
    return el("div", { class: "field" }, el("label", { for: `select-${key}` }, label), input);
  }

  flag(key, label) {
    const input = el("input", { type: "checkbox", onchange: () => this.state.set({ [key]: input.checked }) });
    this.updates.push(() => (input.checked = this.state.get(key)));
    return el("label", { class: "flag" }, input, label);
  }

  layerRange() {
    const { layers, last } = this.run;
    if (last < 2) return null;
    const ends = (key, label) => {
      const input = el(
        "select",
        { "aria-label": label, onchange: () => this.moveEnd(key, Number(input.value)) },
        layers.map((layer, k) => el("option", { value: String(k) }, layer.name)),
      );
      this.updates.push(() => (input.value = String(Math.min(this.state.get(key), last))));
      return input;
    };
    const folds = this.page.parts.some(({ run }) => run.layers.some(({ folded }) => folded));
    return this.group(
      "Layers",
      el("div", { class: "range" }, "from", ends("from", "First layer"), "to", ends("to", "Last layer")),
      folds && this.flag("norms", "Show layer norms"),
    );
  }

  moveEnd(key, value) {
    if (key === "from") this.state.set({ from: value, to: Math.max(this.state.get("to"), value) });
    else this.state.set({ to: value, from: Math.min(this.state.get("from"), value) });
  }

  update() {
    for (const update of this.updates) update();
  }
}
