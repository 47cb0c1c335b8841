// Marks: what the user says about results. They are sent one after the other; this page remembers its own for undo.

import * as api from "./api.js";
import { $ } from "./dom.js";
import { plural } from "./format.js";
import { state } from "./state.js";

const STORAGE_NAME = "lookalike-marks";
const REMEMBERED = 200; // marks that this tab can undo one after the other
const KEYS = { y: "same", n: "different", " ": "skip" };
const SAID = { same: "the same thing", different: "something else", skip: "skipped" };

/** The verdict that a key stands for, or undefined. */
export const verdictOfKey = ({ key, altKey, ctrlKey, metaKey }) =>
  altKey || ctrlKey || metaKey ? undefined : KEYS[key.toLowerCase()];

/** Whether a key belongs to a field or a dialog instead of the page. */
export const isTyping = ({ target }) => Boolean(target.closest?.("input, select, textarea, dialog"));

/** Marks results; `onChange()` after marks have changed on the server, other than by a shown result. */
export class Marks {
  constructor(onChange) {
    this.onChange = onChange;
    this.last = Promise.resolve(); // marks are sent in order
    this.contents = new WeakMap(); // uploaded picture -> hash of its content, so that it is sent once
    this.own = [];
    try {
      this.own = JSON.parse(sessionStorage.getItem(STORAGE_NAME) ?? "[]");
    } catch {
      // Without storage, undo works until the page is closed.
    }
    $("marks-undo").addEventListener("click", () => this.undoLast());
    document.addEventListener("keydown", (event) => {
      const plain = !event.altKey && !event.ctrlKey && !event.metaKey;
      if (event.key.toLowerCase() === "u" && plain && state.card?.may_write && !isTyping(event)) this.undoLast();
    });
  }

  /** Marks a result of the current query; resolves to whether it was stored. */
  markResult(entry, verdict) {
    const { query, crop } = state;
    if (!query) return Promise.resolve(false);
    if (crop) {
      this.show("A mark is about whole pictures: search with the whole picture first.");
      return Promise.resolve(false);
    }
    const before = { verdict: entry.verdict, mark: entry.mark };
    entry.verdict = verdict;
    return this.run(async () => {
      try {
        const content = query.picture && this.contents.get(query.picture);
        const answer = await api.mark(content ? { content } : query, entry.id, verdict);
        if (query.picture) this.contents.set(query.picture, answer.query);
        entry.mark = answer.mark;
        this.remember(answer.mark);
        this.show(`Marked as ${SAID[verdict]}.`, answer.count);
      } catch (error) {
        if (entry.verdict === verdict) Object.assign(entry, before);
        throw error;
      }
    });
  }

  /** Marks two items of the collection. */
  markPair(item, other, verdict) {
    return this.run(async () => {
      const answer = await api.mark({ id: item.id }, other.id, verdict);
      this.remember(answer.mark);
      this.show(`Marked as ${SAID[verdict]}.`, answer.count);
    });
  }

  /** Marks each two of several items; resolves to what the basket says then. */
  async markGroup(items, verdict) {
    let text = "";
    await this.run(async () => {
      const answer = await api.markGroup(items, verdict);
      this.remember(answer.mark);
      text = `${plural(answer.marks, "pair")} marked as ${SAID[verdict]}`;
      this.show(`${text}.`, answer.count);
    });
    await this.onChange();
    return text || $("marks-status").textContent;
  }

  /** Undoes the last mark of this tab. */
  undoLast() {
    return this.run(async () => {
      const mark = this.own.at(-1);
      if (mark === undefined) {
        this.show("This tab has nothing to undo. Teach lists all marks.");
        return;
      }
      await this.undoNow(mark);
    }).then(() => this.onChange());
  }

  /** Undoes any mark. */
  undo(mark) {
    return this.run(() => this.undoNow(mark)).then(() => this.onChange());
  }

  async undoNow(mark) {
    const answer = await api.undoMark(mark);
    this.own = this.own.filter((other) => other !== mark);
    this.store();
    this.show(answer.undone ? `${plural(answer.undone, "mark")} undone.` : "It was undone before.", answer.count);
  }

  /** Runs changes one after the other; resolves to whether this one succeeded. */
  run(change) {
    const result = this.last.then(change).then(
      () => true,
      (error) => {
        this.show(`Not stored: ${error.message}`);
        return false;
      },
    );
    this.last = result;
    return result;
  }

  remember(mark) {
    this.own = [...this.own, mark].slice(-REMEMBERED);
    this.store();
  }

  store() {
    try {
      sessionStorage.setItem(STORAGE_NAME, JSON.stringify(this.own));
    } catch {
      // As above.
    }
  }

  /** Shows a message and, if it is known, the number of marks. */
  show(message, count = null) {
    if (count !== null) $("marks-count").textContent = plural(count, "mark");
    $("marks-status").textContent = message;
    $("marks-undo").disabled = !this.own.length;
  }

  /** Shows how many marks there are now, whoever set them. */
  async refresh() {
    const { count } = await api.marks({ limit: 1 });
    $("marks-count").textContent = plural(count, "mark");
  }

  /** Shows the controls to those who may write, and the number of marks. */
  async start() {
    $("marks-bar").hidden = !state.card.may_write;
    if (!state.card.may_write) return;
    this.show("");
    await this.refresh();
  }
}
