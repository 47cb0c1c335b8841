// Filters over the metadata of the collection: a list of values, or a range of numbers, for each field.

import { $, element } from "./dom.js";
import { quoted, state } from "./state.js";

const NAME = /^\w+$/; // other keys cannot be part of a filter

/** Creates a control for every field; `onChange(conditions)` with a condition per field that is used. */
export class FilterFields {
  constructor(onChange) {
    this.onChange = onChange;
    this.controls = []; // { key, inputs, condition() }
  }

  /** Builds the controls for fields, as GET /fields lists them. */
  create(fields) {
    this.controls = fields.filter(({ key }) => NAME.test(key)).map((field) => this.createControl(field));
    $("filters").hidden = !this.controls.length;
  }

  createControl({ key, least, most, values }) {
    const inputs = least === null ? [this.createList(key, values)] : [this.createBound("≥", least), this.createBound("≤", most)];
    inputs.forEach((input, index) => {
      const bound = inputs.length > 1 ? [" at least", " at most"][index] : "";
      input.setAttribute("aria-label", `${key}${bound}`);
      input.addEventListener("change", () => this.change());
    });
    $("filter-fields").append(element("label", {}, key), element("div", { className: "range" }, ...inputs));
    const condition = () => {
      if (least === null) return inputs[0].value && `${key}=${quoted(inputs[0].value)}`;
      const bounds = inputs.map((input, index) => input.value && `${key}${[">=", "<="][index]}${Number(input.value)}`);
      return bounds.filter(Boolean).join(", ");
    };
    return { key, inputs, condition };
  }

  createList(key, values) {
    const options = values.map((value) => element("option", { value, textContent: value }));
    return element("select", {}, element("option", { value: "", textContent: "any" }), ...options);
  }

  createBound(sign, value) {
    return element("input", { type: "number", step: "any", placeholder: `${sign} ${value}` });
  }

  change() {
    const conditions = {};
    for (const { key, condition } of this.controls) if (condition()) conditions[key] = condition();
    this.values = this.controls.map(({ inputs }) => inputs.map(({ value }) => value));
    this.shown.set(JSON.stringify(conditions), this.values);
    this.showCount(conditions);
    this.onChange(conditions);
  }

  shown = new Map(); // conditions as JSON -> values of the inputs, for the back button

  /** Brings the controls in line with the state. */
  show() {
    const values = this.shown.get(JSON.stringify(state.filters)) ?? [];
    this.controls.forEach(({ inputs }, row) => {
      inputs.forEach((input, column) => (input.value = values[row]?.[column] ?? ""));
    });
    this.showCount(state.filters);
  }

  showCount(conditions) {
    const count = Object.keys(conditions).length;
    $("filter-count").textContent = count ? `(${count} in use)` : "";
  }
}
