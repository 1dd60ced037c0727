// One turn of the conversation, and how it is shown.

import { GrowingText, element } from "./text.js";

/** An answer with nothing in it yet. */
export function emptyAnswer(model) {
  return { role: "assistant", model, content: "", reasoning: "", calls: [], end: "", error: "", figures: "" };
}

/** Adds what a chunk brings to an answer. */
export function take(answer, chunk) {
  const choice = chunk.choices[0];
  const delta = choice?.delta ?? {};
  answer.content += delta.content ?? "";
  answer.reasoning += delta.reasoning_content ?? "";
  for (const piece of delta.tool_calls ?? []) {
    const call = (answer.calls[piece.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= piece.id ?? "";
    call.name ||= piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }
  if (choice?.finish_reason === "length") answer.end = "cut off by the limit of tokens";
}

/** The message that the API wants for a turn. */
export function messageOf(turn) {
  const message = { role: turn.role, content: turn.content };
  if (turn.calls?.length) {
    message.tool_calls = turn.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return message;
}

/** Shows a turn as an item of a list. */
export class TurnView {
  #turn;
  #text = element("div", "", "text");
  #content = new GrowingText(this.#text);
  #reasoning = null;
  #calls = element("div");
  #error = element("p", "", "error");
  #foot = element("p", "", "foot");
  #again = element("button", "", "quiet again");
  #figures = element("span");

  constructor(turn, regenerate) {
    this.#turn = turn;
    this.item = element("li", "", `turn ${turn.role}`);
    this.item.append(element("h2", turn.role === "user" ? "You" : turn.model, "visually-hidden"), this.#text);
    if (turn.role === "user") {
      this.#text.append(element("p", turn.content));
      return;
    }
    this.#again.type = "button";
    this.#again.addEventListener("click", regenerate);
    this.#foot.append(this.#again, this.#figures);
    this.#error.setAttribute("role", "alert");
    this.item.append(this.#calls, this.#error, this.#foot);
  }

  /** Shows what an answer holds by now. `again`: whether it may be asked for anew. */
  update({ answering = false, again = false } = {}) {
    const turn = this.#turn;
    this.item.classList.toggle("answering", answering && !turn.calls.length);
    if (turn.reasoning) this.#showReasoning(answering && !turn.content);
    this.#content.show(turn.content);
    this.#showCalls();
    this.#error.textContent = turn.error;
    this.#error.hidden = !turn.error;
    this.#again.textContent = turn.error ? "Try again" : "Regenerate";
    this.#again.hidden = !again;
    this.#figures.textContent = [turn.end, turn.figures].filter(Boolean).join(" · ");
  }

  #showReasoning(thinking) {
    if (!this.#reasoning) {
      const details = element("details", "", "reasoning");
      const text = element("div", "", "text");
      details.append(element("summary"), text);
      this.#text.before(details);
      this.#reasoning = { summary: details.firstChild, text: new GrowingText(text) };
    }
    this.#reasoning.summary.textContent = thinking ? "Reasoning …" : "Reasoning";
    this.#reasoning.text.show(this.#turn.reasoning);
  }

  #showCalls() {
    this.#calls.replaceChildren(
      ...this.#turn.calls.map((call) => {
        const shown = element("div", "", "call");
        shown.append(element("b", `calls ${call.name}`), call.arguments);
        return shown;
      }),
    );
  }
}
