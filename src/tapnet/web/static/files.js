// Files that were dropped, chosen or pasted: folders become classes, large images are reduced before they are sent.

import { attempt } from "./dom.js";

const LARGE = 1_000_000; // bytes
const SIDE = 1024;
const NAMES = /\.(avif|bmp|gif|heic|heif|jfif|jp2|jpe?g|p[bgnp]m|png|tga|tiff?|webp)$/i;

export const isImage = (file) => file.type.startsWith("image/") || NAMES.test(file.name);

export function acceptDrops(target, use) {
  target.addEventListener("dragover", (event) => { event.preventDefault(); target.classList.add("dropping"); });
  target.addEventListener("dragleave", () => target.classList.remove("dropping"));
  target.addEventListener("drop", async (event) => {
    event.preventDefault();
    target.classList.remove("dropping");
    await attempt(async () => use(await dropped(event.dataTransfer)));
  });
}

// Returns {files, folders: Map of name to files} of a drop; entries must be taken before the first await.
export async function dropped(transfer) {
  const entries = [...transfer.items].filter((item) => item.kind === "file").map((item) => item.webkitGetAsEntry?.());
  const loose = [...transfer.files];
  const files = [];
  const folders = new Map();
  for (const [index, entry] of entries.entries()) {
    if (entry?.isDirectory) await walk(entry, folders);
    else if (loose[index]) files.push(loose[index]);
  }
  return { files: files.filter(isImage), folders };
}

async function walk(folder, folders) {
  const reader = folder.createReader();
  const entries = [];
  for (;;) {
    const part = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (!part.length) break;
    entries.push(...part);
  }
  for (const entry of entries) {
    if (entry.isDirectory) await walk(entry, folders);
    else {
      const file = await new Promise((done, fail) => entry.file(done, fail));
      if (isImage(file)) folders.set(folder.name, [...(folders.get(folder.name) ?? []), file]);
    }
  }
}

// Returns a Map of folder name to images, of <input webkitdirectory>.
export function byFolder(list) {
  const folders = new Map();
  for (const file of [...list].filter(isImage)) {
    const parts = file.webkitRelativePath.split("/");
    const name = parts.at(-2) ?? "images";
    folders.set(name, [...(folders.get(name) ?? []), file]);
  }
  return folders;
}

export async function reduced(file) {
  if (file.size <= LARGE) return file;
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = Object.assign(document.createElement("canvas"), {
      width: Math.max(1, Math.round(bitmap.width * scale)),
      height: Math.max(1, Math.round(bitmap.height * scale)),
    });
    const context = canvas.getContext("2d");
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  } catch {
    return file; // of a format that the browser cannot read; the server may
  }
}
