// What the model loses as edges are ablated, section by section.

import { bars } from "./charts.js";
import { moduleColour } from "./colours.js";
import { el, name, replace, svg } from "./dom.js";
import { decimal, integer, percent } from "./format.js";
import { headline, sectionBaseline, lowerIsBetter, measuredPoints, metricName } from "./needed.js";
import { hint } from "./panel.js";

const WIDE = 420;
const TALL = 220;
const MARGIN = { left: 54, right: 14, top: 20, bottom: 34 };

export function curvesTab(page) {
  const runs = page.parts.map(({ run }) => run).filter(({ record }) => record.curves || record.ablation);
  const element = el("section", { class: "text-tab curves", "aria-label": "Curves" });
  if (!runs.length) {
    return replace(
      element,
      hint("How well the model works with few edges is measured by ", "interbasis ablate RUN"),
      hint("and, over the whole range, by ", "interbasis curves RUN"),
    );
  }
  const { metric } = runs[0].record.ablation ?? runs[0].record.curves;
  const words = metricName(metric);
  const panels = runs[0].sections.map((section) => ({ section, series: measuredSeries(runs, section) }));
  const values = panels.flatMap(({ series }) =>
    series.flatMap(({ points, baseline }) => [...points.map(({ value }) => value), baseline]),
  );
  const scale = range(Math.min(...values), Math.max(...values)); // the same for all panels, so that they compare
  return replace(
    element,
    el("h2", {}, `${words[0].toUpperCase()}${words.slice(1)} against the edges kept`),
    el(
      "p",
      { class: "lead" },
      "In each section only the strongest edges are kept, the others are set to their mean. The " +
        "dashed line is the original model; a ring marks the edges required for it, within the " +
        "tolerance.",
    ),
    runs.length > 1 &&
      el(
        "div",
        { class: "swatches wide" },
        runs.map((run) =>
          el("span", { class: "swatch" }, el("i", { style: { background: runColour(run) } }), name(run.title)),
        ),
      ),
    el(
      "div",
      { class: "charts" },
      panels.map(({ section, series }) => series.length > 0 && sectionChart(series, section, words, scale)),
    ),
    requiredBars(runs),
  );
}

function runColour(run) {
  return moduleColour(run.place === 0 ? 0 : 4);
}

function sectionTitle({ source, target }) {
  return [name(source), " → ", name(target)];
}

// The same section of every run that has been measured there. A count beyond the edges that exist keeps them all.
function measuredSeries(runs, { source, target }) {
  return runs
    .map((run) => ({
      run,
      section: run.sections.find((candidate) => candidate.source === source && candidate.target === target),
    }))
    .filter(({ section }) => section)
    .map(({ run, section }) => ({
      run,
      section,
      points: thinned(
        measuredPoints(run, section).map(({ kept, value }) => ({ kept: Math.min(kept, section.nonzero), value })),
      ),
      baseline: sectionBaseline(run, section),
    }))
    .filter(({ points }) => points.length);
}

function sectionChart(series, { source, target }, words, scale) {
  const [low, high] = scale;
  const largest = Math.max(...series.flatMap(({ points }) => points.map(({ kept }) => kept)), 2);
  const x = (kept) => MARGIN.left + (Math.log1p(kept) / Math.log1p(largest)) * (WIDE - MARGIN.left - MARGIN.right);
  const y = (value) => TALL - MARGIN.bottom - ((value - low) / (high - low || 1)) * (TALL - MARGIN.top - MARGIN.bottom);
  const areas = series
    .filter(({ section }) => section.curve && section.curve.area !== null)
    .map(
      ({ run, section }) =>
        `${series.length > 1 ? `${run.title}: ` : ""}area under the curve ${decimal(section.curve.area)}`,
    );
  return el(
    "figure",
    { class: "curve" },
    el("figcaption", {}, sectionTitle({ source, target })),
    svg(
      "svg",
      {
        class: "chart",
        viewBox: `0 0 ${WIDE} ${TALL}`,
        role: "img",
        "aria-label": `${words} against edges kept from ${source} to ${target}`,
      },
      ticks(largest).map((power) => [
        svg("line", { class: "axis", x1: x(power), x2: x(power), y1: MARGIN.top, y2: TALL - MARGIN.bottom }),
        svg("text", { x: x(power), y: TALL - MARGIN.bottom + 14, "text-anchor": "middle" }, integer(power)),
      ]),
      levels(low, high).map((value) => [
        svg("line", { class: "axis", x1: MARGIN.left, x2: WIDE - MARGIN.right, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick-y", x: MARGIN.left - 6, y: y(value) + 3, "text-anchor": "end" }, decimal(value, 4)),
      ]),
      svg("line", { class: "axis-line", x1: MARGIN.left, x2: MARGIN.left, y1: MARGIN.top, y2: TALL - MARGIN.bottom }),
      svg("line", {
        class: "axis-line",
        x1: MARGIN.left,
        x2: WIDE - MARGIN.right,
        y1: TALL - MARGIN.bottom,
        y2: TALL - MARGIN.bottom,
      }),
      svg("text", { x: 4, y: 9 }, words),
      svg("text", { x: WIDE - MARGIN.right, y: TALL - 4, "text-anchor": "end" }, "edges kept"),
      series.map((item) => seriesLines(item, x, y)),
    ),
    areas.length > 0 && el("p", { class: "hint" }, areas.join(" · ")),
  );
}

// One value per count, in order: a bisection comes back to the same counts.
function thinned(points) {
  return [...new Map(points.map((point) => [point.kept, point])).values()];
}

// The axis ends at round numbers, so that every tick has one.
function range(low, high) {
  const step = roundStep(high - low || Math.abs(high) || 1);
  return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step || step];
}

function levels(low, high) {
  const step = roundStep(high - low);
  return Array.from({ length: Math.round((high - low) / step) + 1 }, (_, k) =>
    Number((low + k * step).toPrecision(12)),
  );
}

// A step of 1, 2 or 5 times a power of ten, about a quarter of the span.
function roundStep(span) {
  const power = 10 ** Math.floor(Math.log10(span / 4));
  return [1, 2, 5, 10].find((factor) => factor * power >= (span / 4) * 0.999) * power;
}

// None, and powers of ten.
function ticks(largest) {
  return [0, ...Array.from({ length: Math.floor(Math.log10(largest) + 1e-9) + 1 }, (_, power) => 10 ** power)];
}

function seriesLines({ run, section, points, baseline }, x, y) {
  const style = { stroke: runColour(run) };
  const required = section.edges_required;
  return [
    svg("line", {
      class: "baseline",
      x1: MARGIN.left,
      x2: WIDE - MARGIN.right,
      y1: y(baseline),
      y2: y(baseline),
      style,
    }),
    svg("polyline", {
      class: "line",
      points: points.map(({ kept, value }) => `${x(kept).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
      style,
    }),
    points.map(({ kept, value }) =>
      svg(
        "circle",
        { cx: x(kept), cy: y(value), r: 1.8, style: { fill: runColour(run) } },
        svg("title", {}, `${integer(kept)} edges: ${decimal(value, 4)}`),
      ),
    ),
    required && [
      svg("circle", { class: "required", cx: x(required.count), cy: y(required.value), r: 5, style }),
      svg(
        "text",
        {
          class: "required-text",
          x: x(required.count) + (run.place ? 9 : -9),
          y: y(required.value) + 4,
          "text-anchor": run.place ? "start" : "end",
        },
        integer(required.count),
      ),
    ],
  ];
}

function requiredBars(runs) {
  const ablated = runs.filter((run) => run.ablated);
  if (!ablated.length) return hint("Edges required are found by ", "interbasis ablate RUN");
  return [
    el("h2", {}, "Edges required"),
    el(
      "p",
      { class: "lead" },
      "The fewest of the strongest edges that keep the model's performance, one section at a time. Robust: no " +
        "combination of the others was found that misses the limit; plain: it is met with all others removed at " +
        "once. Edges of the constant are always kept and not counted.",
    ),
    el(
      "div",
      { class: "charts" },
      ablated.map((run) => {
        const sections = run.sections.filter((section) => section.edges_required);
        return el(
          "figure",
          { class: "curve" },
          el("figcaption", {}, name(run.title)),
          bars(
            sections.map(({ source, target, edges_required }) => ({
              label: `${source} → ${target}`,
              value: headline(edges_required),
              beside: besideCount(edges_required),
            })),
            integer,
          ),
          el("p", { class: "hint" }, `${ruleText(run.record.ablation)}; per cent of all edges of the section`),
        );
      }),
    ),
  ];
}

function besideCount({ robust, count, possible }) {
  const share = percent(headline({ robust, count }) / possible);
  return robust ? `${share}, robust; plain ${integer(count)}` : `${share}, plain`;
}

function ruleText({ metric, tolerance, baseline }) {
  const direction = lowerIsBetter(metric) ? "above" : "below";
  return (
    `${metricName(metric)} stays at most ${decimal(tolerance)} ${direction} the original model's ` +
    `${decimal(baseline, 4)}`
  );
}
