// For admins: what waits for an answer, holds, and who did what.
"use strict";

const zone = Zone.remembered(),
  log = {before: null};
const context = {zone: () => zone, done: () => load()};

function line(booking) {
  return make(
    "li",
    {class: `card is-${booking.state}`, "data-id": booking.id},
    make(
      "div",
      {class: "card-top"},
      make("h3", {}, describe(booking)),
      make("span", {class: `state is-${booking.state}`}, stateOf(booking)),
    ),
    make(
      "p",
      {},
      zone.range(booking.start, booking.end),
      make("span", {class: "soft"}, ` · ${booking.user}${booking.project ? ` in ${booking.project}` : ""}`),
    ),
    booking.comment ? make("p", {class: "comment"}, booking.comment) : "",
    make(
      "div",
      {class: "buttons"},
      ...actionButtons(booking, context),
      make("button", {type: "button", class: "quiet", onclick: () => showDetails(booking, context)}, "Details"),
    ),
  );
}

function fill(id, bookings, nothing) {
  byId(id).replaceChildren(...(bookings.length ? bookings.map(line) : [make("li", {class: "soft"}, nothing)]));
}

async function load() {
  try {
    const now = Math.floor(Date.now() / 1000) * 1000;
    const [requests, waiting, holds, rows] = await Promise.all([
      call("GET", "v1/bookings?state=requested&limit=200"),
      call("GET", "v1/bookings?state=waiting&state=offered&limit=200"),
      call("GET", "v1/holds"),
      call("GET", `v1/calendar?from=${isoOf(now)}&to=${isoOf(now + HOUR)}`),
    ]);
    context.lanes = rows.body.lanes;
    fill("requests", requests.body.bookings.map(read), "Nobody is waiting for your answer.");
    fill("waiting", waiting.body.bookings.map(read), "Nobody waits for a GPU.");
    fill("holds", (holds.body.holds ?? holds.body.bookings).map(read).filter(isOpen), "No GPU is held.");
    const chosen = new Set([...byId("hold-gpus").selectedOptions].map((one) => one.value));
    byId("hold-gpus").replaceChildren(
      ...context.lanes.map((lane) => {
        const name = `${lane.host}/${lane.gpus[0]}`;
        const more = [lane.pool, lane.size > 1 ? `${lane.size} GPUs` : "", lane.trouble ? "in trouble" : ""];
        const option = make("option", {value: name}, [name, ...more].filter(Boolean).join(" · "));
        option.selected = chosen.has(name);
        return option;
      }),
    );
    behind(null);
  } catch (error) {
    behind(error);
  }
}

function used(use) {
  return make(
    "li",
    {class: "card", "data-id": use.booking},
    make("h3", {}, `${named(use.gpus.length, "GPU")} of ${use.pool}`),
    make("p", {class: "soft"}, `${use.user} in ${use.project}`),
    make("p", {}, useOf(use, zone)),
  );
}

async function uses() {
  // who makes least of it first, and those of whom nothing is known last
  try {
    const {body} = await call("GET", "v1/uses");
    const of = (use) => use.lately ?? 101;
    byId("uses-part").hidden = !body.asked;
    const cards = body.uses.sort((a, b) => of(a) - of(b)).map(used);
    byId("uses").replaceChildren(...(cards.length ? cards : [make("li", {class: "soft"}, "No booking is active.")]));
  } catch (error) {
    behind(error);
  }
}

async function audit(more = false) {
  try {
    const {body} = await call("GET", `v1/audit?limit=50${more && log.before ? `&before=${log.before}` : ""}`);
    const rows = body.entries.map((entry) =>
      make(
        "tr",
        {},
        make("td", {}, make("time", {datetime: entry.at}, zone.stamp(Date.parse(entry.at)))),
        make("td", {}, entry.actor),
        make("td", {}, entry.action),
        make("td", {}, entry.target),
        make("td", {}, entry.rule),
        make("td", {}, Zone.here(entry.text)),
      ),
    );
    if (more) byId("audit").append(...rows);
    else byId("audit").replaceChildren(...rows);
    log.before = body.entries.at(-1)?.id ?? null;
    byId("audit-more").hidden = body.entries.length < 50;
  } catch (error) {
    complain(error);
  }
}

function momentOf(name) {
  const element = byId("hold-form").elements[name],
    wall = Date.parse(`${element.value}Z`);
  return Number.isNaN(wall) ? null : zone.moment(wall);
}

byId("hold-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const gpus = [...byId("hold-gpus").selectedOptions].map((one) => one.value),
    [start, end] = [momentOf("start"), momentOf("end")];
  if (!gpus.length || start === null || end === null) {
    toast("Choose the GPUs and the time.", "bad");
    return;
  }
  try {
    await call("POST", "v1/holds", {
      gpus,
      start: isoOf(start),
      end: isoOf(end),
      comment: event.target.elements.comment.value,
    });
    toast(`${named(gpus.length, "GPU")} held, ${zone.range(start, end)}.`);
    byId("hold-gpus").selectedIndex = -1;
    load();
    audit();
  } catch (error) {
    complain(error);
  }
});

context.form = new BookingForm({zone: () => zone, lanes: () => context.lanes ?? [], done: () => load()});
const soon = Math.ceil(Date.now() / (15 * MINUTE)) * 15 * MINUTE;
byId("hold-form").elements.start.value = zone.input(soon);
byId("hold-form").elements.end.value = zone.input(zone.shift(soon, 1));
byId("zone-name").textContent = zone.label(Date.now());
byId("audit-more").addEventListener("click", () => audit(true));
load();
uses();
audit();
setInterval(uses, MINUTE);
setInterval(() => {
  if (!document.hidden && !document.querySelector("dialog[open]") && document.activeElement !== byId("hold-gpus"))
    load();
}, 15000);
