// What a feature is called: by a person, else by what was found out about it, else by its number.

import { isConstant, isIsolated } from "./data.js";
import { visible } from "./format.js";

export class Names {
  constructor(run, notes) {
    this.run = run;
    this.notes = notes;
  }

  label(layer, index) {
    return this.known(layer, index) || `feature ${index}`;
  }

  // A label that is more than the number; empty where nothing is known.
  known(layer, index) {
    const custom = this.notes.customName(layer, index);
    if (custom) return custom;
    const { outputs, output_names: outputNames } = this.run.layers[layer];
    if (isConstant(this.run, layer, index)) return "constant";
    if (outputs) return visible(outputNames?.[index] || `output ${index}`);
    if (isIsolated(this.run, layer, index)) return "variance";
    return visible(this.run.feature(layer, index)?.label.trim() ?? "");
  }

  // For a small place: of a sum of terms with their shares the first term, and no figures.
  short(layer, index) {
    const label = this.known(layer, index).replace(/^no short description(, )?/, "");
    const terms = label.match(/^\d+% (.+?)( \+ \d+% .*)?$/);
    if (terms) return terms[1] + (terms[2] ? " + …" : "");
    return label.replace(/^token: /, "").replace(/ (\(AUROC [\d.]+\)|\d+%)(?=,|$)/, "");
  }

  // The short label and, apart from it, the number.
  boxed(layer, index) {
    const label = this.short(layer, index);
    return label ? `${label} #${index}` : `feature ${index}`;
  }

  // A label that also says where the feature is.
  full(layer, index) {
    const label = this.known(layer, index);
    const where = `${this.run.layers[layer].name}, feature ${index}`;
    return label ? `${label} (${where})` : where;
  }
}
