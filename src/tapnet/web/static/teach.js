// Teach: a card for each class, and what adds examples to it.

import { call, images } from "./api.js";
import * as camera from "./camera.js";
import { $, attempt, element, plural, toast } from "./dom.js";
import { acceptDrops, isImage, reduced } from "./files.js";
import { Pad } from "./pad.js";
import { address, changed, color, show, subscribe, task, thumbnail } from "./task.js";

const BATCH = 20; // images of one request
const TYPES = ["drawings", "characters"]; // networks that read line drawings
export const cards = new Map();

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

export async function addExamples(classId, files) {
  const chosen = files.filter((file) => file.type || isImage(file));
  if (!chosen.length) return toast("There is no image among these files.");
  if (TYPES.includes(task.network) && chosen.some((file) => file.type === "image/jpeg")) hintPhotographs();
  const failed = [];
  let reason = "";
  const add = async (files) => show((await call("POST", address(`/classes/${classId}/examples`), images(await Promise.all(files.map(reduced))))).task);
  const fail = (files, error) => { failed.push(...files.map((file) => file.name || "the image")); reason = error.message; };
  for (let first = 0; first < chosen.length; first += BATCH) {
    const part = chosen.slice(first, first + BATCH);
    try {
      await add(part);
    } catch (error) {
      if (part.length === 1 || ![413, 409, 422].includes(error.status)) { fail(part, error); continue; }
      for (const one of part) { // find out which of them it was
        try { await add([one]); } catch (mistake) { fail([one], mistake); }
      }
    }
  }
  if (failed.length) {
    const more = failed.length > 3 ? ` and ${failed.length - 3} more` : "";
    toast(`Not added: ${failed.slice(0, 3).join(", ")}${more}. ${reason}`, 12000);
  }
  await changed();
}

let hinted = false;
function hintPhotographs() {
  if (hinted) return;
  hinted = true;
  toast("This classifier was started with drawings. For photographs, start a new one: it then looks at colors, too.", 9000);
}

export async function addClass(name) {
  const names = new Set(task.classes.map((each) => each.name.toLowerCase()));
  let number = task.classes.length + 1;
  while (!name && names.has(`class ${number}`)) number += 1;
  const fresh = await attempt(() => call("POST", address("/classes"), { name: name || `Class ${number}` }));
  if (!fresh) return null;
  show(fresh);
  return fresh.classes.at(-1).id;
}

// Each folder becomes a class; classes that a new classifier began with and that are still empty make room for them.
export async function addFolders(folders) {
  const unused = folders.size ? task.classes.filter((one) => /^Class \d+$/.test(one.name) && !one.examples.length) : [];
  for (const [name, files] of folders) {
    const known = task.classes.find((one) => one.name.toLowerCase() === name.toLowerCase());
    const id = known?.id ?? (await addClass(name));
    if (id) await addExamples(id, files);
  }
  for (const { id, name } of unused) {
    if (!folders.has(name)) await changed(await attempt(() => call("DELETE", address(`/classes/${id}`))));
  }
}

subscribe("task", showClasses);
