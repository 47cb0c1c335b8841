// The search page: connects query, controls, results, collection and map.

import * as api from "./api.js";
import { CollectionView } from "./collection.js";
import { askForKey, showCard, Viewer } from "./dialogs.js";
import { $, element } from "./dom.js";
import { distanceOf, labelOf, plural } from "./format.js";
import { Grid } from "./grid.js";
import { cancelQueued, paintScale } from "./heatmap.js";
import { MapView } from "./map_view.js";
import { QueryPanel } from "./query.js";
import { Results, showNotice } from "./results.js";
import { countLimit, state, toCount } from "./state.js";
import { listenForFiles } from "./uploads.js";

const AUTOMATIC_RETRIES = 3; // while the server is busy
const UNUSABLE_PICTURE = [404, 410, 413, 415, 422]; // statuses that a second attempt does not change
const NARROW = matchMedia("(max-width: 52rem)"); // as in style.css
const CHOOSE_ANOTHER = { action: "Choose another picture", onAction: () => $("file").click() };
const SHOW_COLLECTION = { action: "Look at the collection", onAction: () => openTab("collection") };

const viewer = new Viewer({ onMore: searchWithItem });
const hitGrid = new Grid($("hits"), {
  onChoose: (_, index) => viewer.open(hitGrid.entries, index, state.weights),
  onMore: searchWithItem,
  describe: (hit, index) => `Result ${index + 1}: ${labelOf(hit)}, distance ${distanceOf(hit)}`,
});
const results = new Results(hitGrid);
const queryPanel = new QueryPanel(search);
const collection = new CollectionView(searchWithItem);
const map = new MapView(searchWithItem);

// ---------------------------------------------------------------- search

let currentSearch = null; // AbortController
let retryTimer = 0;

/** Searches with the current state. `remember`: add to the history; `focus`: move the focus to the results. */
async function search({ attempt = 1, remember = true, focus = false } = {}) {
  if (!state.query) return;
  currentSearch?.abort();
  clearTimeout(retryTimer);
  const request = new AbortController();
  currentSearch = request;
  cancelQueued();
  openTab("results");
  if (remember) pushHistory();
  results.setWaiting(true);
  try {
    const { crop, k, label, query, rerank } = state;
    const where = api.whereLabel(label);
    const answer = await api.search(query, { crop, k, where, rerank, signal: request.signal });
    if (currentSearch !== request) return;
    results.setWaiting(false);
    results.show(answer, () => chooseLabel(null));
    if (focus && focusIsFree()) hitGrid.focus(0);
  } catch (error) {
    if (currentSearch !== request || error.name === "AbortError") return;
    results.setWaiting(false);
    showSearchError(error, { attempt, focus });
  }
  map.highlight();
}

function showSearchError(error, { attempt, focus }) {
  const unusable = UNUSABLE_PICTURE.includes(error.status);
  const retries = error.status === 503 && attempt <= AUTOMATIC_RETRIES;
  const retrySeconds = retries ? (error.retryAfter ?? 1) : null;
  const tryAgain = { action: "Try again", onAction: () => search({ remember: false }) };
  queryPanel.setUsable(!unusable || Boolean(state.crop));
  results.fail(error, retrySeconds, unusable ? CHOOSE_ANOTHER : tryAgain);
  if (retries) {
    retryTimer = setTimeout(search, 1000 * retrySeconds, { attempt: attempt + 1, remember: false, focus });
  }
}

/** Whether the focus may move: it is among the pictures, or was lost with one of them. */
function focusIsFree() {
  return document.activeElement === document.body || $("views").contains(document.activeElement);
}

function searchWithFile(file) {
  if (file.type && !file.type.startsWith("image/")) {
    openTab("results");
    showNotice(`${file.name || "That"} is not a picture.`, { ...CHOOSE_ANOTHER, bad: true });
    return;
  }
  queryPanel.set({ picture: file, name: file.name || "pasted picture", address: URL.createObjectURL(file) }, null);
  search();
  scrollToResults();
}

function searchWithItem({ id, label, name = "" }) {
  queryPanel.set({ id, label, name }, null);
  search({ focus: true });
  scrollToResults();
}

/** Scrolls to the top, where query and results are; on narrow screens to the results below the query. */
function scrollToResults() {
  if (NARROW.matches) $("views").scrollIntoView();
  else scrollTo({ top: 0 });
}

// ---------------------------------------------------------------- history

const searches = []; // for the back button; an uploaded file cannot be part of an address

function pushHistory() {
  const { query, crop, label, k, rerank } = state;
  searches.push({ query, crop, label, k, rerank });
  const parameters = new URLSearchParams();
  if (query.id) parameters.set("id", query.id);
  if (label !== null) parameters.set("label", label);
  parameters.set("k", k);
  if (rerank !== "none") parameters.set("rerank", rerank);
  history.pushState({ index: searches.length - 1 }, "", `#${parameters}`);
}

/** Restores a search from the address, which may come from another user. */
async function restoreFromAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const id = parameters.get("id");
  const label = parameters.get("label");
  const rerank = parameters.get("rerank");
  const methods = [...$("rerank").options].map(({ value }) => value);
  state.label = state.labels.some((entry) => entry.label === label) ? label : null;
  state.k = toCount(parameters.get("k"));
  state.rerank = methods.includes(rerank) ? rerank : "none";
  showControls();
  showCountLimit(parameters.get("k"));
  if (!id) {
    openTab("collection");
    return;
  }
  try {
    queryPanel.set(await api.item(id), null);
    search({ remember: false });
  } catch (error) {
    openTab("results");
    showNotice(error.message, { ...SHOW_COLLECTION, bad: true });
  }
}

addEventListener("popstate", (event) => {
  const previous = searches[event.state?.index];
  currentSearch?.abort();
  if (previous) {
    const { query, crop, label, k, rerank } = previous;
    Object.assign(state, { label, k, rerank });
    showControls();
    showCountLimit(String(k));
    queryPanel.set(query, crop);
    search({ remember: false });
  } else {
    queryPanel.set(null, null);
    restoreFromAddress();
  }
});

// ---------------------------------------------------------------- controls

/** Brings the controls in line with the state. */
function showControls() {
  const labelIndex = state.labels.findIndex(({ label }) => label === state.label);
  $("label").value = labelIndex < 0 ? "" : String(labelIndex);
  $("k").value = state.k;
  $("rerank").value = state.rerank;
  const { help } = $("rerank").selectedOptions[0].dataset;
  $("rerank-help").textContent = help ? `${help} Distances stay those to the query.` : "";
  $("rerank-help").hidden = !help;
}

/** Says why fewer or more results are shown than the text asks for. */
function showCountLimit(text) {
  $("k-help").textContent = countLimit(text);
}

function chooseLabel(label) {
  state.label = label;
  showControls();
  map.highlight();
  search();
  collection.load();
}

function chooseCount(text) {
  state.k = toCount(text);
  showControls();
  showCountLimit(text);
  search();
}

function chooseRerank(method) {
  state.rerank = method;
  showControls();
  search();
}

function showWeights(visible) {
  state.weights = visible;
  $("legend").hidden = !visible;
  hitGrid.showWeights(visible);
  queryPanel.explain();
}

// ---------------------------------------------------------------- tabs

const TABS = [...document.querySelectorAll("[role=tab]")];
const nameOf = (tab) => tab.id.slice("tab-".length);

/** Opens the tab "results", "collection" or "map". */
function openTab(name) {
  for (const tab of TABS) {
    const selected = nameOf(tab) === name;
    tab.setAttribute("aria-selected", selected);
    tab.tabIndex = selected ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !selected;
  }
  if (name === "map") map.open();
  if (name === "results" && !state.query) {
    hitGrid.clear();
    $("status").textContent = "Nothing searched yet";
    showNotice("Choose, drop or paste a picture, or take one from the collection.", SHOW_COLLECTION);
  }
}

function onTabKey(event) {
  const current = TABS.indexOf(event.target);
  const targets = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: TABS.length - 1 };
  const target = targets[event.key];
  if (target === undefined) return;
  event.preventDefault();
  const tab = TABS.at(target % TABS.length);
  openTab(nameOf(tab));
  tab.focus();
}

// ---------------------------------------------------------------- start

function listen() {
  listenForFiles(searchWithFile);
  $("skip").addEventListener("click", () => $("views").focus());
  $("open-card").addEventListener("click", () => state.card && showCard(state.card));
  $("weights").addEventListener("change", () => showWeights($("weights").checked));
  $("label").addEventListener("change", () => chooseLabel(state.labels[$("label").value]?.label ?? null));
  $("k").addEventListener("change", () => chooseCount($("k").value));
  $("rerank").addEventListener("change", () => chooseRerank($("rerank").value));
  for (const tab of TABS) {
    tab.addEventListener("click", () => {
      openTab(nameOf(tab));
      if (NARROW.matches) $("views").scrollIntoView();
    });
    tab.addEventListener("keydown", onTabKey);
  }
}

async function start() {
  listen();
  api.onKeyNeeded(askForKey);
  paintScale($("legend-scale"));
  collection.grid.showSkeleton(12);
  try {
    // One after the other: if a key is needed, only the first request asks for it.
    state.card = await api.retryWhileBusy(api.model);
    state.labels = await api.retryWhileBusy(api.labels);
  } catch (error) {
    collection.grid.clear();
    $("collection-status").textContent = error.message;
    openTab("results");
    $("status").textContent = "";
    showNotice(error.message, { action: "Try again", onAction: () => location.reload(), bad: true });
    return;
  }
  state.labels.sort((one, other) => one.label.localeCompare(other.label));
  showSummary();
  await restoreFromAddress();
  await collection.load();
}

function showSummary() {
  const named = state.labels.filter(({ label }) => label).length;
  $("picture-count").textContent = plural(state.card.index.count, "picture");
  $("label-count").textContent = `, ${plural(named, "label")}`;
  $("weights-control").hidden = !state.card.has_weights;
  state.labels.forEach((entry, index) => {
    $("label").append(element("option", { value: index, textContent: `${labelOf(entry)} (${entry.count})` }));
  });
}

start();
