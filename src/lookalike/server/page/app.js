// The search page: connects query, controls, results, collection and map.

import * as api from "./api.js";
import { Basket } from "./basket.js";
import { CollectionView } from "./collection.js";
import { askForKey, showCard, Viewer } from "./dialogs.js";
import { DoctorView } from "./doctor.js";
import { $, element } from "./dom.js";
import { Examples } from "./examples.js";
import { FilterFields } from "./filters.js";
import { distanceOf, labelOf, plural } from "./format.js";
import { Grid } from "./grid.js";
import { cancelQueued, paintScale } from "./heatmap.js";
import { ImproveDialog } from "./improve.js";
import { MapView, showArea } from "./map_view.js";
import { Models } from "./models.js";
import { QueryPanel } from "./query.js";
import { Results, showNotice } from "./results.js";
import { countLimit, SEARCH_FIELDS, state, toCount, whereOf } from "./state.js";
import { LabelsView } from "./labels_view.js";
import { Marks } from "./marks.js";
import { TeachView } from "./teach.js";
import { listenForFiles } from "./uploads.js";

const AUTOMATIC_RETRIES = 3; // while the server is busy
const UNUSABLE_PICTURE = [404, 410, 413, 415, 422]; // statuses that a second attempt does not change
const NARROW = matchMedia("(max-width: 52rem)"); // as in style.css
const CHOOSE_ANOTHER = { action: "Choose another picture", onAction: () => $("file").click() };
const SHOW_COLLECTION = { action: "Look at the collection", onAction: () => openTab("collection") };

const marks = new Marks(showMarks);
const labels = new LabelsView(showNewLabels);
const teach = new TeachView(marks, labels);
const doctor = new DoctorView(showOtherPictures);
const basket = new Basket(showSelected, {
  onMark: (items, verdict) => marks.markGroup(items, verdict),
  onLabel: (items, label) => labels.labelItems(items, label),
});
const viewer = new Viewer({ onMore: searchWithItem, onShow: (entry) => labels.show(entry) });
const hitGrid = new Grid($("hits"), {
  onChoose: (_, index) => viewer.open(hitGrid.entries, index, state.weights),
  onMore: searchWithItem,
  onExample: (hit, liked) => examples.add(hit, liked),
  onVerdict: (hit, verdict) => marks.markResult(hit, verdict),
  mayMark: () => state.card.may_write && !state.query?.text, // a mark is about two pictures
  basket,
  describe: (hit, index) => `Result ${index + 1}: ${labelOf(hit)}, distance ${distanceOf(hit)}`,
});
const models = new Models({
  onChange: changeModel,
  onChoose: (_, index) => viewer.open(models.grid.entries, index, false),
  onMore: searchWithItem,
  onExample: (hit, liked) => examples.add(hit, liked),
  basket,
});
const examples = new Examples(search);
const improveDialog = new ImproveDialog(showNewModel);
const filterFields = new FilterFields(chooseFilters);
const results = new Results(hitGrid);
const queryPanel = new QueryPanel(search);
const collection = new CollectionView(searchWithItem);
const map = new MapView(searchWithItem, { onArea: chooseArea, basket });

// ---------------------------------------------------------------- search

let currentSearch = null; // AbortController
let retryTimer = 0;
let fingerprint = ""; // of the model whose answers are shown

/** Searches with the current state. `remember`: add to the history; `focus`: move the focus; `open`: the tab. */
async function search({ attempt = 1, remember = true, focus = false, open = true } = {}) {
  if (!state.query) return;
  currentSearch?.abort();
  clearTimeout(retryTimer);
  const request = new AbortController();
  currentSearch = request;
  cancelQueued();
  if (open) openTab("results");
  if (remember) pushHistory();
  results.setWaiting(true);
  models.search();
  try {
    const answer = await api.search(state.query, { ...state, where: whereOf(state), signal: request.signal });
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
  examples.clear();
  queryPanel.set({ picture: file, name: file.name || "pasted picture", address: URL.createObjectURL(file) }, null);
  search();
  scrollToResults();
}

function searchWithItem({ id, label, name = "" }) {
  examples.clear();
  queryPanel.set({ id, label, name }, null);
  search({ focus: true });
  scrollToResults();
}

function searchWithText(event) {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text) return;
  examples.clear();
  queryPanel.set({ text, name: text }, null);
  search();
  scrollToResults();
}

/** Scrolls to the top, where query and results are; on narrow screens to the results below the query. */
function scrollToResults() {
  if (NARROW.matches) $("views").scrollIntoView();
  else scrollTo({ top: 0 });
}

// ---------------------------------------------------------------- marks and labels

/** Brings the shown results in line with the server: marks were undone, or set in another window. */
async function showMarks() {
  if (!$("teach").hidden) teach.load();
  if (!state.query || !state.hits.length) return;
  const request = currentSearch;
  try {
    const answer = await api.search(state.query, { ...state, where: whereOf(state) });
    await marks.refresh();
    if (currentSearch !== request) return;
    const byId = new Map(answer.hits.map((hit) => [hit.id, hit]));
    for (const hit of state.hits) {
      const { verdict = null, mark = null, label = hit.label } = byId.get(hit.id) ?? {};
      Object.assign(hit, { verdict, mark, label });
    }
    hitGrid.showVerdicts();
    hitGrid.showLabels();
  } catch {
    // The next search shows them.
  }
}

/** Shows changed labels everywhere. */
async function showNewLabels() {
  state.labels = await api.labels();
  state.labels.sort((one, other) => one.label.localeCompare(other.label));
  if (!state.labels.some(({ label }) => label === state.label)) state.label = null;
  showLabelChoices();
  showControls();
  map.refresh();
  await Promise.all([labels.load(), showMarks(), collection.load()]);
}

/** Shows changed labels, and that pictures have left the collection. */
async function showOtherPictures() {
  state.card = await api.model();
  $("picture-count").textContent = plural(state.card.index.count, "picture");
  await showNewLabels();
}

// ---------------------------------------------------------------- history

const searches = []; // for the back button; an uploaded file cannot be part of an address

function pushHistory() {
  const { query, label, k, rerank } = state;
  searches.push(Object.fromEntries(SEARCH_FIELDS.map((name) => [name, state[name]])));
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
  Object.assign(state, { like: [], unlike: [], filters: {}, group: false, diversity: "0", confidence: "", area: null });
  examples.show();
  filterFields.show();
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
    Object.assign(state, previous);
    showControls();
    examples.show();
    filterFields.show();
    showCountLimit(String(previous.k));
    queryPanel.set(previous.query, previous.crop);
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
  $("diversity").value = state.diversity;
  $("confidence").value = state.confidence;
  $("group").checked = state.group;
  const { help } = $("rerank").selectedOptions[0].dataset;
  $("rerank-help").textContent = help ? `${help} Distances stay those to the query.` : "";
  $("rerank-help").hidden = !help;
  showArea();
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

/** Changes one option of the search. */
function chooseOption(name, value) {
  state[name] = value;
  showControls();
  search();
}

function chooseFilters(filters) {
  state.filters = filters;
  search();
  collection.load();
}

/** Searches in an area of the map only; null for everywhere. */
function chooseArea(area) {
  state.area = area;
  showControls();
  if (state.query) search();
  else if (area) openTab("collection");
  collection.load();
}

/** Searches again after another model was chosen. */
function changeModel() {
  models.show();
  showModelFacts();
  queryPanel.explain();
  search();
}

/** Shows in all grids which pictures are selected. */
function showSelected() {
  hitGrid.showSelected();
  models.grid.showSelected();
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

/** Opens the tab "results", "collection", "map", "teach" or "doctor". */
function openTab(name) {
  for (const tab of TABS) {
    const selected = nameOf(tab) === name;
    tab.setAttribute("aria-selected", selected);
    tab.tabIndex = selected ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !selected;
  }
  if (name === "map") map.open();
  if (name === "teach") teach.load();
  if (name === "doctor") doctor.load();
  if (name === "results" && !state.query) {
    hitGrid.clear();
    $("status").textContent = "Nothing searched yet";
    showNotice("Choose, drop or paste a picture, or take one from the collection.", SHOW_COLLECTION);
  }
}

function onTabKey(event) {
  const tabs = TABS.filter(({ hidden }) => !hidden);
  const current = tabs.indexOf(event.target);
  const targets = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: tabs.length - 1 };
  const target = targets[event.key];
  if (target === undefined) return;
  event.preventDefault();
  const tab = tabs.at(target % tabs.length);
  openTab(nameOf(tab));
  tab.focus();
}

// ---------------------------------------------------------------- start

function listen() {
  listenForFiles(searchWithFile);
  addEventListener("focus", catchUp);
  $("text-form").addEventListener("submit", searchWithText);
  $("skip").addEventListener("click", () => $("views").focus());
  $("open-improve").addEventListener("click", () => improveDialog.open());
  $("open-card").addEventListener("click", () => state.card && showCard(state.card));
  $("weights").addEventListener("change", () => showWeights($("weights").checked));
  $("label").addEventListener("change", () => chooseLabel(state.labels[$("label").value]?.label ?? null));
  $("k").addEventListener("change", () => chooseCount($("k").value));
  $("rerank").addEventListener("change", () => chooseRerank($("rerank").value));
  $("diversity").addEventListener("change", () => chooseOption("diversity", $("diversity").value));
  $("confidence").addEventListener("change", () => chooseOption("confidence", $("confidence").value));
  $("group").addEventListener("change", () => chooseOption("group", $("group").checked));
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
    fingerprint = state.card.fingerprint;
    models.create(state.card);
    state.labels = await api.retryWhileBusy(api.labels);
    filterFields.create(await api.retryWhileBusy(api.fields));
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
  basket.show();
  await api.retryWhileBusy(() => marks.start()).catch((error) => marks.show(error.message));
  await restoreFromAddress();
  await collection.load();
}

/** The server answers with another model: its card and, if there is a query, its results replace the old ones. */
async function showNewModel(card, open = true) {
  fingerprint = card.fingerprint;
  await models.replace(card);
  showModelFacts();
  await search({ remember: false, open });
}

/** Shows what others have changed meanwhile: the model, marks, decisions about findings. */
async function catchUp() {
  if (!state.card) return;
  const card = await api.model().catch(() => null); // without an answer, the next search says why
  if (card && card.fingerprint !== fingerprint) await showNewModel(card, false);
  else if (state.card.may_write && (state.query?.id || !$("teach").hidden)) await marks.last.then(showMarks);
  // For marks alone, an uploaded query would have to be sent again.
  if (state.card.may_write && !$("doctor").hidden) doctor.refresh();
}

function showSummary() {
  $("picture-count").textContent = plural(state.card.index.count, "picture");
  for (const part of document.querySelectorAll("[data-writers]")) part.hidden = !state.card.may_write;
  showLabelChoices();
  showModelFacts();
}

function showLabelChoices() {
  const named = state.labels.filter(({ label }) => label).length;
  $("label-count").textContent = named ? `, ${plural(named, "label")}` : "";
  $("label-control").hidden = !named;
  $("label").replaceChildren($("label").options[0]);
  state.labels.forEach((entry, index) => {
    $("label").append(element("option", { value: index, textContent: `${labelOf(entry)} (${entry.count})` }));
  });
  labels.showLabels();
}

/** Shows what the model that answers can do. */
function showModelFacts() {
  $("text-form").hidden = state.card.text_refusal !== null;
  $("legend-border").hidden = state.card.view === "whole";
  $("weights-control").hidden = !state.card.has_weights;
  $("confidence").disabled = !state.card.calibration;
  $("confidence-help").textContent = state.card.calibration ?? "No probabilities: neither index nor model was calibrated on labels.";
}

start();
