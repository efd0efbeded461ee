// How many of the strongest edges of a section are enough, by what the ablation measured.

export const LOSSES = [1, 2, 5, 10, 20, 50, 100, 200, 500];

export function lowerIsBetter(metric) {
  return /loss|entropy|error|perplexity/.test(String(metric));
}

// Measured points of a section, fewest edges first: [{kept, value}].
export function measuredPoints(run, k) {
  const ablation = run.results.ablation;
  const curves = run.results.curves;
  const tried = ablation?.sections?.[k]?.curve;
  const points = Array.isArray(tried) ? tried.filter((one) => one && one.complete !== false).map(({ kept, value }) => ({ kept, value })) : [];
  const { counts, values } = curves?.sections?.[k] ?? {};
  if (Array.isArray(counts) && Array.isArray(values) && (!ablation || curves.metric === ablation.metric)) {
    counts.forEach((kept, i) => points.push({ kept, value: values[i] }));
  }
  return points.filter(({ kept, value }) => Number.isFinite(kept) && Number.isFinite(value)).sort((a, b) => a.kept - b.kept);
}

// The count the ablation found for its own tolerance; for a looser one, the fewest edges that were seen to do.
export function neededCount(run, k, loss) {
  const ablation = run.results.ablation;
  const found = ablation?.sections?.[k]?.count ?? ablation?.edges_required?.[k];
  if (!Number.isFinite(found)) return null;
  if (loss <= 1) return found;
  const allowed = ablation.tolerance * loss;
  const passes = lowerIsBetter(ablation.metric)
    ? (value) => value <= ablation.baseline + allowed
    : (value) => value >= ablation.baseline - allowed;
  const enough = measuredPoints(run, k).filter(({ kept, value }) => kept <= found && passes(value));
  return enough.length ? enough[0].kept : found;
}
