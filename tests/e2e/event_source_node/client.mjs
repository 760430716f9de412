// Reads the live feed with the npm package eventsource, which comes again with Last-Event-ID by itself. Writes the id of
// each message on a line of JSON. Arguments: the address and the token.

import { EventSource } from "eventsource";

const [url, token] = process.argv.slice(2);
const source = new EventSource(url, {
  fetch: (input, init) => fetch(input, { ...init, headers: { ...init.headers, Authorization: `Bearer ${token}` } }),
});
source.addEventListener("message", (event) => {
  if (JSON.parse(event.data).mid !== event.lastEventId) throw new Error("the id is not the mid");
  console.log(JSON.stringify({ id: event.lastEventId }));
});
source.addEventListener("error", (event) => {
  if (source.readyState === EventSource.CLOSED) throw new Error(`refused: ${event.code} ${event.message}`);
});
