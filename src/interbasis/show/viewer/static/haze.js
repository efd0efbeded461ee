// Many thin curves at once. Each adds to the optical depth of the pixels it crosses; a pixel's opacity is
// 1 − exp(−depth). The order of the curves does not matter. In every column of pixels a curve covers one interval:
// it is written as a step up and a step down, and summing over the column gives the depths. A curve thus costs a
// few writes per column however steep it is, and in whole numbers the sums are exact.

const UNIT = 1024;

export class Haze {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.ease = new Map();
  }

  begin(width, height, coloured) {
    if (this.width !== width || this.height !== height) {
      this.width = this.canvas.width = width;
      this.height = this.canvas.height = height;
      this.context = this.canvas.getContext("2d");
      this.image = this.context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.stride = height + 2;
      this.steps = [];
    }
    while (this.steps.length < (coloured ? 4 : 1)) this.steps.push(new Int32Array(width * this.stride));
    this.coloured = coloured;
    for (const steps of this.steps) steps.fill(0);
  }

  // A curve from (left, y0) to (left + span, y1) with level ends, y = y0 + (y1 − y0)(3t² − 2t³); its tint is how
  // its colour differs from the common one.
  curve(left, span, y0, y1, depth, tint) {
    this.trace(this.steps[0], left, span, y0, y1, Math.round(depth * UNIT));
    if (!tint) return;
    for (let c = 0; c < 3; c++) this.trace(this.steps[c + 1], left, span, y0, y1, Math.round(depth * tint[c] * UNIT));
  }

  trace(steps, left, span, y0, y1, amount) {
    const ease = this.easing(span);
    const { width, stride } = this;
    const last = stride - 2;
    const rise = y1 - y0;
    const end = Math.min(span, width - left);
    for (let i = Math.max(0, -left); i < end; i++) {
      const a = y0 + rise * ease[i];
      const b = y0 + rise * ease[i + 1];
      let low = (a < b ? a : b) - 0.5;
      let high = (a < b ? b : a) + 0.5;
      if (high <= 0 || low >= last) continue;
      if (low < 0) low = 0;
      if (high > last) high = last;
      const first = low | 0;
      const final = high | 0;
      const base = (left + i) * stride;
      const early = (amount * (low - first)) | 0;
      const late = (amount * (high - final)) | 0;
      steps[base + first] += amount - early;
      steps[base + first + 1] += early;
      steps[base + final] -= amount - late;
      steps[base + final + 1] -= late;
    }
  }

  easing(span) {
    let table = this.ease.get(span);
    if (!table) {
      table = Float32Array.from({ length: span + 1 }, (_, i) => (i / span) ** 2 * (3 - (2 * i) / span));
      this.ease.set(span, table);
    }
    return table;
  }

  // Depths to pixels, and onto another canvas.
  finish(context, colour) {
    for (let x = 0; x < this.width; x++) {
      if (this.coloured) this.colouredColumn(x, colour);
      else this.plainColumn(x, (colour[2] << 16) | (colour[1] << 8) | colour[0]);
    }
    this.context.putImageData(this.image, 0, 0);
    context.drawImage(this.canvas, 0, 0);
  }

  plainColumn(x, colour) {
    const { width, height, pixels, stride } = this;
    const [steps] = this.steps;
    const opacity = opacities();
    let depth = 0;
    for (let y = 0, from = x * stride, to = x; y < height; y++, from++, to += width) {
      depth += steps[from];
      pixels[to] = depth > 0 ? (opacity[depth < 4096 ? depth >> 2 : 1023] << 24) | colour : 0;
    }
  }

  colouredColumn(x, colour) {
    const { width, height, pixels, stride } = this;
    const [steps, reds, greens, blues] = this.steps;
    const opacity = opacities();
    let depth = 0;
    let red = 0;
    let green = 0;
    let blue = 0;
    for (let y = 0, from = x * stride, to = x; y < height; y++, from++, to += width) {
      depth += steps[from];
      red += reds[from];
      green += greens[from];
      blue += blues[from];
      if (depth <= 0) pixels[to] = 0;
      else {
        const r = clamped(colour[0] + red / depth);
        const g = clamped(colour[1] + green / depth);
        const b = clamped(colour[2] + blue / depth);
        pixels[to] = (opacity[depth < 4096 ? depth >> 2 : 1023] << 24) | (b << 16) | (g << 8) | r;
      }
    }
  }
}

function clamped(value) {
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

let opacityTable;

// 255 (1 − exp(−depth)), in 256 steps of depth to the unit, up to 4 units.
function opacities() {
  opacityTable ??= Uint8Array.from({ length: 1024 }, (_, i) => 255 * (1 - Math.exp(-(i + 0.5) / 256)));
  return opacityTable;
}
