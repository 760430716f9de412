// The live feed and the feed of events: sockets that reconnect.

import { accessToken, reachable, REST } from "./api.js";

const SILENCE_MS = 75000;  // the server sends a ping every 30 s
const LONGEST_WAIT_MS = 15000;

// `onOpen` is called after each connection: the caller fetches the changes since the last one. `onLost` is called when
// a connection fails or ends.
export function follow(feed, parameters, onFrame, onOpen = () => {}, onLost = () => {}) {
  let socket = null;
  let failures = 0;
  let ended = false;
  let watch = 0;
  let refused = false;

  async function connect() {
    const query = new URLSearchParams(parameters);
    try {
      // A reconnection gets a new token: the old one may have ended, or the service may have another version.
      query.set("authorization", `bearer ${await accessToken(refused || failures > 0)}`);
    } catch {  // the session has ended, and the person declined to sign in
      if (!ended) setTimeout(connect, LONGEST_WAIT_MS);
      return;
    }
    if (ended) return;
    const url = new URL(`${REST}/${feed}?${query}`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    socket = new WebSocket(url);
    let opened = false;
    socket.addEventListener("open", () => {
      if (ended) return;
      opened = true;
      refused = false;
      failures = 0;
      reachable(feed, true);
      listen();
      onOpen();
    });
    socket.addEventListener("message", (event) => {
      listen();
      const frame = JSON.parse(event.data);
      if (frame.type !== "ping") onFrame(frame);
    });
    socket.addEventListener("close", () => {
      clearTimeout(watch);
      if (ended) return;
      refused = !opened;  // the token may have ended
      failures += 1;
      if (failures > 1) reachable(feed, false);
      onLost();
      const wait = Math.min(LONGEST_WAIT_MS, 250 * 2 ** failures);
      setTimeout(connect, wait * (0.5 + Math.random() / 2));
    });
  }

  function listen() {
    clearTimeout(watch);
    watch = setTimeout(() => socket.close(), SILENCE_MS);
  }

  connect();
  return () => {
    ended = true;
    clearTimeout(watch);
    // A socket that is still connecting is closed when it is open: browsers report closing it earlier as an error.
    if (socket?.readyState === WebSocket.CONNECTING) socket.addEventListener("open", () => socket.close());
    else socket?.close();
    reachable(feed, true);
  };
}
