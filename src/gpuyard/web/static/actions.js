// What can be done to a booking, the same wherever it is shown, and the dialog with its details.
"use strict";

const FAULT = CONFIG.health ? "If something was wrong with them, say what: operators look at it." : "";

function actionsOf(booking, {form, zone, rules, done}) {
  // [{text, kind, run}]
  const step =
    (verb, question = "", yes = "", also = "") =>
    async () => {
      const fault = also ? await words(`${question} ${also}`, yes, false, true) : "";
      if (fault === null || (question && !also && !(await ask(question, yes)))) return;
      try {
        const {body} = await act(booking, verb, fault ? {fault} : {});
        toast(summary(read(body), zone()));
        done([read(body)]);
      } catch (error) {
        if (error.status === 412 && error.problem.current) {
          const now = read(error.problem.current);
          complain(
            new Trouble(
              {
                reasons: [
                  "Somebody has changed this booking meanwhile; look at it again.",
                  ...changes(booking, now, zone()),
                ],
              },
              412,
            ),
          );
        } else complain(error);
        done([]);
      }
    };
  const can = (verb) => booking.may.includes(verb);
  const found = [];
  const button = (verb, text, kind, run) => can(verb) && found.push({text, kind, run});
  const active = booking.state === "active";
  if (booking.kind === "hold") {
    const ends = step(active ? "end" : "cancel", "End this hold? Its GPUs can be booked again.", "End hold");
    button(active ? "end" : "cancel", "End hold", "danger", ends);
    return found;
  }
  if (booking.kind === "loan") {
    button("open", "Let a server in now", "", step("open"));
    button("end", "End loan", "danger", step("end", "End this loan now? Its GPU is kept back again.", "End loan"));
    return found;
  }
  button("accept", "Accept", "primary", step("accept"));
  button("approve", "Approve", "primary", step("approve"));
  if (active && rules && rules.must_book === false) button("open", "Let my server in now", "", step("open"));
  button("change", active ? "Extend or change…" : "Change…", "", () => form.open(booking, booking));
  if (booking.state === "requested" && can("approve"))
    button("decline", "Decline", "danger", step("decline", "Decline this request?", "Decline"));
  else if (CANCEL[booking.state]) {
    const [text, question, yes] = CANCEL[booking.state](booking, zone);
    button("cancel", text, "danger", step("cancel", question, yes));
  }
  button("end", "End now", "danger", step("end", "End this booking now? Servers must give its GPUs back.", "End now", FAULT));
  return found;
}

const CANCEL = {
  // state -> the button, what is asked then, and its yes
  offered: () => ["Refuse", "Refuse the offer? The booking leaves the waitlist.", "Refuse"],
  waiting: (booking) => ["Leave the waitlist", `Leave the waitlist: ${describe(booking)}?`, "Leave the waitlist"],
  requested: (booking) => ["Withdraw", `Withdraw: ${describe(booking)}?`, "Withdraw"],
  confirmed: (booking, zone) => [
    "Cancel booking",
    `Cancel ${describe(booking)}, ${zone().range(booking.start, booking.end)}?`,
    "Cancel booking",
  ],
};

function actionButtons(booking, context, before = () => {}) {
  return actionsOf(booking, context).map(({text, kind, run}) =>
    make(
      "button",
      {
        type: "button",
        class: kind ?? "",
        onclick: () => {
          before();
          run();
        },
      },
      text,
    ),
  );
}

function utcRange(booking) {
  return [booking.start, booking.end].map((at) => isoOf(at).slice(0, 16).replace("T", " ")).join(" – ");
}

function facts(booking, zone) {
  // term -> description, what there is to know
  const rows = [
    ["What", describe(booking)],
    ["When", `${zone.range(booking.start, booking.end)} (${lasting(booking.end - booking.start)})`],
    [
      "Who",
      `${booking.user || "nobody"}${booking.project ? ` in ${booking.project}` : ""}${booking.mine ? " (you)" : ""}`,
    ],
    ["State", `${stateOf(booking)}${booking.reason ? `: ${Zone.here(booking.reason)}` : ""}`],
    ["GPUs", (booking.gpu_names ?? []).join(", ")],
    ["Usable", usable(booking, zone)],
    ["Flavors", booking.flavors.join(", ")],
    ["Comment", booking.comment],
    ["Answer by", booking.offer_until ? zone.stamp(booking.offer_until) : ""],
    ["Let in until", booking.open_until ? zone.stamp(Date.parse(booking.open_until)) : ""],
    ["Rules", booking.override ? "an admin has set rules aside" : ""],
    ["UTC", zone.name === "UTC" ? "" : utcRange(booking)],
    ["Number", `${booking.id}, version ${booking.version}`],
  ];
  return rows
    .filter(([, text]) => text)
    .map(([term, text]) => make("div", {}, make("dt", {}, term), make("dd", {}, text)));
}

function usable(booking, zone) {
  // a booking is active from its start, and a server can be started as soon as Nova has been told
  if (booking.state !== "active" || booking.kind !== "booking" || (booking.claimed && !booking.usable_since)) return "";
  return booking.usable_since
    ? `now, since ${zone.stamp(Date.parse(booking.usable_since))}`
    : "not yet: its GPUs are being released for you; it takes some seconds";
}

function starting(booking) {
  // how a server is started on one's own booking: by a button, or with a command to be copied
  if (!booking.mine || !booking.command || !isOpen(booking)) return [];
  if (CONFIG.launches && booking.state === "active" && booking.project === CONFIG.project)
    return booking.flavors.map((flavor) =>
      make("a", {class: "small-button", href: `launch?flavor=${encodeURIComponent(flavor)}`}, `Start a server of ${flavor}`),
    );
  const field = make("input", {readonly: true, value: booking.command, "aria-label": "Command that starts a server"});
  return [
    make("p", {class: "soft"}, "To start a server, as the same user and in the same project:"),
    make(
      "div",
      {class: "command"},
      field,
      make("button", {type: "button", onclick: () => copy(field)}, "Copy"),
    ),
  ];
}

async function copy(field) {
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
    toast("Copied.");
  } catch {
    toast("Select the text and copy it.", "bad");
  }
}

const ruleCache = new Map();

async function rulesOf(pool, project) {
  // null when they cannot be had: then nothing is offered that needs them
  const key = `${pool}\n${project}`;
  if (!ruleCache.has(key)) {
    try {
      ruleCache.set(
        key,
        (await call("GET", `v1/pools/${encodeURIComponent(pool)}/rules?project=${encodeURIComponent(project)}`)).body,
      );
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      return null;
    }
  }
  return ruleCache.get(key);
}

async function showDetails(booking, context) {
  const dialog = byId("details-dialog"),
    zone = context.zone();
  const rules = booking.mine && booking.state === "active" ? await rulesOf(booking.pool, booking.project) : null;
  const close = () => dialog.close();
  const titles = {hold: "Hold", runner: "Runner", loan: "Loan", booking: `Booking of ${booking.user}`};
  byId("details-title").textContent = booking.mine ? "Your booking" : titles[booking.kind];
  byId("details-facts").replaceChildren(...facts(booking, zone));
  byId("details-start").replaceChildren(...starting(booking));
  byId("details-buttons").replaceChildren(
    ...actionButtons(booking, {...context, rules}, close),
    make("button", {type: "button", onclick: close, autofocus: true}, "Close"),
  );
  dialog.showModal();
}
