// The collection in the plane: a point for each picture, those that look alike close together.

import { element, labelOf } from "./common.js";
import { show } from "./pictures.js";

const REACH = 18; // pixels from a point at which it still counts as meant
const MARGIN = 18;
const FURTHEST = 16; // times that one can zoom in
const LEGEND = 12; // labels that can still be told apart
const SHAPES = 4;
const dark = matchMedia("(prefers-color-scheme: dark)");

export class CollectionMap {
  /** `choose(point)`: one is to be searched with; `name(point or null, place)`: another one, or none, is pointed at. */
  constructor({ frame, canvas, tip, legend }, { choose, name }) {
    Object.assign(this, { frame, canvas, tip, legend, choose, name });
    Object.assign(this, { points: [], hinted: -1, label: null, ringed: new Set(), query: null });
    Object.assign(this, { middle: [0.5, 0.5], extent: [1, 1] });
    this.reset();
    new ResizeObserver(() => this.resize()).observe(frame);
    dark.addEventListener("change", () => this.draw());
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => document.activeElement !== canvas && this.hint(-1));
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => (this.held = null));
    canvas.addEventListener("keydown", (event) => this.press(event));
    canvas.addEventListener("focus", () => {
      if (canvas.matches(":focus-visible") && this.hinted < 0) this.hint(this.nearest(this.middle));
    });
    canvas.addEventListener("blur", () => this.hint(-1));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  setPoints(points) {
    this.points = points;
    const labels = [...new Set(points.map(({ label }) => label))].sort();
    this.kinds = new Map(labels.map((label, place) => [label, place]));
    this.legend.replaceChildren(...(labels.length > LEGEND ? [] : labels.map((label) => this.legendEntry(label))));
    const sides = ["x", "y"].map((axis) => points.map((point) => point[axis]));
    const ends = sides.map((values) => (values.length ? [Math.min(...values), Math.max(...values)] : [0, 1]));
    this.middle = ends.map(([low, high]) => (low + high) / 2);
    this.extent = ends.map(([low, high]) => Math.max(high - low, 1e-3));
    this.reset();
  }

  legendEntry(label) {
    const sample = element("canvas", { width: 24, height: 24, ariaHidden: "true" });
    const context = sample.getContext("2d");
    context.fillStyle = this.colour(label);
    mark(context, this.kinds.get(label) % SHAPES, 12, 12, 8);
    return element("li", {}, sample, labelOf({ label }));
  }

  /** Other labels step back; the query and its results have rings. */
  highlight({ label, query, results }) {
    Object.assign(this, { label, query, ringed: new Set(results) });
    this.draw();
  }

  resize() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const dense = devicePixelRatio || 1;
    [this.wide, this.high] = [width, height];
    [this.canvas.width, this.canvas.height] = [Math.round(width * dense), Math.round(height * dense)];
    this.draw();
  }

  reset() {
    this.view = { zoom: 1, x: this.middle[0], y: this.middle[1] }; // what is in the middle of the frame
    this.canvas.classList.remove("zoomed");
    this.draw();
  }

  zoom(factor, [x, y] = [this.wide / 2, this.high / 2]) {
    const fixed = this.inverse(x, y);
    this.view.zoom = Math.min(FURTHEST, Math.max(1, this.view.zoom * factor));
    const moved = this.inverse(x, y);
    this.shift(fixed[0] - moved[0], fixed[1] - moved[1]);
    this.canvas.classList.toggle("zoomed", this.view.zoom > 1);
    this.hint(this.hinted);
  }

  /** Moves the view, but not beyond the outermost points. */
  shift(x, y) {
    const stay = (value, axis) => {
      const room = (this.extent[axis] / 2) * (1 - 1 / this.view.zoom);
      return Math.min(this.middle[axis] + room, Math.max(this.middle[axis] - room, value));
    };
    this.view.x = stay(this.view.x + x, 0);
    this.view.y = stay(this.view.y + y, 1);
    this.draw();
  }

  /** Pixels for a step of 1: the same along both sides, distances are what the map is about. */
  scale() {
    const [wide, high] = [this.wide - 2 * MARGIN, this.high - 2 * MARGIN];
    return Math.min(wide / this.extent[0], high / this.extent[1]) * this.view.zoom;
  }

  screen({ x, y }) {
    return [this.wide / 2 + (x - this.view.x) * this.scale(), this.high / 2 + (y - this.view.y) * this.scale()];
  }

  inverse(x, y) {
    return [this.view.x + (x - this.wide / 2) / this.scale(), this.view.y + (y - this.high / 2) / this.scale()];
  }

  shown(point) {
    return this.label === null || point.label === this.label;
  }

  /** Place of the point nearest to a place of the map, or nearest within reach of a place on the screen. */
  nearest([x, y], reach = Infinity) {
    let [best, least] = [-1, reach];
    this.points.forEach((point, place) => {
      if (!this.shown(point)) return;
      const [atX, atY] = reach === Infinity ? [point.x, point.y] : this.screen(point);
      const distance = Math.hypot(atX - x, atY - y);
      if (distance < least) [best, least] = [place, distance];
    });
    return best;
  }

  /** The next point in a direction of the screen: near, and rather ahead than aside. */
  neighbour(from, [right, down]) {
    const [x, y] = this.screen(this.points[from]);
    let [best, least] = [from, Infinity];
    this.points.forEach((point, place) => {
      if (place === from || !this.shown(point)) return;
      const [atX, atY] = this.screen(point);
      const ahead = (atX - x) * right + (atY - y) * down;
      const aside = Math.abs((atX - x) * down) + Math.abs((atY - y) * right);
      const far = ahead + 2 * aside;
      if (ahead > 0.5 && far < least) [best, least] = [place, far];
    });
    return best;
  }

  /** Points at one picture and shows it beside; -1: at none. */
  hint(place) {
    const changed = this.hinted !== place;
    this.hinted = place;
    this.draw();
    const point = this.points[place];
    this.canvas.classList.toggle("pointing", Boolean(point));
    this.tip.hidden = !point;
    if (changed) this.name(point ?? null, place);
    if (!point) return;
    if (changed) {
      show(this.tip.querySelector("img"), point.id, 256, { now: true });
      this.tip.querySelector("p").textContent = labelOf(point);
    }
    const [x, y] = this.screen(point);
    const { offsetWidth: wide, offsetHeight: high } = this.tip;
    const beside = x + 16 + wide <= this.wide ? x + 16 : x - 16 - wide;
    this.tip.style.left = `${Math.min(Math.max(4, beside), Math.max(4, this.wide - wide - 4))}px`;
    this.tip.style.top = `${Math.min(Math.max(4, y - high / 2), Math.max(4, this.high - high - 4))}px`;
  }

  at(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  hover(event) {
    const [x, y] = this.at(event);
    if (!this.held) {
      if (event.pointerType !== "touch") this.hint(this.nearest([x, y], REACH));
      return;
    }
    const [fromX, fromY] = this.held.last;
    this.held.far += Math.hypot(x - fromX, y - fromY);
    this.held.last = [x, y];
    if (this.view.zoom === 1 || this.held.far < 4) return;
    this.shift((fromX - x) / this.scale(), (fromY - y) / this.scale());
    this.hint(-1);
  }

  grab(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.held = { last: this.at(event), far: 0, hinted: this.hinted };
  }

  /** A click searches; a finger first points, and searches when it comes again. */
  release(event) {
    const held = this.held;
    this.held = null;
    if (!held || held.far > 6) return;
    const place = this.nearest(this.at(event), REACH);
    if (place >= 0 && (event.pointerType !== "touch" || held.hinted === place)) this.choose(this.points[place]);
    else this.hint(place);
  }

  wheel(event) {
    if (!event.ctrlKey) return; // pinching; the wheel alone scrolls the page
    event.preventDefault();
    this.zoom(Math.exp(-event.deltaY / 200), this.at(event));
  }

  press(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.points.length) return;
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const along = { PageDown: 1, PageUp: -1 }[event.key];
    if (direction) this.visit(this.hinted < 0 ? this.nearest(this.middle) : this.neighbour(this.hinted, direction));
    else if (along) this.visit(this.following(along));
    else if (event.key === "Enter" && this.hinted >= 0) this.choose(this.points[this.hinted]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.5);
    else if (event.key === "-") this.zoom(1 / 1.5);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else return;
    event.preventDefault();
  }

  following(step) {
    const count = this.points.length;
    const from = this.hinted < 0 && step < 0 ? count : this.hinted;
    for (let far = 1; far <= count; far += 1) {
      const place = (from + step * far + count * 2) % count;
      if (this.shown(this.points[place])) return place;
    }
    return -1;
  }

  /** Points at a picture, moving the map if it lies outside of the frame. */
  visit(place) {
    const point = this.points[place];
    if (!point) return;
    const [x, y] = this.screen(point);
    if (x < 0 || y < 0 || x > this.wide || y > this.high) this.shift(point.x - this.view.x, point.y - this.view.y);
    this.hint(place);
  }

  /** Hues by the golden angle: labels next to each other in the alphabet are far apart in colour. */
  colour(label) {
    return `hsl(${(this.kinds.get(label) * 137.508 + 205) % 360} 58% ${dark.matches ? 64 : 44}%)`;
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      if (this.wide) this.drawNow();
    });
  }

  drawNow() {
    const context = this.canvas.getContext("2d");
    const dense = this.canvas.width / this.wide;
    const ink = getComputedStyle(this.canvas).color;
    const radius = (this.points.length > 800 ? 3 : 4.5) * Math.min(2, Math.sqrt(this.view.zoom));
    context.setTransform(dense, 0, 0, dense, 0, 0);
    context.clearRect(0, 0, this.wide, this.high);
    for (const point of this.points) {
      context.globalAlpha = this.shown(point) ? 0.85 : 0.12;
      context.fillStyle = this.colour(point.label);
      mark(context, this.kinds.get(point.label) % SHAPES, ...this.screen(point), radius);
    }
    context.globalAlpha = 1;
    context.strokeStyle = ink;
    this.points.forEach((point, place) => {
      const [meant, hinted] = [point.id === this.query, place === this.hinted];
      if (!meant && !hinted && !this.ringed.has(point.id)) return;
      context.lineWidth = meant || hinted ? 2.5 : 1.2;
      context.beginPath();
      context.arc(...this.screen(point), radius + (hinted ? 6 : 3.5), 0, 2 * Math.PI);
      context.stroke();
    });
  }
}

/** A filled circle, square, triangle or diamond, so that labels differ by more than colour. */
function mark(context, shape, x, y, radius) {
  const corners = [null, [4, Math.PI / 4, 1.2], [3, -Math.PI / 2, 1.3], [4, 0, 1.25]][shape];
  context.beginPath();
  if (!corners) context.arc(x, y, radius, 0, 2 * Math.PI);
  else {
    const [count, turn, larger] = corners;
    for (let corner = 0; corner < count; corner += 1) {
      const angle = turn + (2 * Math.PI * corner) / count;
      context.lineTo(x + larger * radius * Math.cos(angle), y + larger * radius * Math.sin(angle));
    }
  }
  context.fill();
}
