// The collection in the plane: a point for each picture, those that look alike close together.

import { breakable, element, labelOf } from "./common.js";
import { Marks, dark } from "./marks.js";
import { show } from "./pictures.js";
import { Viewport } from "./viewport.js";
import { ahead, following, nearest } from "./walking.js";

const REACH = 18; // pixels from a point at which it still counts as meant

export class CollectionMap {
  /** `choose(point)`: one is to be searched with; `name(point or null, place)`: another one, or none, is pointed at. */
  constructor({ frame, canvas, tip, legend }, { choose, name }) {
    Object.assign(this, { frame, canvas, tip, legend, choose, name });
    Object.assign(this, { points: [], hinted: -1, label: null, ringed: new Set(), query: null });
    Object.assign(this, { view: new Viewport(), marks: new Marks([]) });
    new ResizeObserver(() => this.resize()).observe(frame);
    dark.addEventListener("change", () => this.setColours());
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => document.activeElement !== canvas && this.hint(-1));
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => (this.held = null));
    canvas.addEventListener("keydown", (event) => this.press(event));
    canvas.addEventListener("focus", () => {
      if (canvas.matches(":focus-visible") && this.hinted < 0) this.hint(nearest(this.spots(), this.view.centre));
    });
    canvas.addEventListener("blur", () => this.hint(-1));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  setPoints(points) {
    this.points = points;
    this.marks = new Marks(points.map(({ label }) => label));
    this.view.enclose(points);
    this.setColours();
    this.reset();
  }

  setColours() {
    this.showKey();
    this.draw();
  }

  /** Other labels step back; the query and its results have rings. */
  highlight({ label, query, results }) {
    Object.assign(this, { label, query, ringed: new Set(results) });
    this.showKey();
    this.draw();
  }

  /** What marks and rings mean, of those that are on the map. */
  showKey() {
    const entry = (words, meant) => {
      const sample = element("canvas", { className: "ring", width: 40, height: 40, ariaHidden: "true" });
      const context = sample.getContext("2d");
      context.strokeStyle = getComputedStyle(this.canvas).color;
      context.scale(2, 2);
      ring(context, 10, 10, 6, meant);
      return element("li", {}, sample, words);
    };
    const there = (wanted) => this.points.some(({ id }) => wanted(id));
    const rings = [
      ...(there((id) => id === this.query) ? [entry("the query", true)] : []),
      ...(there((id) => this.ringed.has(id)) ? [entry("its results", false)] : []),
    ];
    this.legend.replaceChildren(...rings, ...this.marks.legend());
  }

  resize() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const dense = devicePixelRatio || 1;
    [this.view.wide, this.view.high] = [width, height];
    [this.canvas.width, this.canvas.height] = [Math.round(width * dense), Math.round(height * dense)];
    this.draw();
  }

  reset() {
    this.view.reset();
    this.moved();
  }

  zoom(factor, pixel) {
    this.view.zoom(factor, pixel);
    this.moved();
  }

  moved() {
    this.canvas.classList.toggle("zoomed", this.view.zoomed);
    this.hint(this.hinted);
  }

  shown(point) {
    return this.label === null || point.label === this.label;
  }

  spots() {
    return this.points.map((point) => (this.shown(point) ? this.view.pixel(point) : null));
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
      this.tip.querySelector("p").replaceChildren(...breakable(labelOf(point)));
    }
    const [x, y] = this.view.pixel(point);
    const { offsetWidth: wide, offsetHeight: high } = this.tip;
    const [right, bottom] = [this.view.wide - wide - 4, this.view.high - high - 4];
    const beside = x + 12 <= right ? x + 16 : x - 16 - wide;
    this.tip.style.left = `${Math.min(Math.max(4, beside), Math.max(4, right))}px`;
    this.tip.style.top = `${Math.min(Math.max(4, y - high / 2), Math.max(4, bottom))}px`;
  }

  at(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  hover(event) {
    const [x, y] = this.at(event);
    if (!this.held) {
      if (event.pointerType !== "touch") this.hint(nearest(this.spots(), [x, y], REACH));
      return;
    }
    const [fromX, fromY] = this.held.last;
    this.held.far += Math.hypot(x - fromX, y - fromY);
    this.held.last = [x, y];
    if (!this.view.zoomed || this.held.far < 4) return;
    this.view.shift((fromX - x) / this.view.scale, (fromY - y) / this.view.scale);
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
    const place = nearest(this.spots(), this.at(event), REACH);
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
    if (direction) this.visit(this.towards(direction));
    else if (along) this.visit(following(this.spots(), this.hinted, along));
    else if (event.key === "Enter" && this.hinted >= 0) this.choose(this.points[this.hinted]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.5);
    else if (event.key === "-") this.zoom(1 / 1.5);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else return;
    event.preventDefault();
  }

  towards(direction) {
    const from = this.points[this.hinted];
    if (!from) return nearest(this.spots(), this.view.centre);
    return ahead(this.spots(), this.hinted, this.view.pixel(from), direction);
  }

  /** Points at a picture, moving the map if it lies outside of the frame. */
  visit(place) {
    const point = this.points[place];
    if (!point) return;
    this.view.seek(point);
    this.hint(place);
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      if (this.view.wide) this.drawNow();
    });
  }

  drawNow() {
    const context = this.canvas.getContext("2d");
    const { wide, high, factor } = this.view;
    const dense = this.canvas.width / wide;
    const ink = getComputedStyle(this.canvas).color;
    const radius = (this.points.length > 800 ? 3 : 4.5) * Math.min(2, Math.sqrt(factor));
    context.setTransform(dense, 0, 0, dense, 0, 0);
    context.clearRect(0, 0, wide, high);
    for (const point of this.points) {
      context.globalAlpha = this.shown(point) ? 0.85 : 0.12;
      this.marks.draw(context, point.label, ...this.view.pixel(point), radius);
    }
    context.globalAlpha = 1;
    context.strokeStyle = ink;
    this.points.forEach((point, place) => {
      const [meant, hinted] = [point.id === this.query, place === this.hinted];
      const pixel = this.view.pixel(point);
      if (meant || this.ringed.has(point.id)) ring(context, ...pixel, radius + 3.5, meant);
      if (hinted) {
        context.lineWidth = 2.5;
        context.beginPath();
        context.arc(...pixel, radius + 6, 0, 2 * Math.PI);
        context.stroke();
      }
    });
  }
}

/** Around a result; around the query thicker, and with the four hairs of a sight. */
function ring(context, x, y, radius, meant) {
  context.lineWidth = meant ? 2.5 : 1.2;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  for (const [right, down] of meant ? [[1, 0], [0, 1], [-1, 0], [0, -1]] : []) {
    context.moveTo(x + radius * right, y + radius * down);
    context.lineTo(x + (radius + 5) * right, y + (radius + 5) * down);
  }
  context.stroke();
}
