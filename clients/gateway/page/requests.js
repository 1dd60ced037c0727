// Talks to the gateway that served this page.

/** What the service says is wrong, in words. */
export class ServiceError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

/** JSON of the gateway; throws ServiceError. */
export async function getJson(path, key) {
  const response = await reached(fetch(path, { headers: headers(key), cache: "no-store" }));
  if (!response.ok) throw await failure(response);
  return response.json();
}

/** The chunks of a streamed answer; throws ServiceError, or the signal's AbortError. */
export async function* chatChunks(body, key, signal) {
  const asked = { method: "POST", headers: headers(key), body: JSON.stringify({ ...body, stream: true }), signal };
  const response = await reached(fetch("/v1/chat/completions", asked));
  if (!response.ok) throw await failure(response);
  for await (const event of events(response.body)) {
    if (event === "[DONE]") return;
    const chunk = JSON.parse(event);
    if (chunk.error) throw new ServiceError(chunk.error.message);
    yield chunk;
  }
  throw new ServiceError("The answer broke off: the gateway ended the stream.");
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) yield dataOf(part);
  }
}

/** The data of a server-sent event; the gateway writes it in one line, and may name the event before. */
function dataOf(event) {
  const line = event.split("\n").find((line) => line.startsWith("data:"));
  return line.slice("data:".length).trim();
}

async function reached(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError("The gateway cannot be reached. Is it still running?");
  }
}

async function failure(response) {
  const told = await response.json().catch(() => ({}));
  const message = told.error?.message ?? response.statusText;
  const after = response.headers.get("retry-after");
  const words = { 401: "The service wants an API key that it knows; enter it in the settings.", 429: "The service has too much to do." };
  const sentences = [words[response.status], message, after && `Try again in ${after} s.`];
  return new ServiceError(sentences.filter(Boolean).join("\n"), response.status);
}
