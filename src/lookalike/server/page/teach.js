// The tab "Teach": what to label next, contradictions, all marks, and labels.

import * as api from "./api.js";
import { saveBlob } from "./basket.js";
import { $, element } from "./dom.js";
import { labelOf, number, percentOf, plural } from "./format.js";
import { isTyping, verdictOfKey } from "./marks.js";
import { showPicture } from "./pictures.js";

const SIDE = 384; // pixels of pictures in the queue
const SMALL = 96;
const VERDICTS = { same: "is the same as", different: "is not", skip: "was skipped with" };

/** `marks`: the Marks of the page; `labels`: its LabelsView. */
export class TeachView {
  constructor(marks, labels) {
    Object.assign(this, { marks, labels });
    this.questions = [];
    this.position = 0;
    $("queue-start").addEventListener("click", () => this.loadQueue());
    $("marks-csv").addEventListener("click", () => this.run(async () => saveBlob(await api.file("marks.csv"), "marks.csv")));
    $("labels-csv").addEventListener("click", () => this.run(async () => saveBlob(await api.file("labels.csv"), "labels.csv")));
    for (const button of document.querySelectorAll("[data-answer]")) {
      button.addEventListener("click", () => this.answer(button.dataset.answer));
    }
    document.addEventListener("keydown", (event) => {
      const verdict = verdictOfKey(event);
      if (!verdict || !this.isAsking() || isTyping(event)) return;
      event.preventDefault();
      this.answer(verdict);
    });
    // A button with the focus would also be pressed by the space key.
    document.addEventListener("keyup", (event) => {
      if (event.key === " " && this.isAsking() && !isTyping(event)) event.preventDefault();
    });
  }

  isAsking() {
    return !$("teach").hidden && !$("question").hidden;
  }

  async run(action) {
    try {
      await action();
    } catch (error) {
      $("teach-status").textContent = error.message;
    }
  }

  /** Loads marks, contradictions and edits. */
  load() {
    return this.run(async () => {
      const answer = await api.marks({ limit: 50 });
      $("marks-count").textContent = plural(answer.count, "mark");
      let text = `${plural(answer.count, "mark")}; ${plural(answer.pairs, "pair")} to learn from`;
      if (answer.contradictory) text += `; ${number(answer.contradictory)} left out because they contradict each other`;
      if (answer.expired) text += `; ${number(answer.expired)} on pictures that are gone`;
      $("teach-status").textContent = `${text}.`;
      $("contradictions-section").hidden = !answer.contradictions.length;
      $("contradictions").replaceChildren(...answer.contradictions.map((found) => this.contradiction(found)));
      $("marks-list").replaceChildren(...answer.marks.map((mark) => this.entry(mark)));
      await this.labels.load();
    });
  }

  contradiction({ different, chain, marks }) {
    const names = `${different.query.name} and ${different.result.name}`;
    let text = `${names} are marked as different, but these marks connect them:`;
    const others = marks - chain.length - 1;
    if (others) text = `${names} are marked as different, but these marks and ${number(others)} more connect them:`;
    const list = element("ul", {}, ...[different, ...chain].map((mark) => this.entry(mark)));
    return element("li", {}, element("p", {}, text), list);
  }

  /** One mark, with its pictures and a button to undo it. */
  entry(mark) {
    const text = `${mark.query.name} ${VERDICTS[mark.verdict]} ${mark.result.name}`;
    const who = mark.by ? ` by ${mark.by},` : "";
    const detail = `${mark.state},${who} ${new Date(mark.time).toLocaleString()}`;
    const words = element("span", {}, text, element("small", { className: "faint" }, ` ${detail}`));
    const row = element("li", { className: "mark-row" }, this.thumbnail(mark.query), this.thumbnail(mark.result), words);
    row.dataset.mark = mark.mark;
    if (mark.state !== "undone") {
      const button = element("button", { type: "button" }, "Undo");
      button.setAttribute("aria-label", `Undo: ${text}`);
      button.addEventListener("click", () => this.marks.undo(mark.mark));
      row.append(button);
    }
    return row;
  }

  thumbnail({ id }) {
    const image = element("img", { alt: "", width: 40, height: 40 });
    if (id) showPicture(image, id, SMALL);
    return image;
  }

  // ---- what to label next

  loadQueue() {
    return this.run(async () => {
      $("queue-start").disabled = true;
      $("queue-status").textContent = "Choosing pictures …";
      try {
        const { questions, note } = await api.nextMarks();
        this.questions = questions;
        this.position = 0;
        $("queue-note").textContent = `The pictures were ${note}.`;
        this.ask();
      } catch (error) {
        $("queue-status").textContent = error.message;
      }
      $("queue-start").disabled = false;
    });
  }

  ask() {
    const question = this.questions[this.position];
    $("question").hidden = !question;
    $("queue-start").textContent = "Next 20 pictures";
    if (!question) {
      $("queue-status").textContent = this.questions.length ? "All answered." : "There is nothing to ask.";
      this.load();
      return;
    }
    const { item, other, probability } = question;
    let text = `${this.position + 1} of ${this.questions.length}: do both show the same thing?`;
    if (probability !== null) text += ` The model says ${percentOf(question)} %.`;
    $("queue-status").textContent = text;
    for (const [side, shown] of [["one", item], ["other", other]]) {
      const image = $(`question-${side}`);
      image.removeAttribute("src");
      image.alt = `${labelOf(shown)}, ${shown.name}`;
      showPicture(image, shown.id, SIDE, { now: true });
      $(`question-${side}-label`).textContent = labelOf(shown);
    }
    $("question").focus();
  }

  async answer(verdict) {
    const question = this.questions[this.position];
    if (!question || this.answering) return;
    this.answering = true;
    const stored = await this.marks.markPair(question.item, question.other, verdict);
    this.answering = false;
    if (!stored) {
      $("queue-status").textContent = $("marks-status").textContent;
      return;
    }
    this.position += 1;
    this.ask();
  }
}
