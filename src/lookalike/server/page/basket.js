// The basket: selected pictures, kept across searches and reloads of the tab, and their export.

import { exportItems } from "./api.js";
import { $, element } from "./dom.js";
import { plural } from "./format.js";

const STORAGE_NAME = "lookalike-basket";
const SHOWN_TYPES = { jpg: "image/jpeg", jpeg: "image/jpeg", png: "image/png", webp: "image/webp", gif: "image/gif", bmp: "image/bmp", avif: "image/avif" };
const FILE_NAMES = { csv: "selection.csv", zip: "selection.zip", paths: "selection.txt" };

/** Saves bytes as a file. */
export function saveBlob(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** Saves chosen items as a file. */
export async function download(items, kind) {
  saveBlob(await exportItems(items, kind), FILE_NAMES[kind] ?? items[0].name);
}

/** The path of an item. */
export async function pathOf(item) {
  const blob = await exportItems([item], "paths");
  return (await blob.text()).trimEnd();
}

/** Opens the file of an item in a tab of its own; what a browser cannot show is downloaded. */
export async function openOriginal(item) {
  const tab = open("about:blank", "_blank"); // at once: later the browser would block it
  try {
    const blob = await exportItems([item], "original");
    const type = SHOWN_TYPES[item.name.split(".").at(-1).toLowerCase()];
    if (!tab || !type) {
      tab?.close();
      saveBlob(blob, item.name);
      return;
    }
    tab.opener = null;
    tab.location = URL.createObjectURL(new Blob([blob], { type })); // only ever a raster picture
  } catch (error) {
    tab?.close();
    throw error;
  }
}

/** Copies the paths of items, one per line; resolves to what a button says then. */
export async function copyPaths(items) {
  const blob = await exportItems(items, "paths");
  await navigator.clipboard.writeText((await blob.text()).trimEnd());
  return "Copied";
}

/**
 * Items by id; `onChange()` after they changed.
 * onMark(items, verdict) and onLabel(items, label) resolve to what the basket says then.
 */
export class Basket {
  constructor(onChange, { onMark, onLabel }) {
    this.onChange = onChange;
    this.items = new Map();
    try {
      for (const item of JSON.parse(sessionStorage.getItem(STORAGE_NAME) ?? "[]")) this.items.set(item.id, item);
    } catch {
      // Without storage the basket lasts as long as the page.
    }
    for (const button of document.querySelectorAll("[data-export]")) {
      button.addEventListener("click", () => this.run(() => download([...this.items.values()], button.dataset.export)));
    }
    for (const button of document.querySelectorAll("[data-group]")) {
      button.addEventListener("click", () => this.run(() => onMark([...this.items.values()], button.dataset.group)));
    }
    $("basket-label-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run(() => onLabel([...this.items.values()], $("basket-label").value));
    });
    $("basket-copy").addEventListener("click", () => this.run(() => copyPaths([...this.items.values()])));
    $("basket-clear").addEventListener("click", () => this.set([...this.items.values()], false));
  }

  has(item) {
    return this.items.has(item?.id);
  }

  /** Puts items into the basket, or takes them out. */
  set(items, selected) {
    for (const { id, label, name } of items) {
      if (selected) this.items.set(id, { id, label, name });
      else this.items.delete(id);
    }
    try {
      sessionStorage.setItem(STORAGE_NAME, JSON.stringify([...this.items.values()]));
    } catch {
      // As above.
    }
    this.show();
    this.onChange();
  }

  /** Shows the number of items and, behind it, a message. */
  show(message = "") {
    for (const button of document.querySelectorAll("[data-group]")) button.disabled = this.items.size < 2;
    $("basket").hidden = !this.items.size;
    $("basket-count").textContent = `${plural(this.items.size, "picture")} selected${message && `. ${message}`}`;
  }

  async run(action) {
    try {
      this.show(await action());
    } catch (error) {
      this.show(error.message);
    }
  }
}
