// How many of the strongest edges of a section are enough, by what the ablation measured.

export const LOSSES = [1, 2, 5, 10, 20, 50, 100, 200, 500];

// A difference of two accuracies is off by a rounding error, and less than one answer in a billion.
const ROUNDING = 1e-9;

export function lowerIsBetter(metric) {
  return metric === "cross_entropy";
}

export function metricName(metric) {
  return metric.replaceAll("_", " ");
}

// Measured points of a section, fewest edges first: [{kept, value}], of one metric on the same data. A trial that is
// not complete has a bound for its value, and is no measurement.
export function measuredPoints(run, section) {
  const points = (section.edges_required?.trials ?? [])
    .filter(({ complete }) => complete)
    .map(({ kept, value }) => ({ kept, value }));
  if (section.curve && curvesJoin(run.record, section)) {
    section.curve.counts.forEach((kept, i) => points.push({ kept, value: section.curve.values[i] }));
  }
  return points.sort((a, b) => a.kept - b.kept);
}

// Whether points of the curves may stand beside the ablation's, or alone where it left the section out.
function curvesJoin({ ablation, curves }, section) {
  if (ablation && ablation.metric !== curves.metric) return false;
  return !section.edges_required || ablation.data === curves.data;
}

// The original model's metric on the data of a section's points.
export function sectionBaseline({ record: { ablation, curves } }, section) {
  return section.edges_required ? ablation.baseline : curves?.baseline;
}

// The robust count, or the plain one where no mask was sought that breaks it.
export function headline({ robust, count }) {
  return robust?.count ?? count;
}

// The count the ablation found for its own tolerance; for a looser one, the fewest edges that were measured to do.
// Null where the section was not ablated.
export function neededCount(run, section, loss) {
  if (!section.edges_required) return null;
  const count = headline(section.edges_required);
  if (loss <= 1) return count;
  const { metric, baseline, tolerance } = run.record.ablation;
  const allowed = tolerance * loss + ROUNDING;
  const passes = lowerIsBetter(metric)
    ? (value) => value <= baseline + allowed
    : (value) => value >= baseline - allowed;
  const enough = measuredPoints(run, section).filter(({ kept, value }) => kept <= count && passes(value));
  return enough.length ? enough[0].kept : count;
}
