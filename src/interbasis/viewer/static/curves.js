// What the model loses as edges go, section by section.

import { bars } from "./charts.js";
import { moduleColour } from "./colours.js";
import { sectionOf } from "./data.js";
import { el, name, replace, svg } from "./dom.js";
import { decimal, integer, percent } from "./format.js";
import { ablatedSection, baselineOf, lowerIsBetter, measuredPoints } from "./needed.js";
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
    el("div", { class: "charts" }, careful(() => runs[0].sections.map((section) => sectionChart(runs, section, words)))),
    careful(() => requiredBars(runs)),
  );
}

function runColour(run) {
  return moduleColour(run.place === 0 ? 0 : 4);
}

function sectionChart(runs, section, words) {
  const series = runs.map((run) => ({ run, points: thinned(measuredPoints(run, section)) }))
    .filter(({ points }) => points.length);
  if (!series.length) return null;
  const all = series.flatMap(({ points }) => points);
  const most = Math.max(...all.map(({ kept }) => kept), 2);
  const baselines = series.map(({ run }) => baselineOf(run, section));
  const values = [...all.map(({ value }) => value), ...baselines.filter(Number.isFinite)];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (kept) => MARGIN.left + (Math.log1p(kept) / Math.log1p(most)) * (WIDE - MARGIN.left - MARGIN.right);
  const y = (value) => TALL - MARGIN.bottom - ((value - low) / (high - low || 1)) * (TALL - MARGIN.top - MARGIN.bottom);
  const summary = series.map(({ run }) => {
    const part = sectionOf(run.results.curves, section);
    return part && Number.isFinite(part.area) && `${runs.length > 1 ? `${run.title}: ` : ""}area under the curve ${decimal(part.area)}`;
  }).filter(Boolean);
  return el(
    "figure", { class: "curve" },
    el("figcaption", {}, name(section.from), " → ", name(section.to)),
    svg(
      "svg", { class: "chart", viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": `${words} against edges kept from ${section.from} to ${section.to}` },
      ticks(most).map((power) => [
        svg("line", { class: "axis", x1: x(power), x2: x(power), y1: MARGIN.top, y2: TALL - MARGIN.bottom }),
        svg("text", { x: x(power), y: TALL - MARGIN.bottom + 14, "text-anchor": "middle" }, integer(power)),
      ]),
      [low, high].map((value) => svg("text", { x: MARGIN.left - 6, y: y(value) + 3, "text-anchor": "end" }, decimal(value, 4))),
      svg("text", { x: WIDE - MARGIN.right, y: TALL - 4, "text-anchor": "end" }, "edges kept"),
      series.map((one, at) => seriesLines(one, section, x, y, baselines[at])),
    ),
    summary.length > 0 && el("p", { class: "hint" }, summary.join(" · ")),
  );
}

// One value per count, in order: a bisection comes back to the same counts.
function thinned(points) {
  return [...new Map(points.map((point) => [point.kept, point])).values()];
}

// None, and powers of ten.
function ticks(most) {
  return [0, ...Array.from({ length: Math.floor(Math.log10(most) + 1e-9) + 1 }, (_, power) => 10 ** power)];
}

function seriesLines({ run, points }, section, x, y, baseline) {
  const style = { stroke: runColour(run) };
  const { count, value } = ablatedSection(run, section) ?? {};
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
  const ablated = runs.map((run) => ({ run, rows: run.sections.map((section) => ablatedSection(run, section)).filter(Boolean) })).filter(({ rows }) => rows.length);
  if (!ablated.length) return hint("Edges required are found by ", "interbasis ablate RUN");
  return [
    el("h2", {}, "Edges required"),
    el("p", { class: "lead" }, "The fewest of the strongest edges that keep the model's performance, section by section. Edges of the constant come free."),
    el("div", { class: "charts" }, ablated.map(({ run, rows }) => el(
      "figure", { class: "curve" }, el("figcaption", {}, name(run.title)),
      bars(rows.map(({ from, to, count }) => ({ label: `${from} → ${to}`, value: count })), integer),
      el("p", { class: "hint" }, `${ruleText(run.results.ablation)}${keptText(rows)}`),
    ))),
  ];
}

function ruleText({ metric, tolerance, baseline }) {
  const direction = lowerIsBetter(metric) ? "above" : "below";
  return `${String(metric).replaceAll("_", " ")} stays at most ${decimal(tolerance)} ${direction} the untouched model's ${decimal(baseline, 4)}`;
}

function keptText(rows) {
  const fractions = rows.map(({ kept_fraction: kept }) => kept).filter(Number.isFinite);
  return fractions.length ? `; ${fractions.map(percent).join(", ")} of the possible edges` : "";
}
