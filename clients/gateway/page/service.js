// The live view of the service: what /state tells, once a second while somebody looks.

import { getJson } from "./requests.js";
import { element } from "./text.js";

const PERIOD_MS = 1000;
const NUM_POINTS = 90; // of a line, and as many seconds
const STATES = ["referenced", "cached", "fenced", "free"];
const byId = (id) => document.getElementById(id);

export class ServiceView {
  #key;
  #watching = false;
  #looks = 0; // how often somebody began to look, or ended
  #speeds = [];

  /** `key`: gives the API key. */
  constructor(key) {
    this.#key = key;
    document.addEventListener("visibilitychange", () => this.#look());
  }

  /** Begins or ends to ask. */
  watch(watching) {
    this.#watching = watching;
    this.#look();
  }

  async #look() {
    const look = ++this.#looks;
    while (look === this.#looks && this.#watching && !document.hidden) {
      try {
        this.#show(await getJson("/state", this.#key()));
        say("trouble", "");
      } catch (error) {
        say("trouble", error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
    }
  }

  #show(state) {
    const failures = Object.entries(state.failures).map(([source, reason]) => `${source}: ${reason}`);
    const missing = state.missing_flags.map((flag) => `Start the gateway with ${flag} to see ${SHOWN_BY[flag]}.`);
    say("off", [...failures, ...missing].join("\n"));
    this.#speeds = [...this.#speeds, state.activity?.rates?.generation_tokens ?? 0].slice(-NUM_POINTS);
    byId("figures").replaceChildren(...planeFigures(state), ...activityFigures(state.activity, this.#speeds));
    showWorkers(state.control_planes);
    byId("counts").replaceChildren(...countTables(state.activity));
  }
}

const SHOWN_BY = {
  "--admin-target HOST:PORT": "workers, their pages and the queue",
  "--metrics-url URL": "speeds, times, prefix hits and errors",
};

/** Shows a line of text, or nothing. */
function say(id, text) {
  const shown = byId(id);
  if (shown.textContent !== text) shown.textContent = text; // the same alert is not read out again each second
  shown.hidden = !text;
}

function planeFigures({ control_planes: planes, activity }) {
  if (!planes.length) return [];
  const sum = (value) => planes.reduce((total, plane) => total + value(plane), 0);
  const running = sum((plane) => plane.workers.reduce((total, worker) => total + worker.num_running, 0));
  const steps = sum((plane) => plane.workers.reduce((total, worker) => total + worker.steps_in_flight, 0));
  const waiting = sum((plane) => plane.num_waiting);
  const reasons = activity && waiting ? `${activity.waiting.capacity} for capacity, ${activity.waiting.worker} for a worker` : "";
  const held = sum((plane) => plane.num_held);
  return [
    figure("Running", running, `${steps} ${steps === 1 ? "step" : "steps"} in flight${held ? `, ${held} held` : ""}`),
    figure("Waiting", waiting, reasons),
  ];
}

function activityFigures(activity, speeds) {
  if (!activity) return [];
  const { rates, prefix_hit_ratio: hits } = activity;
  const speed = figure("Generated", rates ? rounded(rates.generation_tokens) : "–", "", "tokens/s");
  speed.append(line(speeds));
  return [
    speed,
    figure("Prompts", rates ? rounded(rates.prompt_tokens) : "–", rates ? `${rounded(rates.requests)} requests/s` : "", "tokens/s"),
    percentiles("First token (TTFT)", activity.time_to_first_token),
    percentiles("Between tokens (ITL)", activity.inter_token),
    percentiles("In the queue", activity.queue),
    figure("Prefix hits", hits === null ? "–" : Math.round(hits * 100), "of prompt tokens", hits === null ? "" : "%"),
  ];
}

function figure(title, value, more = "", unit = "") {
  const shown = element("div", "", "figure");
  const number = element("p", String(value), "value");
  if (unit) number.append(" ", element("small", unit));
  shown.append(element("h2", title), number, element("p", more, "more"));
  return shown;
}

function percentiles(title, times) {
  if (!times) return figure(title, "–", "none in the last minute");
  const [value, unit] = duration(times.p50);
  return figure(title, value, `p90 ${duration(times.p90).join("\u00a0")}, p99 ${duration(times.p99).join("\u00a0")}`, `${unit} median`);
}

function duration(seconds) {
  return seconds < 1 ? [rounded(seconds * 1000), "ms"] : [rounded(seconds), "s"];
}

function rounded(value) {
  return value < 9.95 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}

/** A line of the last values, from zero to the largest. */
function line(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const most = Math.max(...values, 1);
  const first = NUM_POINTS - values.length;
  const points = values.map((value, index) => `${first + index},${19 - (value / most) * 18}`);
  for (const [name, value] of [["viewBox", `0 0 ${NUM_POINTS - 1} 20`], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
  for (const [name, value] of [["points", points.join(" ")], ["fill", "none"], ["stroke", "currentColor"], ["stroke-width", "1.5"], ["vector-effect", "non-scaling-stroke"]]) path.setAttribute(name, value);
  svg.append(path);
  return svg;
}

/** Makes workers' elements once, so that their strips move rather than jump. */
function showWorkers(planes) {
  const workers = planes.flatMap((plane) => plane.workers.map((worker) => ({ ...worker, plane })));
  const section = byId("workers");
  const names = new Set(workers.map(nameOf));
  for (const shown of [...section.children]) if (!names.has(shown.dataset.name)) shown.remove();
  for (const worker of workers) {
    const shown = [...section.children].find((child) => child.dataset.name === nameOf(worker)) ?? newWorker(section, worker);
    updateWorker(shown, worker);
  }
}

function nameOf(worker) {
  return `${worker.plane.target} ${worker.address}`;
}

function newWorker(section, worker) {
  const shown = element("article", "", "worker");
  shown.dataset.name = nameOf(worker);
  const strip = element("div", "", "strip");
  strip.setAttribute("role", "img");
  strip.append(...STATES.map((state) => element("span", "", state)));
  const legend = element("p", "", "legend");
  legend.append(...STATES.map((state) => element("span", "", state)));
  shown.append(element("header"), strip, legend);
  section.append(shown);
  return shown;
}

function updateWorker(shown, worker) {
  const [header, strip, legend] = shown.children;
  const inSession = worker.phase === "in_session";
  const phase = element("span", worker.plane.is_draining ? `${words(worker.phase)}, draining` : words(worker.phase), inSession ? "" : "bad");
  const facts = inSession ? [`${worker.num_running} running`, `${worker.steps_in_flight} steps in flight`] : [worker.trouble];
  header.replaceChildren(element("h3", worker.address), phase, ...facts.map((fact) => element("span", fact)));
  header.title = `control plane ${worker.plane.target}`;
  const total = STATES.reduce((sum, state) => sum + worker.pages[state], 0);
  strip.hidden = legend.hidden = !total;
  STATES.forEach((state, index) => {
    const count = worker.pages[state];
    strip.children[index].style.flexGrow = String(count);
    legend.children[index].textContent = `${count.toLocaleString("en")} ${state}`;
  });
  strip.setAttribute("aria-label", `${total} pages: ${STATES.map((state) => `${worker.pages[state]} ${state}`).join(", ")}`);
}

function countTables(activity) {
  if (!activity) return [];
  const happened = activity.incidents.filter((count) => count.total);
  return [
    table("Errors", activity.errors, "No call has failed."),
    table("Incidents", happened, "Nothing has happened to streams."),
  ];
}

function table(title, counts, nothing) {
  const shown = element("table");
  shown.append(element("caption", counts.length ? title : `${title}: ${nothing}`));
  if (!counts.length) return shown;
  shown.append(row("thead", "th", ["", "last minute", "in all", "last seen"]));
  for (const count of counts) shown.append(row("tbody", "td", [words(count.name), count.recent, count.total, ago(count.seconds_ago)]));
  return shown;
}

function row(part, cell, values) {
  const shown = element(part);
  const cells = element("tr");
  cells.append(...values.map((value) => element(cell, String(value))));
  shown.append(cells);
  return shown;
}

function ago(seconds) {
  if (seconds === null) return "earlier";
  if (seconds < 1.5) return "now";
  return seconds < 90 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`;
}

function words(name) {
  return name.replaceAll("_", " ");
}
