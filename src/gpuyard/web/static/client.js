// What the pages ask the API, and what they say of its answers.
"use strict";

const byId = (id) => document.getElementById(id);
const CONFIG = document.body.dataset; // csrf, admin, user, project

function make(tag, attributes = {}, ...children) {
  // text is never read as HTML
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

class Trouble extends Error {
  // an answer that is no
  constructor(problem, status) {
    super(problem.detail || problem.title || `the answer was ${status}`);
    this.problem = problem;
    this.status = status;
  }

  get reasons() {
    return (this.problem.reasons?.length ? this.problem.reasons : [this.message]).map(Zone.here);
  }

  get alternatives() {
    return this.problem.alternatives ?? [];
  }
}

let touched = Date.now();
for (const kind of ["pointerdown", "pointermove", "keydown", "wheel", "focusin"])
  addEventListener(kind, () => (touched = Date.now()), {capture: true, passive: true});

async function call(method, path, body, headers = {}) {
  // {status, body, etag}; raises Trouble
  const options = {method, headers: {Accept: "application/json", ...headers}, cache: "no-store"};
  // What a page asks by itself does not keep somebody logged in who has gone.
  if (Date.now() - touched > MINUTE) options.headers["X-Gpuyard-Idle"] = "yes";
  if (method !== "GET") options.headers["X-CSRF-Token"] = CONFIG.csrf;
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Trouble({detail: "gpuyard cannot be reached."}, 0);
  }
  if (response.status === 401) {
    // logged out meanwhile
    const here = location.pathname + location.search;
    location.assign(`login?next=${encodeURIComponent(here)}`);
    await new Promise(() => {});
  }
  const json = (response.headers.get("Content-Type") ?? "").includes("json");
  const answer = json && response.status !== 304 ? await response.json() : {};
  if (!response.ok && response.status !== 304) throw new Trouble(answer, response.status);
  return {status: response.status, body: answer, etag: response.headers.get("ETag")};
}

const act = (booking, verb, body = {}) =>
  call("POST", `v1/bookings/${booking.id}/${verb}`, body, {"If-Match": `"${booking.version}"`});
const change = (booking, ask) => call("PATCH", `v1/bookings/${booking.id}`, ask, {"If-Match": `"${booking.version}"`});
const isoOf = (at) => new Date(at).toISOString().replace(".000Z", "Z");

function read(row) {
  // a booking as the API has it, with times as numbers
  return {
    ...row,
    start: Date.parse(row.start),
    end: Date.parse(row.end),
    offer_until: row.offer_until ? Date.parse(row.offer_until) : null,
  };
}

const STATES = {
  requested: "waits for approval",
  waiting: "on the waitlist",
  offered: "offered",
  confirmed: "booked",
  active: "active",
  ended: "ended",
  cancelled: "cancelled",
  "no-show": "released: no server came",
  expired: "expired",
};
const OPEN_STATES = ["requested", "waiting", "offered", "confirmed", "active"];

const HOLD_STATES = {confirmed: "planned", active: "in force"};
const stateOf = (booking) => (booking.kind === "hold" && HOLD_STATES[booking.state]) || STATES[booking.state];
const isOpen = (booking) => OPEN_STATES.includes(booking.state);
const named = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// a hold, a runner and a loan are nobody's
const whoseOf = (booking) => (["hold", "runner", "loan"].includes(booking.kind) ? booking.kind : booking.user);

function describe(booking) {
  // what and how many
  if (booking.kind === "runner") return `runner on ${booking.gpu_names.join(", ")}`;
  if (booking.kind === "loan") return `${booking.gpu}, lent to ${booking.project}`;
  if (booking.kind === "hold") return booking.gpu_names?.length ? `hold on ${booking.gpu_names.join(", ")}` : "hold";
  const shape = booking.same_group ? ", one group" : booking.same_host && booking.gpus > 1 ? ", one host" : "";
  return booking.gpu ? `${booking.gpu} (${booking.pool})` : `${booking.gpus} × ${booking.pool}${shape}`;
}

function useOf(use, zone) {
  // what the GPUs of a booking do, in words; what is not known is said to be so
  const said = [use.lately === null ? "not known now" : `${use.lately} % in the last ${use.minutes} min`];
  if (use.whole !== null) said.push(`${use.whole} % since it has a server, of ${use.hours} h heard`);
  if (use.idle_since) said.push(`idle since ${zone.stamp(Date.parse(use.idle_since))}`);
  return `Use of its GPUs: ${said.join("; ")}`;
}

function changes(before, after, zone) {
  // what differs between two versions of a booking, in words
  const found = [];
  const tell = (name, one, other) => {
    if (one !== other) found.push(`${name} was ${one || "empty"}, is ${other || "empty"}`);
  };
  tell("state", STATES[before.state], STATES[after.state]);
  tell("start", zone.stamp(before.start), zone.stamp(after.start));
  tell("end", zone.stamp(before.end), zone.stamp(after.end));
  tell("number of GPUs", String(before.gpus), String(after.gpus));
  tell("GPU", before.gpu, after.gpu);
  tell("comment", before.comment, after.comment);
  tell("project", before.project, after.project);
  return found.length ? found : ["something that is not shown here"];
}

function difference(alternative, asked, zone) {
  // an alternative in the viewer's time zone
  const ask = alternative.ask,
    start = Date.parse(ask.start),
    end = Date.parse(ask.end),
    parts = [];
  if (ask.pool !== asked.pool) parts.push(`pool ${ask.pool}`);
  if (ask.gpus !== asked.gpus) parts.push(named(ask.gpus, "GPU"));
  if ((ask.gpu ?? "") !== (asked.gpu ?? "")) parts.push(ask.gpu || "any GPU of the pool");
  if (start !== Date.parse(asked.start)) parts.push(`from ${zone.stamp(start)}`);
  else if (end !== Date.parse(asked.end)) parts.push(`until ${zone.stamp(end)}`);
  return parts.join(", ") || alternative.text;
}

let toastTimer;

function toast(text, kind = "good", details = []) {
  // says what happened; what went wrong stays until it is closed
  const area = byId("toast");
  clearTimeout(toastTimer);
  const close = make(
    "button",
    {type: "button", class: "quiet", "aria-label": "Close", onclick: () => area.replaceChildren()},
    "×",
  );
  const box = make("div", {class: `toast-box ${kind}`}, make("p", {}, text), ...details, close);
  area.replaceChildren(box);
  if (kind === "good")
    toastTimer = setTimeout(() => {
      if (box.isConnected) area.replaceChildren();
    }, 6000);
}

function complain(error, details = []) {
  if (!(error instanceof Trouble)) throw error;
  const [first, ...rest] = error.reasons;
  const more = rest.length ? [make("ul", {class: "reasons"}, ...rest.map((reason) => make("li", {}, reason)))] : [];
  toast(first, "bad", [...more, ...details]);
}

function behind(error) {
  // a look at the server that failed; null: it was good. Nobody has asked for it, so it interrupts nobody.
  if (error && !(error instanceof Trouble)) throw error;
  const text = error ? `${error.reasons.join(" ")} What you see may be out of date. Trying again.` : "",
    place = byId("lost");
  if (place.textContent !== text) place.textContent = text;
  place.hidden = !error;
}

let lastKey = ""; // what had the focus before a dialog; it may have been drawn again while the dialog was open

document.addEventListener("focusin", (event) => {
  if (!event.target.closest("dialog")) lastKey = event.target.dataset.key ?? "";
});
document.addEventListener(
  "close",
  () =>
    setTimeout(() => {
      if (lastKey && document.activeElement === document.body)
        [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === lastKey)?.focus();
    }),
  true,
);

function ask(question, yes, no = "Keep it") {
  // a yes or no in the style of the page
  return new Promise((resolve) => {
    const dialog = make("dialog", {class: "small", "aria-labelledby": "question"});
    const answer = (value) => () => {
      dialog.close();
      resolve(value);
    };
    dialog.append(
      make("p", {id: "question"}, question),
      make(
        "div",
        {class: "buttons"},
        make("button", {type: "button", class: "danger", onclick: answer(true)}, yes),
        make("button", {type: "button", onclick: answer(false), autofocus: true}, no),
      ),
    );
    dialog.addEventListener("cancel", () => resolve(false));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  });
}

const LONGEST = 500; // characters of what somebody says of a GPU

function words(question, yes, needed, danger) {
  // what somebody has to say, in a dialog; null: nothing is to be done
  return new Promise((resolve) => {
    const field = make("textarea", {rows: 3, maxlength: LONGEST, required: needed, "aria-labelledby": "question"});
    const form = make(
      "form",
      {method: "dialog"},
      make("p", {id: "question"}, question),
      field,
      make(
        "div",
        {class: "buttons"},
        make("button", {class: danger ? "danger" : "primary"}, yes),
        make("button", {type: "button", onclick: () => dialog.close()}, "Not now"),
      ),
    );
    const dialog = make("dialog", {class: "small", "aria-labelledby": "question"}, form);
    let said = null;
    form.addEventListener("submit", () => (said = field.value.replace(/\s+/g, " ").trim()));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(said);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
