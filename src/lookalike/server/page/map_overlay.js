// What lies over the marks of the map: rings, the names of clusters, and the lasso.

import { UNITS } from "./map_points.js";

const FEWEST_NAMED = 100; // points of a map with names of clusters
const FONT_SIZE = 12; // pixels
const SPACE = 6; // pixels between two names
const DIRECTIONS = [[1, 0], [-1, 0], [0, 1], [0, -1]];

/** Draws a circle around a pixel. */
export function drawCircle(context, x, y, radius, lineWidth) {
  context.lineWidth = lineWidth;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.stroke();
}

/** Draws the ring of a result; the query's is thicker and has crosshairs. */
export function drawRing(context, x, y, radius, isQuery) {
  drawCircle(context, x, y, radius, isQuery ? 2.5 : 1.2);
  if (!isQuery) return;
  context.beginPath();
  for (const [right, down] of DIRECTIONS) {
    context.moveTo(x + radius * right, y + radius * down);
    context.lineTo(x + (radius + 5) * right, y + (radius + 5) * down);
  }
  context.stroke();
}

/** Draws the names of clusters, the largest first, where there is room. */
export function drawNames(context, points, view, style) {
  if (points.length < FEWEST_NAMED) return;
  context.save();
  context.font = `600 ${FONT_SIZE}px ${style.fontFamily}`;
  Object.assign(context, { textAlign: "center", textBaseline: "middle", lineJoin: "round", lineWidth: 4 });
  context.fillStyle = style.color;
  context.strokeStyle = style.getPropertyValue("--card");
  for (const { label, x, y } of placeNames(context, points.clusters, view)) {
    context.strokeText(label, x, y);
    context.fillText(label, x, y);
  }
  context.restore();
}

function placeNames(context, clusters, view) {
  const placed = [];
  for (const { label, x: mapX, y: mapY } of clusters) {
    const [x, y] = view.pixel({ x: mapX, y: mapY });
    if (x < 0 || y < 0 || x > view.width || y > view.height) continue;
    const half = context.measureText(label).width / 2 + SPACE;
    const overlaps = (other) => Math.abs(other.x - x) < other.half + half && Math.abs(other.y - y) < FONT_SIZE + SPACE;
    if (!placed.some(overlaps)) placed.push({ label, x, y, half });
  }
  return placed;
}

/** Draws the lasso, the selected area, and the crosshair. */
export function drawLine(context, { lasso, selected, crosshair, view }) {
  context.lineWidth = 1.5;
  context.setLineDash([5, 4]);
  if (lasso) {
    lasso.trace(context);
    context.stroke();
  } else if (selected) {
    context.beginPath();
    for (const [x, y] of selected.corners) context.lineTo(...view.pixel({ x: x / UNITS, y: y / UNITS }));
    context.closePath();
    context.stroke();
  }
  context.setLineDash([]);
  if (!lasso || !crosshair) return;
  const [x, y] = crosshair;
  context.beginPath();
  for (const [right, down] of DIRECTIONS) {
    context.moveTo(x + 3 * right, y + 3 * down);
    context.lineTo(x + 12 * right, y + 12 * down);
  }
  context.stroke();
}
