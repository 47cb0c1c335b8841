// A lasso on the map. Its corners are whole units of the map, so that page and server select the same points.

import { UNITS } from "./map_points.js";

const MOST_CORNERS = 200; // limit of the server
const FARTHEST = 90_000; // units; corners may lie outside of the map
const SAME_CORNER = 10; // pixels

/** Indices of the active points inside a polygon, by the even-odd rule; server/polygon.py computes the same. */
export function pointsInside({ unitX, unitY }, corners, active) {
  const inside = [];
  for (let index = 0; index < unitX.length; index += 1) {
    if (active[index] && contains(corners, unitX[index], unitY[index])) inside.push(index);
  }
  return inside;
}

function contains(corners, x, y) {
  let result = false;
  let [previousX, previousY] = corners.at(-1);
  for (const [cornerX, cornerY] of corners) {
    if (cornerY > y !== previousY > y) {
      const at = ((previousX - cornerX) * (y - cornerY)) / (previousY - cornerY) + cornerX;
      if (x < at) result = !result;
    }
    [previousX, previousY] = [cornerX, cornerY];
  }
  return result;
}

/** The text of the field `area`. */
export const asText = (corners) => corners.map((corner) => corner.join(",")).join(";");

/** A lasso that is being drawn. Positions are pixels of the view. */
export class Lasso {
  constructor(view) {
    this.view = view;
    this.corners = [];
  }

  /** Adds a corner; returns whether it closes the lasso because it is where the last or first one is. */
  add([x, y]) {
    const closes = [this.corners.at(-1), this.corners[0]].some((corner) => {
      if (!corner || this.corners.length < 3) return false;
      const [cornerX, cornerY] = this.view.pixel({ x: corner[0] / UNITS, y: corner[1] / UNITS });
      return Math.hypot(cornerX - x, cornerY - y) < SAME_CORNER;
    });
    if (!closes) this.push([x, y]);
    return closes;
  }

  /** Adds a corner of a line that is drawn by dragging. */
  push([x, y]) {
    const corner = this.view.coordinates(x, y).map((value) => Math.round(value * UNITS));
    this.corners.push(corner.map((value) => Math.min(FARTHEST, Math.max(-FARTHEST, value))));
  }

  /** The closed polygon; null if it has fewer than three corners. */
  polygon() {
    const step = Math.ceil(this.corners.length / MOST_CORNERS);
    const corners = this.corners.filter((_, index) => index % step === 0);
    return corners.length < 3 ? null : corners;
  }

  /** Traces the line. */
  trace(context) {
    context.beginPath();
    for (const [x, y] of this.corners) context.lineTo(...this.view.pixel({ x: x / UNITS, y: y / UNITS }));
  }
}
