// Devices on MQTT.js. Each line of input is a JSON object { url, version, id, token }. For each, the device publishes
// with QoS 0, 1 and 2 and subscribes to its Actions; { granted } is written, then { topic, payload } of the first Action.

import { createInterface } from "node:readline";
import mqtt from "mqtt";

for await (const line of createInterface({ input: process.stdin })) {
  const { url, version, id, token } = JSON.parse(line);
  const client = await mqtt.connectAsync(url, {
    protocolVersion: version,
    protocolId: version === 3 ? "MQIsdp" : "MQTT",
    clientId: `node-${version}`,
    username: id,
    password: token,
    reconnectPeriod: 0,
  });
  const heard = new Promise((resolve) => {
    client.once("message", (topic, payload) => resolve({ topic, payload: JSON.parse(payload) }));
  });
  for (const qos of [0, 1, 2]) {
    await client.publishAsync(`/v1.1/messages/${id}`, JSON.stringify({ intensity: qos }), { qos });
  }
  const granted = await client.subscribeAsync(`/v1.1/actions/${id}`, { qos: 0 });
  console.log(JSON.stringify({ granted: granted.map((one) => one.qos) }));
  console.log(JSON.stringify(await heard));
  await client.endAsync();
}
