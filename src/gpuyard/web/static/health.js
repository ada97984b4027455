// What is done about a GPU, or about the maintenance of a host, on its pages: each button asks for words and sends them.
"use strict";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-step]");
  if (!button) return;
  const {step, field, question, yes} = button.dataset;
  const needed = !step.endsWith("/start") && !step.startsWith("v1/maintenances/");
  const said = await words(question, yes, needed, button.classList.contains("danger"));
  if (said === null) return;
  try {
    const {body} = await call("POST", step, {[field]: said});
    if (step.endsWith("/report")) toast("Thank you: operators have your words.");
    else if (body.loan) toast(`It is ${body.gpu.lent}: ${body.loan.command}`);
    else toast(`${body.address ? `GPU ${body.host}/${body.address}` : `Maintenance of ${body.host}`} is ${body.state}.`);
  } catch (error) {
    complain(error);
  }
  load();
});
