// Keeps the page current: it is loaded again now and then, and what differs is swapped in.
"use strict";

const EVERY = Number(document.documentElement.dataset.every) || 10000; // ms between loads, while somebody may be looking
const main = () => document.getElementById("main");

let loading = false;

async function load() {
  if (loading) return; // a slow cloud is not asked again before it has answered
  loading = true;
  try {
    await loadOnce();
  } finally {
    loading = false;
  }
}

async function loadOnce() {
  if (document.hidden || document.getSelection()?.type === "Range") return; // what is being copied shall stay
  let answer, text;
  try { // nobody touched the page: the session does not count as used (gate.py)
    answer = await fetch(location.href, {headers: {"X-Gpuyard-Idle": "1"}, redirect: "manual", cache: "no-cache"});
    text = await answer.text();
  } catch {
    answer = null;
  }
  if (answer?.type === "opaqueredirect") return location.reload(); // logged out: the page leads to the login
  document.getElementById("lost").hidden = Boolean(answer?.ok);
  if (!answer?.ok) return;
  const fresh = new DOMParser().parseFromString(text, "text/html");
  if (fresh.documentElement.dataset.build !== document.documentElement.dataset.build) return location.reload();
  swap(main(), fresh.getElementById("main"));
}

function swap(old, fresh) { // whole parts, and only those that differ, so that focus and scroll position stay
  const olds = [...old.children], news = [...fresh.children];
  if (olds.length !== news.length) return old.replaceChildren(...news);
  olds.forEach((part, index) => {
    const other = news[index];
    if (part.isEqualNode(other) || part.querySelector("details[open]")) return; // what somebody has opened stays
    if (part.tagName === other.tagName && part.matches("section, .columns") && part.className === other.className) swap(part, other);
    else part.replaceWith(other);
  });
}

setInterval(load, EVERY);
document.addEventListener("visibilitychange", load);
