// What the model loses as edges go, section by section.

import { bars } from "./charts.js";
import { moduleColour } from "./colours.js";
import { el, name, replace, svg } from "./dom.js";
import { decimal, integer, percent } from "./format.js";
import { lowerIsBetter, measuredPoints } from "./needed.js";
import { careful, hint } from "./panel.js";

const WIDE = 420;
const TALL = 220;
const MARGIN = { left: 54, right: 14, top: 12, bottom: 34 };

export function curvesTab(page) {
  const runs = page.parts.map(({ run }) => run).filter(({ results }) => results.curves || results.ablation);
  const element = el("section", { class: "text-tab curves", "aria-label": "Curves" });
  if (!runs.length) {
    return replace(element, hint("How much of the model survives with few edges is measured by ", "interbasis ablate RUN"), hint("and, over the whole range, by ", "interbasis curves RUN"));
  }
  const metric = runs[0].results.ablation?.metric ?? runs[0].results.curves?.metric ?? "metric";
  const words = String(metric).replaceAll("_", " ");
  return replace(
    element,
    el("h2", {}, `${words[0].toUpperCase()}${words.slice(1)} against the edges kept`),
    el("p", { class: "lead" }, "In each section only the strongest edges are kept, the others are set to their mean. The dashed line is the untouched model; a ring marks the edges required for it, within the tolerance."),
    runs.length > 1 && el("div", { class: "swatches wide" }, runs.map((run) => el("span", { class: "swatch" }, el("i", { style: { background: runColour(run) } }), name(run.title)))),
    el("div", { class: "charts" }, careful(() => runs[0].sections.map((section, k) => sectionChart(runs, section, k, words)))),
    careful(() => requiredBars(runs)),
  );
}

function runColour(run) {
  return moduleColour(run.place === 0 ? 0 : 4);
}

function sectionChart(runs, section, k, words) {
  const series = runs.map((run) => ({ run, points: thinned(measuredPoints(run, k)), ablation: run.results.ablation, curves: run.results.curves }))
    .filter(({ points }) => points.length);
  if (!series.length) return null;
  const all = series.flatMap(({ points }) => points);
  const most = Math.max(...all.map(({ kept }) => kept), 2);
  const baselines = series.map(({ ablation, curves }) => ablation?.baseline ?? curves?.baseline);
  const values = [...all.map(({ value }) => value), ...baselines.filter(Number.isFinite)];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (kept) => MARGIN.left + (Math.log(Math.max(kept, 1)) / Math.log(most)) * (WIDE - MARGIN.left - MARGIN.right);
  const y = (value) => TALL - MARGIN.bottom - ((value - low) / (high - low || 1)) * (TALL - MARGIN.top - MARGIN.bottom);
  const summary = series.map(({ run, curves }) => {
    const part = curves?.sections?.[k];
    return part && Number.isFinite(part.area) && `${runs.length > 1 ? `${run.title}: ` : ""}area under the curve ${decimal(part.area)}`;
  }).filter(Boolean);
  return el(
    "figure", { class: "curve" },
    el("figcaption", {}, name(section.from), " → ", name(section.to)),
    svg(
      "svg", { class: "chart", viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": `${words} against edges kept from ${section.from} to ${section.to}` },
      powersOfTen(most).map((power) => [
        svg("line", { class: "axis", x1: x(power), x2: x(power), y1: MARGIN.top, y2: TALL - MARGIN.bottom }),
        svg("text", { x: x(power), y: TALL - MARGIN.bottom + 14, "text-anchor": "middle" }, integer(power)),
      ]),
      [low, high].map((value) => svg("text", { x: MARGIN.left - 6, y: y(value) + 3, "text-anchor": "end" }, decimal(value, 4))),
      svg("text", { x: WIDE - MARGIN.right, y: TALL - 4, "text-anchor": "end" }, "edges kept"),
      series.map((one, at) => seriesLines(one, k, x, y, baselines[at])),
    ),
    summary.length > 0 && el("p", { class: "hint" }, summary.join(" · ")),
  );
}

// One value per count, in order: a bisection comes back to the same counts.
function thinned(points) {
  return [...new Map(points.map((point) => [point.kept, point])).values()];
}

function powersOfTen(most) {
  return Array.from({ length: Math.floor(Math.log10(most) + 1e-9) + 1 }, (_, power) => 10 ** power);
}

function seriesLines({ run, points, ablation }, k, x, y, baseline) {
  const style = { stroke: runColour(run) };
  const count = ablation?.sections?.[k]?.count ?? ablation?.edges_required?.[k];
  const value = points.find(({ kept }) => kept === count)?.value ?? ablation?.sections?.[k]?.value;
  return [
    Number.isFinite(baseline) && svg("line", { class: "baseline", x1: MARGIN.left, x2: WIDE - MARGIN.right, y1: y(baseline), y2: y(baseline), style }),
    svg("polyline", { class: "line", points: points.map((point) => `${x(point.kept).toFixed(1)},${y(point.value).toFixed(1)}`).join(" "), style }),
    points.map((point) => svg("circle", { cx: x(point.kept), cy: y(point.value), r: 1.8, style: { fill: runColour(run) } }, svg("title", {}, `${integer(point.kept)} edges: ${decimal(point.value, 4)}`))),
    Number.isFinite(count) && Number.isFinite(value) && [
      svg("circle", { class: "required", cx: x(count), cy: y(value), r: 5, style }),
      svg("text", { class: "required-text", x: x(count) + (run.place ? 9 : -9), y: y(value) + 4, "text-anchor": run.place ? "start" : "end" }, integer(count)),
    ],
  ];
}

function requiredBars(runs) {
  const ablated = runs.filter(({ results }) => results.ablation?.edges_required);
  if (!ablated.length) return hint("Edges required are found by ", "interbasis ablate RUN");
  const { metric, tolerance, baseline } = ablated[0].results.ablation;
  const direction = lowerIsBetter(metric) ? "above" : "below";
  return [
    el("h2", {}, "Edges required"),
    el("p", { class: "lead" }, `The fewest of the strongest edges with which ${String(metric).replaceAll("_", " ")} stays at most ${decimal(tolerance)} ${direction} the untouched model's ${decimal(baseline, 4)}. Edges of the constant come free.`),
    el("div", { class: "charts" }, ablated.map((run) => el(
      "figure", { class: "curve" }, el("figcaption", {}, name(run.title)),
      bars(run.results.ablation.edges_required.map((value, k) => ({ label: run.sections[k] ? `${run.sections[k].from} → ${run.sections[k].to}` : `section ${k}`, value })), integer),
      el("p", { class: "hint" }, keptText(run)),
    ))),
  ];
}

function keptText({ results: { ablation } }) {
  const fractions = (ablation.sections ?? []).map(({ kept_fraction: kept }) => kept).filter(Number.isFinite);
  return fractions.length ? `${fractions.map(percent).join(", ")} of the possible edges` : "";
}
