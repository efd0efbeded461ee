// Colours live in colours.css, for light and for dark; the canvas reads them from there.

export const MODULE_COLOURS = 8;

export function canvasColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (property) => channels(style.getPropertyValue(property).trim());
  return {
    edge: read("--edge"),
    incoming: read("--incoming"),
    outgoing: read("--outgoing"),
    modules: Array.from({ length: MODULE_COLOURS }, (_, k) => read(`--module-${k}`)),
  };
}

function channels(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

export function css([red, green, blue], alpha = 1) {
  return `rgba(${red},${green},${blue},${alpha.toFixed(3)})`;
}

// Which of the palette's colours a module has; modules are numbered by size, and small ones share grey.
export function moduleColour(rank) {
  return rank >= 0 && rank < MODULE_COLOURS ? `var(--module-${rank})` : "var(--module-none)";
}

// The background of a token: one hue for negative, one for positive, stronger with size.
export function diverging(value, largest) {
  const share = largest > 0 ? Math.min(Math.abs(value) / largest, 1) : 0;
  const hue = value < 0 ? "var(--negative)" : "var(--positive)";
  return `color-mix(in srgb, ${hue} ${Math.round(share * 78)}%, transparent)`;
}
