// Draws many marks by copying small masks into an image: a canvas would take ten times as long for 100,000 points.
//
// Level of detail: of the points of one mark whose centres share a small cell, only the first is drawn. The cells are
// larger while the map moves.

import { trace } from "./map_marks.js";

const DIMMED = 0.13; // opacity
const [FINE, COARSE] = [0.6, 2]; // side of a cell, in radii

/** An image of marks. */
export class Raster {
  constructor() {
    this.image = new ImageData(1, 1);
    this.masks = new Map(); // shape, radius and width of the image -> mask
  }

  /**
   * Draws all points; `radius` is in pixels of the image, `ratio` converts the view's pixels to those. With `coarse`, one
   * point is drawn in a cell of the size of a mark, without smooth edges.
   */
  draw(points, { active, marks, view, radius, ratio, width, height, coarse }) {
    if (this.image.width !== width || this.image.height !== height) this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.pixels.fill(0);
    const cell = Math.max(1, Math.round((coarse ? COARSE : FINE) * radius));
    const columns = Math.ceil(width / cell);
    const drawn = new Int16Array(columns * Math.ceil(height / cell));
    const stamps = this.createStamps(marks, radius, coarse);
    const { x, y, labelIndex, order } = points; // in this order the pixels of neighbours are close in memory
    const scale = view.scale * ratio;
    const left = width / 2 - view.x * scale;
    const top = height / 2 - view.y * scale;
    const margin = 2 * radius;
    for (let pass = active.includes(0) ? 0 : 1; pass < 2; pass += 1) {
      drawn.fill(0);
      for (let rank = 0; rank < order.length; rank += 1) {
        const index = order[rank];
        if (active[index] !== pass) continue;
        const px = left + x[index] * scale;
        const py = top + y[index] * scale;
        if (px < -margin || py < -margin || px > width + margin || py > height + margin) continue;
        const number = marks.numbers[labelIndex[index]];
        if (px >= 0 && py >= 0 && px < width && py < height) {
          const place = Math.floor(py / cell) * columns + Math.floor(px / cell);
          if (coarse ? drawn[place] : drawn[place] === number + 2) continue;
          drawn[place] = number + 2;
        }
        this.stamp(stamps[number + 1][pass], Math.round(px), Math.round(py));
      }
    }
    return this.image;
  }

  /** A mask with a colour for every mark, once dimmed and once not. */
  createStamps(marks, radius, coarse) {
    const stamps = [];
    for (let number = -1; number < marks.frequent.length; number += 1) {
      const { colour, shape, scale } = marks.mark(number);
      const [red, green, blue] = [1, 3, 5].map((start) => Number.parseInt(colour.slice(start, start + 2), 16));
      const mask = this.mask(shape, scale * radius, coarse);
      const rgb = (blue << 16) | (green << 8) | red; // little-endian
      stamps.push([DIMMED, 1].map((opacity) => ({ ...mask, rgb, opacity })));
    }
    return stamps;
  }

  mask(shape, radius, coarse) {
    const { width } = this.image;
    const name = `${shape} ${radius.toFixed(2)} ${width} ${coarse}`;
    if (!this.masks.has(name)) {
      if (this.masks.size > 200) this.masks.clear();
      const reach = Math.ceil(1.5 * radius) + 1;
      const side = 2 * reach + 1;
      const context = new OffscreenCanvas(side, side).getContext("2d", { willReadFrequently: true });
      trace(context, shape, reach + 0.5, reach + 0.5, radius);
      context.fill();
      const { data } = context.getImageData(0, 0, side, side);
      const [dx, dy, alpha] = [[], [], []];
      for (let place = 0; place < side * side; place += 1) {
        const opacity = data[4 * place + 3];
        if (opacity < (coarse ? 128 : 8)) continue;
        dx.push((place % side) - reach);
        dy.push(Math.floor(place / side) - reach);
        alpha.push(coarse ? 255 : opacity);
      }
      this.masks.set(name, {
        reach,
        dx: Int16Array.from(dx),
        dy: Int16Array.from(dy),
        offsets: Int32Array.from(dx, (right, i) => dy[i] * width + right),
        alpha: Uint8Array.from(alpha),
      });
    }
    return this.masks.get(name);
  }

  stamp({ reach, dx, dy, offsets, alpha, rgb, opacity }, x, y) {
    const { pixels } = this;
    const { width, height } = this.image;
    const isInside = x >= reach && y >= reach && x < width - reach && y < height - reach;
    const centre = y * width + x;
    const solid = ((255 << 24) | rgb) >>> 0;
    for (let i = 0; i < offsets.length; i += 1) {
      if (!isInside && (x + dx[i] < 0 || y + dy[i] < 0 || x + dx[i] >= width || y + dy[i] >= height)) continue;
      const place = centre + offsets[i];
      const above = alpha[i] * opacity;
      if (above > 250) {
        pixels[place] = solid;
      } else {
        const pixel = pixels[place];
        const below = pixel >>> 24;
        pixels[place] = below ? blend(pixel, rgb, above / 255, below) : ((Math.round(above) << 24) | rgb) >>> 0;
      }
    }
  }
}

/** Puts a colour with an opacity over a pixel. */
function blend(pixel, rgb, opacity, below) {
  const total = opacity * 255 + below * (1 - opacity);
  const share = (opacity * 255) / total;
  const red = mix(pixel & 255, rgb & 255, share);
  const green = mix((pixel >>> 8) & 255, (rgb >>> 8) & 255, share);
  const blue = mix((pixel >>> 16) & 255, (rgb >>> 16) & 255, share);
  return ((Math.round(total) << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

const mix = (from, to, share) => Math.round(from + (to - from) * share);
