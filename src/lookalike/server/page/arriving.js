// Pictures that people bring: from a file chooser, dropped anywhere on the page, or pasted.

import { $ } from "./common.js";

/** `arrived(file)` for each. */
export function receive(arrived) {
  $("choose").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    const [file] = $("file").files;
    $("file").value = ""; // the same file may be chosen again
    if (file) arrived(file);
  });

  addEventListener("paste", (event) => {
    const [file] = event.clipboardData?.files ?? [];
    if (!file) return;
    event.preventDefault();
    arrived(file);
  });

  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  const dragging = (on) => document.body.classList.toggle("dragging", on);
  addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    dragging(true);
  });
  addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) dragging(false); // it has left the window
  });
  addEventListener("drop", (event) => {
    dragging(false);
    if (!carriesFiles(event)) return;
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (file) arrived(file);
  });
}
