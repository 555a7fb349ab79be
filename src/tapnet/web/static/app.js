// The page: everything put together. State lives on the server; `task.js` has it, and `teach`, `try` and `why` show it.

import { call } from "./api.js";
import { $, attempt, element, plural } from "./dom.js";
import { acceptDrops, byFolder, isImage, reduced } from "./files.js";
import { address, changed, openTask, show, subscribe, task } from "./task.js";
import { addClass, addExamples, addFolders, cards } from "./teach.js";
import { ask, clearQuery, pad, setQueryKind, showAnswer, showQueryImage, watchCamera } from "./try.js";
import { changeSettings, dimension, view } from "./why.js";

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
    element("button", { class: "button small", "aria-label": `Delete ${each.name}`, text: "Delete", onclick: (event) => deleteTask(each, event.target) }),
  )));
}

async function deleteTask(each, button) {
  if (button.textContent === "Delete") { // twice, because this cannot be undone
    button.textContent = "Delete for good";
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
    scrollTo(0, 0);
    $("classes").querySelector("input")?.focus();
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
  new IntersectionObserver(([section]) => { $("jump").hidden = section.isIntersecting; }).observe($("try"));
  $("query-surprise").addEventListener("click", () => attempt(async () => {
    const names = task.classes.map((each) => each.name);
    const name = names[Math.floor(Math.random() * names.length)] ?? "";
    const answer = await fetch(`/v1/drawing?name=${encodeURIComponent(name)}`);
    setQueryKind("draw");
    pad.show(await createImageBitmap(await answer.blob()));
    $("query-hint").hidden = true;
    ask();
  }));
  $("reject-auto").addEventListener("change", ask);
  $("reject").addEventListener("input", () => { $("reject-value").textContent = `${$("reject").value}%`; ask(); });
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

subscribe("task", showUse);
wire();
showAnswer(null);
attempt(start);
