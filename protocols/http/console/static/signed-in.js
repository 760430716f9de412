// The page after a sign-in in a window of its own: notifies the page that waits, and closes.

import "./dom.js"; // scrolls the navigation

const heard = new BroadcastChannel("trunkline");
heard.postMessage("signed in");
setTimeout(() => window.close(), 300);
