// Where things stand: columns across, features down. A column is as wide as its longest label needs, edges have the
// gaps between. What does not fit is scrolled to.

export const TITLE_HEIGHT = 46;
const SIDE = 16;
const MIN_GAP = 58;
// Labels are cut before edges have less room than this.
const ROOMY_GAP = 96;
// A few columns that almost fit stand closer, so that none is out of sight.
const CLOSE = { gap: 36, width: 100 };
const NARROWEST = 64;
const WIDEST = 250;
const WIDEST_IN_A_CROWD = [166, 190];
const ROW = { minimum: 21, maximum: 34 };

let ruler;

// The width of a text in a box, in pixels at zoom 1.
export function textWidth(text) {
  ruler ??= document.createElement("canvas").getContext("2d");
  ruler.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}

export function layout(columns, width, height, zoom = 1) {
  const count = Math.max(columns.length, 1);
  const rows = Math.max(1, ...columns.map((column) => column.indices.length));
  const room = width - 2 * SIDE;
  const { minimum, wide } = columnWidths(
    columns.map(({ needs }) => needs),
    room,
  );
  const widths = wide.map((width) => Math.round(width * zoom));
  const boxes = widths.reduce((sum, width) => sum + width, 0);
  const gap = count > 1 ? Math.max((room - boxes) / (count - 1), minimum * zoom) : 0;
  const free = (height - TITLE_HEIGHT - 12) / rows;
  const row = Math.min(Math.max(free, ROW.minimum), ROW.maximum) * zoom;
  const tall = rows * row;
  const x = [];
  for (let number = 0, at = SIDE; number < count; number++) {
    x.push(Math.round(at));
    at += (widths[number] ?? 0) + gap;
  }
  return {
    zoom,
    widths,
    row,
    nodeHeight: Math.max(row - Math.max(4 * zoom, 2), 4),
    x,
    top: columns.map((column) => TITLE_HEIGHT + (column.indices.length === 1 ? Math.floor((tall - row) / 2) : 0)),
    width: Math.round(x[count - 1] + (widths[count - 1] ?? 0) + SIDE),
    height: Math.round(TITLE_HEIGHT + tall + 12),
  };
}

function columnWidths(needs, room) {
  const clamped = (limit) => needs.map((need) => Math.min(Math.max(need, NARROWEST), limit));
  const fits = (widths, gap) => widths.reduce((sum, width) => sum + width, 0) + (needs.length - 1) * gap <= room;
  const share = (gap) => (room - (needs.length - 1) * gap) / needs.length;
  if (fits(clamped(WIDEST), ROOMY_GAP)) return { minimum: MIN_GAP, wide: clamped(WIDEST) };
  const crowded = clamped(Math.min(Math.max(share(ROOMY_GAP), WIDEST_IN_A_CROWD[0]), WIDEST_IN_A_CROWD[1]));
  const close = clamped(Math.max(share(CLOSE.gap), CLOSE.width));
  return !fits(crowded, MIN_GAP) && fits(close, CLOSE.gap)
    ? { minimum: CLOSE.gap, wide: close }
    : { minimum: MIN_GAP, wide: crowded };
}
