// The webcam: one stream, shown in whichever video asks for it.

let stream = null;
let users = 0;

export async function start(video) {
  if (!navigator.mediaDevices) throw new Error("The browser gives no webcam to this page: open it on localhost or by https.");
  try {
    stream = stream ?? (await navigator.mediaDevices.getUserMedia({ video: { width: 640, height: 480 } }));
  } catch {
    throw new Error("There is no webcam, or the browser may not use it.");
  }
  users += 1;
  video.srcObject = stream;
  await video.play();
}

export function stop(video) {
  if (!video.srcObject) return;
  video.srcObject = null;
  users -= 1;
  if (users > 0) return;
  for (const track of stream.getTracks()) track.stop();
  stream = null;
}

export function frame(video, side = 320) {
  const size = Math.min(video.videoWidth, video.videoHeight);
  const canvas = Object.assign(document.createElement("canvas"), { width: side, height: side });
  const left = (video.videoWidth - size) / 2;
  const top = (video.videoHeight - size) / 2;
  canvas.getContext("2d").drawImage(video, left, top, size, size, 0, 0, side, side);
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
}
