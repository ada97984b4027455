// The form is sent once: the answer to a second click would replace the page with the new key.
"use strict";

document.querySelector("form.launch")?.addEventListener("submit", (event) => {
  event.target.querySelector("button[type=submit]").disabled = true;
});
window.addEventListener("pageshow", () => { // back from the next page: it may be sent again
  for (const button of document.querySelectorAll("form.launch button[type=submit]")) button.disabled = "closed" in button.dataset;
});
