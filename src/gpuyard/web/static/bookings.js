// My bookings: what comes, what waits, what was; and the addresses of calendar feeds.
"use strict";

const zone = Zone.remembered(),
  mine = {lanes: [], pool: ""};
const PAST = 30 * DAY;

const searched = (new URLSearchParams(location.search).get("q") ?? "").toLowerCase().split(/\s+/);
const sought = (booking) => {
  const text = JSON.stringify([describe(booking), booking.project, booking.comment, booking.state, booking.gpu_names]).toLowerCase();
  return searched.every((word) => text.includes(word));
};

function card(booking) {
  const urgent =
    booking.state === "offered"
      ? make("p", {class: "urgent"}, `Answer by ${zone.stamp(booking.offer_until)}, or it goes to the next one.`)
      : "";
  const gpus = booking.gpu_names?.length ? make("p", {class: "soft"}, booking.gpu_names.join(", ")) : "";
  const until = booking.open_until ? Date.parse(booking.open_until) : 0;
  const open =
    booking.state === "active" && booking.usable_since && until > Date.now()
      ? make("p", {class: "urgent"}, `Your server is let in until ${zone.stamp(until)}.`)
      : "";
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
      make("span", {class: "soft"}, ` · ${lasting(booking.end - booking.start)} · ${booking.project}`),
    ),
    gpus,
    booking.use ? make("p", {class: "soft", "data-use": booking.id}, useOf(booking.use, zone)) : "",
    booking.state === "active" && !booking.usable_since && !booking.claimed && (!until || until > Date.now())
      ? make("p", {class: "soft"}, "Its GPUs are being released for you; a server can start in some seconds.")
      : "",
    booking.mine && isOpen(booking) && booking.flavors.length
      ? make("p", {class: "soft"}, `Flavors: ${booking.flavors.join(", ")}`)
      : "",
    booking.reason ? make("p", {class: "reason"}, Zone.here(booking.reason)) : "",
    booking.comment ? make("p", {class: "comment"}, booking.comment) : "",
    urgent,
    open,
    make(
      "div",
      {class: "buttons"},
      ...actionButtons(booking, {...context, rules: booking.rules}),
      make("button", {type: "button", class: "quiet", onclick: () => showDetails(booking, context)}, "Details"),
    ),
  );
}

function overdue(one) {
  // a server that keeps a GPU without a booking, and what becomes of it
  const when = one.action === "warn" ? "" : `${one.dry_run ? "Would be acted upon" : "Will be acted upon"} at ${zone.stamp(Date.parse(one.due))}.`;
  return make(
    "li",
    {class: "card is-overdue"},
    make("h3", {}, `${one.server || one.server_id} (${one.pool})`),
    when ? make("p", {class: "urgent"}, when) : "",
    make("p", {}, Zone.here(one.text)),
  );
}

function fill(id, bookings, nothing) {
  byId(id).replaceChildren(...(bookings.length ? bookings.map(card) : [make("li", {class: "soft"}, nothing)]));
}

async function everything(path) {
  // all pages of a list
  const rows = [];
  for (let marker = ""; ;) {
    const {body} = await call("GET", `${path}&limit=200${marker ? `&marker=${marker}` : ""}`);
    rows.push(...body.bookings);
    if (body.bookings.length < 200) return rows.map(read);
    marker = body.bookings.at(-1).id;
  }
}

async function load() {
  try {
    const from = isoOf(Math.floor((Date.now() - PAST) / 1000) * 1000);
    const rows = (await everything(`v1/bookings?mine=true&from=${from}`)).filter((one) => one.kind === "booking");
    for (const row of rows) if (row.state === "active") row.rules = await rulesOf(row.pool, row.project);
    if (rows.some((one) => one.state === "active")) {
      const {uses} = (await call("GET", "v1/uses?mine=true")).body;
      for (const row of rows) row.use = uses.find((one) => one.booking === row.id);
    }
    if (!mine.lanes.length) {
      const now = Math.floor(Date.now() / 1000) * 1000;
      mine.lanes = (await call("GET", `v1/calendar?from=${isoOf(now)}&to=${isoOf(now + HOUR)}`)).body.lanes;
      for (const lane of mine.lanes)
        byId("feed-form").elements.of.append(
          make("option", {value: `gpu ${lane.host}/${lane.gpus[0]}`}, `GPU ${lane.host}/${lane.gpus[0]}`),
        );
    }
    const wanted = rows.filter(sought);
    const cases = (await call("GET", "v1/cases")).body.cases.filter((one) => one.mine);
    const text = JSON.stringify([wanted, cases]);
    behind(null);
    if (text === mine.shown) return;
    mine.shown = text;
    byId("cases").replaceChildren(...cases.map(overdue));
    byId("cases-part").hidden = !cases.length;
    fill(
      "offers",
      wanted.filter((one) => one.state === "offered"),
      "",
    );
    byId("offers-part").hidden = !wanted.some((one) => one.state === "offered");
    fill(
      "upcoming",
      wanted.filter((one) => ["active", "confirmed", "requested"].includes(one.state)),
      "Nothing is booked. The calendar shows what is free.",
    );
    fill(
      "waitlist",
      wanted.filter((one) => one.state === "waiting"),
      "You are on no waitlist.",
    );
    fill("past", wanted.filter((one) => !isOpen(one)).reverse(), "Nothing in the last 30 days.");
  } catch (error) {
    behind(error);
  }
}

function life(feed) {
  const [since, until, used] = [feed.created, feed.expires, feed.used].map((at) => at && zone.stamp(Date.parse(at)));
  return `since ${since}, until ${until}, ${used ? `last read ${used}` : "never read"}`;
}

async function feeds() {
  try {
    const {body} = await call("GET", "v1/feeds");
    const rows = body.feeds.map((feed) =>
      make(
        "li",
        {},
        make("span", {}, feed.scope === "user" ? "my bookings" : `${feed.scope} ${feed.target}`),
        make("span", {class: "soft"}, ` ${life(feed)} `),
        make(
          "button",
          {
            type: "button",
            class: "small-button danger",
            onclick: async () => {
              if (!(await ask("End this feed? Calendars that read it get nothing any more.", "End feed"))) return;
              try {
                await call("DELETE", `v1/feeds/${encodeURIComponent(feed.id)}`);
              } catch (error) {
                complain(error);
              }
              feeds();
            },
          },
          "End",
        ),
      ),
    );
    byId("feeds").replaceChildren(...(rows.length ? rows : [make("li", {class: "soft"}, "There is none.")]));
  } catch (error) {
    complain(error);
  }
}

byId("feed-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [scope, target = ""] = event.target.elements.of.value.split(/ (.*)/);
  try {
    const {body} = await call("POST", "v1/feeds", scope === "user" ? {scope} : {scope, target});
    byId("feed-url").value = new URL(body.url, location.href).href;
    byId("feed-new").hidden = false;
    byId("feed-url").select();
    feeds();
  } catch (error) {
    complain(error);
  }
});
byId("feed-copy").addEventListener("click", () => copy(byId("feed-url")));

const again = () => {
  mine.shown = "";
  load();
};
const context = {zone: () => zone, done: again};
context.form = new BookingForm({zone: () => zone, lanes: () => mine.lanes, done: again});
byId("zone-name").textContent = zone.label(Date.now());
load();
feeds();
setInterval(() => {
  if (!document.hidden && !document.querySelector("dialog[open]")) load();
}, 10000);
