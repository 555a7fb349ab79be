// Try: something new to draw, choose or point the webcam at, and the answer to it.

import { call, images } from "./api.js";
import * as camera from "./camera.js";
import { $, attempt, element, percent, toast } from "./dom.js";
import { Pad } from "./pad.js";
import { address, map, mapState, nameColor, subscribe, thumbnail } from "./task.js";
import { showPicture } from "./why.js";

const query = { kind: "draw", blob: null };
export const pad = new Pad($("query-canvas"), () => {
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

// What is unknown: what is less probable than the slider says, or by the examples, once every class has two.
function rejection() {
  if (!$("reject-auto").checked) return $("reject").value / 100;
  return map?.leave_one_out ? "auto" : 0;
}

function showRejection() {
  const auto = $("reject-auto").checked;
  $("reject-box").hidden = auto;
  $("reject-later").hidden = !auto || !map || Boolean(map.leave_one_out);
}

// One request at a time; what changed meanwhile is asked when the answer is there.
export async function ask() {
  showRejection();
  wanted = true;
  if (asking) return;
  asking = true;
  while (wanted) {
    wanted = false;
    const blob = await queryBlob();
    if (!blob || !map) { showAnswer(null); continue; }
    if ($("nearest-box").hidden) $("answer-note").textContent = "Looking…";
    try {
      const answer = await call("POST", address(`/explain?reject=${rejection()}`), images([blob]));
      if (map && (await queryBlob())) showAnswer(answer);
    } catch (error) {
      if (error.status === 409) { showAnswer(null); continue; }
      toast(error.message); // and the last answer stays
      $("answer-note").textContent = "This is the answer before the last change: the server did not answer.";
      if ($("nearest-box").hidden) $("answer-note").textContent = "The server did not answer.";
      $("ask-again").hidden = false;
    }
  }
  asking = false;
}

let announced = 0;
export function showAnswer(answer) {
  const label = $("answer");
  const unknown = Boolean(answer?.rejected); // a class may have that name, too
  label.classList.toggle("unknown", unknown);
  $("nearest-box").hidden = !answer;
  $("bars").hidden = !answer;
  $("ask-again").hidden = true;
  if (!answer) {
    label.textContent = "…";
    $("answer-note").textContent = map ? "The answer appears here." : { few: "Teach at least two classes first.", failed: "The server did not answer." }[mapState] ?? "Getting ready…";
    showPicture(null);
    return;
  }
  label.textContent = answer.label;
  const best = answer.ranked[0];
  $("answer-note").textContent = unknown ? `None of the classes; ${best.label} comes closest.` : `${percent(best.probability)} sure`;
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
  showPicture(answer);
  clearTimeout(announced);
  announced = setTimeout(() => { $("announce").textContent = unknown ? "unknown" : `${answer.label}, ${percent(best.probability)}`; }, 700);
}

export function setQueryKind(kind) {
  if (query.kind === "camera" && kind !== "camera") camera.stop($("query-video"));
  query.kind = kind;
  for (const each of ["draw", "image", "camera"]) $(`query-${each}`).setAttribute("aria-pressed", String(each === kind));
  $("query-canvas").hidden = kind !== "draw";
  $("query-hint").hidden = kind !== "draw" || !pad.empty;
  $("query-shown").hidden = kind !== "image";
  $("query-video").hidden = kind !== "camera";
}

export function showQueryImage(blob) {
  setQueryKind("image");
  query.blob = blob;
  if ($("query-shown").src) URL.revokeObjectURL($("query-shown").src);
  $("query-shown").src = URL.createObjectURL(blob);
  ask();
}

export async function watchCamera() {
  setQueryKind("camera");
  const started = await attempt(async () => { await camera.start($("query-video")); return true; });
  if (!started) return setQueryKind("draw");
  while (query.kind === "camera") {
    await ask();
    await new Promise((done) => setTimeout(done, 120));
  }
}

export function clearQuery() {
  pad.clear();
  query.blob = null;
  setQueryKind("draw");
  showAnswer(null);
}

$("ask-again").addEventListener("click", ask);
subscribe("changed", ask);
