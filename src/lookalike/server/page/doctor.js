// The tab "Doctor": examine the pictures, decide about each finding with one key, see the effect, and apply.

import * as api from "./api.js";
import { saveBlob } from "./basket.js";
import { $, element } from "./dom.js";
import { labelOf, number, plural } from "./format.js";
import { isTyping } from "./marks.js";
import { showPicture } from "./pictures.js";

const POLL_SECONDS = 0.7;
const SIDE = 384; // pixels of a picture
const PAGE = 20; // findings that are loaded at once
const MOST_REFRESHED = 100;
const MOST_BESIDE = 4; // pictures of a finding
const KEYS = { r: "relabel", d: "drop", k: "keep" };
const NAMES = { relabel: "Relabel (r)", drop: "Drop (d)", keep: "Keep (k)" };
const KINDS = {
  broken: "Files that are missing or changed",
  "exact duplicate": "The same file twice",
  "near duplicate": "The same photograph twice",
  "doubtful label": "Doubtful labels",
  outlier: "Unlike everything else",
  tiny: "Tiny pictures",
  "few pictures": "Labels with few pictures",
  "confused classes": "Labels that are taken for each other",
};

const percent = (value) => `${(100 * value).toFixed(2)} %`;

/** `onChange()`: labels or pictures have changed on the server. */
export class DoctorView {
  constructor(onChange) {
    this.onChange = onChange;
    this.kind = null;
    this.findings = [];
    this.watching = false;
    $("doctor-start").addEventListener("click", () => this.run(() => this.start()));
    $("doctor-stop").addEventListener("click", () => this.run(() => api.stopExamining()));
    $("doctor-kind").addEventListener("change", () => this.run(() => this.loadKind($("doctor-kind").value)));
    $("doctor-more").addEventListener("click", () => this.run(() => this.loadMore()));
    $("doctor-csv").addEventListener("click", () =>
      this.run(async () => saveBlob(await api.file("doctor/corrected.csv"), "corrected.csv")),
    );
    $("doctor-effect").addEventListener("click", () => this.run(() => this.measure()));
    $("doctor-apply").addEventListener("click", () => this.run(() => this.apply()));
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  async run(action) {
    try {
      await action();
    } catch (error) {
      $("doctor-status").textContent = error.message;
    }
  }

  /** Shows progress, or the findings that are open now. */
  load() {
    return this.run(async () => {
      const answer = await api.examination();
      if (answer.state === "running") this.watch();
      else await this.show(answer);
    });
  }

  /** Shows what others have decided meanwhile. */
  refresh() {
    return this.run(async () => {
      if (this.watching || !this.kind) return;
      this.showCounts(await api.examination());
      const { findings } = await api.findings({ kind: this.kind, offset: 0, limit: MOST_REFRESHED });
      const current = new Map(findings.map((finding) => [finding.finding, finding]));
      for (const row of $("doctor-findings").children) {
        const finding = this.findings.find(({ finding: key }) => key === row.dataset.finding);
        Object.assign(finding, current.get(finding.finding));
        showChoice(row, finding);
      }
    });
  }

  async start() {
    $("doctor-status").textContent = "Starting …";
    await api.examine();
    await this.watch();
  }

  async watch() {
    if (this.watching) return;
    this.watching = true;
    $("doctor-start").hidden = true;
    $("doctor-stop").hidden = false;
    try {
      let answer = await api.retryWhileBusy(api.examination);
      while (answer.state === "running") {
        const counted = answer.total ? `: ${number(Math.min(answer.done, answer.total))} of ${number(answer.total)}` : "";
        $("doctor-status").textContent = `${answer.stage}${counted} …`;
        const bar = $("doctor-progress");
        bar.hidden = false;
        if (answer.total) Object.assign(bar, { max: answer.total, value: answer.done });
        else bar.removeAttribute("value");
        await new Promise((resolve) => setTimeout(resolve, 1000 * POLL_SECONDS));
        answer = await api.retryWhileBusy(api.examination);
      }
      await this.show(answer);
    } finally {
      this.watching = false;
      $("doctor-progress").hidden = true;
      $("doctor-start").hidden = false;
      $("doctor-stop").hidden = true;
    }
  }

  /** Shows an examination and the findings of one kind. */
  async show(answer) {
    this.showCounts(answer);
    const kinds = answer.kinds.map(({ kind }) => kind);
    $("doctor-findings-section").hidden = !kinds.length;
    if (kinds.length) await this.loadKind(kinds.includes(this.kind) ? this.kind : kinds[0]);
  }

  showCounts({ state, message, examined, pictures, kinds, relabelled, dropped }) {
    let text = "The pictures were not examined yet.";
    if (state === "done") {
      const open = kinds.reduce((sum, kind) => sum + kind.open, 0);
      text = `${plural(pictures, "picture")} examined on ${new Date(examined).toLocaleString()}: `;
      text += open ? `${plural(open, "finding")} open.` : "nothing is open.";
    } else if (state !== "never") text = message;
    $("doctor-status").textContent = text;
    const options = kinds.map(({ kind, open, decided }) =>
      element("option", { value: kind, textContent: `${KINDS[kind] ?? kind} (${number(open)}, ${number(decided)} decided)` }),
    );
    $("doctor-kind").replaceChildren(...options);
    if (this.kind) $("doctor-kind").value = this.kind;
    $("doctor-pending").textContent = `As chosen: ${plural(relabelled, "picture")} relabelled, ${number(dropped)} dropped.`;
    $("doctor-apply").disabled = !relabelled && !dropped;
    $("doctor-apply").dataset.confirmed = "";
    this.pending = { relabelled, dropped };
  }

  async loadKind(kind) {
    this.kind = kind;
    $("doctor-kind").value = kind;
    this.findings = [];
    $("doctor-findings").replaceChildren();
    await this.loadMore();
  }

  async loadMore() {
    const { kind } = this;
    const { findings, total } = await api.findings({ kind, offset: this.findings.length, limit: PAGE });
    if (kind !== this.kind) return;
    for (const finding of findings) {
      this.findings.push(finding);
      $("doctor-findings").append(this.row(finding));
    }
    $("doctor-more").hidden = this.findings.length >= total;
  }

  row(finding) {
    const pictures = finding.items.slice(0, MOST_BESIDE).map((item) => this.figure(item));
    const about = finding.name ? [element("b", {}, finding.name), ": "] : [];
    const text = element("div", { className: "finding-text" }, element("p", {}, ...about, finding.reason));
    const row = element("li", { className: "finding", tabIndex: finding.name ? -1 : 0 }, ...pictures, text);
    row.dataset.finding = finding.finding;
    if (finding.name) return row;
    const field = element("input", { value: finding.new_label, maxLength: 1000, autocomplete: "off" });
    field.setAttribute("list", "known-labels");
    field.setAttribute("aria-label", `New label of ${finding.items[0]?.name}`);
    field.addEventListener("change", () => this.decide(row, "relabel"));
    const buttons = Object.entries(NAMES).map(([action, name]) => {
      const button = element("button", { type: "button" }, name);
      button.dataset.action = action;
      button.setAttribute("aria-keyshortcuts", action[0]);
      button.addEventListener("click", () => this.decide(row, action));
      return button;
    });
    text.append(element("div", { className: "row" }, ...buttons, field), element("small", { className: "faint" }));
    showChoice(row, finding);
    return row;
  }

  figure(item) {
    const image = element("img", { alt: `${labelOf(item)}, ${item.name}` });
    showPicture(image, item.id, SIDE);
    const name = element("small", { className: "faint" }, item.name);
    return element("figure", {}, image, element("figcaption", {}, item.label || "no label", element("br"), name));
  }

  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || $("doctor").hidden || isTyping(event)) return;
    const rows = [...$("doctor-findings").children];
    const row = event.target.closest?.(".finding") ?? null;
    const place = rows.indexOf(row);
    const action = KEYS[event.key.toLowerCase()];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (action && (row ?? rows[0])) {
      event.preventDefault();
      const decided = row ?? rows[0];
      this.decide(decided, action);
      this.focus(rows, rows.indexOf(decided) + 1);
    } else if (step && rows.length) {
      event.preventDefault();
      this.focus(rows, place + step);
    }
  }

  async focus(rows, place) {
    if (place === rows.length && !$("doctor-more").hidden) await this.run(() => this.loadMore());
    $("doctor-findings").children[Math.max(0, Math.min(place, $("doctor-findings").children.length - 1))]?.focus();
  }

  /** Stores a decision; those of one page are sent in order. */
  decide(row, action) {
    const finding = this.findings.find(({ finding: key }) => key === row.dataset.finding);
    if (!finding || finding.name) return;
    const label = action === "relabel" ? row.querySelector("input").value.trim() : "";
    showChoice(row, { ...finding, action, decided: true });
    this.last = (this.last ?? Promise.resolve()).then(() =>
      this.run(async () => {
        try {
          Object.assign(finding, await api.decide(finding, action, label));
        } finally {
          showChoice(row, finding);
        }
        this.showCounts(await api.examination());
        $("doctor-effect-text").textContent = "";
      }),
    );
  }

  async measure() {
    $("doctor-effect-text").textContent = "Measuring …";
    try {
      await this.last;
      const { before, after, queries } = await api.effect();
      const text = before === null ? "There are too few labels to measure." : `MAP@R ${percent(before)}, with these decisions ${percent(after)}, ${plural(queries, "query").replace("querys", "queries")}.`;
      $("doctor-effect-text").textContent = text;
    } catch (error) {
      $("doctor-effect-text").textContent = error.message;
    }
  }

  async apply() {
    await this.last;
    const { relabelled, dropped } = this.pending;
    if ($("doctor-apply").dataset.confirmed !== "yes") {
      $("doctor-apply").dataset.confirmed = "yes";
      $("doctor-pending").textContent = `Press again: ${plural(relabelled, "picture")} get another label, ${number(dropped)} leave the collection. Files stay, apart from uploads.`;
      return;
    }
    const answer = await api.applyDecisions();
    await this.onChange();
    await this.load();
    $("doctor-status").textContent = `${plural(answer.relabelled, "picture")} relabelled, ${number(answer.dropped)} dropped.`;
  }
}

/** Shows the choice about a finding. */
function showChoice(row, { action, decided, by, new_label: label }) {
  for (const button of row.querySelectorAll("[data-action]")) {
    button.setAttribute("aria-pressed", button.dataset.action === action);
  }
  const field = row.querySelector("input");
  if (field && label && document.activeElement !== field) field.value = label;
  const who = by ? ` by ${by}` : "";
  const note = row.querySelector(".finding-text small");
  if (note) note.textContent = decided ? `decided${who}` : "suggested";
}
