// A grid of pictures with arrow-key navigation; Tab stops at one card only.

import { breakable, element } from "./dom.js";
import { distanceOf, labelOf } from "./format.js";
import { paintWeights, weightsOf } from "./heatmap.js";
import { loaded, showPicture } from "./pictures.js";

const THUMBNAIL_SIDE = 384; // pixels; enough for dense screens

/**
 * A grid in a <ul>.
 *
 * onChoose(entry, index): a picture was clicked.  onMore(entry): its button "More like this" was clicked; without it
 * there is no button.  describe(entry, index): the accessible name of a picture.
 */
export class Grid {
  constructor(list, { onChoose, onMore, describe }) {
    Object.assign(this, { list, onChoose, onMore, describe });
    this.entries = [];
    this.showsWeights = false;
    list.addEventListener("keydown", (event) => this.onKey(event));
    list.addEventListener("focusin", (event) => this.setTabStop(event.target.closest("li")));
    this.observer = new IntersectionObserver(
      (seen) => {
        for (const { target, isIntersecting } of seen) if (isIntersecting) this.explain(target);
      },
      { rootMargin: "100px" },
    );
  }

  /** Removes all cards. */
  clear() {
    this.observer.disconnect();
    this.list.replaceChildren();
    this.entries = [];
  }

  /** Shows grey cards while data are loading. */
  showSkeleton(count) {
    this.clear();
    for (let i = 0; i < count; i += 1) {
      const picture = element("div", { className: "picture" });
      this.list.append(element("li", { className: "card waiting", ariaHidden: "true" }, picture));
    }
  }

  /** Appends cards for items or hits. */
  add(entries) {
    for (const entry of entries) {
      const index = this.entries.push(entry) - 1;
      const card = this.createCard(entry, index);
      this.list.append(card);
      if (this.showsWeights) this.observer.observe(card);
    }
    if (!this.list.querySelector('.picture[tabindex="0"]')) this.setTabStop(this.list.firstElementChild);
  }

  createCard(entry, index) {
    const image = element("img", { alt: "" });
    const overlay = element("canvas", { className: "heatmap", hidden: true });
    const picture = element("button", { type: "button", className: "picture", tabIndex: -1 }, image, overlay);
    picture.setAttribute("aria-label", this.describe(entry, index));
    picture.addEventListener("click", () => this.onChoose(entry, index));
    showPicture(image, entry.id, THUMBNAIL_SIDE);
    const label = element("p", { className: "label", title: labelOf(entry) }, ...breakable(labelOf(entry)));
    const foot = element("div", { className: "foot" });
    if (entry.distance !== undefined) {
      foot.append(element("span", { className: "distance", textContent: distanceOf(entry), title: "distance" }));
    }
    if (this.onMore) foot.append(this.createMoreButton(entry, index));
    return element("li", { className: "card" }, picture, label, foot);
  }

  createMoreButton(entry, index) {
    const button = element("button", { type: "button", className: "more", tabIndex: -1 }, "More like this");
    button.setAttribute("aria-label", `More like this: ${labelOf(entry)}, result ${index + 1}`);
    button.addEventListener("click", () => this.onMore(entry));
    return button;
  }

  /** Makes one card the only one that Tab reaches. */
  setTabStop(card) {
    if (!card) return;
    for (const button of this.list.querySelectorAll('button[tabindex="0"]')) button.tabIndex = -1;
    for (const button of card.querySelectorAll("button")) button.tabIndex = 0;
  }

  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const cards = [...this.list.children];
    const current = cards.indexOf(event.target.closest("li"));
    if (current < 0) return;
    const columns = cards.filter((card) => card.offsetTop === cards[0].offsetTop).length;
    const targets = {
      ArrowLeft: current - 1,
      ArrowRight: current + 1,
      ArrowUp: current - columns,
      ArrowDown: current + columns,
      Home: 0,
      End: cards.length - 1,
    };
    const target = targets[event.key];
    if (target === undefined) return;
    event.preventDefault();
    cards[target]?.querySelector(".picture").focus();
  }

  /** Moves the focus to a card. */
  focus(index) {
    this.list.children[index]?.querySelector(".picture").focus({ preventScroll: index === 0 });
  }

  /** Switches heat maps on or off; they are loaded as cards come into view. */
  showWeights(visible) {
    this.showsWeights = visible;
    this.observer.disconnect();
    for (const card of this.list.querySelectorAll(".card:not(.waiting)")) {
      if (visible) this.observer.observe(card);
      else card.querySelector(".heatmap").hidden = true;
    }
  }

  async explain(card) {
    this.observer.unobserve(card);
    const image = card.querySelector("img");
    const overlay = card.querySelector(".heatmap");
    const entry = this.entries[[...this.list.children].indexOf(card)];
    try {
      const [explanation] = await Promise.all([weightsOf(entry.id), loaded(image)]);
      paintWeights(overlay, explanation, image);
      overlay.hidden = !this.showsWeights;
    } catch {
      overlay.hidden = true; // the picture is useful without
    }
  }
}
