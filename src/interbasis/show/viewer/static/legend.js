// Colours and what they stand for; a module can be looked at alone.

import { MODULE_COLOURS, moduleColour } from "./colours.js";
import { el, name, replace } from "./dom.js";
import { integer, plural } from "./format.js";
import { hint } from "./panel.js";

export class Legend {
  constructor(page) {
    this.page = page;
    this.element = el("div", { class: "legend" });
  }

  update() {
    const { state, parts } = this.page;
    const by = state.get("colour");
    if (by === "module")
      replace(
        this.element,
        parts.map((part) => this.modules(part)),
      );
    else if (by === "group")
      replace(
        this.element,
        parts.map((part) => this.groups(part)),
      );
    else
      replace(
        this.element,
        !parts.some(({ run }) => run.modules) && hint("Modules are found by ", "interbasis modules RUN"),
      );
  }

  modules({ run }) {
    const { state, parts } = this.page;
    if (!run.modules) return hint(`${run.title} has no modules yet; they are found by `, "interbasis modules RUN");
    const { sizes } = run.modules;
    const smaller = sizes.slice(MODULE_COLOURS);
    const features = run.layers.reduce((sum, layer) => sum + layer.size - (layer.constant ? 1 : 0), 0);
    const unassigned = features - sizes.reduce((sum, size) => sum + size, 0);
    const isolated = state.get("module");
    return [
      parts.length > 1 && el("p", { class: "hint" }, name(run.title)),
      el(
        "div",
        { class: "swatches", role: "group", "aria-label": "Modules" },
        sizes
          .slice(0, MODULE_COLOURS)
          .map((size, rank) =>
            el(
              "button",
              {
                type: "button",
                class: "swatch",
                "aria-pressed": String(isolated === rank),
                title: `Show module ${rank} alone`,
                onclick: () => state.set({ module: isolated === rank ? -1 : rank }),
              },
              el("i", { style: { background: moduleColour(rank) } }),
              `${rank}`,
              el("small", {}, integer(size)),
            ),
          ),
      ),
      el("p", { class: "hint" }, [
        "Module and its number of features; choose one to see it alone.",
        smaller.length > 0 && ` ${plural(smaller.length, "smaller module")} in grey.`,
        unassigned > 0 && ` ${plural(unassigned, "feature")} in none.`,
      ]),
      isolated >= 0 &&
        el("button", { type: "button", class: "link", onclick: () => state.set({ module: -1 }) }, "Show all modules"),
    ];
  }

  groups({ notes }) {
    const groups = notes.groupNames();
    if (!groups.length) return el("p", { class: "hint" }, "No feature is in a group yet: open one and name its group.");
    return el(
      "div",
      { class: "swatches wide" },
      groups.map((group, rank) =>
        el("span", { class: "swatch" }, el("i", { style: { background: moduleColour(rank) } }), name(group)),
      ),
    );
  }
}
