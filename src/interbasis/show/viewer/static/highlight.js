// Paths through a feature, drawn over the dimmed graph: what comes in in one colour, what goes out in another.

import { css } from "./colours.js";
import { addCurve, fading, strokeWidth } from "./draw.js";

// Of each section no more than its strongest edges on paths: a crowd says no more than they do.
const MOST = 240;

// One line, so that it stands out.
export function drawLine(context, section, e, view, colours) {
  const path = new Path2D();
  addCurve(
    path,
    section.left - view.x,
    section.right - view.x,
    section.y0[section.from[e]] - view.y,
    section.y1[section.to[e]] - view.y,
  );
  context.lineWidth = strokeWidth(section.weights[e]) + 1.5;
  context.strokeStyle = css(colours.incoming, 0.9);
  context.stroke(path);
}

export function drawPaths(context, sections, paths, place, view, colours) {
  sections.forEach((section, k) => {
    if (section.right < view.x || section.left > view.x + view.width) return;
    const incoming = k < place.column;
    const away = incoming ? place.column - 1 - k : k - place.column;
    const edges = paths.edges[k].slice(0, MOST).reverse();
    const far = Math.max(0.6 * 0.75 ** away, 0.15);
    for (const e of edges) {
      const path = new Path2D();
      addCurve(
        path,
        section.left - view.x,
        section.right - view.x,
        section.y0[section.from[e]] - view.y,
        section.y1[section.to[e]] - view.y,
      );
      context.lineWidth = strokeWidth(section.weights[e]) * (away ? 0.7 : 1) + (away ? 0 : 0.5);
      context.strokeStyle = css(
        incoming ? colours.incoming : colours.outgoing,
        away ? far * fading(2 * edges.length) ** (1 - section.weights[e]) : 0.5 + 0.5 * section.weights[e],
      );
      context.stroke(path);
    }
  });
}
