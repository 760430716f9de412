// A broker that commits each group of messages to SQLite (synchronous=FULL) before it acknowledges them.
// node aedes.mjs STORE; it prints one line of JSON with its port.

import { createServer } from "node:net";
import { Aedes } from "aedes";
import Database from "better-sqlite3";

const db = new Database(process.argv[2]);
db.pragma("journal_mode = WAL");
db.pragma("synchronous = FULL");
db.exec("CREATE TABLE message (position INTEGER PRIMARY KEY, topic TEXT, ts INTEGER, data TEXT)");
db.exec("CREATE INDEX message_by_topic ON message (topic, ts)");
const insert = db.prepare("INSERT INTO message (topic, ts, data) VALUES (?, ?, ?)");
const store = db.transaction((batch) => {
  const now = Date.now();
  for (const [packet] of batch) insert.run(packet.topic, now, packet.payload.toString());
});

let waiting = [];
const broker = await Aedes.createBroker();
broker.authorizePublish = (_client, packet, done) => {
  waiting.push([packet, done]);
  if (waiting.length === 1) setImmediate(commit);
};

function commit() {
  const batch = waiting;
  waiting = [];
  store(batch);
  for (const [, done] of batch) done(null);
}

const server = createServer(broker.handle);
server.listen(0, "127.0.0.1", () => console.log(JSON.stringify({ port: server.address().port })));
