// The task on the page, as the server gave it last, and what changes with it. The parts of the page subscribe to it.

import { call } from "./api.js";
import { $, toast } from "./dom.js";

const COLORS = ["#3566d6", "#d1495b", "#1a8a62", "#b7641a", "#7d4fc4", "#0f829c", "#b83d8f", "#6b7a1e", "#8a5a44", "#566079"];

export let task = null;
export let map = null; // the last that came of the task; null while fewer than two classes have examples
export let mapState = "few"; // "loading", "ready", "failed", or "few" classes
const views = { task: [], map: [], changed: [] };

export const address = (rest = "") => `/v1/tasks/${task.id}${rest}`;
export const thumbnail = (id) => address(`/examples/${id}/thumbnail`);
// Ten colors that are easy to tell apart, then hues far from the last ones.
export const color = (index) => COLORS[index] ?? `hsl(${Math.round(137.5 * index) % 360} 60% 40%)`;
export const nameColor = (name) => color(Math.max(0, task.classes.findIndex((each) => each.name === name)));

// Calls `view` when the "task" or its "map" is another, or when both are up to date ("changed").
export const subscribe = (what, view) => views[what].push(view);
const notify = (what) => views[what].forEach((view) => view());

export async function openTask(id) {
  task = await call("GET", `/v1/tasks/${id}`);
  history.replaceState(null, "", `#${id}`);
  setMap(null, "loading");
  await changed(task);
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

function setMap(fresh, state) {
  map = fresh;
  mapState = state;
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
      await fetchMap();
    }
  } finally {
    mapRunning = false;
  }
}

async function fetchMap() {
  if (task.classes.filter((one) => one.examples.length).length < 2) return setMap(null, "few");
  setMap(map, "loading");
  const { id } = task;
  let [fresh, state] = [map, "failed"]; // what was there stays
  try {
    [fresh, state] = [await call("GET", address("/map")), "ready"];
  } catch (error) {
    if (error.status === 409) [fresh, state] = [null, "few"];
    else toast(error.message);
  }
  if (id === task.id) setMap(fresh, state);
}
