// The page: teach classes, try something new, see why. State lives on the server; the page shows it.

import { ApiError, call, images } from "./api.js";
import * as camera from "./camera.js";
import { byFolder, dropped, isImage, reduced } from "./files.js";
import { MapView } from "./map.js";
import { Pad } from "./pad.js";

const COLORS = ["#3566d6", "#d1495b", "#1a8a62", "#b7641a", "#7d4fc4", "#0f829c", "#b83d8f", "#6b7a1e", "#8a5a44", "#566079"];
const METHODS = {
  tapnet: "TapNet projection",
  protonet: "ProtoNet class means",
  centroid: "Angle to class means",
  logistic: "Logistic regression",
};
const BATCH = 20; // images of one request
const LARGEST_TABLE = 12; // classes
const MISTAKES = 8; // listed for more classes
const TYPES = ["drawings", "characters"]; // networks that read line drawings
const $ = (id) => document.getElementById(id);
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
const percent = (value) => `${Math.round(100 * value)}%`;

let task = null;
let map = null; // of the task, as the server gave it last
let query = { kind: "draw", blob: null };
const cards = new Map();

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "text") made.textContent = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function toast(text, milliseconds = 6000) {
  const shown = element("div", { class: "toast", text });
  $("toasts").append(shown);
  setTimeout(() => shown.remove(), milliseconds);
}

async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    toast(error.message);
    if (!(error instanceof ApiError) && !/webcam/.test(error.message)) console.error(error);
    return null;
  }
}

const address = (rest = "") => `/v1/tasks/${task.id}${rest}`;
const thumbnail = (id) => address(`/examples/${id}/thumbnail`);
// Ten colors that are easy to tell apart, then hues far from the last ones.
const color = (index) => COLORS[index] ?? `hsl(${Math.round(137.5 * index) % 360} 60% 40%)`;
const nameColor = (name) => color(Math.max(0, task.classes.findIndex((each) => each.name === name)));
const view = new MapView($("map"), thumbnail, (label) => nameColor(map?.classes[label]));

// The task ---------------------------------------------------------------------------------------------------------

async function openTask(id) {
  task = await call("GET", `/v1/tasks/${id}`);
  history.replaceState(null, "", `#${id}`);
  for (const card of cards.values()) card.remove();
  cards.clear();
  map = null;
  view.clear();
  show(task);
  await refreshMap();
  ask();
  if (map) view.replay();
}

function show(fresh) {
  if (fresh.id !== task.id || fresh.revision < task.revision) return;
  task = fresh;
  document.title = `${task.name} · tapnet`;
  if (document.activeElement !== $("task-name")) $("task-name").value = task.name;
  $("undo").disabled = !task.can_undo;
  $("redo").disabled = !task.can_redo;
  showClasses();
  showUse();
}

async function changed(fresh) {
  if (!fresh) return;
  show(fresh);
  await refreshMap();
  ask();
}

let mapRunning = false;
let mapWanted = false;
async function refreshMap() {
  mapWanted = true;
  if (mapRunning) return;
  mapRunning = true;
  while (mapWanted) {
    mapWanted = false;
    const id = task.id;
    if (task.classes.filter((each) => each.examples.length).length < 2) {
      showMap(null);
      continue;
    }
    try {
      const found = await call("GET", address("/map"));
      if (id === task.id) showMap(found);
    } catch (error) {
      if (error.status !== 409) toast(error.message);
      showMap(null);
    }
  }
  mapRunning = false;
}

// Teach ------------------------------------------------------------------------------------------------------------

function showClasses() {
  const there = new Set(task.classes.map((each) => each.id));
  for (const [id, card] of cards) {
    if (!there.has(id)) {
      card.close();
      card.remove();
      cards.delete(id);
    }
  }
  task.classes.forEach((each, index) => {
    if (!cards.has(each.id)) cards.set(each.id, classCard(each.id));
    const card = cards.get(each.id);
    card.style.setProperty("--color", color(index));
    if ($("classes").children[index] !== card) $("classes").insertBefore(card, $("classes").children[index] ?? null);
    card.update(each);
  });
}

const CROSS = '<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13"/></svg>';

function classCard(id) {
  const name = element("input", { class: "class-name", maxlength: 100, "aria-label": "Name of the class", spellcheck: "false", autocomplete: "off" });
  const count = element("span", { class: "count" });
  const remove = element("button", { class: "icon-button", title: "Delete this class" });
  remove.innerHTML = CROSS;
  const thumbs = element("ul", { class: "thumbs" });
  const empty = element("p", { class: "empty", text: "No examples yet. Draw some, or drop images here." });
  const file = element("input", { class: "visually-hidden", type: "file", accept: "image/*", multiple: true, tabindex: "-1", "aria-label": "Choose images of this class" });
  const draw = element("button", { class: "button small", "aria-expanded": "false", text: "Draw" });
  const choose = element("button", { class: "button small", text: "Images" });
  const webcam = element("button", { class: "button small", "aria-expanded": "false", text: "Webcam" });
  const panel = element("div", { class: "panel", hidden: true });
  const card = element(
    "article",
    { class: "card class-card" },
    element("div", { class: "class-head" }, name, count, remove),
    thumbs,
    empty,
    element("div", { class: "row" }, draw, choose, webcam, file),
    panel,
  );

  name.addEventListener("keydown", (event) => event.key === "Enter" && name.blur());
  name.addEventListener("change", async () => {
    const fresh = await attempt(() => call("PATCH", address(`/classes/${id}`), { name: name.value }));
    name.value = task.classes.find((each) => each.id === id)?.name ?? "";
    if (fresh) name.value = fresh.classes.find((each) => each.id === id).name;
    await changed(fresh);
  });
  remove.addEventListener("click", async () => {
    const fresh = await attempt(() => call("DELETE", address(`/classes/${id}`)));
    if (fresh) toast("Class deleted. Undo brings it back.", 4000);
    await changed(fresh);
    $("add-class-button").focus({ preventScroll: true });
  });
  choose.addEventListener("click", () => file.click());
  file.addEventListener("change", async () => {
    await addExamples(id, [...file.files]);
    file.value = "";
  });
  draw.addEventListener("click", () => card.open("draw"));
  webcam.addEventListener("click", () => card.open("webcam"));
  acceptDrops(card, async ({ files, folders }) => addExamples(id, [...files, ...[...folders.values()].flat()]));

  card.close = () => {
    const video = panel.querySelector("video");
    if (video) camera.stop(video);
    panel.replaceChildren();
    panel.hidden = true;
    card.kind = null;
    for (const button of [draw, webcam]) button.setAttribute("aria-expanded", "false");
  };
  card.open = (kind) => {
    const again = card.kind === kind;
    for (const other of cards.values()) other.close();
    if (again) return;
    card.kind = kind;
    panel.hidden = false;
    (kind === "draw" ? draw : webcam).setAttribute("aria-expanded", "true");
    if (kind === "draw") drawPanel(panel, id, card);
    else webcamPanel(panel, id, card);
  };
  card.update = (each) => {
    if (document.activeElement !== name) name.value = each.name;
    card.setAttribute("aria-label", `Class ${each.name}`);
    remove.setAttribute("aria-label", `Delete the class ${each.name}`);
    count.textContent = plural(each.examples.length, "example");
    empty.hidden = each.examples.length > 0;
    thumbs.hidden = !each.examples.length;
    const wanted = new Set(each.examples.map((one) => one.id));
    for (const child of [...thumbs.children]) if (!wanted.has(child.dataset.id)) child.remove();
    const first = thumbs.dataset.filled !== "yes";
    each.examples.forEach((one, index) => {
      if (thumbs.children[index]?.dataset.id === one.id) return;
      const made = thumb(one.id, each.name, index);
      if (!first) made.classList.add("fresh");
      thumbs.insertBefore(made, thumbs.children[index] ?? null);
    });
    thumbs.dataset.filled = "yes";
  };
  return card;
}

function thumb(id, name, index) {
  const button = element("button", { "aria-label": `Delete example ${index + 1} of ${name}`, title: "Delete", text: "✕" });
  button.addEventListener("click", async () => changed(await attempt(() => call("DELETE", address(`/examples/${id}`)))));
  return element("li", { class: "thumb", "data-id": id }, element("img", { src: thumbnail(id), alt: `Example ${index + 1} of ${name}`, loading: "lazy", draggable: "false" }), button);
}

function drawPanel(panel, id, card) {
  const canvas = element("canvas", { class: "paper", width: 336, height: 336, tabindex: "0", role: "img", "aria-label": "Drawing area. By keyboard, move with the arrow keys and hold the space bar to draw." });
  const hint = element("p", { class: "paper-hint", text: "Draw here" });
  const show = (empty) => { add.disabled = empty; hint.hidden = !empty; };
  const pad = new Pad(canvas, () => show(false));
  const add = element("button", { class: "button small primary", text: "Add drawing", disabled: true });
  const clear = element("button", { class: "button small", text: "Clear", onclick: () => { pad.clear(); show(true); } });
  const done = element("button", { class: "button small", text: "Done", onclick: () => card.close() });
  const keep = async () => {
    if (pad.empty) return;
    const blob = await pad.blob();
    pad.clear();
    show(true);
    canvas.focus({ preventScroll: true });
    await addExamples(id, [blob]);
  };
  add.addEventListener("click", keep);
  canvas.addEventListener("keydown", (event) => event.key === "Enter" && keep());
  panel.append(element("div", { class: "stage" }, canvas, hint), element("div", { class: "row" }, add, clear, done));
  canvas.focus({ preventScroll: true });
}

async function webcamPanel(panel, id, card) {
  const video = element("video", { class: "paper", muted: true, playsinline: true, "aria-label": "What the webcam sees" });
  video.muted = true;
  const hold = element("button", { class: "button small primary", text: "Hold to record", disabled: true });
  panel.append(video, element("div", { class: "row" }, hold, element("button", { class: "button small", text: "Done", onclick: () => card.close() })));
  if ((await attempt(async () => { await camera.start(video); return true; })) === null) return card.close();
  hold.disabled = false;
  let recording = false;
  const record = async () => {
    if (recording) return;
    recording = true;
    while (recording && video.srcObject) {
      await addExamples(id, [await camera.frame(video)]);
      await new Promise((done) => setTimeout(done, 150));
    }
  };
  const stop = () => { recording = false; };
  hold.addEventListener("pointerdown", (event) => {
    hold.setPointerCapture(event.pointerId); // the button moves when the first examples appear above it
    record();
  });
  for (const end of ["pointerup", "pointercancel", "blur", "keyup"]) hold.addEventListener(end, stop);
  hold.addEventListener("keydown", (event) => (event.key === " " || event.key === "Enter") && record());
}

async function addExamples(classId, files) {
  const chosen = files.filter((file) => file.type || isImage(file));
  if (!chosen.length) return toast("There is no image among these files.");
  if (TYPES.includes(task.network) && chosen.some((file) => file.type === "image/jpeg")) hintPhotographs();
  let skipped = 0;
  let reason = "";
  for (let first = 0; first < chosen.length; first += BATCH) {
    const part = await Promise.all(chosen.slice(first, first + BATCH).map(reduced));
    const path = address(`/classes/${classId}/examples`);
    try {
      show((await call("POST", path, images(part))).task);
    } catch (error) {
      if (part.length === 1 || ![413, 409, 422].includes(error.status)) { skipped += part.length; reason = error.message; continue; }
      for (const one of part) { // find out which of them it was
        try { show((await call("POST", path, images([one]))).task); } catch (each) { skipped += 1; reason = each.message; }
      }
    }
  }
  if (skipped) toast(skipped === 1 && chosen.length === 1 ? reason : `${plural(skipped, "image")} could not be added. ${reason}`);
  await refreshMap();
  ask();
}

let hinted = false;
function hintPhotographs() {
  if (hinted) return;
  hinted = true;
  toast("This classifier was started with drawings. For photographs, start a new one: it then looks at colors, too.", 9000);
}

async function addClass(name) {
  const names = new Set(task.classes.map((each) => each.name.toLowerCase()));
  let number = task.classes.length + 1;
  while (!name && names.has(`class ${number}`)) number += 1;
  const fresh = await attempt(() => call("POST", address("/classes"), { name: name || `Class ${number}` }));
  if (!fresh) return null;
  show(fresh);
  return fresh.classes.at(-1).id;
}

async function addFolders(folders) {
  for (const [name, files] of folders) {
    const known = task.classes.find((each) => each.name.toLowerCase() === name.toLowerCase());
    const id = known?.id ?? (await addClass(name));
    if (id) await addExamples(id, files);
  }
}

function acceptDrops(target, use) {
  target.addEventListener("dragover", (event) => { event.preventDefault(); target.classList.add("dropping"); });
  target.addEventListener("dragleave", () => target.classList.remove("dropping"));
  target.addEventListener("drop", async (event) => {
    event.preventDefault();
    target.classList.remove("dropping");
    const found = await dropped(event.dataTransfer);
    await attempt(() => use(found));
  });
}

// Try --------------------------------------------------------------------------------------------------------------

const pad = new Pad($("query-canvas"), () => {
  $("query-hint").hidden = true;
  query.blob = null;
  ask();
});
let asking = false;
let wanted = false;

async function queryBlob() {
  if (query.kind === "draw") return pad.empty ? null : pad.blob();
  if (query.kind === "camera") return $("query-video").videoWidth ? camera.frame($("query-video")) : null;
  return query.blob;
}

// One request at a time; what changed meanwhile is asked when the answer is there.
async function ask() {
  wanted = true;
  if (asking) return;
  asking = true;
  while (wanted) {
    wanted = false;
    const blob = await queryBlob();
    if (!blob || !map) { showAnswer(null); continue; }
    try {
      const answer = await call("POST", address(`/explain?reject=${$("reject").value / 100}`), images([blob]));
      if (await queryBlob()) showAnswer(answer);
    } catch (error) {
      if (error.status !== 409) toast(error.message);
      showAnswer(null);
    }
  }
  asking = false;
}

let announced = 0;
function showAnswer(answer) {
  const label = $("answer");
  label.classList.toggle("unknown", answer?.label === "unknown");
  $("nearest-box").hidden = !answer;
  $("bars").hidden = !answer;
  if (!answer) {
    label.textContent = "…";
    $("answer-note").textContent = map ? "The answer appears while you draw." : "Teach at least two classes first.";
    view.setQuery(null);
    return;
  }
  label.textContent = answer.label;
  const best = answer.ranked[0];
  $("answer-note").textContent = answer.label === "unknown" ? `None of the classes; ${best.label} comes closest.` : `${percent(best.probability)} sure`;
  const rows = [...$("bars").children];
  answer.ranked.slice(0, 6).forEach((each, index) => {
    const row = rows[index] ?? $("bars").appendChild(element("li", {}, element("span", { class: "label" }), element("span", { class: "track" }, element("span", { class: "fill" })), element("span", { class: "value" })));
    row.style.setProperty("--color", nameColor(each.label));
    row.querySelector(".label").textContent = each.label;
    row.querySelector(".fill").style.display = "block";
    row.querySelector(".fill").style.width = percent(each.probability);
    row.querySelector(".value").textContent = percent(each.probability);
  });
  for (const row of rows.slice(Math.min(6, answer.ranked.length))) row.remove();
  $("nearest").replaceChildren(...answer.nearest.map((each) => {
    const figure = element("figure", {}, element("img", { src: thumbnail(each.id), alt: `Example of ${each.label}` }), element("figcaption", { text: each.label }));
    figure.style.setProperty("--color", nameColor(each.label));
    return figure;
  }));
  $("reason").textContent = answer.reason && `The most similar single example is ${answer.nearest[0].label}, but all examples of a class count together.`;
  view.setQuery(answer.point, answer.label === "unknown" ? null : map.classes.indexOf(best.label));
  clearTimeout(announced);
  announced = setTimeout(() => { $("announce").textContent = `${answer.label}, ${percent(best.probability)}`; }, 700);
}

function setQueryKind(kind) {
  if (query.kind === "camera" && kind !== "camera") camera.stop($("query-video"));
  query.kind = kind;
  for (const each of ["draw", "image", "camera"]) $(`query-${each}`).setAttribute("aria-pressed", String(each === kind));
  $("query-canvas").hidden = kind !== "draw";
  $("query-hint").hidden = kind !== "draw" || !pad.empty;
  $("query-shown").hidden = kind !== "image";
  $("query-video").hidden = kind !== "camera";
}

function showQueryImage(blob) {
  setQueryKind("image");
  query.blob = blob;
  if ($("query-shown").src) URL.revokeObjectURL($("query-shown").src);
  $("query-shown").src = URL.createObjectURL(blob);
  ask();
}

async function watchCamera() {
  setQueryKind("camera");
  const started = await attempt(async () => { await camera.start($("query-video")); return true; });
  if (!started) return setQueryKind("draw");
  while (query.kind === "camera") {
    await ask();
    await new Promise((done) => setTimeout(done, 120));
  }
}

function clearQuery() {
  pad.clear();
  query.blob = null;
  setQueryKind("draw");
  showAnswer(null);
}

// See why ----------------------------------------------------------------------------------------------------------

function showMap(found) {
  map = found;
  const ready = Boolean(found);
  for (const id of ["replay", "space-embedding", "space-projection", "method", "dim"]) $(id).disabled = !ready;
  for (const [id, path] of [["download-task", "/file"], ["download-onnx", "/onnx"]]) {
    if (ready) $(id).href = address(path);
    else $(id).removeAttribute("href");
  }
  $("legend").replaceChildren();
  $("controls").hidden = !ready;
  if (!found) {
    view.clear();
    $("map-text").textContent = "";
    $("score").textContent = "–";
    $("score-text").textContent = "Give every class two examples to find out.";
    $("confusion").replaceChildren();
    return;
  }
  view.update(found);
  $("legend").append(...found.classes.map((name) => {
    const item = element("li", { title: name }, element("span", { class: "dot" }), element("span", { class: "label", text: name }));
    item.style.setProperty("--color", nameColor(name));
    return item;
  }));
  describeMap();
  $("method").replaceChildren(...found.methods.map((name) => element("option", { value: name, selected: name === found.method, text: METHODS[name] ?? name })));
  $("dim-box").hidden = !found.dimensions;
  if (document.activeElement !== $("dim")) $("dim").value = found.projection_dim === null ? 100 : slider(found.projection_dim);
  $("dim-value").textContent = found.projection_dim ?? "all";
  showScore(found);
}

// The slider is logarithmic: 1, 2, 3 … dimensions matter more than 400 or 401.
const slider = (dim) => Math.round((99 * Math.log(dim)) / Math.log(map.dimensions));
const dimension = (value) => (value >= 100 ? null : Math.round(map.dimensions ** (value / 99)));

function describeMap() {
  if (!map) return;
  const after = view.goalSpace === 1;
  const learned = map.method === "tapnet" ? "Diamonds are what the classifier aims for, one for each class." : "Diamonds are the middles of the classes.";
  const flat = map.exact ? "With up to three classes this view is exact: the nearest diamond wins." : "";
  const exact = map.classes.length > 3 ? "With more than three classes this is the view that keeps them best apart." : flat;
  $("map-text").textContent = after ? `${learned} ${exact}` : `Your examples as the network sees any image, before it knows your classes. ${learned}`;
  $("map").setAttribute("aria-label", `Map of ${plural(map.examples.length, "example")} of ${plural(map.classes.length, "class")}, ${after ? "after" : "before"} adapting`);
}

function showScore(found) {
  const score = found.leave_one_out;
  $("confusion").replaceChildren();
  if (!score) {
    $("score").textContent = "–";
    $("score-text").textContent = "Give every class two examples to find out.";
    return;
  }
  $("score").textContent = percent(score.accuracy);
  $("score-text").textContent = `${score.hits} of ${plural(score.total, "example")} right when each is hidden and asked about. On new images expect ${percent(score.interval[0])} to ${percent(score.interval[1])}.`;
  if (found.classes.length > LARGEST_TABLE) return showMistakes(found.classes, score.confusion);
  const head = element("tr", {}, element("td"), ...found.classes.map((name) => element("th", { scope: "col", text: name, title: name })));
  const rows = score.confusion.map((row, i) => {
    const total = row.reduce((a, b) => a + b, 0) || 1;
    return element("tr", {}, element("th", { scope: "row", text: found.classes[i], title: found.classes[i] }), ...row.map((count, j) => {
      const cell = element("td", { class: i === j ? "right" : count ? "wrong" : "none", text: count || "" });
      cell.style.setProperty("--share", count / total);
      return cell;
    }));
  });
  $("confusion").append(element("table", { class: "confusion" }, element("caption", { text: "Rows: true class; columns: predicted class." }), element("thead", {}, head), element("tbody", {}, ...rows)));
}

// The most frequent mistakes, where a table of all classes would be too large.
function showMistakes(classes, confusion) {
  const all = confusion.flatMap((row, i) => row.map((count, j) => ({ i, j, count }))).filter((each) => each.i !== each.j && each.count);
  const most = all.sort((a, b) => b.count - a.count).slice(0, MISTAKES);
  if (!most.length) return;
  const items = most.map((each) => element("li", { text: `${classes[each.i]} taken for ${classes[each.j]}: ${each.count}` }));
  $("confusion").append(element("h3", { text: "Most frequent mistakes" }), element("ul", { class: "mistakes" }, ...items));
}

function setSpace(goal) {
  $("space-embedding").setAttribute("aria-pressed", String(goal === 0));
  $("space-projection").setAttribute("aria-pressed", String(goal === 1));
  view.setSpace(goal);
  describeMap();
}

let settingsTimer = 0;
function changeSettings(values, wait) {
  clearTimeout(settingsTimer);
  settingsTimer = setTimeout(async () => changed(await attempt(() => call("PATCH", address(), values))), wait);
}

// Use --------------------------------------------------------------------------------------------------------------

function showUse() {
  const file = `${task.name.replace(/[^A-Za-z0-9_-]+/g, "-").replace(/^-+|-+$/g, "") || "task"}.task`;
  $("python").textContent = `from tapnet import TapNetClassifier\n\nclf = TapNetClassifier.load("${file}")\nprint(clf.predict(["image.png"]))`;
  $("curl").textContent = `curl -F images=@image.png ${location.origin}${address("/predict")}`;
}

// Several tasks ----------------------------------------------------------------------------------------------------

async function showTasks() {
  const { tasks } = await call("GET", "/v1/tasks?limit=1000");
  $("task-list").replaceChildren(...tasks.map((each) => element(
    "li",
    {},
    element("button", { class: "button pick", onclick: async () => { $("open-dialog").close(); await attempt(() => openTask(each.id)); } }, each.name, element("small", { text: `${plural(each.classes, "class")}, ${plural(each.examples, "example")}` })),
    element("button", { class: "button small", "aria-label": `Delete ${each.name} for good`, text: "Delete", onclick: (event) => deleteTask(each, event.target) }),
  )));
}

async function deleteTask(each, button) {
  if (button.textContent === "Delete") { // twice, because this cannot be undone
    button.textContent = "Really?";
    return;
  }
  await attempt(() => call("DELETE", `/v1/tasks/${each.id}`));
  await showTasks();
  if (each.id === task.id) await start();
}

async function create(body) {
  const made = await attempt(() => call("POST", "/v1/tasks", body));
  if (made) await openTask(made.id);
}

async function start() {
  const { tasks } = await call("GET", "/v1/tasks?limit=1000");
  const asked = location.hash.slice(1);
  const found = tasks.find((each) => each.id === asked) ?? tasks[0];
  if (found) await openTask(found.id);
  else await create({ example: true });
}

// Wiring -----------------------------------------------------------------------------------------------------------

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  view.paint();
}

function wire() {
  setTheme(localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  $("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("theme", theme);
    setTheme(theme);
  });
  $("task-name").addEventListener("keydown", (event) => event.key === "Enter" && $("task-name").blur());
  $("task-name").addEventListener("change", async () => {
    const fresh = await attempt(() => call("PATCH", address(), { name: $("task-name").value }));
    if (fresh) show(fresh);
    $("task-name").value = task.name;
  });
  const step = async (which) => changed(await attempt(() => call("POST", address(`/${which}`))));
  $("undo").addEventListener("click", () => step("undo"));
  $("redo").addEventListener("click", () => step("redo"));
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "range";
    if (typing || !(event.ctrlKey || event.metaKey)) return;
    const key = event.key.toLowerCase();
    if (key !== "z" && key !== "y") return;
    event.preventDefault();
    const redo = key === "y" || event.shiftKey;
    if (redo ? task.can_redo : task.can_undo) step(redo ? "redo" : "undo");
  });
  $("new").addEventListener("click", async () => {
    clearQuery();
    await create({ name: "Untitled" });
    await addClass();
    await addClass();
    $("classes").querySelector("input")?.select();
  });
  $("open").addEventListener("click", () => attempt(async () => { await showTasks(); $("open-dialog").showModal(); }));
  $("open-close").addEventListener("click", () => $("open-dialog").close());
  $("open-example").addEventListener("click", async () => { $("open-dialog").close(); await create({ example: true }); });
  $("task-file").addEventListener("change", async () => {
    const [file] = $("task-file").files;
    $("task-file").value = "";
    if (!file) return;
    const name = encodeURIComponent(file.name.replace(/\.task$/i, "").slice(0, 100));
    const made = await attempt(() => call("POST", `/v1/tasks/file?name=${name}`, new Blob([file], { type: "application/octet-stream" })));
    if (!made) return;
    $("open-dialog").close();
    await openTask(made.id);
  });
  $("add-class-button").addEventListener("click", async () => {
    const id = await addClass();
    if (id) cards.get(id).querySelector("input").select();
  });
  $("folder-input").addEventListener("change", async () => {
    const folders = byFolder($("folder-input").files);
    $("folder-input").value = "";
    await attempt(() => addFolders(folders));
  });
  acceptDrops($("add-class"), async ({ files, folders }) => {
    await addFolders(folders);
    if (!files.length) return;
    const id = await addClass();
    if (id) await addExamples(id, files);
  });
  acceptDrops($("query-card"), async ({ files, folders }) => {
    const [first] = [...files, ...[...folders.values()].flat()];
    if (first) showQueryImage(await reduced(first));
  });
  for (const type of ["dragover", "drop"]) document.addEventListener(type, (event) => event.preventDefault());
  document.addEventListener("paste", async (event) => {
    const files = [...(event.clipboardData?.files ?? [])].filter(isImage);
    if (!files.length) return;
    event.preventDefault();
    const card = document.activeElement?.closest?.(".class-card");
    const id = [...cards].find(([, each]) => each === card)?.[0];
    if (id) await attempt(() => addExamples(id, files));
    else showQueryImage(await reduced(files[0]));
  });
  $("query-draw").addEventListener("click", () => { setQueryKind("draw"); ask(); });
  $("query-image").addEventListener("click", () => $("query-file").click());
  $("query-file").addEventListener("change", async () => {
    const [file] = $("query-file").files;
    $("query-file").value = "";
    if (file) showQueryImage(await reduced(file));
  });
  $("query-camera").addEventListener("click", watchCamera);
  $("query-clear").addEventListener("click", clearQuery);
  $("query-surprise").addEventListener("click", () => attempt(async () => {
    const names = task.classes.map((each) => each.name);
    const name = names[Math.floor(Math.random() * names.length)] ?? "";
    const answer = await fetch(`/v1/drawing?name=${encodeURIComponent(name)}`);
    setQueryKind("draw");
    pad.show(await createImageBitmap(await answer.blob()));
    $("query-hint").hidden = true;
    ask();
  }));
  $("reject").addEventListener("input", () => { $("reject-value").textContent = `${$("reject").value}%`; ask(); });
  $("space-embedding").addEventListener("click", () => setSpace(0));
  $("space-projection").addEventListener("click", () => setSpace(1));
  $("replay").addEventListener("click", () => { setSpace(1); view.replay(); });
  $("method").addEventListener("change", () => changeSettings({ method: $("method").value }, 0));
  $("dim").addEventListener("input", () => {
    const dim = dimension(Number($("dim").value));
    $("dim-value").textContent = dim ?? "all";
    changeSettings({ projection_dim: dim }, 80);
  });
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText($(button.dataset.copy).textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
}

wire();
showAnswer(null);
attempt(start);
