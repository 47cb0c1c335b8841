// A grid of pictures with arrow-key navigation; Tab stops at one card only.

import { breakable, element } from "./dom.js";
import { distanceOf, labelOf, percentOf, plural } from "./format.js";
import { paintWeights, weightsOf } from "./heatmap.js";
import { verdictOfKey } from "./marks.js";
import { loaded, showPicture } from "./pictures.js";

const VERDICTS = [
  ["same", "✓", "Right: the same thing", "y"],
  ["different", "✗", "Wrong: something else", "n"],
  ["skip", "?", "Skip", "space"],
];
const THUMBNAIL_SIDE = 384; // pixels; enough for dense screens

/**
 * A grid in a <ul>.
 *
 * onChoose(entry, index): a picture was clicked.  onMore(entry): its button "More like this" was clicked; without it
 * there is no button.  onExample(entry, liked): it is to be a further example, or one of what is not meant.
 * onVerdict(entry, verdict): the user says whether it is right; resolves after that is stored.  mayMark(): whether they may.
 * basket: a Basket; its items are marked, and every card has a box to select it.  describe(entry, index): the accessible name of a picture.
 */
export class Grid {
  constructor(list, { onChoose, onMore, onExample, onVerdict, mayMark, basket, describe }) {
    Object.assign(this, { list, onChoose, onMore, onExample, onVerdict, mayMark, basket, describe });
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
    if (typeof entry.probability === "number") {
      foot.prepend(element("b", { className: "probability", textContent: `${percentOf(entry)} % the same` }));
    }
    if (entry.duplicates?.length) {
      const text = `+ ${plural(entry.duplicates.length, "near-duplicate")}`;
      picture.append(element("span", { className: "duplicates", textContent: text }));
    }
    const actions = element("div", { className: "actions" });
    if (this.onMore) actions.append(this.createMoreButton(entry, index));
    if (this.onExample) actions.append(...this.createExampleButtons(entry, index));
    if (actions.children.length) foot.append(actions);
    const card = element("li", { className: "card" }, picture, label, foot);
    if (this.basket) card.append(this.createSelectBox(entry, index));
    if (this.onVerdict && this.mayMark()) {
      card.append(this.createVerdictButtons(entry, index));
      showVerdict(card, entry.verdict);
    }
    return card;
  }

  createMoreButton(entry, index) {
    const button = element("button", { type: "button", className: "more", tabIndex: -1 }, "More like this");
    button.setAttribute("aria-label", `More like this: ${labelOf(entry)}, result ${index + 1}`);
    button.addEventListener("click", () => this.onMore(entry));
    return button;
  }

  createSelectBox(entry, index) {
    const box = element("input", { type: "checkbox", className: "select", checked: this.basket.has(entry) });
    box.setAttribute("aria-label", `Select result ${index + 1}`);
    box.addEventListener("click", (event) => {
      // With Shift, all between this and the last one get the same state.
      const from = event.shiftKey && this.lastSelected < this.entries.length ? this.lastSelected : index;
      const range = this.entries.slice(Math.min(from, index), Math.max(from, index) + 1);
      this.basket.set(range, box.checked);
      this.lastSelected = index;
    });
    return box;
  }

  /** Brings the boxes in line with the basket. */
  showSelected() {
    [...this.list.children].forEach((card, index) => {
      const box = card.querySelector(".select");
      if (box) box.checked = this.basket.has(this.entries[index]);
    });
  }

  createExampleButtons(entry, index) {
    return [true, false].map((liked) => {
      const button = element("button", { type: "button", className: "example", tabIndex: -1 }, liked ? "+" : "−");
      const name = `${liked ? "More" : "Less"} like result ${index + 1} as well`;
      button.setAttribute("aria-label", name);
      button.title = name;
      button.addEventListener("click", () => this.onExample(entry, liked));
      return button;
    });
  }

  /** Brings the labels on the cards in line with the entries. */
  showLabels() {
    [...this.list.children].forEach((card, index) => {
      const entry = this.entries[index];
      const shown = card.querySelector(".label");
      if (entry && shown?.title !== labelOf(entry)) {
        shown.title = labelOf(entry);
        shown.replaceChildren(...breakable(labelOf(entry)));
        card.querySelector(".picture").setAttribute("aria-label", this.describe(entry, index));
      }
    });
  }

  createVerdictButtons(entry, index) {
    const buttons = VERDICTS.map(([verdict, sign, name, key]) => {
      const button = element("button", { type: "button", tabIndex: -1, title: `${name} (${key})` }, sign);
      button.dataset.verdict = verdict;
      button.setAttribute("aria-label", `${name}, result ${index + 1}`);
      button.setAttribute("aria-keyshortcuts", key === "space" ? "Space" : key);
      button.addEventListener("click", () => this.judge(entry, verdict));
      return button;
    });
    const group = element("div", { className: "verdicts", role: "group" }, ...buttons);
    group.setAttribute("aria-label", `Is result ${index + 1} right?`);
    return group;
  }

  /** Shows a verdict at once, and what was stored afterwards. */
  async judge(entry, verdict) {
    const stored = this.onVerdict(entry, verdict);
    this.showVerdicts();
    await stored;
    this.showVerdicts();
  }

  /** Brings the cards in line with the verdicts of the entries. */
  showVerdicts() {
    [...this.list.children].forEach((card, index) => showVerdict(card, this.entries[index]?.verdict));
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
    const verdict = verdictOfKey(event);
    const onPicture = event.target.classList.contains("picture");
    if (verdict && this.onVerdict && this.mayMark() && (onPicture || (verdict !== "skip" && event.target.type !== "checkbox"))) {
      event.preventDefault(); // also keeps space from opening the picture
      this.judge(this.entries[current], verdict);
      return;
    }
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

/** Shows a verdict on a card. */
function showVerdict(card, verdict) {
  card.classList.toggle("is-same", verdict === "same");
  card.classList.toggle("is-different", verdict === "different");
  card.classList.toggle("is-skipped", verdict === "skip");
  for (const button of card.querySelectorAll("[data-verdict]")) {
    button.setAttribute("aria-pressed", button.dataset.verdict === verdict);
  }
}
