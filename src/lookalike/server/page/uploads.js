// Files from the user: chosen, dropped anywhere on the page, or pasted.

import { $ } from "./dom.js";

/** Calls `onFile(file)` for each file that the user brings. */
export function listenForFiles(onFile) {
  $("choose").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    const [file] = $("file").files;
    $("file").value = ""; // so that the same file can be chosen again
    if (file) onFile(file);
  });

  addEventListener("paste", (event) => {
    const [file] = event.clipboardData?.files ?? [];
    if (!file) return;
    event.preventDefault();
    onFile(file);
  });

  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  const showDropTarget = (visible) => document.body.classList.toggle("dragging", visible);
  addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    showDropTarget(true);
  });
  addEventListener("dragleave", (event) => {
    const leftWindow = event.relatedTarget === null;
    if (leftWindow) showDropTarget(false);
  });
  addEventListener("drop", (event) => {
    showDropTarget(false);
    if (!carriesFiles(event)) return;
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (file) onFile(file);
  });
}
