// What of a plane is in sight: its places as pixels of a frame, and pixels as its places.

const MARGIN = 18; // pixels
const FURTHEST = 16; // times that one can zoom in

export class Viewport {
  constructor() {
    Object.assign(this, { middle: [0.5, 0.5], extent: [1, 1], wide: 0, high: 0 });
    this.reset();
  }

  /** Around these points. */
  enclose(points) {
    const sides = ["x", "y"].map((axis) => points.map((point) => point[axis]));
    const ends = sides.map((values) => (values.length ? [Math.min(...values), Math.max(...values)] : [0, 1]));
    this.middle = ends.map(([low, high]) => (low + high) / 2);
    this.extent = ends.map(([low, high]) => Math.max(high - low, 1e-3));
    this.reset();
  }

  /** All of it. */
  reset() {
    [this.factor, this.x, this.y] = [1, ...this.middle]; // x, y: what is in the middle of the frame
  }

  get zoomed() {
    return this.factor > 1;
  }

  /** The pixel in the middle. */
  get centre() {
    return [this.wide / 2, this.high / 2];
  }

  /** What is at a pixel stays there. */
  zoom(factor, [x, y] = this.centre) {
    const fixed = this.place(x, y);
    this.factor = Math.min(FURTHEST, Math.max(1, this.factor * factor));
    const moved = this.place(x, y);
    this.shift(fixed[0] - moved[0], fixed[1] - moved[1]);
  }

  /** Moves the view, but not beyond the outermost points. */
  shift(x, y) {
    const stay = (value, axis) => {
      const room = (this.extent[axis] / 2) * (1 - 1 / this.factor);
      return Math.min(this.middle[axis] + room, Math.max(this.middle[axis] - room, value));
    };
    this.x = stay(this.x + x, 0);
    this.y = stay(this.y + y, 1);
  }

  /** Pixels for a step of 1: the same along both sides, distances are what the map is about. */
  get scale() {
    const [wide, high] = [this.wide - 2 * MARGIN, this.high - 2 * MARGIN];
    return Math.min(wide / this.extent[0], high / this.extent[1]) * this.factor;
  }

  pixel({ x, y }) {
    return [this.wide / 2 + (x - this.x) * this.scale, this.high / 2 + (y - this.y) * this.scale];
  }

  place(x, y) {
    return [this.x + (x - this.wide / 2) / this.scale, this.y + (y - this.high / 2) / this.scale];
  }

  /** Brings a point into sight that is not. */
  seek(point) {
    const [x, y] = this.pixel(point);
    if (x < 0 || y < 0 || x > this.wide || y > this.high) this.shift(point.x - this.x, point.y - this.y);
  }
}
