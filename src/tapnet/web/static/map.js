// The examples, what stands for each class, and the query as points, moving between the two spaces.

const MOVE = 450; // milliseconds
const ease = (t) => (t < 0.5 ? 4 * t * t * t : 1 - (-2 * t + 2) ** 3 / 2);
const mix = (a, b, t) => [a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t];
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class MapView {
  constructor(canvas, thumbnail, color) {
    this.canvas = canvas;
    this.thumbnail = thumbnail;
    this.color = color;
    this.images = new Map();
    this.places = new Map(); // where each thing is drawn now, as a share of the view
    this.space = 1; // 0 before the projection, 1 after it
    this.goalSpace = 1;
    this.query = null;
    this.data = null;
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  update(data) {
    const rotate = this.data ? alignment(data.examples, this.data.examples) : null;
    const rotated = (point) => (rotate ? { embedding: rotate(point.embedding), projection: rotate(point.projection) } : point);
    this.rotated = rotated;
    this.data = {
      ...data,
      examples: data.examples.map((each) => ({ ...each, point: rotated(each.point) })),
      centers: data.centers.map(rotated),
    };
    this.animate();
  }

  clear() {
    this.data = null;
    this.query = null;
    this.places.clear();
    this.draw();
  }

  setQuery(point, label) {
    this.query = point && this.data && { point: this.rotated(point), label };
    this.animate(160);
  }

  setSpace(goal, slow = false) {
    this.goalSpace = goal;
    this.animate(slow ? 1500 : 900);
  }

  replay() {
    this.space = this.goalSpace = 0;
    this.places.clear();
    this.draw();
    setTimeout(() => this.setSpace(1, true), 350);
  }

  // Each space is scaled to fill the view: the distances within one compare, those of two do not.
  frame(key) {
    const points = [...this.data.examples.map((each) => each.point[key]), ...this.data.centers.map((each) => each[key])];
    const xs = points.map((p) => p[0]);
    const ys = points.map((p) => p[1]);
    const middle = [(Math.min(...xs) + Math.max(...xs)) / 2, (Math.min(...ys) + Math.max(...ys)) / 2];
    const half = [(Math.max(...xs) - Math.min(...xs)) / 2, (Math.max(...ys) - Math.min(...ys)) / 2];
    return { middle, half };
  }

  goals() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const frames = { embedding: this.frame("embedding"), projection: this.frame("projection") };
    const place = (key, p) => {
      const { middle, half } = frames[key];
      const scale = Math.min((width / 2 - 42) / (half[0] || 1), (height / 2 - 42) / (half[1] || 1));
      return [width / 2 + (p[0] - middle[0]) * scale, height / 2 - (p[1] - middle[1]) * scale];
    };
    const both = (point) => [place("embedding", point.embedding), place("projection", point.projection)];
    const found = new Map();
    for (const each of this.data.examples) found.set(each.id, both(each.point));
    this.data.centers.forEach((point, label) => found.set(`center ${label}`, both(point)));
    if (this.query) {
      const clamp = (p) => [Math.min(width - 22, Math.max(22, p[0])), Math.min(height - 22, Math.max(22, p[1]))];
      found.set("query", both(this.query.point).map(clamp));
    }
    return found;
  }

  animate(duration = MOVE) {
    cancelAnimationFrame(this.running);
    if (!this.data) return this.draw();
    const from = new Map(this.places);
    const space = this.space;
    const goal = this.goalSpace;
    const began = performance.now();
    const goals = this.goals();
    const length = still.matches ? 1 : duration;
    const step = (now) => {
      const t = ease(Math.min(1, Math.max(0, (now - began) / length)));
      this.space = space + (goal - space) * t;
      const places = new Map();
      for (const [id, [before, after]] of goals) {
        const target = mix(before, after, this.space);
        const start = from.get(id);
        // what is new appears where it belongs; what was there moves from where it is seen
        const old = start && mix(before, after, space);
        places.set(id, start ? mix([target[0] + start[0] - old[0], target[1] + start[1] - old[1]], target, t) : target);
      }
      this.places = places;
      this.paint();
      if (now - began < length) this.running = requestAnimationFrame(step);
    };
    step(began);
  }

  draw() {
    if (this.data) {
      this.places = new Map([...this.goals()].map(([id, [a, b]]) => [id, mix(a, b, this.space)]));
    }
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
    const style = getComputedStyle(canvas);
    const ink = style.color;
    if (!this.data) {
      pen.fillStyle = style.getPropertyValue("--quiet");
      pen.font = "15px system-ui, sans-serif";
      pen.textAlign = "center";
      pen.fillText("Give two classes an example each,", width / 2, height / 2 - 11);
      pen.fillText("and the map appears.", width / 2, height / 2 + 11);
      return;
    }
    if (this.data.exact) this.regions(pen, width, height);
    this.spokes(pen);
    this.examples(pen, ink);
    this.centers(pen, style.getPropertyValue("--card"));
    this.questionMark(pen, ink, style.getPropertyValue("--card"));
  }

  // Which class wins where: half planes between the centers, exact for up to three classes.
  regions(pen, width, height) {
    const centers = this.data.centers.map((_, label) => this.places.get(`center ${label}`));
    if (centers.some((each) => !each) || this.space < 0.02) return;
    pen.globalAlpha = 0.14 * this.space;
    centers.forEach((own, label) => {
      let shape = [[0, 0], [width, 0], [width, height], [0, height]];
      centers.forEach((other, index) => { if (index !== label) shape = nearerTo(own, other, shape); });
      if (shape.length < 3) return;
      pen.fillStyle = this.color(label);
      pen.beginPath();
      shape.forEach((point) => pen.lineTo(...point));
      pen.fill();
    });
    pen.globalAlpha = 1;
  }

  spokes(pen) {
    pen.lineWidth = 1.5;
    for (const each of this.data.examples) {
      const from = this.places.get(each.id);
      const to = this.places.get(`center ${each.label}`);
      if (!from || !to) continue;
      pen.strokeStyle = this.color(each.label);
      pen.globalAlpha = 0.1 + 0.3 * this.space;
      pen.beginPath();
      pen.moveTo(...from);
      pen.lineTo(...to);
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  examples(pen) {
    const side = this.data.examples.length > 120 ? 18 : this.data.examples.length > 50 ? 26 : 36;
    for (const each of this.data.examples) {
      const at = this.places.get(each.id);
      if (!at) continue;
      const [x, y] = [at[0] - side / 2, at[1] - side / 2];
      pen.fillStyle = "#ffffff";
      pen.strokeStyle = this.color(each.label);
      pen.lineWidth = 2.5;
      pen.beginPath();
      pen.roundRect(x, y, side, side, 8);
      pen.fill();
      pen.save();
      pen.clip();
      const image = this.image(each.id);
      if (image.complete && image.naturalWidth) pen.drawImage(image, x + 2, y + 2, side - 4, side - 4);
      pen.restore();
      pen.stroke();
    }
  }

  centers(pen, halo) {
    this.data.centers.forEach((_, label) => {
      const at = this.places.get(`center ${label}`);
      if (!at) return;
      pen.save();
      pen.translate(...at);
      pen.rotate(Math.PI / 4);
      pen.fillStyle = this.color(label);
      pen.strokeStyle = halo;
      pen.lineWidth = 3;
      pen.beginPath();
      pen.roundRect(-9, -9, 18, 18, 4);
      pen.stroke();
      pen.fill();
      pen.restore();
    });
  }

  questionMark(pen, ink, halo) {
    const at = this.query && this.places.get("query");
    if (!at) return;
    pen.fillStyle = this.query.label === null ? halo : this.color(this.query.label);
    pen.strokeStyle = ink;
    pen.lineWidth = 3;
    pen.beginPath();
    pen.arc(at[0], at[1], 15, 0, 2 * Math.PI);
    pen.fill();
    pen.stroke();
    pen.fillStyle = this.query.label === null ? ink : "#ffffff";
    pen.font = "bold 18px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText("?", at[0], at[1] + 1);
    pen.textBaseline = "alphabetic";
  }
}

// A rotation or reflection of the new plane after which its examples lie as they did, so that nothing flips.
function alignment(fresh, old) {
  const there = new Map(old.map((each) => [each.id, each.point.projection]));
  const pairs = fresh.filter((each) => there.has(each.id)).map((each) => [each.point.projection, there.get(each.id)]);
  if (pairs.length < 2) return null;
  const mean = (side) => [0, 1].map((k) => pairs.reduce((sum, pair) => sum + pair[side][k], 0) / pairs.length);
  const [from, to] = [mean(0), mean(1)];
  let [cos, sin, cosMirror, sinMirror] = [0, 0, 0, 0];
  for (const [p, q] of pairs) {
    const [a, b, c, d] = [p[0] - from[0], p[1] - from[1], q[0] - to[0], q[1] - to[1]];
    cos += a * c + b * d;
    sin += a * d - b * c;
    cosMirror += a * c - b * d;
    sinMirror += a * d + b * c;
  }
  const mirror = Math.hypot(cosMirror, sinMirror) > Math.hypot(cos, sin);
  const [x, y] = mirror ? [cosMirror, sinMirror] : [cos, sin];
  const length = Math.hypot(x, y) || 1;
  const [k, s] = [x / length, y / length];
  return ([a, b]) => (mirror ? [k * a + s * b, s * a - k * b] : [k * a - s * b, s * a + k * b]);
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
