// How many of the strongest edges of a section are enough, by what the ablation measured.

import { sectionOf } from "./data.js";

export const LOSSES = [1, 2, 5, 10, 20, 50, 100, 200, 500];

export function lowerIsBetter(metric) {
  return /loss|entropy|error|perplexity/.test(String(metric));
}

// What the ablation found about a section; nothing where the section was left out.
export function ablatedSection(run, section) {
  return sectionOf(run.results.ablation, section);
}

export function isAblated(run) {
  return run.sections.some((section) => ablatedSection(run, section));
}

// A trial that was broken off holds a bound, not what was measured.
function isMeasured(trial) {
  return Boolean(trial) && !trial.bound;
}

// Measured points of a section, fewest edges first: [{kept, value}], of one metric on the same data.
export function measuredPoints(run, section) {
  const { ablation, curves } = run.results;
  const ablated = ablatedSection(run, section);
  const tried = ablated?.curve;
  const points = Array.isArray(tried) ? tried.filter(isMeasured).map(({ kept, value }) => ({ kept, value })) : [];
  const { counts, values } = sectionOf(curves, section) ?? {};
  if (Array.isArray(counts) && Array.isArray(values) && joins(curves, ablation, ablated)) {
    counts.forEach((kept, i) => points.push({ kept, value: values[i] }));
  }
  return points.filter(({ kept, value }) => Number.isFinite(kept) && Number.isFinite(value)).sort((a, b) => a.kept - b.kept);
}

// Whether points of the curves may stand with what the ablation found, or alone where it left the section out.
function joins(curves, ablation, ablated) {
  if (ablation && ablation.metric !== curves.metric) return false;
  return !ablated || ablation.data?.fingerprint === curves.data?.fingerprint;
}

// The untouched model's metric on the data of a section's points.
export function baselineOf(run, section) {
  const { ablation, curves } = run.results;
  return ablatedSection(run, section) ? ablation.baseline : curves?.baseline;
}

// The count the ablation found for its own tolerance; for a looser one, the fewest edges that were seen to do.
export function neededCount(run, section, loss) {
  const { ablation } = run.results;
  const found = ablatedSection(run, section)?.count;
  if (!Number.isFinite(found)) return null;
  if (loss <= 1) return found;
  const allowed = ablation.tolerance * loss;
  const passes = lowerIsBetter(ablation.metric)
    ? (value) => value <= ablation.baseline + allowed
    : (value) => value >= ablation.baseline - allowed;
  const enough = measuredPoints(run, section).filter(({ kept, value }) => kept <= found && passes(value));
  return enough.length ? enough[0].kept : found;
}
