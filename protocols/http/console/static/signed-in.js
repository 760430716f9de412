// The page behind a sign-in in a window of its own: tells the page that waits for it, and closes.

const heard = new BroadcastChannel("trunkline");
heard.postMessage("signed in");
setTimeout(() => window.close(), 300);
