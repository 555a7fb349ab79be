// See why: the classes that an image is weighed between, how good the classifier is, and how it compares.

import { call } from "./api.js";
import { $, attempt, element, percent, plural } from "./dom.js";
import { MapView } from "./map.js";
import { address, changed, map, mapState, nameColor, subscribe, thumbnail } from "./task.js";

const METHODS = {
  tapnet: "TapNet",
  protonet: "Nearest class mean",
  centroid: "Class mean in angle",
  logistic: "Logistic regression",
};
const LARGEST_TABLE = 7; // classes
const MISTAKES = 8; // listed for more classes

const FEW = "Give every class two examples to find out.";

export const view = new MapView($("map"), thumbnail, (label) => nameColor(map?.classes[label]));

function showMap() {
  const ready = Boolean(map);
  for (const id of ["method", "dim"]) $(id).disabled = !ready;
  for (const [id, path] of [["download-task", "/file"], ["download-onnx", "/onnx"]]) {
    if (ready) $(id).href = address(path);
    else $(id).removeAttribute("href");
  }
  $("controls").hidden = !ready;
  $("map-card").setAttribute("aria-busy", String(mapState === "loading"));
  $("map-retry").hidden = mapState !== "failed";
  if (mapState === "loading" && ready) return; // what was there stays until the new one comes
  showPicture(null);
  if (!ready) {
    $("score").textContent = "–";
    $("score-text").textContent = { loading: "Working it out…", failed: "The server did not answer." }[mapState] ?? FEW;
    $("confusion").replaceChildren();
    return;
  }
  $("method").replaceChildren(...map.methods.map((name) => element("option", { value: name, selected: name === map.method, text: METHODS[name] ?? name })));
  $("dim-box").hidden = !map.dimensions;
  if (document.activeElement !== $("dim")) $("dim").value = map.projection_dim === null ? 100 : slider(map.projection_dim);
  $("dim-value").textContent = map.projection_dim ?? "all";
  showScore();
}

// The picture of an answer, or of the classes that are hardest to tell apart while there is none.
export function showPicture(answer) {
  const picture = answer?.picture ?? map?.picture ?? null;
  const unknown = Boolean(answer?.rejected);
  view.show(picture, unknown);
  $("legend").replaceChildren(...(picture?.classes ?? []).map((label) => {
    const item = element("li", { title: map.classes[label] }, element("span", { class: "dot" }), element("span", { class: "label", text: map.classes[label] }));
    item.style.setProperty("--color", nameColor(map.classes[label]));
    return item;
  }));
  $("map-text").textContent = picture ? pictureText(Boolean(answer), unknown) : { loading: "Working it out…", failed: "The server did not answer." }[mapState] ?? "Give two classes an example each, and the picture appears.";
  $("map").setAttribute("aria-label", picture ? `Picture of ${plural(picture.examples.length, "example")} of ${picture.classes.map((label) => map.classes[label]).join(", ")}` : "No picture yet");
}

function pictureText(answered, unknown) {
  const others = map.classes.length - 3;
  const nearest = "The nearest diamond wins; in the middle all are equally likely.";
  if (unknown) return "The image is drawn outside, because it looks like no class: so the answer is “unknown”.";
  if (others <= 0) return nearest;
  if (answered) return `${nearest} The three most likely classes are drawn, the other ${others} are left out.`;
  return `${nearest} These are the three classes that are hardest to tell apart.`;
}

// The slider is logarithmic: 1, 2, 3 … dimensions matter more than 400 or 401.
const slider = (dim) => Math.round((99 * Math.log(dim)) / Math.log(map.dimensions));
export const dimension = (value) => (value >= 100 ? null : Math.round(map.dimensions ** (value / 99)));

function showScore() {
  const { classes, leave_one_out: score } = map;
  $("confusion").replaceChildren();
  if (!score) {
    $("score").textContent = "–";
    $("score-text").textContent = FEW;
    return;
  }
  $("score").textContent = percent(score.accuracy);
  $("score-text").textContent = `${score.hits} of ${plural(score.total, "example")} right when each is hidden and asked about. On new images expect ${percent(score.interval[0])} to ${percent(score.interval[1])}.`;
  if (classes.length > LARGEST_TABLE) return showMistakes(classes, score.confusion);
  const head = element("tr", {}, element("td"), ...classes.map((name) => element("th", { scope: "col", text: name, title: name })));
  const rows = score.confusion.map((row, i) => {
    const total = row.reduce((a, b) => a + b, 0) || 1;
    return element("tr", {}, element("th", { scope: "row", text: classes[i], title: classes[i] }), ...row.map((count, j) => {
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

let settingsTimer = 0;
export function changeSettings(values, wait) {
  clearTimeout(settingsTimer);
  settingsTimer = setTimeout(async () => changed(await attempt(() => call("PATCH", address(), values))), wait);
}

subscribe("map", showMap);
$("map-retry").addEventListener("click", () => changed());
