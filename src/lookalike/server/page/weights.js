// What the model looks at: pooling weights as a veil over a picture, clear where the weight is.

import { explain } from "./api.js";
import { $ } from "./common.js";

const AT_ONCE = 2; // the searches of others come first
const PATIENCE = 4; // times that a busy server is asked again
const REMEMBERED = 1000;
// Weight as a fraction of the largest -> red, green, blue, opacity.
const SCALE = [
  [0, 16, 16, 42, 0.82],
  [0.35, 44, 26, 84, 0.62],
  [0.7, 150, 62, 72, 0.26],
  [1, 255, 186, 60, 0.14],
];

const known = new Map(); // id -> promise of an explanation
const line = [];
let busy = 0;

/** The weights of a picture of the collection; asked once, a few at a time. */
export function weightsOf(id) {
  if (!known.has(id)) {
    const promise = new Promise((resolve, reject) => line.push({ id, resolve, reject }));
    promise.catch(() => known.delete(id));
    known.set(id, promise);
    if (known.size > REMEMBERED) known.delete(known.keys().next().value);
    advance();
  }
  return known.get(id);
}

/** Forgets what was asked for and not yet begun: the results it was for are gone. */
export function forgetWaiting() {
  for (const { reject } of line.splice(0)) reject(new DOMException("no longer needed", "AbortError"));
}

async function advance() {
  if (busy >= AT_ONCE || !line.length) return;
  const { id, resolve, reject } = line.shift();
  busy += 1;
  try {
    resolve(await patiently(() => explain({ id })));
  } catch (problem) {
    reject(problem);
  }
  busy -= 1;
  advance();
}

/** Asks again while the server says that it is busy. */
export async function patiently(ask, signal) {
  for (let asked = 1; ; asked += 1) {
    try {
      return await ask();
    } catch (problem) {
      if (problem.status !== 503 || asked === PATIENCE || signal?.aborted) throw problem;
      await new Promise((done) => setTimeout(done, 1000 * (problem.retryAfter ?? 1)));
    }
  }
}

function colour(fraction) {
  const above = Math.max(1, SCALE.findIndex(([place]) => place >= fraction));
  const [low, high] = [SCALE[above - 1], SCALE[above]];
  const share = (fraction - low[0]) / (high[0] - low[0]);
  return [1, 2, 3, 4].map((part) => low[part] + share * (high[part] - low[part]));
}

function smallPicture(values, rows, columns) {
  const small = document.createElement("canvas");
  [small.width, small.height] = [columns, rows];
  const pixels = new ImageData(columns, rows);
  values.forEach((value, place) => {
    const [red, green, blue, opacity] = colour(Math.min(1, Math.max(0, value)));
    pixels.data.set([red, green, blue, 255 * opacity], 4 * place);
  });
  small.getContext("2d").putImageData(pixels, 0, 0);
  return small;
}

/** Draws weights, rows x columns over the whole picture, on a canvas of the picture's shape. */
export function paint(canvas, { rows, columns, weights, grid_rows: high, grid_columns: wide }, image) {
  $("legend-grid").textContent = `Within, it weighs ${high} × ${wide} places, shown smoothed.`;
  const sides = [image.naturalWidth || columns, image.naturalHeight || rows];
  const scale = 320 / Math.max(...sides);
  [canvas.width, canvas.height] = sides.map((side) => Math.max(1, Math.round(side * scale)));
  const values = weights.flat();
  const peak = Math.max(...values) || 1;
  const small = smallPicture(values.map((value) => value / peak), rows, columns);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

/** The scale itself, from no weight to the largest. */
export function paintScale(canvas) {
  const steps = canvas.width;
  const values = Array.from({ length: steps }, (_, place) => place / (steps - 1));
  const context = canvas.getContext("2d");
  context.fillStyle = "#b9c4b4"; // stands for a picture
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(smallPicture(values, 1, steps), 0, 0, canvas.width, canvas.height);
}
