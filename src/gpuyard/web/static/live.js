// Keeps the page current: the server sends parts of it whenever something changed, and what differs is swapped in.
"use strict";

const SILENCE = 45000; // ms without a word from the server (it speaks every 15 s) after which the line counts as dead
const byId = (id) => document.getElementById(id);
let source, heard, version = byId("main").dataset.version; // of the map that is shown

function duration(seconds) { // as duration() in presenter.py
  const minutes = Math.max(1, Math.floor(seconds / 60)), hours = Math.floor(minutes / 60);
  return minutes < 60 ? `${minutes} min` : hours < 48 ? `${hours} h` : `${Math.floor(hours / 24)} d`;
}

function countOn(root) {
  for (const time of root.querySelectorAll("[data-since]")) {
    const text = duration((Date.now() - Date.parse(time.dateTime)) / 1000);
    if (time.textContent !== text) time.textContent = text;
  }
}

function link(state) { // connecting, connected (nothing known yet), live, behind (the cloud does not answer) or lost
  byId("link").dataset.link = state;
  byId("link").textContent = state === "lost" ? "not connected" : state;
  byId("lost").hidden = state !== "lost";
  if (state !== "lost") byId("lost").textContent = "";
  else if (!byId("lost").textContent) byId("lost").textContent =
    `The connection to gpuyard was lost at ${new Date().toISOString().slice(11, 19)} UTC. Trying again.`;
}

function swap(html, apart) { // only what differs, so that focus, selection and scroll position stay
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  countOn(fresh.content);
  const changed = [];
  if (apart) { // the parts of the map that changed, each for itself
    const parts = fresh.content.firstElementChild;
    for (const piece of [...parts.children]) swapPiece(byId(piece.id), piece, changed);
    byId("map").dataset.generation = parts.dataset.generation;
  } else for (const part of [...fresh.content.children]) {
    const old = byId(part.id), olds = [...old.querySelectorAll("[data-part]")], news = [...part.querySelectorAll("[data-part]")];
    if (!olds.length || olds.map((x) => x.id).join() !== news.map((x) => x.id).join()) {
      if (!old.isEqualNode(part)) old.replaceWith(part);
    } else {
      news.forEach((piece, index) => swapPiece(olds[index], piece, changed));
      old.dataset.generation = part.dataset.generation;
    }
  }
  if (changed.length) byId("news").textContent = changed.length > 3 ? `${changed.length} GPUs changed` : changed.join(", ");
  if (byId("seen").dataset.build !== document.documentElement.dataset.build) location.reload(); // gpuyard was upgraded
}

function swapPiece(old, piece, changed) {
  if (old.isEqualNode(piece)) return;
  if (old.dataset.state !== piece.dataset.state) {
    piece.classList.add("changed");
    changed.push(`${piece.getAttribute("aria-label")} is ${piece.dataset.state}`);
  }
  old.replaceWith(piece);
}

async function leaveWhenLoggedOut() { // the page leads to the login, and from there back
  const answer = await fetch("events", {method: "HEAD", cache: "no-store"}).catch(() => null);
  if (answer?.status === 401) location.reload();
}

function connect() {
  heard = Date.now();
  source = new EventSource(`events?since=${version}`);
  for (const kind of ["map", "parts", "pulse"]) source.addEventListener(kind, (event) => {
    heard = Date.now();
    swap(event.data, kind === "parts");
    version = event.lastEventId || version;
    link(byId("troubles").children.length ? "behind" : byId("seen").children.length ? "live" : "connected");
  });
  source.onerror = () => {
    link("lost"); // the browser tries again by itself, except when it was refused
    if (source.readyState === EventSource.CLOSED) leaveWhenLoggedOut();
  };
}

function watch() {
  if (document.hidden || (source.readyState !== EventSource.CLOSED && Date.now() - heard < SILENCE)) return;
  link("lost");
  source.close();
  connect();
}

link("connecting");
connect();
setInterval(watch, 5000);
setInterval(() => countOn(document), 30000);
document.addEventListener("visibilitychange", () => { // browsers allow few connections, so a hidden tab keeps none
  source.close();
  if (!document.hidden) connect();
});
