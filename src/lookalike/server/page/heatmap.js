// Heat maps: the pooling weights of a picture as an overlay, clear where the weight is large.

import { explain, modelInUse, retryWhileBusy } from "./api.js";
import { $ } from "./dom.js";

const PARALLEL_REQUESTS = 2; // leaves room for searches
const CACHE_SIZE = 1000;
const LONGER_SIDE = 320; // pixels of an overlay
// Weight relative to the largest -> red, green, blue, opacity.
const COLOUR_SCALE = [
  [0, 16, 16, 42, 0.82],
  [0.35, 44, 26, 84, 0.62],
  [0.7, 150, 62, 72, 0.26],
  [1, 255, 186, 60, 0.14],
];

const cache = new Map(); // item id -> promise of its weights, oldest first
const queue = []; // { id, resolve, reject }
let running = 0;

/** Resolves to the weights of an item. Requests are cached and sent a few at a time. */
export function weightsOf(id) {
  const name = `${modelInUse()} ${id}`;
  if (!cache.has(name)) {
    const promise = new Promise((resolve, reject) => queue.push({ id, resolve, reject }));
    promise.catch(() => cache.delete(name));
    cache.set(name, promise);
    if (cache.size > CACHE_SIZE) cache.delete(cache.keys().next().value);
    startNext();
  }
  return cache.get(name);
}

/** Rejects all requests that have not been sent: their results are no longer shown. */
export function cancelQueued() {
  for (const { reject } of queue.splice(0)) reject(new DOMException("no longer needed", "AbortError"));
}

async function startNext() {
  if (running >= PARALLEL_REQUESTS || !queue.length) return;
  const { id, resolve, reject } = queue.shift();
  running += 1;
  try {
    resolve(await retryWhileBusy(() => explain({ id })));
  } catch (error) {
    reject(error);
  }
  running -= 1;
  startNext();
}

/** Interpolates the colour scale at a fraction from 0 to 1. */
function colourAt(fraction) {
  const upper = Math.max(1, COLOUR_SCALE.findIndex(([stop]) => stop >= fraction));
  const [low, high] = [COLOUR_SCALE[upper - 1], COLOUR_SCALE[upper]];
  const share = (fraction - low[0]) / (high[0] - low[0]);
  return [1, 2, 3, 4].map((channel) => low[channel] + share * (high[channel] - low[channel]));
}

/** Creates a canvas with one pixel per value; values go from 0 to 1. */
function toCanvas(values, rows, columns) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const pixels = new ImageData(columns, rows);
  values.forEach((value, index) => {
    const [red, green, blue, opacity] = colourAt(Math.min(1, Math.max(0, value)));
    pixels.data.set([red, green, blue, 255 * opacity], 4 * index);
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

/** Draws weights, as POST /explain returns them, on a canvas of the picture's shape. */
export function paintWeights(canvas, explanation, image) {
  const { rows, columns, weights, grid_rows: gridRows, grid_columns: gridColumns } = explanation;
  $("legend-grid").textContent = `The model weighs ${gridRows} × ${gridColumns} cells, shown smoothed.`;
  const width = image.naturalWidth || columns;
  const height = image.naturalHeight || rows;
  const scale = LONGER_SIDE / Math.max(width, height);
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const values = weights.flat();
  const peak = Math.max(...values) || 1;
  const relative = values.map((value) => value / peak);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(toCanvas(relative, rows, columns), 0, 0, canvas.width, canvas.height);
}

/** Draws the colour scale, from no weight to the largest. */
export function paintScale(canvas) {
  const steps = canvas.width;
  const values = Array.from({ length: steps }, (_, step) => step / (steps - 1));
  const context = canvas.getContext("2d");
  context.fillStyle = "#b9c4b4"; // stands for a picture
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(toCanvas(values, 1, steps), 0, 0, canvas.width, canvas.height);
}
