// How labels are told apart on the map: the most frequent have a colour and a shape of their own, all others one mark.

import { element, labelOf, plural } from "./common.js";

const LEGEND = 12; // labels that can still be told apart
const CORNERS = [null, [4, Math.PI / 4, 1.2], [3, -Math.PI / 2, 1.3], [4, 0, 1.25]]; // how many, turned, how far out
export const dark = matchMedia("(prefers-color-scheme: dark)");

export class Marks {
  constructor(labels) {
    const counts = new Map();
    for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
    const alphabetical = [...counts.keys()].sort();
    const frequent = [...alphabetical].sort((one, other) => counts.get(other) - counts.get(one)).slice(0, LEGEND);
    this.labels = alphabetical.filter((label) => frequent.includes(label));
    this.others = alphabetical.length - this.labels.length;
    this.places = new Map(this.labels.map((label, place) => [label, place]));
  }

  /** Hues by the golden angle: labels next to each other in the alphabet are far apart in colour. Others are grey. */
  colour(label) {
    const lightness = dark.matches ? 64 : 44;
    const place = this.places.get(label);
    return place === undefined ? `hsl(0 0% ${lightness}%)` : `hsl(${(place * 137.508 + 205) % 360} 58% ${lightness}%)`;
  }

  /** A filled circle, square, triangle or diamond, so that labels differ by more than colour; a small circle: others. */
  draw(context, label, x, y, radius) {
    const place = this.places.get(label);
    const corners = CORNERS[(place ?? 0) % CORNERS.length];
    context.fillStyle = this.colour(label);
    context.beginPath();
    if (!corners) context.arc(x, y, place === undefined ? 0.7 * radius : radius, 0, 2 * Math.PI);
    else {
      const [count, turn, larger] = corners;
      for (let corner = 0; corner < count; corner += 1) {
        const angle = turn + (2 * Math.PI * corner) / count;
        context.lineTo(x + larger * radius * Math.cos(angle), y + larger * radius * Math.sin(angle));
      }
    }
    context.fill();
  }

  /** List items: each label with a mark of its own, and the others. */
  legend() {
    const own = this.labels.map((label) => this.entry(label, labelOf({ label })));
    return this.others ? [...own, this.entry(null, plural(this.others, "other label"))] : own;
  }

  entry(label, words) {
    const sample = element("canvas", { width: 24, height: 24, ariaHidden: "true" });
    this.draw(sample.getContext("2d"), label, 12, 12, 8);
    return element("li", {}, sample, element("span", {}, words));
  }
}
