// A canvas to draw on: mouse, touch, pen, or the arrow keys with the space bar.

const WIDTH = 0.026; // of a stroke, as a share of the side
const SENT = 224; // pixels of each side

export class Pad {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.context = canvas.getContext("2d", { willReadFrequently: true });
    this.cursor = { x: canvas.width / 2, y: canvas.height / 2 };
    this.held = new Set();
    canvas.addEventListener("pointerdown", (event) => this.begin(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => this.end());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("keyup", (event) => this.held.delete(event.key));
    canvas.addEventListener("blur", () => { this.held.clear(); this.pen?.remove(); });
    this.clear();
  }

  clear() {
    this.context.fillStyle = "#ffffff";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.empty = true;
    this.last = null;
  }

  show(bitmap) {
    this.clear();
    this.context.drawImage(bitmap, 0, 0, this.canvas.width, this.canvas.height);
    this.empty = false;
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = this.canvas.width / box.width;
    return { x: (event.clientX - box.left) * scale, y: (event.clientY - box.top) * scale };
  }

  begin(event) {
    if (event.button) return;
    this.pen?.remove();
    try { this.canvas.setPointerCapture(event.pointerId); } catch { /* the pointer is gone already */ }
    this.last = this.place(event);
    this.stroke(this.last);
  }

  move(event) {
    if (!this.last) return;
    for (const each of event.getCoalescedEvents?.() ?? [event]) this.stroke(this.place(each));
  }

  end() {
    this.last = null;
  }

  stroke(to) {
    const from = this.last ?? to;
    const pen = this.context;
    pen.strokeStyle = "#14161f";
    pen.lineWidth = this.canvas.width * WIDTH;
    pen.lineCap = pen.lineJoin = "round";
    pen.beginPath();
    pen.moveTo(from.x, from.y);
    pen.lineTo(to.x + 0.01, to.y);
    pen.stroke();
    this.last = to;
    this.cursor = to;
    this.empty = false;
    this.changed();
  }

  key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === " ") {
      this.held.add(" ");
      event.preventDefault();
    }
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const size = this.canvas.width / (event.shiftKey ? 8 : 24);
    const side = this.canvas.width - 4;
    const to = {
      x: Math.min(side, Math.max(4, this.cursor.x + step[0] * size)),
      y: Math.min(side, Math.max(4, this.cursor.y + step[1] * size)),
    };
    if (this.held.has(" ")) {
      this.last = this.cursor;
      this.stroke(to);
      this.last = null;
    }
    this.cursor = to;
    this.showPen();
  }

  // Where the pen is, for those who move it by keys; it is no part of the drawing.
  showPen() {
    this.pen ??= Object.assign(document.createElement("span"), { className: "pen" });
    if (!this.pen.isConnected) this.canvas.after(this.pen);
    const scale = this.canvas.clientWidth / this.canvas.width;
    this.pen.style.left = `${this.canvas.offsetLeft + this.cursor.x * scale}px`;
    this.pen.style.top = `${this.canvas.offsetTop + this.cursor.y * scale}px`;
  }

  // The drawing as a file, as small as the networks for photographs take it: there is less to send and to decode.
  blob() {
    const small = document.createElement("canvas");
    small.width = small.height = SENT;
    const context = small.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(this.canvas, 0, 0, small.width, small.height);
    return new Promise((done) => small.toBlob(done, "image/png"));
  }
}
