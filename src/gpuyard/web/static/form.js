// The form for a booking, new or to be changed: says while one types whether it would fit, and what would instead.
"use strict";

const CHECK_AFTER = 300; // ms of quiet before the server is asked
const LENGTHS = [
  ["1 h", HOUR],
  ["4 h", 4 * HOUR],
  ["1 day", DAY],
  ["1 week", 7 * DAY],
];

function randomKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

class BookingForm {
  constructor({zone, lanes, done}) {
    this.zone = zone; // function: it can be switched
    this.lanes = lanes; // function: rows of the calendar
    this.done = done;
    this.dialog = byId("booking-dialog");
    this.form = byId("booking-form");
    this.form.addEventListener("input", (event) => this.typed(event));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    byId("f-cancel").addEventListener("click", () => this.dialog.close());
    byId("f-now").addEventListener("click", () => this.begin());
    byId("f-lengths").append(
      ...LENGTHS.map(([text, length]) =>
        make("button", {type: "button", class: "small-button", onclick: () => this.last(length)}, text),
      ),
    );
  }

  field(name) {
    return this.form.elements[name];
  }

  open(wanted, booking = null) {
    if (!booking && !CONFIG.mayBook) {
      toast(
        `${CONFIG.user} may look, but not book: that takes the role member in a project. Ask its administrator.`,
        "bad",
      );
      return;
    }
    this.booking = booking;
    this.key = randomKey();
    const pools = [...new Set(this.lanes().map((lane) => lane.pool))];
    byId("booking-title").textContent = booking ? "Change booking" : "Book GPUs";
    byId("f-submit").textContent = booking ? "Save" : "Book";
    byId("f-zone").textContent = this.zone().label(wanted.start);
    this.field("pool").replaceChildren(...pools.map((pool) => make("option", {}, pool)));
    this.field("pool").disabled = Boolean(booking);
    this.field("start").disabled = byId("f-now").disabled = booking?.state === "active";
    for (const name of ["repeat-row", "wait-row", "project-row"])
      byId(`f-${name}`).hidden = Boolean(booking) || byId(`f-${name}`).dataset.never === "yes";
    this.field("repeat").value = "";
    this.field("count").value = "4";
    this.field("wait").checked = false;
    this.field("override").checked = false;
    this.message = null;
    this.fill(wanted);
    this.dialog.showModal();
    this.field(booking ? "end" : "start").focus();
    this.check();
  }

  exact = {};

  fill(wanted) {
    this.field("pool").value = wanted.pool;
    this.offerGpus(wanted.gpu ?? "");
    this.field("gpus").value = wanted.gpus ?? 1;
    this.field("same_group").checked = wanted.same_group ?? false;
    this.field("same_host").checked = wanted.same_host ?? false;
    this.field("comment").value = wanted.comment ?? "";
    this.put("start", wanted.start);
    this.put("end", wanted.end);
    this.show();
  }

  put(name, at) {
    const zone = this.zone();
    this.field(name).value = zone.input(at);
    this.exact[name] = {shown: this.field(name).value, at}; // the field has no seconds, and a booking may begin with some
    this.which(name);
    const found = zone.moments(zone.wall(at));
    if (found.length > 1)
      this.field(`${name}-which`).value = String(found.findIndex((one) => Math.abs(one - at) < MINUTE));
  }

  offerGpus(chosen) {
    // of the pool, by host
    const options = [make("option", {value: ""}, "any of the pool")];
    const lanes = this.lanes().filter((lane) => lane.pool === this.field("pool").value);
    for (const lane of lanes) {
      const name = `${lane.host}/${lane.gpus[0]}`;
      const more = lane.size > 1 ? ` (${named(lane.size, "GPU")}, one group)` : "";
      options.push(make("option", {value: name}, name + more + (lane.trouble ? " – in trouble" : "")));
    }
    this.field("gpu").replaceChildren(...options);
    this.field("gpu").value = chosen;
    if (this.field("gpu").selectedIndex < 0) this.field("gpu").value = "";
    const sizes = lanes.map((lane) => lane.size);
    byId("f-group-row").hidden = !sizes.some((size) => size > 1) && !this.booking?.same_group;
  }

  last(length) {
    const start = this.at("start");
    if (start === null) return;
    const days = length / DAY;
    this.put("end", Number.isInteger(days) ? this.zone().shift(start, days) : start + length);
    this.typed();
  }

  begin() {
    // at once, and as long as it was
    const start = this.at("start"),
      end = this.at("end"),
      now = Math.floor(Date.now() / 1000) * 1000;
    this.put("start", now);
    if (start !== null && end !== null && end > start) this.put("end", now + (end - start));
    this.typed();
  }

  which(name) {
    // when clocks are set back, a time comes twice: ask which one is meant
    const zone = this.zone(),
      wall = Date.parse(`${this.field(name).value}Z`);
    const found = Number.isNaN(wall) ? [] : zone.moments(wall),
      choice = this.field(`${name}-which`);
    choice.hidden = found.length < 2;
    if (found.length < 2) return;
    const kept = choice.value || "0";
    choice.replaceChildren(
      ...found.map((at, index) =>
        make("option", {value: index}, `${index ? "second" : "first"} ${zone.time(at)}, ${zone.abbreviation(at)}`),
      ),
    );
    choice.value = kept;
  }

  at(name) {
    // milliseconds; null with the reason said at the field
    const zone = this.zone(),
      wall = Date.parse(`${this.field(name).value}Z`),
      element = this.field(name);
    element.setCustomValidity("");
    if (Number.isNaN(wall)) return null;
    const found = zone.moments(wall),
      put = this.exact[name];
    if (found.length === 1 && put?.shown === element.value && found[0] <= put.at && put.at < found[0] + MINUTE)
      return put.at;
    if (!found.length) {
      const next = zone.moment(wall);
      element.setCustomValidity(
        `Clocks in ${zone.name} skip ${element.value.slice(11)} on that day; write ${zone.time(next)} or later.`,
      );
      return null;
    }
    return found[Math.min(Number(this.field(`${name}-which`).value || 0), found.length - 1)];
  }

  ask() {
    // as the API takes it; null when the form is not complete
    const start = this.at("start"),
      end = this.at("end"),
      gpus = Number(this.field("gpus").value);
    if (start === null || end === null || !Number.isInteger(gpus) || gpus < 1) return null;
    const asked = {
      pool: this.field("pool").value,
      start: isoOf(start),
      end: isoOf(end),
      gpus,
      same_group: this.field("same_group").checked,
      same_host: this.field("same_host").checked,
      gpu: this.field("gpu").value,
      comment: this.field("comment").value,
    };
    if (this.field("override").checked) asked.override = true;
    if (this.booking) return asked;
    if (this.field("project").value) asked.project = this.field("project").value;
    if (this.field("wait").checked) asked.wait = true;
    if (this.field("repeat").value) {
      asked.repeat = `FREQ=${this.field("repeat").value};COUNT=${Math.max(1, Number(this.field("count").value) || 1)}`;
      asked.timezone = this.zone().name;
    }
    return asked;
  }

  typed(event) {
    const name = event?.target.name;
    if (name === "pool") {
      this.offerGpus("");
      this.field("same_group").checked = false;
    }
    if (name === "start" || name === "end") this.which(name);
    if (name === "gpu" && this.field("gpu").value) this.wholeLane();
    this.key = randomKey(); // another ask, another booking
    this.show();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), CHECK_AFTER);
  }

  wholeLane() {
    // a slot of several GPUs is booked as a whole
    const lane = this.lanes().find((one) => `${one.host}/${one.gpus[0]}` === this.field("gpu").value);
    this.field("gpus").value = lane.size;
    this.field("same_group").checked = lane.size > 1;
  }

  show() {
    const start = this.at("start"),
      end = this.at("end"),
      zone = this.zone();
    byId("f-length").textContent =
      start === null || end === null ? "" : end > start ? lasting(end - start) : "ends before it starts";
    byId("f-utc").textContent =
      start === null || end === null || zone.name === "UTC"
        ? ""
        : `${isoOf(start).slice(0, 16).replace("T", " ")} – ${isoOf(end).slice(0, 16).replace("T", " ")} UTC`;
    byId("f-count-row").hidden = !this.field("repeat").value;
  }

  async check() {
    clearTimeout(this.timer);
    const asked = this.ask(),
      turn = (this.turn = (this.turn ?? 0) + 1);
    if (!asked) return this.say("", [this.form.querySelector(":invalid")?.validationMessage ?? "Fill in the times."]);
    try {
      const {body} = await call("POST", `v1/bookings/check${this.booking ? `?without=${this.booking.id}` : ""}`, asked);
      if (turn !== this.turn || !this.dialog.open) return;
      const reasons = body.reasons.map((reason) => Zone.here(reason.text));
      if (body.fits)
        this.say("good", [asked.repeat ? "The first one fits." : this.booking ? "The change fits." : "This fits."]);
      else
        this.say(
          "bad",
          reasons,
          body.alternatives,
          asked,
          body.reasons.some((reason) => reason.code === "full"),
        );
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      if (turn === this.turn) this.say("bad", error.reasons, error.alternatives, asked);
    }
  }

  say(kind, texts, alternatives = [], asked = null, full = false) {
    const fit = byId("fit"),
      parts = texts.map((text) => make("p", {}, text));
    if (alternatives.length) {
      parts.push(
        make("p", {class: "soft"}, "What would fit:"),
        make(
          "div",
          {class: "buttons"},
          ...alternatives.map((one) =>
            make(
              "button",
              {type: "button", class: "small-button alternative", onclick: () => this.take(one)},
              difference(one, asked, this.zone()),
            ),
          ),
        ),
      );
    }
    if (full && !this.booking && !this.field("wait").checked) {
      const wait = () => {
        this.field("wait").checked = true;
        this.typed();
        byId("f-submit").focus();
      };
      parts.push(
        make("button", {type: "button", class: "small-button", onclick: wait}, "Wait for it: join the waitlist"),
      );
    } else if (full && this.field("wait").checked) {
      parts.push(make("p", {class: "soft"}, "Book puts it on the waitlist."));
    }
    fit.className = `fit ${kind}`;
    fit.replaceChildren(...parts);
  }

  take(alternative) {
    const asked = alternative.ask;
    this.fill({
      ...asked,
      start: Date.parse(asked.start),
      end: Date.parse(asked.end),
      comment: this.field("comment").value,
    });
    this.key = randomKey();
    this.check();
    byId("f-submit").focus();
  }

  async submit() {
    const asked = this.ask();
    if (!asked) {
      this.form.reportValidity();
      return;
    }
    clearTimeout(this.timer); // a check would overwrite the answer
    byId("f-submit").disabled = true;
    try {
      const answer = this.booking
        ? await change(this.booking, asked)
        : await call("POST", "v1/bookings", asked, {"Idempotency-Key": this.key});
      this.dialog.close();
      const made = answer.body.bookings ?? [answer.body];
      toast(
        this.booking
          ? `Saved: ${summary(read(made[0]), this.zone())}`
          : made.length > 1
            ? `${named(made.length, "booking")} made, the first: ${summary(read(made[0]), this.zone())}`
            : summary(read(made[0]), this.zone()),
      );
      this.done(made.map(read));
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      this.turn += 1; // a check that is under way would overwrite the answer
      if (error.status === 412) this.stale(error);
      else this.say("bad", error.reasons, error.alternatives, asked, (error.problem.codes ?? []).includes("full"));
    } finally {
      byId("f-submit").disabled = false;
    }
  }

  stale(error) {
    // somebody else was faster: show what, and let one choose
    const current = error.problem.current ? read(error.problem.current) : null;
    if (!current) return this.say("bad", error.reasons);
    const fit = byId("fit"),
      before = this.booking;
    const reload = () => {
      this.booking = current;
      this.fill(current);
      this.check();
    };
    const anyway = () => {
      this.booking = current;
      this.submit();
    };
    fit.className = "fit bad";
    fit.replaceChildren(
      make("p", {}, "Somebody has changed this booking since you opened it:"),
      make("ul", {class: "reasons"}, ...changes(before, current, this.zone()).map((text) => make("li", {}, text))),
      make(
        "div",
        {class: "buttons"},
        make("button", {type: "button", class: "small-button", onclick: reload}, "Show theirs"),
        make("button", {type: "button", class: "small-button", onclick: anyway}, "Save mine over it"),
      ),
    );
  }
}

function summary(booking, zone) {
  const what =
    {
      requested: "waits for an admin's approval",
      waiting: "is on the waitlist",
      offered: "is offered",
      confirmed: "is booked",
      active: "is booked, and has begun",
    }[booking.state] ?? `is ${booking.state}`;
  return `${describe(booking)}, ${zone.range(booking.start, booking.end)}, ${what}.`;
}
