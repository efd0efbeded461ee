// What a feature reaches and what reaches it, through the edges that are shown.

// Paths through a node at (column, row). Per column, how many steps away each row is, -1 where no path leads; per
// section, the numbers of the edges on paths, strongest first.
export function pathsThrough(sections, columns, column, row) {
  const steps = columns.map(({ indices }) => new Int16Array(indices.length).fill(-1));
  steps[column][row] = 0;
  const edges = sections.map(() => []);
  for (let k = column; k < sections.length; k++) {
    follow(sections[k], sections[k].from, sections[k].to, steps[k], steps[k + 1], edges[k]);
  }
  for (let k = column - 1; k >= 0; k--) {
    follow(sections[k], sections[k].to, sections[k].from, steps[k + 1], steps[k], edges[k]);
  }
  return { edges, steps };
}

function follow({ size }, near, far, here, there, edges) {
  for (let e = 0; e < size; e++) {
    const step = here[near[e]];
    if (step < 0) continue;
    edges.push(e);
    if (there[far[e]] < 0) there[far[e]] = step + 1;
  }
}

// The strongest neighbour of a node in the next column, for walking with the arrow keys; -1 where there is none.
export function strongestNeighbour(section, row, near, far) {
  for (let e = 0; e < section.size; e++) if (section[near][e] === row) return section[far][e];
  return -1;
}
