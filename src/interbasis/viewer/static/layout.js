// Where things stand: columns across, features down. Labels stand inside the nodes, edges in the gaps between.

export const TITLE_HEIGHT = 46;
const SIDE = 16;
const COMPACT_SIDE = 40;
const COMPACT_MARGIN = 28;

export function layout(columns, width, height) {
  const count = Math.max(columns.length, 1);
  const rows = Math.max(1, ...columns.map((column) => column.indices.length));
  const room = width - 2 * SIDE;
  const fits = room / (count - 0.58) >= 138;
  const labelled = fits || count <= 8;
  const side = labelled ? SIDE : COMPACT_SIDE;
  const box = labelled ? labelledColumns(count, room) : compactColumns(count, width - 2 * side);
  const free = (height - TITLE_HEIGHT - 12) / rows;
  const row = labelled ? Math.min(Math.max(free, 19), 27) : Math.min(Math.max(free, 6), 24);
  const tall = rows * row;
  return {
    labelled,
    columnWidth: box.width,
    margin: labelled ? 0 : COMPACT_MARGIN, // room for a title that is wider than its column
    pitch: box.pitch,
    row,
    nodeHeight: Math.max(row - (labelled ? 4 : 2), 4),
    x: columns.map((_, number) => Math.round(side + number * box.pitch)),
    top: columns.map((column) => TITLE_HEIGHT + (column.indices.length === 1 ? Math.floor((tall - row) / 2) : 0)),
    width: Math.round(2 * side + (count - 1) * box.pitch + box.width),
    height: Math.round(TITLE_HEIGHT + tall + 12),
  };
}

function labelledColumns(count, room) {
  const fitting = room / (count - 0.58);
  if (fitting < 138) return { width: 108, pitch: 176 }; // it scrolls anyway: labels that can be read
  const width = Math.round(Math.min(Math.max(fitting * 0.54, 72), 190));
  return { width, pitch: count > 1 ? Math.max((room - width) / (count - 1), width + 56) : 0 };
}

function compactColumns(count, room) {
  const width = 16;
  return { width, pitch: Math.max((room - width) / (count - 1), 78) };
}
