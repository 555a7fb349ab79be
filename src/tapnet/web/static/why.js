// See why: the map before and after adapting, how good the classifier is, and how it compares.

import { call } from "./api.js";
import { $, attempt, element, percent, plural } from "./dom.js";
import { MapView } from "./map.js";
import { address, changed, map, nameColor, subscribe, thumbnail } from "./task.js";

const METHODS = {
  tapnet: "TapNet projection",
  protonet: "ProtoNet class means",
  centroid: "Angle to class means",
  logistic: "Logistic regression",
};
const LARGEST_TABLE = 12; // classes
const MISTAKES = 8; // listed for more classes

export const view = new MapView($("map"), thumbnail, (label) => nameColor(map?.classes[label]));

function showMap() {
  const found = map;
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
export const dimension = (value) => (value >= 100 ? null : Math.round(map.dimensions ** (value / 99)));

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

export function setSpace(goal) {
  $("space-embedding").setAttribute("aria-pressed", String(goal === 0));
  $("space-projection").setAttribute("aria-pressed", String(goal === 1));
  view.setSpace(goal);
  describeMap();
}

let settingsTimer = 0;
export function changeSettings(values, wait) {
  clearTimeout(settingsTimer);
  settingsTimer = setTimeout(async () => changed(await attempt(() => call("PATCH", address(), values))), wait);
}

subscribe("map", showMap);
subscribe("opened", () => map && view.replay());
