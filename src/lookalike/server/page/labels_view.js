// Labels edited in place: of one picture in its dialog, of the basket, and renamed or merged for all pictures.

import * as api from "./api.js";
import { $, element } from "./dom.js";
import { labelOf, plural } from "./format.js";
import { state } from "./state.js";

/** `onChange()`: labels have changed on the server. */
export class LabelsView {
  constructor(onChange) {
    this.onChange = onChange;
    this.entry = null; // the item in the dialog
    $("rename-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.rename();
    });
    $("label-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.save(() => api.setLabel([this.entry], $("label-value").value));
    });
    $("metadata-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.save(() => api.setMetadata(this.entry.id, $("metadata-value").value));
    });
  }

  /** Lists labels to choose from, and the history. */
  async load() {
    this.showLabels();
    const { edits } = await api.edits({ limit: 50 });
    $("edits-list").replaceChildren(...edits.map((edit) => this.edit(edit)));
  }

  showLabels() {
    const named = state.labels.filter(({ label }) => label);
    const options = (entries) => entries.map(({ label }) => element("option", { value: label }));
    $("known-labels").replaceChildren(...options(named));
    const chosen = $("rename-from").value;
    $("rename-from").replaceChildren(
      ...named.map(({ label, count }) => element("option", { value: label, textContent: `${label} (${count})` })),
    );
    if (named.some(({ label }) => label === chosen)) $("rename-from").value = chosen;
  }

  edit(edit) {
    const change = edit.old_label === edit.new_label ? "metadata" : `${edit.old_label || "no label"} → ${edit.new_label || "no label"}`;
    const who = edit.by ? ` by ${edit.by},` : "";
    const detail = `${edit.action}, ${plural(edit.items, "picture")},${who} ${new Date(edit.time).toLocaleString()}`;
    const words = element("span", {}, change, element("small", { className: "faint" }, ` ${detail}`));
    const row = element("li", { className: "mark-row" }, words);
    row.dataset.edit = edit.edit;
    if (edit.undone) {
      words.append(element("small", {}, " undone"));
      return row;
    }
    const button = element("button", { type: "button" }, "Undo");
    button.setAttribute("aria-label", `Undo: ${change}`);
    button.addEventListener("click", () => this.run("rename-status", () => api.undoEdit(edit.edit)));
    row.append(button);
    return row;
  }

  rename() {
    const from = $("rename-from").value;
    const to = $("rename-to").value.trim();
    const exists = state.labels.some(({ label }) => label === to);
    const merge = exists && to !== from;
    if (merge && $("rename-apply").dataset.confirmed !== to) {
      $("rename-apply").dataset.confirmed = to;
      $("rename-status").textContent = `${to} exists. Press again to merge ${from} into it.`;
      return null;
    }
    $("rename-apply").dataset.confirmed = "";
    return this.run("rename-status", () => api.renameLabel(from, to, merge));
  }

  /** Labels several items; resolves to what the basket says then. */
  async labelItems(items, label) {
    const answer = await api.setLabel(items, label);
    await this.onChange();
    return `${plural(answer.changed, "picture")} labelled`;
  }

  /** Changes something and says how much. */
  async run(status, change) {
    $(status).textContent = "Saving …";
    try {
      const answer = await change();
      await this.onChange();
      let text = `${plural(answer.changed, "picture")} changed.`;
      if (answer.skipped) text += ` ${plural(answer.skipped, "picture")} changed since: left as they are.`;
      $(status).textContent = text;
      return true;
    } catch (error) {
      $(status).textContent = error.message;
      return false;
    }
  }

  // ---- the dialog

  async save(change) {
    const { entry } = this;
    if (!(await this.run("label-status", change)) || this.entry !== entry) return;
    Object.assign(entry, await api.item(entry.id));
    $("viewer-title").textContent = labelOf(entry);
  }

  /** Shows the label and metadata of an item in its dialog, and suggests labels. */
  async show(entry) {
    this.entry = entry;
    $("edit-item").hidden = !state.card.may_write;
    if (!state.card.may_write) return;
    $("label-value").value = entry.label ?? "";
    $("metadata-value").value = JSON.stringify(entry.metadata ?? {});
    $("label-status").textContent = "";
    $("label-suggestions").replaceChildren();
    $("suggestions-note").textContent = "";
    try {
      const { suggestions, note } = await api.labelSuggestions(entry.id);
      if (this.entry !== entry) return;
      $("label-suggestions").replaceChildren(...suggestions.map((suggestion) => this.suggestion(suggestion)));
      $("suggestions-note").textContent = suggestions.length ? note : "No neighbour has a label.";
    } catch (error) {
      if (this.entry === entry) $("suggestions-note").textContent = error.message;
    }
  }

  suggestion({ label, probability }) {
    const percent = probability === null ? "" : ` ${Math.min(99, Math.max(1, Math.round(100 * probability)))} %`;
    const button = element("button", { type: "button" }, `${label}${percent}`);
    button.addEventListener("click", () => {
      $("label-value").value = label;
      $("label-value").focus();
    });
    return element("li", {}, button);
  }
}
