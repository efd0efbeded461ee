// Many thin curves at once. Each adds to the optical depth of the pixels it crosses; a pixel's opacity is
// 1 − exp(−depth). The order of the curves does not matter, and a curve costs about as many steps as it has pixels.

export class Haze {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.ease = new Map();
  }

  begin(width, height, coloured) {
    if (this.width !== width || this.height !== height) {
      this.width = width;
      this.height = height;
      this.canvas.width = width;
      this.canvas.height = height;
      this.context = this.canvas.getContext("2d");
      this.image = this.context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.depth = [new Float32Array(width * height)];
    }
    while (coloured && this.depth.length < 4) this.depth.push(new Float32Array(width * height));
    this.coloured = coloured;
    for (const channel of this.depth) channel.fill(0);
  }

  // A curve from (left, y0) to (left + span, y1) with level ends: y = y0 + (y1 − y0)(3t² − 2t³).
  curve(left, span, y0, y1, depth, colour) {
    if (!this.coloured) return this.trace(this.depth[0], left, span, y0, y1, depth);
    this.trace(this.depth[0], left, span, y0, y1, depth);
    for (let c = 0; c < 3; c++) this.trace(this.depth[c + 1], left, span, y0, y1, depth * colour[c]);
  }

  // Pixels are kept column by column: a steep curve then writes to neighbours in memory.
  trace(buffer, left, span, y0, y1, depth) {
    const ease = this.easing(span);
    const { width, height } = this;
    const rise = y1 - y0;
    const first = Math.max(0, -left);
    const end = Math.min(span, width - left);
    for (let i = first; i < end; i++) {
      const a = y0 + rise * ease[i];
      const b = y0 + rise * ease[i + 1];
      const base = (left + i) * height;
      let low = a < b ? a : b;
      let high = a < b ? b : a;
      if (high < 0 || low >= height - 1) continue;
      if (high - low <= 1) {
        const middle = Math.max((low + high) / 2, 0);
        const cell = middle | 0;
        const part = (middle - cell) * depth;
        buffer[base + cell] += depth - part;
        if (cell + 1 < height) buffer[base + cell + 1] += part;
      } else {
        low = low < 0 ? 0 : low | 0;
        high = high > height - 1 ? height - 1 : high | 0;
        for (let y = base + low; y <= base + high; y++) buffer[y] += depth;
      }
    }
  }

  easing(span) {
    let table = this.ease.get(span);
    if (!table) {
      table = Float32Array.from({ length: span + 1 }, (_, i) => ((i / span) ** 2) * (3 - (2 * i) / span));
      this.ease.set(span, table);
    }
    return table;
  }

  // Depths to pixels, and onto another canvas.
  finish(context, colour) {
    const { width, height, pixels } = this;
    const [depth, red, green, blue] = this.depth;
    const plain = (colour[2] << 16) | (colour[1] << 8) | colour[0];
    const opacity = opacities();
    for (let x = 0; x < width; x++) {
      const base = x * height;
      for (let y = 0, to = x; y < height; y++, to += width) {
        const d = depth[base + y];
        if (d < 1e-3) {
          pixels[to] = 0;
          continue;
        }
        const alpha = opacity[Math.min((d * 256) | 0, 1023)];
        if (this.coloured) {
          const at = base + y;
          pixels[to] = (alpha << 24) | ((blue[at] / d) << 16) | ((green[at] / d) << 8) | (red[at] / d);
        } else pixels[to] = (alpha << 24) | plain;
      }
    }
    this.context.putImageData(this.image, 0, 0);
    context.drawImage(this.canvas, 0, 0);
  }
}

let opacityTable;

function opacities() {
  opacityTable ??= Uint8Array.from({ length: 1024 }, (_, i) => 255 * (1 - Math.exp(-(i + 0.5) / 256)));
  return opacityTable;
}
