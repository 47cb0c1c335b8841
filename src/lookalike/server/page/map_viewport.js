// The visible part of the map: converts between map coordinates and pixels, zooms and pans.

const MARGIN = 18; // pixels
const MAX_ZOOM = 64;

/** Returns the smallest and the largest value, or 0 and 1 for none. */
function range(values) {
  if (!values.length) return [0, 1];
  return [values.reduce((one, other) => Math.min(one, other)), values.reduce((one, other) => Math.max(one, other))];
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** A window of `width` x `height` pixels onto the map; (x, y) is the map coordinate at its centre. */
export class Viewport {
  constructor() {
    this.middle = [0.5, 0.5]; // of all points
    this.extent = [1, 1];
    this.width = 0;
    this.height = 0;
    this.reset();
  }

  /** Shows all of these points. */
  enclose(points) {
    const [left, right] = range(points.x);
    const [top, bottom] = range(points.y);
    this.middle = [(left + right) / 2, (top + bottom) / 2];
    this.extent = [Math.max(right - left, 1e-3), Math.max(bottom - top, 1e-3)];
    this.reset();
  }

  /** Zooms out completely. */
  reset() {
    this.factor = 1;
    [this.x, this.y] = this.middle;
  }

  /** Whether it is zoomed in. */
  get zoomed() {
    return this.factor > 1;
  }

  /** The pixel at the centre. */
  get centre() {
    return [this.width / 2, this.height / 2];
  }

  /** Zooms by a factor; the map coordinate at the given pixel stays there. */
  zoom(factor, [x, y] = this.centre) {
    const [fixedX, fixedY] = this.coordinates(x, y);
    this.factor = clamp(this.factor * factor, 1, MAX_ZOOM);
    const [movedX, movedY] = this.coordinates(x, y);
    this.pan(fixedX - movedX, fixedY - movedY);
  }

  /** Moves by a distance in map coordinates, but not beyond the outermost points. */
  pan(dx, dy) {
    const [roomX, roomY] = this.extent.map((extent) => (extent / 2) * (1 - 1 / this.factor));
    const [middleX, middleY] = this.middle;
    this.x = clamp(this.x + dx, middleX - roomX, middleX + roomX);
    this.y = clamp(this.y + dy, middleY - roomY, middleY + roomY);
  }

  /** Pixels per map unit; the same along both axes, because distances are what the map shows. */
  get scale() {
    const byWidth = (this.width - 2 * MARGIN) / this.extent[0];
    const byHeight = (this.height - 2 * MARGIN) / this.extent[1];
    return Math.min(byWidth, byHeight) * this.factor;
  }

  /** The pixel of a map coordinate. */
  pixel({ x, y }) {
    return [this.width / 2 + (x - this.x) * this.scale, this.height / 2 + (y - this.y) * this.scale];
  }

  /** The map coordinate of a pixel. */
  coordinates(x, y) {
    return [this.x + (x - this.width / 2) / this.scale, this.y + (y - this.height / 2) / this.scale];
  }

  /** Pans to a point that is out of view. */
  reveal(point) {
    const [x, y] = this.pixel(point);
    if (x < 0 || y < 0 || x > this.width || y > this.height) this.pan(point.x - this.x, point.y - this.y);
  }
}
