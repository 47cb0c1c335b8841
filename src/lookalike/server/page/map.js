// The map of the collection: one point per picture, similar pictures close together.

import { breakable, element } from "./dom.js";
import { labelOf } from "./format.js";
import { Marks, darkScheme } from "./map_marks.js";
import { nearest, nextInDirection, nextInList } from "./map_navigation.js";
import { Viewport } from "./map_viewport.js";
import { showPicture } from "./pictures.js";

const POINTER_RADIUS = 18; // pixels around a point in which it can be hit
const DRAG_START = 4; // pixels
const LONGEST_CLICK = 6; // pixels that the pointer may move during a click
const ZOOM_STEP = 1.5;
const NONE = -1;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/**
 * A map on a canvas.
 *
 * onChoose(point): a point was chosen.  onPoint(point or null, index): another point, or none, is pointed at.
 */
export class CollectionMap {
  constructor({ frame, canvas, tip, legend }, { onChoose, onPoint }) {
    Object.assign(this, { frame, canvas, tip, legend, onChoose, onPoint });
    this.points = [];
    this.pointed = NONE; // index of the point that is pointed at
    this.label = null; // the label that is not dimmed; null for all
    this.query = null; // id
    this.results = new Set(); // ids
    this.drag = null;
    this.view = new Viewport();
    this.marks = new Marks([]);
    this.frameRequest = null;
    new ResizeObserver(() => this.resize()).observe(frame);
    darkScheme.addEventListener("change", () => this.refresh());
    this.listen();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.onPointerMove(event));
    canvas.addEventListener("pointerleave", () => document.activeElement !== canvas && this.pointAt(NONE));
    canvas.addEventListener("pointerdown", (event) => this.onPointerDown(event));
    canvas.addEventListener("pointerup", (event) => this.onPointerUp(event));
    canvas.addEventListener("pointercancel", () => (this.drag = null));
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    canvas.addEventListener("focus", () => {
      const byKeyboard = canvas.matches(":focus-visible");
      if (byKeyboard && this.pointed === NONE) this.pointAt(nearest(this.positions(), this.view.centre));
    });
    canvas.addEventListener("blur", () => this.pointAt(NONE));
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
  }

  /** Replaces all points. */
  setPoints(points) {
    this.points = points;
    this.marks = new Marks(points.map(({ label }) => label));
    this.view.enclose(points);
    this.refresh();
    this.reset();
  }

  /** Dims other labels and draws rings around the query and its results. */
  highlight({ label, query, results }) {
    this.label = label;
    this.query = query;
    this.results = new Set(results);
    this.refresh();
  }

  /** Redraws map and legend. */
  refresh() {
    this.showLegend();
    this.draw();
  }

  showLegend() {
    const entries = [];
    if (this.points.some(({ id }) => id === this.query)) entries.push(this.ringEntry("the query", true));
    if (this.points.some(({ id }) => this.results.has(id))) entries.push(this.ringEntry("its results", false));
    this.legend.replaceChildren(...entries, ...this.marks.legend());
  }

  ringEntry(text, isQuery) {
    const sample = element("canvas", { className: "ring", width: 40, height: 40, ariaHidden: "true" });
    const context = sample.getContext("2d");
    context.strokeStyle = getComputedStyle(this.canvas).color;
    context.scale(2, 2);
    drawRing(context, 10, 10, 6, isQuery);
    return element("li", {}, sample, text);
  }

  resize() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const pixelRatio = devicePixelRatio || 1;
    this.view.width = width;
    this.view.height = height;
    this.canvas.width = Math.round(width * pixelRatio);
    this.canvas.height = Math.round(height * pixelRatio);
    this.draw();
  }

  /** Shows the whole map. */
  reset() {
    this.view.reset();
    this.onViewChange();
  }

  /** Zooms by a factor around a pixel, or around the centre. */
  zoom(factor, pixel) {
    this.view.zoom(factor, pixel);
    this.onViewChange();
  }

  onViewChange() {
    this.canvas.classList.toggle("zoomed", this.view.zoomed);
    this.pointAt(this.pointed);
  }

  isActive(point) {
    return this.label === null || point.label === this.label;
  }

  /** Pixels of all points; null for dimmed ones. */
  positions() {
    return this.points.map((point) => (this.isActive(point) ? this.view.pixel(point) : null));
  }

  /** Points at a picture and shows it beside the point. */
  pointAt(index) {
    const changed = this.pointed !== index;
    this.pointed = index;
    this.draw();
    const point = this.points[index];
    this.canvas.classList.toggle("pointing", Boolean(point));
    this.tip.hidden = !point;
    if (changed) this.onPoint(point ?? null, index);
    if (!point) return;
    if (changed) {
      showPicture(this.tip.querySelector("img"), point.id, 256, { now: true });
      this.tip.querySelector("p").replaceChildren(...breakable(labelOf(point)));
    }
    this.placeTip(this.view.pixel(point));
  }

  /** Puts the tip to the right of a pixel, or to the left if there is no room, inside the frame. */
  placeTip([x, y]) {
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const maxLeft = Math.max(4, this.view.width - width - 4);
    const maxTop = Math.max(4, this.view.height - height - 4);
    const fitsRight = x + 12 <= this.view.width - width - 4;
    const left = fitsRight ? x + 16 : x - 16 - width;
    this.tip.style.left = `${Math.min(Math.max(4, left), maxLeft)}px`;
    this.tip.style.top = `${Math.min(Math.max(4, y - height / 2), maxTop)}px`;
  }

  pixelOf(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  onPointerMove(event) {
    const [x, y] = this.pixelOf(event);
    if (!this.drag) {
      if (event.pointerType !== "touch") this.pointAt(nearest(this.positions(), [x, y], POINTER_RADIUS));
      return;
    }
    const [lastX, lastY] = this.drag.last;
    this.drag.length += Math.hypot(x - lastX, y - lastY);
    this.drag.last = [x, y];
    if (!this.view.zoomed || this.drag.length < DRAG_START) return;
    this.view.pan((lastX - x) / this.view.scale, (lastY - y) / this.view.scale);
    this.pointAt(NONE);
  }

  onPointerDown(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { last: this.pixelOf(event), length: 0, pointedBefore: this.pointed };
  }

  /** A click chooses; a first tap only points, and a second one chooses. */
  onPointerUp(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag || drag.length > LONGEST_CLICK) return;
    const index = nearest(this.positions(), this.pixelOf(event), POINTER_RADIUS);
    const chooses = event.pointerType !== "touch" || drag.pointedBefore === index;
    if (index !== NONE && chooses) this.onChoose(this.points[index]);
    else this.pointAt(index);
  }

  onWheel(event) {
    if (!event.ctrlKey) return; // Ctrl means pinching; the wheel alone scrolls the page
    event.preventDefault();
    this.zoom(Math.exp(-event.deltaY / 200), this.pixelOf(event));
  }

  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.points.length) return;
    const direction = ARROWS[event.key];
    if (direction) this.visit(this.inDirection(direction));
    else if (event.key === "PageDown") this.visit(nextInList(this.positions(), this.pointed, 1));
    else if (event.key === "PageUp") this.visit(nextInList(this.positions(), this.pointed, -1));
    else if (event.key === "Enter" && this.pointed !== NONE) this.onChoose(this.points[this.pointed]);
    else if (event.key === "+" || event.key === "=") this.zoom(ZOOM_STEP);
    else if (event.key === "-") this.zoom(1 / ZOOM_STEP);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else return;
    event.preventDefault();
  }

  inDirection(direction) {
    const current = this.points[this.pointed];
    if (!current) return nearest(this.positions(), this.view.centre);
    return nextInDirection(this.positions(), this.pointed, this.view.pixel(current), direction);
  }

  /** Points at a picture and moves the map if it is out of view. */
  visit(index) {
    const point = this.points[index];
    if (!point) return;
    this.view.reveal(point);
    this.pointAt(index);
  }

  /** Draws at the next frame of the browser. */
  draw() {
    if (this.frameRequest) return;
    this.frameRequest = requestAnimationFrame(() => {
      this.frameRequest = null;
      if (this.view.width) this.drawNow();
    });
  }

  drawNow() {
    const context = this.canvas.getContext("2d");
    const { width, height, factor } = this.view;
    const pixelRatio = this.canvas.width / width;
    const radius = (this.points.length > 800 ? 3 : 4.5) * Math.min(2, Math.sqrt(factor));
    context.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
    context.clearRect(0, 0, width, height);
    for (const point of this.points) {
      context.globalAlpha = this.isActive(point) ? 0.85 : 0.12;
      this.marks.draw(context, point.label, ...this.view.pixel(point), radius);
    }
    context.globalAlpha = 1;
    context.strokeStyle = getComputedStyle(this.canvas).color;
    this.points.forEach((point, index) => {
      const [x, y] = this.view.pixel(point);
      const isQuery = point.id === this.query;
      if (isQuery || this.results.has(point.id)) drawRing(context, x, y, radius + 3.5, isQuery);
      if (index === this.pointed) drawCircle(context, x, y, radius + 6, 2.5);
    });
  }
}

function drawCircle(context, x, y, radius, lineWidth) {
  context.lineWidth = lineWidth;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.stroke();
}

/** Draws the ring of a result; the query's is thicker and has crosshairs. */
function drawRing(context, x, y, radius, isQuery) {
  drawCircle(context, x, y, radius, isQuery ? 2.5 : 1.2);
  if (!isQuery) return;
  context.beginPath();
  for (const [right, down] of Object.values(ARROWS)) {
    context.moveTo(x + radius * right, y + radius * down);
    context.lineTo(x + (radius + 5) * right, y + (radius + 5) * down);
  }
  context.stroke();
}
