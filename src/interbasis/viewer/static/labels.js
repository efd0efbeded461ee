// What a feature is called: by a person, else by what was found out about it, else by its number.

import { isConstant, isIsolated } from "./data.js";

export class Names {
  constructor(run, notes) {
    this.run = run;
    this.notes = notes;
  }

  label(layer, index) {
    const given = this.notes.nameOf(layer, index);
    if (given) return given;
    if (isConstant(this.run, layer, index)) return "constant";
    if (isIsolated(this.run, layer, index)) return "variance";
    return this.run.feature(layer, index)?.label.trim() || `feature ${index}`;
  }

  // For a small place: of a sum of terms with their shares the first term, and no figures in brackets.
  short(layer, index) {
    const label = this.label(layer, index);
    const terms = label.match(/^\d+% (.+?)( \+ \d+% .*)?$/);
    return terms ? terms[1] + (terms[2] ? " + …" : "") : label.replace(/ \(AUROC [\d.]+\)$/, "");
  }

  // A label that also says where the feature is.
  full(layer, index) {
    const label = this.label(layer, index);
    const number = `feature ${index}`;
    const where = `${this.run.layers[layer].name}, ${number}`;
    return label === number ? where : `${label} (${where})`;
  }
}
