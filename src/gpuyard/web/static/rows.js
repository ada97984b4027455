// GPUs as rows over a true axis of time: an hour is as wide as any other, also on days that have 23 or 25 of them.
"use strict";

const SHOWN = ["requested", "waiting", "offered", "confirmed", "active", "ended", "no-show"];
const WITHOUT_GPU = ["requested", "waiting"];

const gpusOf = (lanes) => lanes.reduce((sum, lane) => sum + (lane.trouble ? 0 : lane.size), 0);

function freeOver(lanes, bookings, start, end) {
  // [{start, end, free}]: how many GPUs are free throughout; who has one of a group keeps the others of it from people
  const there = new Map(lanes.filter((lane) => !lane.trouble).map((lane) => [lane.id, lane.size])),
    edges = new Map([
      [start, 0],
      [end, 0],
    ]);
  for (const booking of bookings) {
    if (!["offered", "confirmed", "active"].includes(booking.state)) continue;
    const taken = booking.lanes.reduce((sum, lane) => sum + (there.get(lane) ?? 0), 0);
    const from = Math.max(booking.start, start),
      to = Math.min(booking.end, end);
    if (!taken || from >= to) continue;
    edges.set(from, (edges.get(from) ?? 0) + taken);
    edges.set(to, (edges.get(to) ?? 0) - taken);
  }
  const parts = [];
  let taken = 0;
  const marks = [...edges.keys()].sort((a, b) => a - b);
  marks.slice(0, -1).forEach((mark, index) => {
    taken += edges.get(mark);
    const free = gpusOf(lanes) - taken,
      last = parts.at(-1);
    if (last?.free === free) last.end = marks[index + 1];
    else parts.push({start: mark, end: marks[index + 1], free});
  });
  return parts;
}

function stacked(bookings) {
  // rows in which none overlaps another
  const levels = [];
  for (const booking of [...bookings].sort((a, b) => a.start - b.start)) {
    const level = levels.find((one) => one.at(-1).end <= booking.start);
    if (level) level.push(booking);
    else levels.push([booking]);
  }
  return levels;
}

class Rows {
  constructor(root) {
    this.root = root;
    this.folded = new Set(); // "pool host" of hosts whose rows are not shown
  }

  draw(drawn) {
    // view: {name, start, end, step (snap), stride (arrow keys), length}; shows: which lanes have a row, all are counted
    const {lanes, bookings, view, zone, now, shows} = (this.drawn = drawn);
    Object.assign(this, {lanes, view, zone, now, shows});
    this.bookings = bookings.filter((one) => SHOWN.includes(one.state) && one.start < view.end && one.end > view.start);
    const focus = this.root.contains(document.activeElement) ? this.keyOf(document.activeElement) : "";
    const scroll = [this.root.scrollLeft, this.root.scrollTop];
    const inner = make("div", {class: `tl-inner ${view.name}`, role: "presentation"}, this.lines(), this.head());
    for (const pool of [...new Set(lanes.map((lane) => lane.pool))]) inner.append(this.pool(pool));
    this.root.replaceChildren(inner);
    [this.root.scrollLeft, this.root.scrollTop] = scroll;
    const shown = `${view.name} ${view.start} ${zone.name}`;
    if (shown !== this.shown) this.scrollTo(now > view.start && now < view.end ? now : view.start);
    this.shown = shown;
    const tracks = this.tracks();
    const kept = tracks.find((track) => this.keyOf(track) === this.at) ?? tracks[0];
    if (kept) kept.tabIndex = 0;
    if (focus)
      [...this.root.querySelectorAll("[data-key]")]
        .find((one) => one.dataset.key === focus)
        ?.focus({preventScroll: true});
    this.tick(now);
  }

  scrollTo(at) {
    // leave a bit of what was before
    const axis = this.root.querySelector(".tl-axis"),
      seen = this.root.clientWidth - this.root.querySelector(".tl-label").offsetWidth;
    this.root.scrollLeft = (axis.offsetWidth * this.percent(at)) / 100 - seen / 5;
  }

  keyOf(element) {
    return element?.closest("[data-key]")?.dataset.key ?? "";
  }

  tracks() {
    return [...this.root.querySelectorAll(".tl-track")];
  }

  percent(at) {
    const {start, end} = this.view;
    return (100 * (Math.min(Math.max(at, start), end) - start)) / (end - start);
  }

  place(element, start, end) {
    element.style.left = `${this.percent(start)}%`;
    element.style.width = `${this.percent(end) - this.percent(start)}%`;
    return element;
  }

  marks() {
    // what stands over the axis: [{start, end, text, today, weekend}]
    const {zone, view} = this,
      marks = view.name === "day" ? this.hours() : zone.days(view.start, view.end);
    return marks.slice(0, -1).map((start, index) => {
      const wall = new Date(zone.wall(start)),
        weekend = view.name !== "day" && [0, 6].includes(wall.getUTCDay());
      const twice =
        view.name === "day" && zone.moments(zone.wall(start)).length > 1 ? ` ${zone.abbreviation(start)}` : "";
      const text =
        view.name === "day"
          ? (wall.getUTCMinutes() ? zone.time(start) : String(wall.getUTCHours()).padStart(2, "0")) + twice
          : view.name === "week"
            ? zone.text(start, {weekday: "short", day: "numeric", month: "short"})
            : String(wall.getUTCDate());
      const over =
        view.name !== "month"
          ? ""
          : !index || wall.getUTCDate() === 1
            ? zone.text(start, {month: "short"})
            : zone.text(start, {weekday: "narrow"});
      return {
        start,
        end: marks[index + 1],
        text,
        over,
        weekend,
        today: start <= this.now && this.now < marks[index + 1],
      };
    });
  }

  hours() {
    const {start, end} = this.view,
      marks = [];
    for (let at = start; at < end; at += HOUR) marks.push(at);
    return [...marks, end];
  }

  lines() {
    const box = make("div", {class: "tl-lines", "aria-hidden": "true"});
    for (const mark of this.marks()) {
      box.append(
        this.place(
          make("i", {class: `line${mark.weekend ? " weekend" : ""}${mark.today ? " today" : ""}`}),
          mark.start,
          mark.end,
        ),
      );
    }
    box.append(make("i", {class: "past"}), make("i", {class: "now"}));
    return box;
  }

  tick(now) {
    this.now = now;
    const past = this.root.querySelector(".tl-lines .past"),
      line = this.root.querySelector(".tl-lines .now");
    if (!past) return;
    this.place(past, this.view.start, now);
    this.place(line, now, now);
    line.style.width = "";
    line.hidden = now < this.view.start || now >= this.view.end;
  }

  head() {
    const axis = make("div", {
      class: "tl-axis",
      role: "columnheader",
      "aria-label": `time, ${this.zone.range(this.view.start, this.view.end)}, ${this.zone.name}`,
    });
    for (const mark of this.marks()) {
      axis.append(
        this.place(
          make(
            "span",
            {class: `${mark.today ? "today" : ""}${mark.weekend ? " weekend" : ""}`, "aria-hidden": "true"},
            mark.over && make("small", {}, mark.over),
            mark.text,
          ),
          mark.start,
          mark.end,
        ),
      );
    }
    return make(
      "div",
      {class: "tl-head", role: "row"},
      make("div", {class: "tl-label", role: "columnheader"}, "GPU"),
      axis,
    );
  }

  pool(name) {
    const lanes = this.lanes.filter((lane) => lane.pool === name),
      own = this.bookings.filter((one) => one.pool === name);
    const well = gpusOf(lanes),
      parts = freeOver(lanes, own, this.view.start, this.view.end);
    const free = make("div", {class: "tl-free", "aria-hidden": "true"});
    for (const part of parts) {
      const level = part.free <= 0 ? 0 : Math.max(1, Math.ceil((4 * part.free) / Math.max(well, 1)));
      const text = part.free <= 0 ? "none free" : `${named(part.free, "GPU")} free`;
      const words =
        part.free <= 0
          ? make("em", {}, "none", make("i", {}, " free"))
          : make("em", {}, String(part.free), make("i", {}, " free"));
      free.append(
        this.place(
          make("span", {class: `free-${level}`, title: `${text}, ${this.zone.range(part.start, part.end)}`}, words),
          part.start,
          part.end,
        ),
      );
    }
    const models = [...new Set(lanes.map((lane) => lane.model))].join(", ");
    const least = Math.min(...parts.map((part) => part.free)),
      most = Math.max(...parts.map((part) => part.free));
    const track = make(
      "div",
      {
        class: "tl-track",
        role: "gridcell",
        tabindex: "-1",
        "data-key": `pool ${name}`,
        "data-pool": name,
        "aria-label": `pool ${name}, ${least === most ? least : `${least} to ${most}`} of ${named(well, "GPU")} free`,
      },
      free,
    );
    const rows = [
      make(
        "div",
        {class: "tl-row tl-pool", role: "row"},
        make("div", {class: "tl-label", role: "rowheader"}, make("b", {}, name), make("small", {}, models)),
        track,
      ),
    ];
    const waiting = stacked(own.filter((one) => WITHOUT_GPU.includes(one.state)));
    waiting.forEach((level, index) =>
      rows.push(
        this.row(
          `waiting ${name} ${index}`,
          level,
          {pool: name, class: "tl-waiting"},
          index ? "" : make("small", {}, "waiting for a GPU or an answer"),
        ),
      ),
    );
    let host = "";
    for (const lane of lanes.filter((one) => this.shows(one))) {
      if (lane.host !== host) rows.push(this.host(name, lane.host));
      host = lane.host;
      if (this.folded.has(`${name} ${host}`)) continue;
      rows.push(
        this.lane(
          lane,
          own.filter((one) => one.lanes.includes(lane.id)),
        ),
      );
    }
    return make("div", {class: "tl-group", role: "rowgroup", "aria-label": `pool ${name}`}, ...rows);
  }

  host(pool, name) {
    // the head of its rows, which folds them
    const key = `${pool} ${name}`,
      folded = this.folded.has(key);
    const turn = () => {
      if (!this.folded.delete(key)) this.folded.add(key);
      this.draw(this.drawn);
    };
    const button = make(
      "button",
      {type: "button", class: "quiet", "aria-expanded": String(!folded), "data-key": `host ${key}`, onclick: turn},
      `${folded ? "▸" : "▾"} ${name}`,
    );
    return make("div", {class: "tl-row tl-host", role: "row"}, make("div", {class: "tl-label", role: "rowheader"}, button));
  }

  lane(lane, bookings) {
    const label = [make("span", {class: "address", title: lane.gpus.join(", ")}, lane.gpus[0].replace(/^0000:/, ""))];
    if (lane.size > 1) label.push(make("small", {}, `${lane.size} GPUs, one group`));
    if (lane.trouble) label.push(make("small", {class: "trouble", title: lane.trouble}, lane.trouble));
    return this.row(
      `lane ${lane.id}`,
      bookings,
      {pool: lane.pool, lane, class: lane.trouble ? "tl-trouble" : ""},
      ...label,
    );
  }

  row(key, bookings, {pool, lane, class: kind}, ...label) {
    const what = lane && [
      `${lane.host} ${lane.gpus[0]}`,
      lane.size > 1 ? `${lane.size} GPUs in one group` : "",
      lane.trouble,
    ];
    const name = lane ? what.filter(Boolean).join(", ") : `pool ${pool}, waiting`;
    const track = make("div", {
      class: "tl-track",
      role: "gridcell",
      tabindex: "-1",
      "data-key": key,
      "data-pool": pool,
      "data-lane": lane?.id,
      "aria-label": `${name}, ${named(bookings.length, "booking")} shown`,
    });
    for (const booking of bookings.sort((a, b) => a.start - b.start)) track.append(this.event(booking, key));
    return make(
      "div",
      {class: `tl-row ${kind}`, role: "row"},
      make("div", {class: "tl-label", role: "rowheader"}, ...label),
      track,
    );
  }

  event(booking, key) {
    const {start, end} = this.view,
      can = this.movable(booking);
    const who = whoseOf(booking);
    const words = this.words(booking);
    const kinds = [
      "tl-event",
      `is-${booking.state}`,
      booking.kind,
      booking.mine ? "mine" : "others",
      booking.start < start ? "from-before" : "",
      booking.end > end ? "goes-on" : "",
      can ? "can-move" : "",
    ];
    const element = make(
      "button",
      {
        type: "button",
        tabindex: "-1",
        class: kinds.filter(Boolean).join(" "),
        title: words,
        "aria-label": words,
        "data-id": booking.id,
        "data-key": `${key} ${booking.id}`,
      },
      make(
        "span",
        {class: "words"},
        make("b", {}, who),
        whoseOf(booking) === booking.user ? make("span", {}, booking.project) : "",
        make("span", {class: "comment"}, booking.comment),
      ),
    );
    if (can && booking.start >= start && booking.state !== "active")
      element.append(make("i", {class: "grip first", "aria-hidden": "true"}));
    if (can && booking.end <= end) element.append(make("i", {class: "grip last", "aria-hidden": "true"}));
    return this.place(element, booking.start, booking.end);
  }

  words(booking) {
    // all there is to say of a booking in one line
    const said = [
      booking.mine ? "your booking" : whoseOf(booking),
      booking.project,
      describe(booking),
      this.zone.range(booking.start, booking.end),
      stateOf(booking),
      booking.comment,
    ];
    return said.filter(Boolean).join(", ");
  }

  movable(booking) {
    return booking.kind === "booking" && booking.may.includes("change");
  }

  find(id) {
    return this.bookings.find((one) => one.id === id);
  }
}
