// Marks of labels on the map: the most frequent labels have their own colour and shape, all others share one mark.

import { element } from "./dom.js";
import { labelOf, plural } from "./format.js";

const MOST_LABELS = 32; // named in the legend
const OTHER_SCALE = 0.7; // size of the shared mark
const GREY = { light: "#707070", dark: "#a3a3a3" };
// Hues that are told apart also by people who see colours differently (Okabe and Ito), one set per scheme.
const COLOURS = {
  light: ["#0072b2", "#c25400", "#007a5a", "#b0508c", "#8f6b00", "#2a8fc7", "#a3231a", "#5b4fb3"],
  dark: ["#56a8e0", "#ff8c42", "#2fc79a", "#e48bc0", "#e8c547", "#9ad4f5", "#ff7f78", "#aaa0f0"],
};
const HALF = Math.PI / 2;
// Corners of polygons as [angle, distance], or a circle.
const regular = (corners, rotation, scale) =>
  Array.from({ length: corners }, (_, corner) => [rotation + (2 * Math.PI * corner) / corners, scale]);
const star = (points, inner) =>
  Array.from({ length: 2 * points }, (_, corner) => [-HALF + (Math.PI * corner) / points, corner % 2 ? inner : 1.5]);
const plus = (half, reach) => {
  const arm = [[reach, -half], [reach, half], [half, half]];
  return [0, 1, 2, 3].flatMap((turn) => arm.map(([x, y]) => [Math.atan2(y, x) + turn * HALF, Math.hypot(x, y)]));
};
const SHAPES = [
  null, // circle
  regular(4, Math.PI / 4, 1.2), // square
  regular(3, -HALF, 1.4), // triangle
  regular(4, 0, 1.35), // diamond
  regular(3, HALF, 1.4), // triangle on its tip
  star(5, 0.6),
  star(4, 0.45),
  plus(0.45, 1.35),
];

/** Matches if the user prefers a dark colour scheme. */
export const darkScheme = matchMedia("(prefers-color-scheme: dark)");

/** The marks of labels; `points` has one labelIndex per point. */
export class Marks {
  constructor(points) {
    const counts = new Uint32Array(points.labels.length);
    for (const label of points.labelIndex) counts[label] += 1;
    const byCount = [...counts.keys()].filter((label) => counts[label]).sort((one, other) => counts[other] - counts[one]);
    this.frequent = byCount.slice(0, MOST_LABELS).sort((one, other) => one - other); // labels are sorted by name
    this.otherCount = byCount.length - this.frequent.length;
    this.labels = points.labels;
    this.numbers = new Int32Array(points.labels.length).fill(-1); // label -> position in the legend
    this.frequent.forEach((label, number) => (this.numbers[label] = number));
  }

  /** Colour and shape of a position in the legend; -1 is the mark that other labels share. */
  mark(number) {
    const scheme = darkScheme.matches ? "dark" : "light";
    if (number < 0) return { colour: GREY[scheme], shape: 0, scale: OTHER_SCALE };
    const cycle = Math.floor(number / COLOURS.light.length); // shapes shift with each cycle of colours
    const shape = (number + cycle) % SHAPES.length;
    return { colour: COLOURS[scheme][number % COLOURS.light.length], shape, scale: 1 };
  }

  /** Traces a mark around a pixel. */
  draw(context, number, x, y, radius) {
    const { colour, shape, scale } = this.mark(number);
    context.fillStyle = colour;
    trace(context, shape, x, y, scale * radius);
    context.fill();
  }

  /** Creates the list items of the legend; `onHighlight(number or null)`, `onPin(number)`. */
  legend({ onHighlight, onPin, pinned }) {
    const entries = this.frequent.map((label, number) => [number, labelOf({ label: this.labels[label] })]);
    if (this.otherCount) entries.push([-1, plural(this.otherCount, "other label")]);
    return entries.map(([number, text]) => {
      const sample = element("canvas", { width: 24, height: 24, ariaHidden: "true" });
      this.draw(sample.getContext("2d"), number, 12, 12, 8);
      const button = element("button", { type: "button", className: "key" }, sample, element("span", {}, text));
      button.setAttribute("aria-pressed", number === pinned);
      for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => onHighlight(number));
      for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => onHighlight(null));
      button.addEventListener("click", () => onPin(number));
      return element("li", {}, button);
    });
  }
}

/** Traces a shape of `SHAPES` around a pixel. */
export function trace(context, shape, x, y, radius) {
  context.beginPath();
  if (!SHAPES[shape]) context.arc(x, y, radius, 0, 2 * Math.PI);
  for (const [angle, distance] of SHAPES[shape] ?? []) {
    context.lineTo(x + distance * radius * Math.cos(angle), y + distance * radius * Math.sin(angle));
  }
  context.closePath();
}
