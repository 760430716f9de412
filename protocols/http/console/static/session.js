// Signing in again without leaving the page, so that unsaved input stays.

import { h } from "./dom.js";
import { _ } from "./texts.js";

const LOOK_MS = 3000;
const content = (text, name) => new RegExp(`<meta name="${name}" content="([^"]*)"`).exec(text)?.[1];
const uid = document.querySelector('meta[name="uid"]').content;
const accounts = document.querySelector('meta[name="accounts"]').content;

// Asks until the same person is signed in. Gives the new session's page proof, or null if the person declines.
export function signInAgain() {
  return new Promise((resolve) => {
    const problem = h("p", { class: "problem", role: "alert", hidden: true }, _("Somebody else is signed in now. Sign in as before: what you typed is yours."));
    const open = () => window.open(`${accounts}/go?console=/console/signed-in`, "trunkline-sign-in", "popup,width=480,height=720");
    const dialog = h("dialog", { "aria-labelledby": "again-title" },
      h("form", { method: "dialog" }, h("h2", { id: "again-title" }, _("Sign in again")),
        h("p", {}, _("Your session has ended. Your input is still here. Sign in in a new window to continue.")), problem,
        h("div", { class: "row end" }, h("button", { class: "quiet" }, _("Not now")), h("button", { type: "button", onclick: open }, _("Sign in")))));
    const heard = new BroadcastChannel("trunkline");
    let proof = null;
    const look = async () => {
      const answer = await fetch("/console/signed-in", { redirect: "manual" }).catch(() => null);
      if (!answer?.ok) return;
      const text = await answer.text();
      problem.hidden = content(text, "uid") === uid;
      if (!problem.hidden || !dialog.open) return;
      proof = content(text, "csrf");
      dialog.close();
    };
    const timer = setInterval(look, LOOK_MS);
    addEventListener("focus", look);
    heard.addEventListener("message", look);
    dialog.addEventListener("close", () => {
      clearInterval(timer);
      removeEventListener("focus", look);
      heard.close();
      dialog.remove();
      resolve(proof);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
