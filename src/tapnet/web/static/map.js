// The picture of an answer: up to three classes, their examples and the image, where the nearest diamond wins.

const MOVE = 450; // milliseconds
const MARGIN = 44; // pixels around what is drawn
const ease = (t) => (t < 0.5 ? 4 * t * t * t : 1 - (-2 * t + 2) ** 3 / 2);
const mix = (a, b, t) => [a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t];
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class MapView {
  constructor(canvas, thumbnail, color) {
    this.canvas = canvas;
    this.thumbnail = thumbnail;
    this.color = color; // of a class of the task
    this.images = new Map();
    this.places = new Map(); // where each thing is drawn now
    this.picture = null;
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  // Shows a picture as the service describes it; an unknown image is drawn outside, away from all classes.
  show(picture, unknown = false) {
    this.picture = picture;
    this.unknown = unknown;
    const from = new Map(this.places);
    const goals = this.goals();
    const began = performance.now();
    const length = still.matches ? 1 : MOVE;
    cancelAnimationFrame(this.running);
    const step = (now) => {
      const t = ease(Math.min(1, Math.max(0, (now - began) / length)));
      this.places = new Map([...goals].map(([id, goal]) => [id, from.has(id) ? mix(from.get(id), goal, t) : goal]));
      this.paint();
      if (now - began < length) this.running = requestAnimationFrame(step);
    };
    step(began);
  }

  goals() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const goals = new Map();
    if (!this.picture) return goals;
    const { centers, examples, query } = this.picture;
    const points = [...centers, ...examples.map((example) => example.point), ...(query && !this.unknown ? [query] : [])];
    const [left, right] = [Math.min(...points.map(([x]) => x)), Math.max(...points.map(([x]) => x))];
    const [low, high] = [Math.min(...points.map(([, y]) => y)), Math.max(...points.map(([, y]) => y))];
    const scale = Math.min((width - 2 * MARGIN) / (right - left || 1), (height - 2 * MARGIN) / (high - low || 1));
    const place = ([x, y]) => [width / 2 + (x - (left + right) / 2) * scale, height / 2 - (y - (low + high) / 2) * scale];
    for (const example of examples) goals.set(example.id, place(example.point));
    centers.forEach((point, index) => goals.set(`center ${this.picture.classes[index]}`, place(point)));
    if (query) goals.set("query", this.unknown ? [24, height - 24] : place(query));
    return goals;
  }

  draw() {
    this.places = this.goals();
    this.paint();
  }

  image(id) {
    if (!this.images.has(id)) {
      const image = new Image();
      image.src = this.thumbnail(id);
      image.onload = () => this.paint();
      this.images.set(id, image);
    }
    return this.images.get(id);
  }

  paint() {
    const { canvas } = this;
    const ratio = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (canvas.width !== width * ratio || canvas.height !== height * ratio) {
      canvas.width = width * ratio;
      canvas.height = height * ratio;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    if (!this.picture) return;
    const style = getComputedStyle(canvas);
    const [ink, card] = [style.color, style.getPropertyValue("--card")];
    this.regions(pen, width, height);
    this.examples(pen);
    this.centers(pen, card);
    if (this.unknown) this.outside(pen, height, card, style.getPropertyValue("--quiet"));
    this.questionMark(pen, ink, card);
  }

  // Which class wins where: what is nearer to its diamond than to the others.
  regions(pen, width, height) {
    const { classes } = this.picture;
    const centers = classes.map((label) => this.places.get(`center ${label}`));
    pen.globalAlpha = 0.16;
    centers.forEach((own, index) => {
      let shape = [[0, 0], [width, 0], [width, height], [0, height]];
      centers.forEach((other) => { if (other !== own) shape = nearerTo(own, other, shape); });
      pen.fillStyle = this.color(classes[index]);
      pen.beginPath();
      shape.forEach((point) => pen.lineTo(...point));
      pen.fill();
    });
    pen.globalAlpha = 1;
  }

  examples(pen) {
    const { examples } = this.picture;
    const side = examples.length > 120 ? 18 : examples.length > 50 ? 26 : 36;
    for (const { id, label } of examples) {
      const at = this.places.get(id);
      const [x, y] = [at[0] - side / 2, at[1] - side / 2];
      pen.fillStyle = "#ffffff";
      pen.strokeStyle = this.color(label);
      pen.lineWidth = 2.5;
      pen.beginPath();
      pen.roundRect(x, y, side, side, 8);
      pen.fill();
      pen.save();
      pen.clip();
      const image = this.image(id);
      if (image.complete && image.naturalWidth) pen.drawImage(image, x + 2, y + 2, side - 4, side - 4);
      pen.restore();
      pen.stroke();
    }
  }

  centers(pen, halo) {
    for (const label of this.picture.classes) {
      pen.save();
      pen.translate(...this.places.get(`center ${label}`));
      pen.rotate(Math.PI / 4);
      pen.fillStyle = this.color(label);
      pen.strokeStyle = halo;
      pen.lineWidth = 3;
      pen.beginPath();
      pen.roundRect(-9, -9, 18, 18, 4);
      pen.stroke();
      pen.fill();
      pen.restore();
    }
  }

  // A corner that belongs to no class.
  outside(pen, height, card, quiet) {
    pen.fillStyle = card;
    pen.strokeStyle = quiet;
    pen.lineWidth = 1.5;
    pen.setLineDash([5, 5]);
    pen.beginPath();
    pen.roundRect(-12, height - 52, 76, 64, 14);
    pen.fill();
    pen.stroke();
    pen.setLineDash([]);
  }

  questionMark(pen, ink, halo) {
    const at = this.places.get("query");
    if (!at) return;
    pen.fillStyle = this.unknown ? halo : this.color(this.picture.classes[0]);
    pen.strokeStyle = ink;
    pen.lineWidth = 3;
    pen.beginPath();
    pen.arc(at[0], at[1], 15, 0, 2 * Math.PI);
    pen.fill();
    pen.stroke();
    pen.fillStyle = this.unknown ? ink : "#ffffff";
    pen.font = "bold 18px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText("?", at[0], at[1] + 1);
  }
}

// The part of a convex shape that is nearer to one point than to another.
function nearerTo(own, other, shape) {
  const side = ([x, y]) => (x - other[0]) ** 2 + (y - other[1]) ** 2 - (x - own[0]) ** 2 - (y - own[1]) ** 2;
  return shape.flatMap((point, index) => {
    const next = shape[(index + 1) % shape.length];
    const [here, there] = [side(point), side(next)];
    const kept = here >= 0 ? [point] : [];
    return here >= 0 === there >= 0 ? kept : [...kept, mix(point, next, here / (here - there))];
  });
}
