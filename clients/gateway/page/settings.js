// The form of parameters, which this browser remembers; the key only as long as the tab is open.

import { ServiceError, getJson } from "./requests.js";

const STORED = "pypto-serving.settings";
const KEY = "pypto-serving.key";
const byId = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const TEXTS = ["system", "tools", ...NUMBERS];

export class Settings {
  #form = byId("parameters");
  #panel = byId("settings");
  #opener = byId("show-settings");

  /** `keyChanged` is called when there is another key. */
  constructor(keyChanged) {
    const stored = JSON.parse(localStorage.getItem(STORED) ?? "{}");
    for (const name of TEXTS) this.#form.elements[name].value = stored[name] ?? "";
    this.#form.elements.key.value = sessionStorage.getItem(KEY) ?? "";
    this.#form.addEventListener("input", () => this.#store());
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#form.addEventListener("reset", () => setTimeout(() => {
      this.#store();
      keyChanged();
    }));
    this.#form.elements.key.addEventListener("change", keyChanged);
    this.#opener.addEventListener("click", () => this.#show(this.#panel.hidden));
    this.#show(matchMedia("(min-width: 60rem)").matches);
  }

  get key() {
    return this.#form.elements.key.value.trim();
  }

  /** What a request is to say; throws ServiceError for tools that are no JSON. */
  request() {
    const fields = {};
    for (const name of NUMBERS) {
      const value = this.#form.elements[name].value;
      if (value !== "") fields[name] = Number(value);
    }
    const tools = this.#form.elements.tools.value.trim();
    if (tools) fields.tools = parsed(tools);
    return { fields, system: this.#form.elements.system.value, key: this.key };
  }

  #show(open) {
    this.#panel.hidden = !open;
    this.#opener.setAttribute("aria-expanded", String(open));
  }

  #store() {
    localStorage.setItem(STORED, JSON.stringify(Object.fromEntries(TEXTS.map((name) => [name, this.#form.elements[name].value]))));
    sessionStorage.setItem(KEY, this.key);
  }
}

function parsed(tools) {
  try {
    return JSON.parse(tools);
  } catch (error) {
    throw new ServiceError(`The tools in the settings are no JSON: ${error.message}`);
  }
}

/** Lists the models; says what is wrong where they are not told. */
export async function listModels(key) {
  const select = byId("model");
  const trouble = byId("models-trouble");
  try {
    const { data } = await getJson("/v1/models", key);
    const chosen = select.value;
    select.replaceChildren(...data.map((model) => new Option(model.id, model.id, false, model.id === chosen)));
    trouble.hidden = true;
  } catch (error) {
    trouble.textContent = error.message;
    trouble.hidden = false;
  }
}
