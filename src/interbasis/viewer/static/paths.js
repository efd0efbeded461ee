// What a feature reaches and what reaches it, through the edges that are shown.

// Edges on paths through a node at (column, row): per section, the edges' numbers and how many steps away they are;
// and per column the rows that are touched.
export function pathsThrough(sections, columns, column, row) {
  const touched = columns.map(() => new Map());
  touched[column].set(row, 0);
  const edges = sections.map(() => []);
  for (let k = column; k < sections.length; k++) follow(sections[k], touched[k], touched[k + 1], edges[k], "from", "to");
  for (let k = column - 1; k >= 0; k--) follow(sections[k], touched[k + 1], touched[k], edges[k], "to", "from");
  return { edges, touched };
}

function follow(section, here, there, edges, near, far) {
  if (!here.size) return;
  for (let e = 0; e < section.size; e++) {
    const steps = here.get(section[near][e]);
    if (steps === undefined) continue;
    edges.push({ e, steps });
    const next = section[far][e];
    if (!there.has(next) || there.get(next) > steps + 1) there.set(next, steps + 1);
  }
}

// The strongest neighbour of a node in the next column, for walking with the arrow keys; -1 where there is none.
export function strongestNeighbour(section, row, near, far) {
  for (let e = 0; e < section.size; e++) if (section[near][e] === row) return section[far][e];
  return -1;
}
