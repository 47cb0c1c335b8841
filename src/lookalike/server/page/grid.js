// A grid of pictures that one walks with the arrow keys: one stop for Tab, as wide as the window makes it.

import { breakable, distanceOf, element, labelOf } from "./common.js";
import { settled, show } from "./pictures.js";
import { paint, weightsOf } from "./weights.js";

const SIDE = 384; // pixels of a thumbnail, enough for dense screens

export class Grid {
  /** `choose(entry, place)`: what a click on a picture does; `more(entry)`, if given: what the button below it does. */
  constructor(list, { choose, more, describe }) {
    Object.assign(this, { list, choose, more, describe, entries: [], weights: false });
    list.addEventListener("keydown", (event) => this.walk(event));
    list.addEventListener("focusin", (event) => this.stopAt(event.target.closest("li")));
    this.watcher = new IntersectionObserver(
      (seen) => seen.forEach(({ target, isIntersecting }) => isIntersecting && this.explain(target)),
      { rootMargin: "100px" },
    );
  }

  clear() {
    this.watcher.disconnect();
    this.list.replaceChildren();
    this.entries = [];
  }

  /** Grey cards while there is nothing to show yet. */
  skeleton(count) {
    this.clear();
    for (let place = 0; place < count; place += 1) {
      const picture = element("div", { className: "picture" });
      this.list.append(element("li", { className: "card waiting", ariaHidden: "true" }, picture));
    }
  }

  add(entries) {
    for (const entry of entries) {
      const place = this.entries.push(entry) - 1;
      const card = this.card(entry, place);
      this.list.append(card);
      if (this.weights) this.watcher.observe(card);
    }
    if (!this.list.querySelector('.picture[tabindex="0"]')) this.stopAt(this.list.firstElementChild);
  }

  card(entry, place) {
    const image = element("img", { alt: "" });
    const canvas = element("canvas", { className: "veil", hidden: true });
    const picture = element("button", { type: "button", className: "picture", tabIndex: -1 }, image, canvas);
    picture.setAttribute("aria-label", this.describe(entry, place));
    picture.addEventListener("click", () => this.choose(entry, place));
    show(image, entry.id, SIDE);
    const label = element("p", { className: "label", title: labelOf(entry) }, ...breakable(labelOf(entry)));
    const foot = element("div", { className: "foot" });
    const card = element("li", { className: "card" }, picture, label, foot);
    if (entry.distance !== undefined) {
      foot.append(element("span", { className: "distance", textContent: distanceOf(entry), title: "distance" }));
    }
    if (this.more) {
      const more = element("button", { type: "button", className: "more", tabIndex: -1 }, "More like this");
      more.setAttribute("aria-label", `More like this: ${labelOf(entry)}, result ${place + 1}`);
      more.addEventListener("click", () => this.more(entry));
      foot.append(more);
    }
    return card;
  }

  /** Tab comes to this card, and to its buttons, and then leaves the grid. */
  stopAt(card) {
    if (!card) return;
    for (const button of this.list.querySelectorAll('button[tabindex="0"]')) button.tabIndex = -1;
    for (const button of card.querySelectorAll("button")) button.tabIndex = 0;
  }

  walk(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const cards = [...this.list.children];
    const here = cards.indexOf(event.target.closest("li"));
    const columns = cards.filter((card) => card.offsetTop === cards[0].offsetTop).length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const next = { Home: 0, End: cards.length - 1 }[event.key] ?? here + (steps[event.key] ?? NaN);
    if (here < 0 || Number.isNaN(next)) return;
    event.preventDefault();
    cards[next]?.querySelector(".picture").focus();
  }

  focus(place) {
    this.list.children[place]?.querySelector(".picture").focus({ preventScroll: place === 0 });
  }

  showWeights(on) {
    this.weights = on;
    this.watcher.disconnect();
    for (const card of this.list.querySelectorAll(".card:not(.waiting)")) {
      if (on) this.watcher.observe(card);
      else card.querySelector(".veil").hidden = true;
    }
  }

  async explain(card) {
    this.watcher.unobserve(card);
    const [image, canvas] = [card.querySelector("img"), card.querySelector(".veil")];
    const entry = this.entries[[...this.list.children].indexOf(card)];
    try {
      const [explained] = await Promise.all([weightsOf(entry.id), settled(image)]);
      paint(canvas, explained, image);
      canvas.hidden = !this.weights;
    } catch {
      canvas.hidden = true; // the picture is worth showing without
    }
  }
}
