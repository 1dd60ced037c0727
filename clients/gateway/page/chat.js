// The conversation: sends what is typed, shows what comes back, keeps it in this browser.

import { ServiceError, chatChunks } from "./requests.js";
import { TurnView, emptyAnswer, messageOf, take } from "./turn.js";

const STORED = "pypto-serving.turns";
const byId = (id) => document.getElementById(id);

export class Chat {
  #turns = [];
  #views = [];
  #stopping = null; // of the answer that is being written
  #settings;

  /** `settings`: gives the fields of a request, and the key. */
  constructor(settings) {
    this.#settings = settings;
    this.#turns = stored();
    this.#turns.forEach((turn) => this.#add(turn));
    this.#refresh();
    this.#listen();
  }

  #listen() {
    const message = byId("message");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    message.addEventListener("input", () => fit(message));
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.#stop());
    byId("stop").addEventListener("click", () => this.#stop());
    byId("clear").addEventListener("click", () => this.#clear());
  }

  #send() {
    const message = byId("message");
    if (!message.value.trim() || this.#stopping) return;
    const turn = { role: "user", content: message.value };
    this.#turns.push(turn);
    this.#add(turn);
    message.value = "";
    fit(message);
    this.#answer();
  }

  #stop() {
    this.#stopping?.abort();
  }

  #clear() {
    this.#stop();
    this.#turns = [];
    this.#views = [];
    byId("turns").replaceChildren();
    this.#refresh();
    byId("message").focus();
  }

  #regenerate() {
    if (this.#stopping) return;
    this.#turns.pop();
    this.#views.pop().item.remove();
    byId("message").focus();
    this.#answer();
  }

  #add(turn) {
    const view = new TurnView(turn, () => this.#regenerate());
    this.#views.push(view);
    byId("turns").append(view.item);
    return view;
  }

  async #answer() {
    const answer = emptyAnswer(byId("model").value);
    const messages = this.#turns.filter((turn) => !turn.error || turn.content).map(messageOf);
    this.#turns.push(answer);
    const view = this.#add(answer);
    const stopping = (this.#stopping = new AbortController());
    this.#refresh();
    scrollTo({ top: document.body.scrollHeight });
    announce("Answering");
    try {
      await this.#receive(answer, view, messages, stopping.signal);
    } catch (error) {
      note(answer, error);
    }
    if (this.#stopping === stopping) this.#stopping = null;
    if (this.#turns.includes(answer)) announce([answer.content, answer.end, answer.error].filter(Boolean).join("\n"));
    this.#refresh();
  }

  async #receive(answer, view, messages, signal) {
    const { fields, system, key } = this.#settings.request();
    const all = system ? [{ role: "system", content: system }, ...messages] : messages;
    const began = performance.now();
    let first = null;
    let frame = 0;
    const body = { ...fields, model: answer.model || undefined, messages: all, stream_options: { include_usage: true } };
    for await (const chunk of chatChunks(body, key, signal)) {
      take(answer, chunk);
      if (first === null && (answer.content || answer.reasoning || answer.calls.length)) first = performance.now();
      if (chunk.usage) answer.figures = figures(chunk.usage, first - began, performance.now() - first);
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        if (this.#stopping?.signal !== signal) return; // it has ended, and is shown as such
        const follows = atEnd();
        view.update({ answering: true });
        if (follows) scrollTo({ top: document.body.scrollHeight });
      });
    }
  }

  /** Shows every answer anew, and what can be done now; stores the conversation. */
  #refresh() {
    const busy = this.#stopping !== null;
    const last = this.#turns.length - 1;
    const follows = atEnd();
    this.#turns.forEach((turn, index) => {
      if (turn.role === "assistant") this.#views[index].update({ answering: busy && index === last, again: !busy && index === last });
    });
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    byId("welcome").hidden = this.#turns.length > 0;
    byId("clear").disabled = !this.#turns.length;
    if (follows) scrollTo({ top: document.body.scrollHeight });
    if (!busy) store(this.#turns);
  }
}

function note(answer, error) {
  if (error.name === "AbortError") answer.end = "stopped";
  else answer.error = error instanceof ServiceError ? error.message : `A defect of this page: ${error}`;
}

/** Usage in words. The first token came with the prompt's time, so speed is that of the others. */
function figures(usage, firstMs, restMs) {
  const tokens = usage.completion_tokens;
  const words = [`${tokens} ${tokens === 1 ? "token" : "tokens"} after ${usage.prompt_tokens}`];
  if (firstMs > 0) words.push(`first in ${(firstMs / 1000).toFixed(2)} s`);
  if (tokens > 1 && restMs > 0) words.push(`${((tokens - 1) / (restMs / 1000)).toFixed(1)} tokens/s`);
  return words.join(" · ");
}

/** Tells a screen reader; the text that grows is not read aloud piece by piece. */
function announce(text) {
  byId("announcer").textContent = text;
}

function atEnd() {
  const page = document.documentElement;
  return page.scrollHeight - page.scrollTop - page.clientHeight < 80;
}

function fit(textarea) {
  textarea.style.height = "auto";
  textarea.style.height = `${textarea.scrollHeight + 2}px`;
}

function stored() {
  try {
    return JSON.parse(localStorage.getItem(STORED)) ?? [];
  } catch {
    return [];
  }
}

function store(turns) {
  try {
    localStorage.setItem(STORED, JSON.stringify(turns));
  } catch {
    // Full, or switched off: the conversation lasts as long as the page.
  }
}
