// Time zones: moments are milliseconds UTC everywhere; only what people read and type is in the zone of the viewer.
"use strict";

const MINUTE = 60000,
  QUARTER = 15 * MINUTE,
  HOUR = 60 * MINUTE,
  DAY = 24 * HOUR;
const LOCAL_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const formats = new Map();

function format(zone, options) {
  const key = zone + JSON.stringify(options);
  if (!formats.has(key))
    formats.set(key, new Intl.DateTimeFormat("en-GB", {hourCycle: "h23", ...options, timeZone: zone}));
  return formats.get(key);
}

class Zone {
  constructor(name) {
    this.name = name;
    this.offsets = new Map();
    this.dates = new Map();
  }

  static remembered() {
    let kept = "";
    try {
      kept = localStorage.getItem("gpuyard.zone");
    } catch {
      /* no storage: the zone of the browser */
    }
    return new Zone(kept === "UTC" ? "UTC" : LOCAL_ZONE);
  }

  static here(text) {
    // a sentence of the server, which has its moments in UTC, in the zone of the page
    const moments = /(?:\b[A-Z][a-z]{2} )?\b(\d{4}-\d\d-\d\d) (\d\d:\d\d(?::\d\d)?) UTC\b/g;
    return text.replace(moments, (all, date, time) => {
      const at = Date.parse(`${date}T${time}Z`);
      return Number.isNaN(at) ? all : Zone.remembered().stamp(at);
    });
  }

  remember() {
    try {
      localStorage.setItem("gpuyard.zone", this.name === "UTC" ? "UTC" : "local");
    } catch {
      /* for this page only */
    }
  }

  offset(at) {
    // clocks are set at full quarters of an hour (UTC), so one look serves all of a quarter
    const quarter = Math.floor(at / QUARTER);
    if (!this.offsets.has(quarter)) {
      const part = Object.fromEntries(
        format(this.name, {
          year: "numeric",
          month: "numeric",
          day: "numeric",
          hour: "numeric",
          minute: "numeric",
          second: "numeric",
        })
          .formatToParts(quarter * QUARTER)
          .map((one) => [one.type, Number(one.value)]),
      );
      if (this.offsets.size > 50000) this.offsets.clear();
      this.offsets.set(
        quarter,
        Date.UTC(part.year, part.month - 1, part.day, part.hour, part.minute, part.second) - quarter * QUARTER,
      );
    }
    return this.offsets.get(quarter);
  }

  wall(at) {
    // what clocks show there, as milliseconds of a clock in UTC that shows the same
    return Math.floor(at / 1000) * 1000 + this.offset(at);
  }

  moments(wall) {
    // when clocks there show it: once, twice (they are set back) or never (they are set forward)
    const offsets = new Set([this.offset(wall - DAY), this.offset(wall + DAY)]);
    return [...offsets]
      .map((offset) => wall - offset)
      .filter((at) => this.wall(at) === wall)
      .sort((a, b) => a - b);
  }

  moment(wall) {
    // the first such moment; where clocks skip it, the moment at which they do
    const found = this.moments(wall);
    if (found.length) return found[0];
    let low = wall - this.offset(wall - DAY) - DAY,
      high = low + 2 * DAY;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (this.wall(middle) < wall) low = middle;
      else high = middle;
    }
    return high;
  }

  dayStart(at) {
    return this.moment(Math.floor(this.wall(at) / DAY) * DAY);
  }

  shift(at, days) {
    // the same time of another day
    return this.moment(this.wall(at) + days * DAY);
  }

  days(start, end) {
    // the first moment of each day, and then the end
    const marks = [];
    for (let at = start; at < end; at = this.dayStart(this.moment(Math.floor(this.wall(at) / DAY) * DAY + DAY)))
      marks.push(at);
    return [...marks, end];
  }

  snap(at, step) {
    // the nearest time that clocks show as a multiple of the step
    if (step >= DAY) {
      const start = this.dayStart(at),
        next = this.dayStart(this.shift(start, 1));
      return at - start < next - at ? start : next;
    }
    const offset = this.offset(at);
    return Math.round((at + offset) / step) * step - offset;
  }

  text(at, options) {
    return format(this.name, options).format(at);
  }

  time(at) {
    return new Date(this.wall(at)).toISOString().slice(11, 16);
  }

  date(at) {
    const day = Math.floor(this.wall(at) / DAY);
    if (!this.dates.has(day)) this.dates.set(day, this.text(at, {weekday: "short", day: "numeric", month: "short"}));
    return this.dates.get(day);
  }

  abbreviation(at) {
    // as in CET or GMT+1
    if (this.name === "UTC") return "UTC";
    return format(this.name, {timeZoneName: "short"})
      .formatToParts(at)
      .find((one) => one.type === "timeZoneName").value;
  }

  stamp(at) {
    // says which of two hours it is when clocks are set back
    const twice = this.moments(this.wall(at)).length > 1 ? ` ${this.abbreviation(at)}` : "";
    const [year, now] = [at, Date.now()].map((one) => new Date(this.wall(one)).getUTCFullYear());
    const far = year === now ? "" : ` ${year}`;
    return `${this.date(at)}${far}, ${this.time(at)}${twice}`;
  }

  range(start, end) {
    const same = Math.floor(this.wall(start) / DAY) === Math.floor(this.wall(end) / DAY);
    const unclear = same && this.offset(start) !== this.offset(end);
    return `${this.stamp(start)} – ${same && !unclear ? this.time(end) : this.stamp(end)}`;
  }

  input(at) {
    // for <input type=datetime-local>
    return new Date(this.wall(at)).toISOString().slice(0, 16);
  }

  label(at) {
    return this.name === "UTC" ? "UTC" : `${this.name.replaceAll("_", " ")} (${this.abbreviation(at)})`;
  }
}

function lasting(milliseconds) {
  const minutes = Math.round(milliseconds / MINUTE),
    days = Math.floor(minutes / 1440),
    hours = Math.floor(minutes / 60) % 24;
  const parts = [
    [days, "d"],
    [hours, "h"],
    [minutes % 60, "min"],
  ].filter(([number]) => number);
  return parts.length ? parts.map(([number, unit]) => `${number} ${unit}`).join(" ") : "under a minute";
}
