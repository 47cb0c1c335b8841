// The map of the collection: one point per picture, similar pictures close together.

import { breakable, element } from "./dom.js";
import { labelOf, plural } from "./format.js";
import { Lasso, pointsInside } from "./map_lasso.js";
import { Marks, darkScheme } from "./map_marks.js";
import { nextInDirection, nextInList } from "./map_navigation.js";
import { drawCircle, drawLine, drawNames, drawRing } from "./map_overlay.js";
import { Points } from "./map_points.js";
import { Raster } from "./map_raster.js";
import { Viewport } from "./map_viewport.js";
import { showPicture } from "./pictures.js";

const POINTER_RADIUS = 18; // pixels around a point in which it can be hit
const DRAG_START = 4; // pixels
const LONGEST_CLICK = 6; // pixels that the pointer may move during a click
const ZOOM_STEP = 1.5;
const STEP = 16; // pixels that an arrow key moves the crosshair of the lasso
const SLOW_SECONDS = 0.008; // of a drawing; slower ones have less detail while the map moves
const SETTLE_SECONDS = 0.15;
const NONE = -1;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const RADII = [[800, 4.5, 9], [5000, 3, 6], [30_000, 2.2, 5], [Infinity, 1.6, 5]]; // up to a number: radius, largest

/**
 * A map on a canvas.
 *
 * onChoose(item): a point was chosen.  onPoint(item or null, index): another point, or none, is pointed at.
 * onSelect(indices, corners): an area was selected; null for none.
 */
export class CollectionMap {
  constructor({ frame, canvas, tip, legend }, { onChoose, onPoint, onSelect }) {
    Object.assign(this, { frame, canvas, tip, legend, onChoose, onPoint, onSelect });
    this.pointed = NONE; // index of the point that is pointed at
    this.label = null; // the label that is not dimmed; null for all
    this.highlighted = null; // position in the legend, as the next
    this.pinned = null;
    this.query = null; // { id, place }
    this.results = new Set(); // ids
    this.selected = null; // { indices, corners }
    this.lasso = null; // while one is drawn
    this.crosshair = null; // pixel, for the lasso by keyboard
    this.drag = null;
    this.view = new Viewport();
    this.raster = new Raster();
    this.frameRequest = null;
    this.drawSeconds = 0; // of the last drawing in full detail
    this.moving = false;
    this.setPoints(new Points());
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
      if (byKeyboard && this.pointed === NONE && !this.lasso) this.pointAt(this.nearest(this.view.centre));
    });
    canvas.addEventListener("blur", () => this.pointAt(NONE));
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
  }

  /** Replaces all points. */
  setPoints(points) {
    this.points = points;
    this.marks = new Marks(points);
    this.pinned = null;
    this.highlighted = null;
    this.pointed = NONE;
    this.view.enclose(points);
    this.select(null);
    this.reset();
  }

  /** Dims other labels and draws rings around the query and its results. `query`: { id, place } or null. */
  highlight({ label, query, results }) {
    this.label = label;
    this.query = query;
    this.results = new Set(results);
    this.refresh();
  }

  /** Selects an area, or nothing. */
  select(corners) {
    this.selected = null;
    this.refresh();
    if (corners) this.selected = { corners, indices: pointsInside(this.points, corners, this.active) };
    this.refresh();
    this.onSelect(this.selected?.indices ?? null, corners);
  }

  /** Starts or ends drawing a lasso. */
  setLasso(on) {
    this.lasso = on ? new Lasso(this.view) : null;
    this.crosshair = null;
    this.canvas.classList.toggle("lasso", on);
    this.pointAt(NONE);
  }

  /** Which points are not dimmed: 1 or 0 for each. */
  findActive() {
    const { labels, labelIndex, length } = this.points;
    const number = this.highlighted ?? this.pinned;
    const shown = labels.map((label, index) => {
      const isChosen = this.label === null || label === this.label;
      return Number(isChosen && (number === null || this.marks.numbers[index] === number));
    });
    this.active = Uint8Array.from({ length }, (_, index) => shown[labelIndex[index]]);
    if (!this.selected) return;
    const chosen = new Uint8Array(length);
    for (const index of this.selected.indices) chosen[index] = this.active[index];
    this.active = chosen;
  }

  /** Redraws map and legend. */
  refresh() {
    this.findActive();
    this.showLegend();
    this.draw();
  }

  showLegend() {
    const entries = [];
    if (this.queryPlace()) entries.push(this.ringEntry("the query", true));
    if ([...this.results].some((id) => this.points.indexOf(id) >= 0)) entries.push(this.ringEntry("its results", false));
    const onHighlight = (number) => {
      this.highlighted = number;
      this.findActive();
      this.draw();
    };
    const onPin = (number) => {
      this.pinned = this.pinned === number ? null : number;
      const keys = [...this.legend.querySelectorAll(".key")];
      const numbers = [...this.marks.frequent.keys(), NONE];
      keys.forEach((key, place) => key.setAttribute("aria-pressed", numbers[place] === this.pinned));
      onHighlight(null);
    };
    this.legend.replaceChildren(...entries, ...this.marks.legend({ onHighlight, onPin, pinned: this.pinned }));
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
    this.moving = true;
    clearTimeout(this.settleTimer);
    this.settleTimer = setTimeout(() => this.settle(), 1000 * SETTLE_SECONDS);
    this.draw();
    this.pointAt(this.pointed);
  }

  /** Draws in full detail when the map has come to rest. */
  settle() {
    this.moving = false;
    if (this.drawSeconds > SLOW_SECONDS) this.draw();
  }

  /** The map coordinate of a point. */
  at(index) {
    return { x: this.points.x[index], y: this.points.y[index] };
  }

  /** The active point nearest to a pixel. */
  nearest([x, y], maxDistance = Infinity) {
    const [mapX, mapY] = this.view.coordinates(x, y);
    return this.points.nearest(mapX, mapY, Math.min(2, maxDistance / this.view.scale), this.active);
  }

  /** Points at a picture and shows it beside the point. */
  pointAt(index) {
    const changed = this.pointed !== index;
    this.pointed = index;
    this.draw(false);
    const item = index === NONE ? null : this.points.item(index);
    this.canvas.classList.toggle("pointing", Boolean(item));
    this.tip.hidden = !item;
    if (changed) this.onPoint(item, index);
    if (!item) return;
    if (changed) {
      showPicture(this.tip.querySelector("img"), item.id, 256, { now: true });
      this.tip.querySelector("p").replaceChildren(...breakable(labelOf(item)));
    }
    this.placeTip(this.view.pixel(this.at(index)));
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
      if (event.pointerType !== "touch" && !this.lasso) this.pointAt(this.nearest([x, y], POINTER_RADIUS));
      return;
    }
    const [lastX, lastY] = this.drag.last;
    this.drag.length += Math.hypot(x - lastX, y - lastY);
    this.drag.last = [x, y];
    if (this.lasso) {
      this.lasso.push([x, y]);
      this.draw(false);
      return;
    }
    if (!this.view.zoomed || this.drag.length < DRAG_START) return;
    this.view.pan((lastX - x) / this.view.scale, (lastY - y) / this.view.scale);
    this.pointed = NONE;
    this.onViewChange();
  }

  onPointerDown(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { last: this.pixelOf(event), length: 0, pointedBefore: this.pointed };
    if (this.lasso) {
      this.lasso = new Lasso(this.view);
      this.lasso.push(this.drag.last);
    }
  }

  /** A click chooses; a first tap only points, and a second one chooses. */
  onPointerUp(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag) return;
    if (this.lasso) {
      this.closeLasso();
      return;
    }
    if (drag.length > LONGEST_CLICK) return;
    const index = this.nearest(this.pixelOf(event), POINTER_RADIUS);
    const chooses = event.pointerType !== "touch" || drag.pointedBefore === index;
    if (index !== NONE && chooses) this.onChoose(this.points.item(index));
    else this.pointAt(index);
  }

  /** Selects what the lasso encloses; a click without dragging selects nothing. */
  closeLasso() {
    const corners = this.lasso.polygon();
    this.setLasso(false);
    this.select(corners);
  }

  onWheel(event) {
    if (!event.ctrlKey) return; // Ctrl means pinching; the wheel alone scrolls the page
    event.preventDefault();
    this.zoom(Math.exp(-event.deltaY / 200), this.pixelOf(event));
  }

  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.points.length) return;
    if (this.lasso ? !this.onLassoKey(event) : !this.onMapKey(event)) return;
    event.preventDefault();
  }

  onMapKey({ key }) {
    const direction = ARROWS[key];
    if (direction) this.visit(this.inDirection(direction));
    else if (key === "PageDown") this.visit(nextInList(this.active, this.pointed, 1));
    else if (key === "PageUp") this.visit(nextInList(this.active, this.pointed, -1));
    else if (key === "Enter" && this.pointed !== NONE) this.onChoose(this.points.item(this.pointed));
    else if (key === "+" || key === "=") this.zoom(ZOOM_STEP);
    else if (key === "-") this.zoom(1 / ZOOM_STEP);
    else if (key === "0" || key === "Escape") this.reset();
    else return false;
    return true;
  }

  /** Arrows move a crosshair, Enter sets a corner, and again at the same place closes the lasso. */
  onLassoKey({ key, shiftKey }) {
    const direction = ARROWS[key];
    const at = this.crosshair ?? this.view.centre;
    if (direction) {
      const step = shiftKey ? 4 * STEP : STEP;
      const limits = [this.view.width, this.view.height];
      this.crosshair = at.map((value, axis) => Math.min(limits[axis], Math.max(0, value + step * direction[axis])));
    } else if (key === "Enter" || key === " ") {
      this.crosshair = at;
      if (this.lasso.add(at)) this.closeLasso();
    } else if (key === "Backspace") {
      this.lasso.corners.pop();
    } else if (key === "Escape") {
      this.setLasso(false);
      this.onSelect(this.selected?.indices ?? null, this.selected?.corners ?? null);
    } else {
      return false;
    }
    this.draw(false);
    return true;
  }

  inDirection(direction) {
    if (this.pointed === NONE) return this.nearest(this.view.centre);
    return nextInDirection(this.points, this.active, this.pointed, direction, 0.5 / this.view.scale);
  }

  /** Points at a picture and moves the map if it is out of view. */
  visit(index) {
    if (index === NONE) return;
    this.view.reveal(this.at(index));
    this.draw();
    this.pointAt(index);
  }

  /** The coordinate of the query on the map; null if it is not known. */
  queryPlace() {
    const index = this.query ? this.points.indexOf(this.query.id) : NONE;
    if (index !== NONE) return this.at(index);
    const place = this.query?.place;
    return place && this.points.length ? { x: place[0], y: place[1] } : null;
  }

  /** Draws at the next frame of the browser; without `all`, the marks have not changed. */
  draw(all = true) {
    if (all) this.image = null;
    this.frameRequest ??= requestAnimationFrame(() => {
      this.frameRequest = null;
      if (this.view.width && this.canvas.width) this.drawNow();
    });
  }

  drawNow() {
    const context = this.canvas.getContext("2d");
    const { width, height } = this.canvas;
    const ratio = width / this.view.width;
    const [, smallest, largest] = RADII.find(([most]) => this.points.length <= most);
    const radius = Math.min(largest, smallest * Math.sqrt(this.view.factor));
    const { points, active, marks, view } = this;
    if (!this.image) {
      const started = performance.now();
      const coarse = this.moving && this.drawSeconds > SLOW_SECONDS;
      const radiusInImage = radius * ratio;
      this.image = this.raster.draw(points, { active, marks, view, radius: radiusInImage, ratio, width, height, coarse });
      if (!coarse) this.drawSeconds = (performance.now() - started) / 1000;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.putImageData(this.image, 0, 0);
    const style = getComputedStyle(this.canvas);
    context.strokeStyle = style.color;
    drawNames(context, this.points, this.view, style);
    for (const id of this.results) {
      const index = this.points.indexOf(id);
      if (index !== NONE && id !== this.query?.id) drawRing(context, ...this.view.pixel(this.at(index)), radius + 3.5, false);
    }
    const place = this.queryPlace();
    if (place) drawRing(context, ...this.view.pixel(place), radius + 3.5, true);
    if (this.pointed !== NONE) drawCircle(context, ...this.view.pixel(this.at(this.pointed)), radius + 6, 2.5);
    drawLine(context, this);
  }

  /** The texts of the clusters, for those who do not see the map. */
  clusterTexts() {
    return this.points.clusters.map(({ label, pictures }) => `${label}, ${plural(pictures, "picture")}`);
  }
}
