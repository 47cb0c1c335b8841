// Marks of labels on the map: the most frequent labels have their own colour and shape, all others share one mark.

import { element } from "./dom.js";
import { labelOf, plural } from "./format.js";

const MOST_LABELS = 12; // more marks cannot be told apart
const GOLDEN_ANGLE = 137.508; // degrees; consecutive hues are far apart
const SHAPES = [
  null, // circle
  { corners: 4, rotation: Math.PI / 4, scale: 1.2 }, // square
  { corners: 3, rotation: -Math.PI / 2, scale: 1.3 }, // triangle
  { corners: 4, rotation: 0, scale: 1.25 }, // diamond
];

/** Matches if the user prefers a dark colour scheme. */
export const darkScheme = matchMedia("(prefers-color-scheme: dark)");

/** The marks of a list of labels, one label per point. */
export class Marks {
  constructor(labels) {
    const counts = new Map();
    for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
    const sorted = [...counts.keys()].sort();
    const byCount = [...sorted].sort((one, other) => counts.get(other) - counts.get(one));
    const frequent = new Set(byCount.slice(0, MOST_LABELS));
    this.labels = sorted.filter((label) => frequent.has(label));
    this.otherCount = sorted.length - this.labels.length;
    this.indices = new Map(this.labels.map((label, index) => [label, index]));
  }

  /** The colour of a label; grey for those without their own. */
  colour(label) {
    const lightness = darkScheme.matches ? 64 : 44;
    const index = this.indices.get(label);
    if (index === undefined) return `hsl(0 0% ${lightness}%)`;
    return `hsl(${(index * GOLDEN_ANGLE + 205) % 360} 58% ${lightness}%)`;
  }

  /** Draws the mark of a label at a pixel; labels without their own mark are small circles. */
  draw(context, label, x, y, radius) {
    const index = this.indices.get(label);
    const shape = SHAPES[(index ?? 0) % SHAPES.length];
    context.fillStyle = this.colour(label);
    context.beginPath();
    if (index === undefined) context.arc(x, y, 0.7 * radius, 0, 2 * Math.PI);
    else if (!shape) context.arc(x, y, radius, 0, 2 * Math.PI);
    else tracePolygon(context, shape, x, y, radius);
    context.fill();
  }

  /** Creates the list items of the legend. */
  legend() {
    const entries = this.labels.map((label) => this.legendEntry(label, labelOf({ label })));
    if (this.otherCount) entries.push(this.legendEntry(null, plural(this.otherCount, "other label")));
    return entries;
  }

  legendEntry(label, text) {
    const sample = element("canvas", { width: 24, height: 24, ariaHidden: "true" });
    this.draw(sample.getContext("2d"), label, 12, 12, 8);
    return element("li", {}, sample, element("span", {}, text));
  }
}

function tracePolygon(context, { corners, rotation, scale }, x, y, radius) {
  for (let corner = 0; corner < corners; corner += 1) {
    const angle = rotation + (2 * Math.PI * corner) / corners;
    context.lineTo(x + scale * radius * Math.cos(angle), y + scale * radius * Math.sin(angle));
  }
}
