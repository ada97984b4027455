// What can be done to a booking, the same wherever it is shown, and the dialog with its details.
"use strict";

function actionsOf(booking, {form, zone, rules, done}) {
  // [{text, kind, run}]
  const step =
    (verb, question = "", yes = "") =>
    async () => {
      if (question && !(await ask(question, yes))) return;
      try {
        const {body} = await act(booking, verb);
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
  const edit = {text: "Change…", run: () => form.open(booking, booking)};
  const found = [];
  if (booking.kind === "hold") {
    if (CONFIG.admin)
      found.push({
        text: "End hold",
        kind: "danger",
        run: step(
          booking.state === "active" ? "end" : "cancel",
          "End this hold? Its GPUs can be booked again.",
          "End hold",
        ),
      });
    return isOpen(booking) ? found : [];
  }
  if (!booking.may_change || !isOpen(booking)) return [];
  if (booking.state === "offered") {
    found.push(
      {text: "Accept", kind: "primary", run: step("accept")},
      {
        text: "Refuse",
        kind: "danger",
        run: step("cancel", "Refuse the offer? The booking leaves the waitlist.", "Refuse"),
      },
    );
  }
  if (booking.state === "requested" && CONFIG.admin) {
    found.push(
      {text: "Approve", kind: "primary", run: step("approve")},
      {text: "Decline", kind: "danger", run: step("decline", "Decline this request?", "Decline")},
    );
  }
  if (booking.state === "active") {
    if (rules && rules.must_book === false && booking.mine)
      found.push({text: "Let my server in now", run: step("open")});
    found.push(
      {text: "Extend or change…", run: edit.run},
      {
        text: "End now",
        kind: "danger",
        run: step("end", "End this booking now? Servers must give its GPUs back.", "End now"),
      },
    );
  }
  if (booking.state === "confirmed") {
    found.push(edit, {
      text: "Cancel booking",
      kind: "danger",
      run: step(
        "cancel",
        `Cancel ${describe(booking)}, ${zone().range(booking.start, booking.end)}?`,
        "Cancel booking",
      ),
    });
  }
  if (booking.state === "waiting" || (booking.state === "requested" && booking.mine)) {
    const leave = booking.state === "waiting" ? "Leave the waitlist" : "Withdraw";
    found.push(edit, {text: leave, kind: "danger", run: step("cancel", `${leave}: ${describe(booking)}?`, leave)});
  }
  return found;
}

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
    ["State", `${stateOf(booking)}${booking.reason ? `: ${booking.reason}` : ""}`],
    ["GPUs", (booking.gpu_names ?? []).join(", ")],
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
  byId("details-title").textContent =
    booking.kind === "hold" ? "Hold" : booking.mine ? "Your booking" : `Booking of ${booking.user}`;
  byId("details-facts").replaceChildren(...facts(booking, zone));
  byId("details-buttons").replaceChildren(
    ...actionButtons(booking, {...context, rules}, close),
    make("button", {type: "button", onclick: close, autofocus: true}, "Close"),
  );
  dialog.showModal();
}
