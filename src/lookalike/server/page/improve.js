// The dialog that trains the model on marks and labels, shows progress and figures, and returns to the model before.

import * as api from "./api.js";
import { $, element } from "./dom.js";

const POLL_SECONDS = 0.7;
const FINISHED = ["installed", "rolled back"]; // states after which the server has another model
const RELOAD_TRIES = 60; // the server takes over the new model some moments later

const percent = (value) => `${(100 * value).toFixed(1)} %`;

/** Figures of a report as [name, before, after]. */
function figuresOf({ before, after, held_out_marks: marks, held_out_classes: classes }) {
  const rows = [[`Pairs in the right order (AUROC), ${marks} marks`, before.auroc, after.auroc]];
  if (after.map_at_r !== null) rows.push([`MAP@R, ${classes} labels`, before.map_at_r, after.map_at_r]);
  return rows;
}

export class ImproveDialog {
  /** `onNewModel()`: the server answers with another model now. */
  constructor(onNewModel) {
    this.onNewModel = onNewModel;
    this.watching = false;
    $("improve-start").addEventListener("click", () => this.run(api.improve));
    $("improve-rollback").addEventListener("click", () => this.run(api.rollBack));
    $("improve-stop").addEventListener("click", () => this.stop());
  }

  async open() {
    $("improve").showModal();
    try {
      const answer = await api.improvement();
      this.show(answer);
      if (answer.state === "running") this.watch((await api.model()).fingerprint);
    } catch (error) {
      this.say(error.message);
    }
  }

  /** Starts the process and follows it to its end. */
  async run(start) {
    this.say("Starting …");
    $("improve-figures").hidden = true;
    try {
      const { fingerprint } = await api.model();
      await start();
      await this.watch(fingerprint);
    } catch (error) {
      this.say(error.message);
    }
  }

  async stop() {
    try {
      await api.stopImproving();
      this.say("Stopping …");
    } catch (error) {
      this.say(error.message);
    }
  }

  async watch(fingerprint) {
    if (this.watching) return;
    this.watching = true;
    try {
      let answer = await api.retryWhileBusy(api.improvement);
      while (answer.state === "running") {
        this.show(answer);
        await new Promise((resolve) => setTimeout(resolve, 1000 * POLL_SECONDS));
        answer = await api.retryWhileBusy(api.improvement);
      }
      if (FINISHED.includes(answer.state)) await this.waitForModel(fingerprint);
      this.show(answer);
    } finally {
      this.watching = false;
    }
  }

  async waitForModel(fingerprint) {
    for (let attempt = 0; attempt < RELOAD_TRIES; attempt += 1) {
      const card = await api.retryWhileBusy(api.model);
      if (card.fingerprint !== fingerprint) {
        this.onNewModel(card);
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }

  show({ state, stage, done, total, message, report, can_roll_back: canRollBack }) {
    const running = state === "running";
    const counted = total ? `: ${Math.min(done, total)} of ${total}` : "";
    this.say(running ? `${stage}${counted} …` : message);
    const bar = $("improve-progress");
    bar.hidden = !running;
    if (total) Object.assign(bar, { max: total, value: done });
    else bar.removeAttribute("value");
    $("improve-start").hidden = running;
    $("improve-stop").hidden = !running;
    $("improve-rollback").hidden = running || !canRollBack;
    const hasFigures = !running && Boolean(report.before);
    $("improve-figures").hidden = !hasFigures;
    if (hasFigures) this.showFigures(report);
  }

  showFigures(report) {
    const rows = figuresOf(report).map(([name, before, after]) =>
      element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, percent(before)), element("td", {}, percent(after))),
    );
    $("improve-figures").tBodies[0].replaceChildren(...rows);
  }

  say(text) {
    $("improve-status").textContent = text;
  }
}
