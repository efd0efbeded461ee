// Paths through a feature, drawn over the dimmed graph: what comes in in one colour, what goes out in another.

import { css } from "./colours.js";
import { addCurve, strokeWidth } from "./draw.js";

const MOST = 1500;

export function drawPaths(context, sections, paths, place, view, colours) {
  sections.forEach((section, k) => {
    const colour = k < place.column ? colours.incoming : colours.outgoing;
    const edges = paths.edges[k].slice(0, MOST / 2);
    for (const { e, steps } of edges.reverse()) {
      const path = new Path2D();
      addCurve(path, section.left - view.x, section.right - view.x, section.y0[section.from[e]] - view.y, section.y1[section.to[e]] - view.y);
      context.lineWidth = strokeWidth(section.weights[e]) * (steps ? 0.7 : 1) + (steps ? 0 : 0.5);
      context.strokeStyle = css(colour, steps ? Math.max(0.45 * 0.75 ** steps, 0.1) : 0.5 + 0.5 * section.weights[e]);
      context.stroke(path);
    }
  });
}
