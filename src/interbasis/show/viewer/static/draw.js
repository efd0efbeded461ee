// Edges on a canvas: the strongest as strokes whose width and opacity go with their weight, the rest as a haze of
// thin curves. A drawing knows sections of edges, each with rows, weights and colours.

import { css } from "./colours.js";

const STROKES = 800;
const LEVELS = 24;
// Edges of a section from which on thin ones fade, slowly and then fast, so that a crowd does not turn black.
const FEW = 100;
const CROWD = 600;

export const strokeWidth = (weight) => 0.6 + 5.4 * weight;
export const fading = (size) => Math.min(1, Math.sqrt(FEW / size), CROWD / size);
const strokeOpacity = (weight, fade) => (0.16 + 0.68 * weight) * fade ** (1 - weight);

// What is in sight, for a window of the layout at (x, y) of the given size.
export function drawEdges(context, haze, picture, view) {
  context.clearRect(0, 0, view.width, view.height);
  const seen = picture.sections.filter(({ left, right }) => right > view.x && left < view.x + view.width);
  const threshold = strokeThreshold(seen);
  const weak = seen.some(({ weights, size }) => size && weights[size - 1] < threshold);
  if (weak) drawHaze(context, haze, picture, seen, threshold, view);
  drawStrokes(context, picture, seen, threshold, view);
}

// The weight from which on edges are strokes, so that there are about STROKES of them.
function strokeThreshold(sections) {
  const bins = new Uint32Array(1025);
  for (const { weights, size } of sections) for (let e = 0; e < size; e++) bins[(weights[e] * 1024) | 0]++;
  let total = 0;
  for (let bin = 1024; bin >= 0; bin--) {
    total += bins[bin];
    if (total > STROKES) return Math.min((bin + 1) / 1024, 1);
  }
  return 0;
}

function drawHaze(context, haze, picture, sections, threshold, view) {
  const coloured = sections.some(({ colours }) => colours);
  const tints = picture.palette.map((colour) => colour.map((channel, c) => channel - picture.palette[0][c]));
  haze.begin(Math.ceil(view.width), Math.ceil(view.height), coloured);
  for (const { left, right, weights, size, from, to, y0, y1, colours } of sections) {
    const start = Math.round(left - view.x);
    const span = Math.max(Math.round(right - left), 2);
    const fade = fading(size);
    for (let e = size - 1; e >= 0 && weights[e] < threshold; e--) {
      const depth = strokeOpacity(weights[e], fade) * Math.min(strokeWidth(weights[e]), 1);
      const tint = colours && colours[e] ? tints[colours[e]] : null;
      haze.curve(start, span, y0[from[e]] - view.y, y1[to[e]] - view.y, depth, tint);
    }
  }
  haze.finish(context, picture.palette[0]);
}

function drawStrokes(context, picture, sections, threshold, view) {
  for (const { left, right, weights, size, from, to, y0, y1, colours } of sections) {
    const paths = new Map();
    for (let e = 0; e < size && weights[e] >= threshold; e++) {
      const key = Math.round(weights[e] * LEVELS) * 64 + (colours ? colours[e] : 0);
      let path = paths.get(key);
      if (!path) paths.set(key, (path = new Path2D()));
      addCurve(path, left - view.x, right - view.x, y0[from[e]] - view.y, y1[to[e]] - view.y);
    }
    for (const key of [...paths.keys()].sort((a, b) => a - b)) {
      const weight = Math.floor(key / 64) / LEVELS;
      context.lineWidth = strokeWidth(weight);
      context.strokeStyle = css(picture.palette[key % 64], strokeOpacity(weight, fading(size)));
      context.stroke(paths.get(key));
    }
  }
}

// The same curve as the haze draws: control points at thirds make x go evenly with t.
export function addCurve(path, left, right, y0, y1) {
  const third = (right - left) / 3;
  path.moveTo(left, y0);
  path.bezierCurveTo(left + third, y0, right - third, y1, right, y1);
}
