// The calendar page: which time is shown and how, what others change meanwhile, and what a drag asks for.
"use strict";

const POLL = 10000; // ms between looks at what others have changed
const NARROW = matchMedia("(max-width: 44rem)");
const VIEWS = {
  // how many days, and how many further; steps of a drag and of the arrow keys; length of what a click books
  day: {days: 1, turn: 1, step: 15 * MINUTE, stride: 30 * MINUTE, length: 4 * HOUR},
  week: {days: 7, turn: 7, step: HOUR, stride: 3 * HOUR, length: DAY},
  month: {days: 31, turn: 28, step: DAY, stride: DAY, length: 7 * DAY},
  list: {days: 7, turn: 7, step: HOUR, stride: DAY, length: DAY},
};
const query = new URLSearchParams(location.search);
const page = {
  zone: Zone.remembered(),
  lanes: [],
  every: [], // lanes of all pools, whichever is shown
  bookings: [],
  etag: "",
  shown: "",
  view: query.get("view") in VIEWS ? query.get("view") : NARROW.matches ? "list" : "week",
  pool: query.get("pool") ?? "",
  at: Date.now(),
};
if (/^\d{4}-\d\d-\d\d$/.test(query.get("date") ?? "")) page.at = page.zone.moment(Date.parse(query.get("date")));

function range() {
  // of the view, from midnight to midnight in the zone of the viewer, and from the chosen day on: what was is over
  const start = page.zone.dayStart(page.at);
  return {start, end: page.zone.dayStart(page.zone.shift(start, VIEWS[page.view].days))};
}

function title({start, end}) {
  const {zone, view} = page;
  if (view === "day") return zone.text(start, {weekday: "long", day: "numeric", month: "long", year: "numeric"});
  const same = zone.text(start, {year: "numeric"}) === zone.text(end - 1, {year: "numeric"});
  const first = zone.text(start, {day: "numeric", month: "short", ...(same ? {} : {year: "numeric"})});
  return `${first} – ${zone.text(end - 1, {day: "numeric", month: "short", year: "numeric"})}`;
}

function say(text) {
  byId("say").textContent = text;
}

async function load(force = false) {
  // what is in the range; nothing is drawn when nothing has changed
  const {start, end} = range(),
    pool = page.pool ? `&pool=${encodeURIComponent(page.pool)}` : "",
    path = `v1/calendar?from=${isoOf(start)}&to=${isoOf(end)}${pool}`;
  if (path !== page.shown) page.etag = "";
  const turn = (page.turn = (page.turn ?? 0) + 1);
  try {
    const answer = await call("GET", path, undefined, page.etag ? {"If-None-Match": page.etag} : {});
    if (turn !== page.turn) return;
    behind(null);
    if (answer.status !== 304) {
      Object.assign(page, {
        lanes: answer.body.lanes,
        bookings: answer.body.bookings.map(read),
        etag: answer.etag ?? "",
        shown: path,
      });
      byId("more").hidden = !answer.body.truncated;
      if (!page.pool) page.every = page.lanes;
      if (!page.every.length)
        page.every = (await call("GET", `v1/calendar?from=${isoOf(start)}&to=${isoOf(start + HOUR)}`)).body.lanes;
      pools();
      draw();
    } else if (force) draw();
  } catch (error) {
    if (turn === page.turn) behind(error);
  }
}

function pools() {
  const known = byId("pool"),
    wanted = ["", ...new Set(page.every.map((lane) => lane.pool))];
  if ([...known.options].map((one) => one.value).join("\n") !== wanted.join("\n")) {
    known.replaceChildren(...wanted.map((name) => make("option", {value: name}, name || "all pools")));
  }
  known.value = page.pool;
}

function draw() {
  const now = Date.now(),
    {start, end} = range(),
    list = page.view === "list";
  byId("range").textContent = title({start, end});
  byId("timeline").hidden = list;
  byId("agenda").hidden = !list;
  for (const button of document.querySelectorAll("[data-view]"))
    button.setAttribute("aria-pressed", button.dataset.view === page.view);
  byId("zone").replaceChildren(
    ...[...new Set([LOCAL_ZONE, "UTC"])].map((name) => make("option", {value: name}, new Zone(name).label(start))),
  );
  byId("zone").value = page.zone.name;
  if (list) agenda(start, end);
  else
    timeline.draw({
      lanes: page.lanes,
      bookings: page.bookings,
      zone: page.zone,
      now,
      shows,
      view: {...VIEWS[page.view], name: page.view, start, end},
    });
  byId("empty").hidden = page.lanes.length > 0;
  const kept = new URLSearchParams({
    view: page.view,
    date: new Date(page.zone.wall(page.at)).toISOString().slice(0, 10),
    ...(page.pool ? {pool: page.pool} : {}),
  });
  history.replaceState(null, "", `?${kept}`);
}

function shows(lane) {
  // whether a GPU has a row: it or one of its bookings has what is looked for
  const words = byId("find").value.trim().toLowerCase(),
    own = byId("only-mine").checked;
  if (!words && !own) return true;
  const on = page.bookings.filter((one) => one.lanes.includes(lane.id) && SHOWN.includes(one.state));
  if (own && !on.some((one) => one.mine)) return false;
  const texts = [lane.host, ...lane.gpus, lane.model, ...on.flatMap((one) => [one.user, one.project, one.comment])];
  return texts.some((text) => text.toLowerCase().includes(words));
}

function agenda(start, end) {
  // the same as a list: for small screens, and for those who do not use a mouse
  const {zone} = page,
    days = zone.days(start, end),
    box = byId("agenda"),
    parts = [];
  for (let index = 0; index < days.length - 1; index++) {
    const [from, to] = [days[index], days[index + 1]];
    const today = from <= Date.now() && Date.now() < to;
    const own = byId("only-mine").checked,
      on = page.bookings.filter(
        (one) => SHOWN.includes(one.state) && one.start < to && one.end > from && (one.mine || !own),
      );
    const items = on.map((booking) =>
      make(
        "li",
        {},
        make(
          "button",
          {
            type: "button",
            class: `entry tl-event is-${booking.state} ${booking.kind} ${booking.mine ? "mine" : "others"}`,
            "data-key": `${index} ${booking.id}`,
            onclick: () => showDetails(booking, context),
          },
          make("b", {}, booking.mine ? `${booking.user} (you)` : whoseOf(booking)),
          make("span", {}, `${describe(booking)}, ${stateOf(booking)}`),
          make("span", {}, zone.range(booking.start, booking.end)),
          booking.comment ? make("span", {class: "comment"}, booking.comment) : "",
        ),
      ),
    );
    const free = [...new Set(page.lanes.map((lane) => lane.pool))].map((pool) => {
      const lanes = page.lanes.filter((one) => one.pool === pool);
      const counts = freeOver(
        lanes,
        page.bookings.filter((one) => one.pool === pool),
        from,
        to,
      ).map((one) => one.free);
      const least = Math.min(...counts),
        most = Math.max(...counts);
      const book = () =>
        form.open({pool, gpus: 1, start: Math.max(from, soon()), end: zone.shift(Math.max(from, soon()), 1)});
      return make(
        "li",
        {},
        make("span", {}, `${pool}: ${least === most ? least : `${least} to ${most}`} free`),
        to > Date.now()
          ? make(
              "button",
              {
                type: "button",
                class: "small-button",
                "data-key": `${index} book ${pool}`,
                "aria-label": `Book ${pool} on ${zone.date(from)}`,
                onclick: book,
              },
              "Book",
            )
          : "",
      );
    });
    parts.push(
      make(
        "section",
        {class: `agenda-day${today ? " today" : ""}`, "aria-labelledby": `day-${index}`},
        make(
          "h2",
          {id: `day-${index}`},
          zone.text(from, {weekday: "long", day: "numeric", month: "long"}),
          today ? " · today" : "",
        ),
        make("ul", {class: "free"}, ...free),
        items.length ? make("ul", {class: "entries"}, ...items) : make("p", {class: "soft"}, "Nothing is booked."),
      ),
    );
  }
  const focus = document.activeElement?.dataset?.key;
  box.replaceChildren(...parts);
  if (focus)
    [...box.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focus)?.focus({preventScroll: true});
}

function soon() {
  // the next quarter of an hour
  return Math.ceil(Date.now() / (15 * MINUTE)) * 15 * MINUTE;
}

function go(count) {
  // count views further
  page.at = page.zone.shift(range().start, count * VIEWS[page.view].turn);
  load(true);
}

function show(view) {
  page.view = view;
  load(true);
}

function changed(made) {
  // shown at once, and with the version that the next change needs
  for (const booking of made) {
    const index = page.bookings.findIndex((one) => one.id === booking.id);
    if (index < 0) page.bookings.push(booking);
    else page.bookings[index] = booking;
  }
  page.etag = "";
  if (made.length) draw();
  load(true);
}

const context = {zone: () => page.zone, done: changed};
const form = (context.form = new BookingForm({
  zone: () => page.zone,
  lanes: () => page.every,
  done: (made) => {
    const {start, end} = range();
    if (made.length && (made[0].start >= end || made[0].end <= start)) page.at = made[0].start; // show what was made
    changed(made);
  },
}));
const timeline = new Timeline(byId("timeline"), {
  say,
  turn: go,
  open: (booking) => showDetails(booking, context),
  select: (wanted) =>
    form.open({...wanted, start: wanted.start < Date.now() && wanted.end > Date.now() ? soon() : wanted.start}),
  move: async (booking, to) => {
    // at once; what is refused goes back to where it was
    const asked = {
      ...Object.fromEntries(
        ["pool", "gpus", "same_group", "same_host", "gpu", "comment"].map((name) => [name, booking[name]]),
      ),
      ...to,
      start: isoOf(to.start),
      end: isoOf(to.end),
    };
    const before = {start: booking.start, end: booking.end};
    Object.assign(booking, {start: to.start, end: to.end});
    draw();
    try {
      const {body} = await change(booking, asked);
      changed([read(body)]);
      toast(summary(read(body), page.zone));
    } catch (error) {
      Object.assign(booking, before);
      draw();
      if (!(error instanceof Trouble)) throw error;
      const instead = error.alternatives.map((one) =>
        make(
          "button",
          {
            type: "button",
            class: "small-button alternative",
            onclick: () => {
              byId("toast").replaceChildren();
              form.open({...one.ask, start: Date.parse(one.ask.start), end: Date.parse(one.ask.end)}, booking);
            },
          },
          difference(one, asked, page.zone),
        ),
      );
      if (error.status === 412 && error.problem.current) {
        error.problem.reasons = [
          "It stays where it was: somebody has changed it meanwhile.",
          ...changes({...booking, ...before}, read(error.problem.current), page.zone),
        ];
      }
      complain(error, instead.length ? [make("div", {class: "buttons"}, ...instead)] : []);
      load(true);
    }
  },
});

for (const button of document.querySelectorAll("[data-view]"))
  button.addEventListener("click", () => show(button.dataset.view));
byId("before").addEventListener("click", () => go(-1));
byId("after").addEventListener("click", () => go(1));
byId("today").addEventListener("click", () => {
  page.at = Date.now();
  load(true);
});
byId("pool").addEventListener("change", (event) => {
  page.pool = event.target.value;
  load(true);
});
byId("find").addEventListener("input", draw);
byId("only-mine").addEventListener("change", draw);
byId("zone").addEventListener("change", (event) => {
  page.zone = new Zone(event.target.value);
  page.zone.remember();
  load(true);
});
byId("book").addEventListener("click", async () => {
  if (!page.lanes.length) await load();
  const [first] = page.lanes.filter((lane) => !lane.trouble).concat(page.lanes);
  if (first) form.open({pool: page.pool || first.pool, gpus: 1, start: soon(), end: page.zone.shift(soon(), 1)});
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) load();
});
setInterval(() => {
  if (!document.hidden) load();
}, POLL);
setInterval(() => {
  if (page.view !== "list" && timeline.view) timeline.tick(Date.now());
}, 30000);
load(true);
