// Small helpers for the document: elements, messages and words.

import { ApiError } from "./api.js";

export const $ = (id) => document.getElementById(id);
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
export const percent = (value) => `${Math.round(100 * value)}%`;


export function element(tag, attributes = {}, ...children) {
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

export function toast(text, milliseconds = 6000) {
  const shown = element("div", { class: "toast", text });
  $("toasts").append(shown);
  $("toasts").hidePopover(); // and show it again, above a dialog that was opened meanwhile
  $("toasts").showPopover();
  setTimeout(() => shown.remove(), milliseconds);
}

export async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    toast(error.message);
    if (!(error instanceof ApiError) && !/webcam/.test(error.message)) console.error(error);
    return null;
  }
}
