// How labels are told apart on the map: each has a colour and a shape of its own, as far as there are some.

import { element, labelOf } from "./common.js";

const LEGEND = 12; // labels that can still be told apart
const CORNERS = [null, [4, Math.PI / 4, 1.2], [3, -Math.PI / 2, 1.3], [4, 0, 1.25]]; // how many, turned, how far out
export const dark = matchMedia("(prefers-color-scheme: dark)");

export class Marks {
  constructor(labels) {
    this.labels = [...new Set(labels)].sort();
    this.places = new Map(this.labels.map((label, place) => [label, place]));
  }

  /** Hues by the golden angle: labels next to each other in the alphabet are far apart in colour. */
  colour(label) {
    return `hsl(${(this.places.get(label) * 137.508 + 205) % 360} 58% ${dark.matches ? 64 : 44}%)`;
  }

  /** A filled circle, square, triangle or diamond, so that labels differ by more than colour. */
  draw(context, label, x, y, radius) {
    const corners = CORNERS[this.places.get(label) % CORNERS.length];
    context.fillStyle = this.colour(label);
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

  /** List items, none if there are too many. */
  legend() {
    return this.labels.length > LEGEND ? [] : this.labels.map((label) => this.entry(label));
  }

  entry(label) {
    const sample = element("canvas", { width: 24, height: 24, ariaHidden: "true" });
    this.draw(sample.getContext("2d"), label, 12, 12, 8);
    return element("li", {}, sample, labelOf({ label }));
  }
}
