// What one does in the rows of rows.js: drag with a mouse or a finger, or go over them with keys.
"use strict";

const FAR = 4; // pixels that a mouse moves before a press becomes a drag
const LONG_PRESS = 450; // ms until a finger drags instead of scrolling

class Timeline extends Rows {
  constructor(root, {select, move, open, turn, say}) {
    super(root);
    Object.assign(this, {select, move, open, turn, say});
    root.addEventListener("pointerdown", (event) => this.press(event));
    root.addEventListener("keydown", (event) => this.key(event));
    root.addEventListener("focusin", (event) => this.focused(event));
    root.addEventListener("click", (event) => this.click(event));
    root.addEventListener("pointerover", (event) => {
      const element = event.target.closest(".tl-event");
      if (element && !this.drag) say(element.title); // also of one that is too narrow for words
    });
    root.addEventListener(
      "touchmove",
      (event) => {
        if (this.drag?.moving) event.preventDefault();
      },
      {passive: false},
    );
  }

  draw(what) {
    // not under somebody's hands
    this.later = this.drag ? what : null;
    if (!this.drag) super.draw(what);
  }

  // Mouse and finger

  timeAt(x) {
    const box = this.root.querySelector(".tl-axis").getBoundingClientRect(),
      {start, end} = this.view;
    return start + (end - start) * Math.min(Math.max((x - box.left) / box.width, 0), 1);
  }

  press(event) {
    const track = event.target.closest(".tl-track");
    if (!track || event.button || !event.isPrimary || this.drag) return;
    const element = event.target.closest(".tl-event"),
      booking = element && this.find(element.dataset.id);
    const kind =
      !booking || !this.movable(booking)
        ? "select"
        : event.target.classList.contains("first")
          ? "first"
          : event.target.classList.contains("last")
            ? "last"
            : booking.state === "active"
              ? "none"
              : "move"; // what has begun can only be stretched
    this.drag = {
      kind,
      booking,
      element,
      track,
      x: event.clientX,
      y: event.clientY,
      pointer: event.pointerId,
      from: this.timeAt(event.clientX),
      mouse: event.pointerType === "mouse",
    };
    const go = (one) => this.pull(one),
      end = (one) => this.drop(one),
      off = (one) => {
        if (one.key === "Escape") this.release();
      };
    this.drag.listeners = [
      ["pointermove", go],
      ["pointerup", end],
      ["pointercancel", () => this.release()],
      ["keydown", off],
    ];
    for (const [name, listener] of this.drag.listeners) window.addEventListener(name, listener, true);
    if (!this.drag.mouse && kind !== "none")
      this.drag.timer = setTimeout(() => {
        if (this.drag) {
          this.drag.moving = true;
          this.show(event.clientX, event.clientY);
        }
      }, LONG_PRESS);
  }

  pull(event) {
    const drag = this.drag;
    if (event.pointerId !== drag.pointer) return;
    const far = Math.hypot(event.clientX - drag.x, event.clientY - drag.y) >= FAR;
    if (!drag.moving && far && !drag.mouse) return this.release(); // a finger that scrolls
    if (drag.mouse && far) drag.moving = drag.kind !== "none";
    if (!drag.moving) return;
    event.preventDefault();
    this.show(event.clientX, event.clientY);
    this.edge(event);
  }

  edge(event) {
    // the pointer at the edge of the box scrolls it
    const box = this.root.getBoundingClientRect(),
      label = this.root.querySelector(".tl-label").offsetWidth;
    if (event.clientX > box.right - 24) this.root.scrollLeft += 12;
    if (event.clientX < box.left + label + 12) this.root.scrollLeft -= 12;
    if (event.clientY > box.bottom - 20) this.root.scrollTop += 10;
    if (event.clientY < box.top + 40) this.root.scrollTop -= 10;
  }

  show(x, y) {
    // where it would go
    const drag = this.drag,
      {step} = this.view,
      {zone} = this,
      at = this.timeAt(x);
    const under = document
      .elementsFromPoint(x, y)
      .map((one) => one.closest?.(".tl-track"))
      .find(Boolean);
    if (under && under.dataset.pool === drag.track.dataset.pool) drag.over = under;
    if (drag.kind === "select") {
      const [a, b] = [drag.from, at].sort((one, other) => one - other);
      drag.start = this.floor(a);
      drag.end = Math.max(this.ceil(b), this.after(drag.start));
    } else if (drag.kind === "move") {
      const shift = at - drag.from;
      if (step >= DAY) drag.start = zone.shift(drag.booking.start, Math.round(shift / DAY));
      else drag.start = Math.abs(shift) < step / 2 ? drag.booking.start : zone.snap(drag.booking.start + shift, step);
      drag.end = drag.start + (drag.booking.end - drag.booking.start);
    } else {
      const least = Math.min(step, HOUR),
        to = zone.snap(at, step);
      [drag.start, drag.end] =
        drag.kind === "first"
          ? [Math.min(to, drag.booking.end - least), drag.booking.end]
          : [drag.booking.start, Math.max(to, drag.booking.start + least)];
    }
    this.ghost();
  }

  floor(at) {
    const {
      zone,
      view: {step},
    } = this;
    if (step >= DAY) return zone.dayStart(at);
    return Math.floor((at + zone.offset(at)) / step) * step - zone.offset(at);
  }

  after(at) {
    return this.view.step >= DAY ? this.zone.shift(at, 1) : at + this.view.step;
  }

  ceil(at) {
    const floor = this.floor(at);
    return floor === at ? at : this.after(floor);
  }

  covered() {
    // rows of GPUs that a selection goes over
    return this.between(this.drag.track, this.drag.over ?? this.drag.track);
  }

  between(one, other) {
    // rows of GPUs of a pool, from one to another one
    const rows = this.tracks().filter((track) => track.dataset.lane && track.dataset.pool === one.dataset.pool);
    const [a, b] = [one, other].map((track) => rows.indexOf(track)).sort((x, y) => x - y);
    return a < 0 ? [] : rows.slice(a, b + 1);
  }

  chosen(track) {
    // rows that are selected with keys; the calendar may have been drawn again since, so the first is known by its key
    const first = this.anchorKey && this.tracks().find((one) => one.dataset.key === this.anchorKey);
    const rows = first ? this.between(first, track) : [];
    return rows.length ? rows : [track];
  }

  ghost() {
    for (const old of this.root.querySelectorAll(".tl-ghost")) old.remove();
    const drag = this.drag,
      on =
        drag.kind === "select"
          ? this.covered()
          : [drag.kind === "move" && this.single() ? (drag.over ?? drag.track) : drag.track];
    const text = this.zone.range(drag.start, drag.end);
    for (const track of on.length ? on : [drag.track]) {
      track.append(
        this.place(
          make("div", {class: "tl-ghost", "aria-hidden": "true"}, make("span", {}, text)),
          drag.start,
          drag.end,
        ),
      );
    }
    drag.element?.classList.add("moving");
  }

  single() {
    // only a booking of one row can be put on another
    return this.drag.booking?.lanes.length === 1 && this.drag.over?.dataset.lane;
  }

  drop(event) {
    const drag = this.drag;
    if (event.pointerId !== drag.pointer) return;
    if (drag.moving) {
      const rows = this.covered(),
        over = drag.over ?? drag.track;
      const other = drag.kind === "move" && this.single() && over !== drag.track ? Number(over.dataset.lane) : null;
      this.release();
      this.swallow = true; // the click that follows
      setTimeout(() => {
        this.swallow = false;
      });
      if (drag.kind === "select")
        this.select(
          this.wanted(
            drag.track.dataset.pool,
            rows.map((row) => Number(row.dataset.lane)),
            drag.start,
            drag.end,
          ),
        );
      else if (other !== null || drag.start !== drag.booking.start || drag.end !== drag.booking.end) {
        const lane = this.lanes.find((one) => one.id === other);
        this.move(drag.booking, {
          start: drag.start,
          end: drag.end,
          ...(lane ? {gpu: `${lane.host}/${lane.gpus[0]}`} : {}),
        });
      }
    } else this.release();
  }

  release() {
    const drag = this.drag;
    if (!drag) return;
    clearTimeout(drag.timer);
    for (const [name, listener] of drag.listeners) window.removeEventListener(name, listener, true);
    for (const old of this.root.querySelectorAll(".tl-ghost")) old.remove();
    drag.element?.classList.remove("moving");
    this.drag = null;
    setTimeout(() => {
      if (this.later) this.draw(this.later);
    }); // not before the click that belongs to the press
  }

  wanted(pool, ids, start, end) {
    // what a selection asks for: any GPUs of the pool, as many as rows were covered
    const lanes = this.lanes.filter((lane) => ids.includes(lane.id)),
      [lane] = lanes;
    if (lanes.length === 1 && lane.size > 1) return {pool, gpus: lane.size, same_group: true, start, end};
    return {pool, gpus: Math.max(1, lanes.length), start, end};
  }

  click(event) {
    if (this.swallow) return;
    const element = event.target.closest(".tl-event"),
      track = event.target.closest(".tl-track");
    if (element) this.open(this.find(element.dataset.id));
    else if (track && event.detail) {
      // with a pointer
      const start = this.floor(this.timeAt(event.clientX));
      this.select(
        this.wanted(
          track.dataset.pool,
          track.dataset.lane ? [Number(track.dataset.lane)] : [],
          start,
          this.lengthen(start),
        ),
      );
    }
  }

  lengthen(start) {
    const {length} = this.view;
    return length >= DAY ? this.zone.shift(start, length / DAY) : start + length;
  }

  // Keys: a cursor goes over rows and time; Enter opens what is under it, or the form.

  focused(event) {
    const track = event.target.closest(".tl-track");
    if (!track) return;
    for (const one of this.tracks()) one.tabIndex = one === track ? 0 : -1;
    this.at = this.keyOf(track);
    if (event.target === track && track.matches(":focus-visible")) this.cursor(track);
  }

  cursor(track) {
    const {start, end} = this.view;
    if (this.spot === undefined || this.spot < start || this.spot >= end)
      this.spot = this.floor(Math.min(Math.max(this.now, start), end - 1));
    for (const old of this.root.querySelectorAll(".tl-cursor")) old.remove();
    const [a, b] = [this.spot, this.anchor ?? this.spot].sort((one, other) => one - other);
    const rows = this.chosen(track);
    for (const row of rows) {
      const mark = this.place(
        make("div", {class: "tl-cursor", "aria-hidden": "true"}),
        a,
        Math.min(this.step(b, 1), end),
      );
      row.append(mark);
      if (row === track) mark.scrollIntoView({block: "nearest", inline: "nearest"});
    }
    this.announce(track, a, b, rows.length);
  }

  unselect() {
    // nothing is selected with keys any more
    this.anchor = this.anchorKey = undefined;
  }

  step(at, count) {
    const {stride} = this.view;
    return stride >= DAY ? this.zone.shift(at, (count * stride) / DAY) : at + count * stride;
  }

  under(track) {
    const on = [...track.querySelectorAll(".tl-event")].map((one) => this.find(one.dataset.id));
    return on.find((one) => one.start < this.step(this.spot, 1) && one.end > this.spot);
  }

  announce(track, a, b, rows) {
    const lane = this.lanes.find((one) => String(one.id) === track.dataset.lane),
      booking = this.under(track);
    const where = lane ? `${lane.host} ${lane.gpus[0]}` : `pool ${track.dataset.pool}`;
    const lanes = this.lanes.filter((one) => one.pool === track.dataset.pool);
    const part = freeOver(
      lanes,
      this.bookings.filter((one) => one.pool === track.dataset.pool),
      this.spot,
      this.step(this.spot, 1),
    );
    const least = Math.min(...part.map((one) => one.free));
    const what = booking ? this.words(booking) : lane ? !lane.trouble && "free" : `${least} free`;
    this.say(
      a === b
        ? `${this.zone.stamp(this.spot)}, ${where}: ${[lane?.trouble, what].filter(Boolean).join("; ")}`
        : `selected ${this.zone.range(a, this.step(b, 1))}, ${where}`,
    );
  }

  key(event) {
    const track = event.target.closest(".tl-track"),
      {key} = event;
    if (!track || event.ctrlKey || event.metaKey || event.altKey) return;
    const tracks = this.tracks(),
      index = tracks.indexOf(track);
    const go = {ArrowLeft: -1, ArrowRight: 1}[key],
      row = {ArrowUp: -1, ArrowDown: 1}[key];
    if (this.spot === undefined) this.cursor(track);
    if (go) {
      if (!event.shiftKey) this.unselect();
      else this.anchor ??= this.spot;
      const next = this.step(this.spot, go);
      if (next < this.view.start || next >= this.view.end) {
        this.unselect();
        this.spot = next;
        this.turn(go);
      } else this.spot = next;
    } else if (row) {
      const next = tracks[index + row] ?? track;
      if (!event.shiftKey) this.unselect();
      else if (this.between(track, next).length < 2) return event.preventDefault(); // only rows of one pool
      else {
        this.anchor ??= this.spot;
        this.anchorKey ??= track.dataset.key;
      }
      next.focus();
    } else if (key === "Home" || key === "End") {
      this.unselect();
      this.spot = key === "Home" ? this.view.start : this.step(this.view.end, -1);
    } else if (key === "PageUp" || key === "PageDown") {
      this.spot = undefined;
      this.turn(key === "PageUp" ? -1 : 1);
    } else if (key === "Escape") this.unselect();
    else if (key === "Enter" || key === " ") {
      if (event.target !== track) return;
      const booking = this.anchor === undefined && this.under(track);
      if (booking) this.open(booking);
      else {
        const [a, b] = [this.spot, this.anchor ?? this.spot].sort((one, other) => one - other);
        const end = this.anchor === undefined ? this.lengthen(a) : this.step(b, 1);
        const ids = this.chosen(track).flatMap((one) => (one.dataset.lane ? [Number(one.dataset.lane)] : []));
        this.unselect();
        this.spot = a;
        this.select(this.wanted(track.dataset.pool, ids, a, end));
      }
    } else return;
    event.preventDefault();
    const focus = document.activeElement.closest?.(".tl-track");
    if (focus && this.root.contains(focus) && key !== "Enter" && key !== " ") this.cursor(focus);
  }
}
