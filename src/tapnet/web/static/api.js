// Calls to the service; an answer other than success becomes an Error with its sentence.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

export async function call(method, path, body, retries = 3) {
  const options = { method, headers: {} };
  if (body instanceof FormData || body instanceof Blob) options.body = body;
  else if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new ApiError(0, "The server does not answer. Is it still running?");
  }
  if ((answer.status === 503 || answer.status === 429) && retries > 0) {
    await pause(1000 * Number(answer.headers.get("Retry-After") || 1));
    return call(method, path, body, retries - 1);
  }
  if (answer.status === 401) location.assign("/login");
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({}));
    throw new ApiError(answer.status, problem.detail || `The server answered ${answer.status}.`);
  }
  return answer.status === 204 ? null : answer.json();
}

export function images(blobs) {
  const form = new FormData();
  for (const blob of blobs) form.append("images", blob, "image");
  return form;
}
