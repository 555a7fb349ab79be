// The task on the page, as the server gave it last, and what changes with it. The parts of the page subscribe to it.

import { call } from "./api.js";
import { $, toast } from "./dom.js";

const COLORS = ["#3566d6", "#d1495b", "#1a8a62", "#b7641a", "#7d4fc4", "#0f829c", "#b83d8f", "#6b7a1e", "#8a5a44", "#566079"];

export let task = null;
export let map = null; // of the task; null while fewer than two classes have examples
const views = { task: [], map: [], changed: [], opened: [] };

export const address = (rest = "") => `/v1/tasks/${task.id}${rest}`;
export const thumbnail = (id) => address(`/examples/${id}/thumbnail`);
// Ten colors that are easy to tell apart, then hues far from the last ones.
export const color = (index) => COLORS[index] ?? `hsl(${Math.round(137.5 * index) % 360} 60% 40%)`;
export const nameColor = (name) => color(Math.max(0, task.classes.findIndex((each) => each.name === name)));

// Calls `view` when the "task" or its "map" is another, when both are up to date ("changed"), or when a task was "opened".
export const subscribe = (what, view) => views[what].push(view);
const notify = (what) => views[what].forEach((view) => view());

export async function openTask(id) {
  task = await call("GET", `/v1/tasks/${id}`);
  history.replaceState(null, "", `#${id}`);
  setMap(null);
  await changed(task);
  notify("opened");
}

export function show(fresh) {
  if (fresh.id !== task.id || fresh.revision < task.revision) return;
  task = fresh;
  document.title = `${task.name} · tapnet`;
  if (document.activeElement !== $("task-name")) $("task-name").value = task.name;
  $("undo").disabled = !task.can_undo;
  $("redo").disabled = !task.can_redo;
  notify("task");
}

export async function changed(fresh = task) {
  if (!fresh) return;
  show(fresh);
  await refreshMap();
  notify("changed");
}

function setMap(found) {
  map = found;
  notify("map");
}

let mapRunning = false;
let mapWanted = false;
async function refreshMap() {
  mapWanted = true;
  if (mapRunning) return;
  mapRunning = true;
  try {
    while (mapWanted) {
      mapWanted = false;
      const { id } = task;
      const found = await fetchMap();
      if (id === task.id) setMap(found);
    }
  } finally {
    mapRunning = false;
  }
}

async function fetchMap() {
  if (task.classes.filter((each) => each.examples.length).length < 2) return null;
  try {
    return await call("GET", address("/map"));
  } catch (error) {
    if (error.status !== 409) toast(error.message);
    return null;
  }
}
