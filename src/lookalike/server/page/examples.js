// Further examples of what is meant, and of what is not. They change the query, see index/querying.py.

import { $, element } from "./dom.js";
import { labelOf } from "./format.js";
import { showPicture } from "./pictures.js";
import { state } from "./state.js";

/** Lists the examples below the query; `onChange()` after one was added or removed. */
export class Examples {
  constructor(onChange) {
    this.onChange = onChange;
  }

  /** Adds an item as an example, or moves it to the other kind. */
  add(item, liked) {
    this.drop(item);
    const kind = liked ? "like" : "unlike";
    state[kind] = [...state[kind], item];
    this.show();
    this.onChange();
  }

  remove(item) {
    this.drop(item);
    this.show();
    this.onChange();
  }

  /** Forgets all examples, without a search. */
  clear() {
    state.like = [];
    state.unlike = [];
    this.show();
  }

  drop({ id }) {
    for (const kind of ["like", "unlike"]) state[kind] = state[kind].filter((item) => item.id !== id);
  }

  /** Brings the list in line with the state. */
  show() {
    const entries = [...state.like.map((item) => [item, "like"]), ...state.unlike.map((item) => [item, "unlike"])];
    $("examples").hidden = !entries.length;
    $("examples").replaceChildren(...entries.map(([item, kind]) => this.createEntry(item, kind)));
  }

  createEntry(item, kind) {
    const image = element("img", { alt: "" });
    showPicture(image, item.id, 96, { now: true });
    const button = element("button", { type: "button", className: kind }, image, kind === "like" ? "+ ✕" : "− ✕");
    button.setAttribute("aria-label", `Remove the ${kind === "like" ? "positive" : "negative"} example ${labelOf(item)}`);
    button.addEventListener("click", () => this.remove(item));
    return element("li", {}, button);
  }
}
