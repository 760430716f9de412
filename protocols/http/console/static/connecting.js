// Lines to paste that connect the device, filled in; and the wait for its first message.

import { attempt, call, done, get, Refused, REST } from "./api.js";
import { $, copyButton, fill, h } from "./dom.js";
import { put } from "./manifest.js";
import { espIdf, microPython, node, zephyr } from "./programs.js";
import { _ } from "./texts.js";

const SAMPLES = { Boolean: true, Integer: 21, Long: 21, Double: 21.5, Float: 21.5, String: "hello" };
const HIDDEN = "<device token>";

export class Connecting {
  constructor(place, device, manifest, type, isOwner) {
    Object.assign(this, { place, device, type });
    if (!isOwner) return;
    this.data = sample(manifest);
    this.isSettable = [...manifest.fields.values()].some((one) => one.settable);
    this.token = "";
    this.ways = this.offered();
    for (const [name] of this.ways) {
      $("#ways").append(h("button", { type: "button", class: "small", "aria-pressed": "false", onclick: () => this.choose(name) }, name));
    }
    this.box = $("#connect");
    this.choose(this.ways[0][0]);
    this.tools();
  }

  // Shows whether the device has sent a message; `now`: it came while the page was open.
  heard(yes, now = false) {
    if (!this.box) return;
    if (this.state === "connected" || (this.state === "known" && yes)) return;
    const waiting = $("#waiting");
    if (!yes) {
      if (this.state === "waiting") return;
      this.state = "waiting";
      this.box.hidden = false;
      waiting.hidden = false;
      waiting.className = "notice";
      fill(waiting, h("p", {}, h("b", {}, _("Waiting for the first message…")), " ", _("Copy a line from “Connect it” into a shell, or onto your device.")),
        h("button", { type: "button", onclick: (event) => this.lead(event.target) }, _("Show me the line")));
      this.box.parentElement.prepend(this.box);
    } else if (now && this.state === "waiting") {
      this.state = "connected";
      waiting.className = "notice good";
      fill(waiting, h("p", {}, _("The first message is here. Your device is connected.")));
    } else {
      this.state = "known";
      waiting.hidden = true;
      this.box.hidden = false;
    }
  }

  // A message came, and no field of it was stored.
  troubled() {
    if (this.state === "waiting") {
      fill($("#waiting"), h("p", {}, h("b", {}, _("A message came, and was not stored.")), " ", _("The list of messages says why.")),
        h("a", { class: "button", href: "#trail-title" }, _("Show me")));
    }
  }

  tools() {
    fill($("#token-tools"), this.token
      ? [h("button", { type: "button", class: "quiet small", onclick: () => this.hide() }, _("Hide the token")),
        h("button", { type: "button", class: "quiet small", onclick: (event) => this.renew(event.target) }, _("Make a new token"))]
      : h("button", { type: "button", class: "small", onclick: (event) => this.show(event.target) }, _("Show the token")));
  }

  async lead(button) {
    if (!this.token) await this.show(button);
    this.box.scrollIntoView();
    $("#way .copy").focus();
  }

  show(button) {
    return attempt(async () => {
      let answer;
      try {
        answer = await get(`/devices/${this.device.id}/tokens`);
      } catch (error) {
        if (!(error instanceof Refused) || error.status !== 404) throw error;
        answer = await call("PUT", `/devices/${this.device.id}/tokens`, { quiet: true });
      }
      this.uncover(answer.data.accessToken);
    }, { button });
  }

  renew(button) {
    return attempt(async () => {
      const { data } = await call("PUT", `/devices/${this.device.id}/tokens`);
      this.uncover(data.accessToken);
      done(_("The device has a new token; the old one is no longer valid."));
    }, { button });
  }

  uncover(token) {
    this.token = token;
    this.tools();
    this.choose(this.chosen);
  }

  hide() {
    this.uncover("");
  }

  choose(name) {
    this.chosen = name;
    for (const button of $("#ways").children) button.setAttribute("aria-pressed", String(button.textContent === name));
    const [, about, line] = this.ways.find(([one]) => one === name);
    const text = line(this.token || HIDDEN);
    const secure = this.place.fingerprint && h("p", { class: "hint" }, _("Fingerprint of the certificate (SHA-256):"), " ", h("code", {}, this.place.fingerprint));
    fill($("#way"), h("p", {}, about), h("div", { class: "line" }, h("pre", { tabindex: "0" }, h("code", {}, text)), copyButton(() => text, _("the line for {name}", { name }))), secure || null);
  }

  // [name, about, the line with a token]
  offered() {
    const { id } = this.device;
    const { origin, mqtt, mqttSecure, coap, coapSecure, lwm2m, program } = this.place;
    const http = new URL(origin);
    const data = JSON.stringify(this.data);
    const body = JSON.stringify({ data: this.data });
    const simulate = (protocol, address) => (token) => `TRUNKLINE_TOKEN=${token} ${program} simulate --protocol ${protocol} --address ${address} --device ${id} --type ${quote(this.type.uniqueName)}`;
    const authority = http.port ? http.host : `${http.host}:${http.protocol === "https:" ? 443 : 80}`;
    const found = [["curl", _("One message over HTTP."), (token) => `curl -X POST ${quote(`${origin}${REST}/messages`)} -H ${quote(`Authorization: Bearer ${token}`)} -H 'Content-Type: application/json' -d ${quote(JSON.stringify({ sdid: id, data: this.data }))}`]];
    if (mqtt) {
      const [host, port] = split(mqtt);
      found.push(["MQTT", _("User name: the device id. Password: the token. Topic: /v1.1/messages/{id}", { id }), (token) => `mosquitto_pub -h ${host} -p ${port}${mqttSecure ? " --capath /etc/ssl/certs" : ""} -q 1 -u ${id} -P ${token} -t /v1.1/messages/${id} -m ${quote(data)}`]);
    }
    // Debian names libcoap's client after the TLS library that it was built with.
    const post = `-m post -t 50 -e ${quote(body)}`;
    if (coap && coapSecure) found.push(["CoAP", _("DTLS with a pre-shared key. Identity: the device id. Key: the token, as 16 bytes; the shell cannot pass a token with 00 among them, then make a new one. Elsewhere than on Debian, the program is coap-client."), (token) => `coap-client-openssl -u ${id} -k "$(perl -e 'print pack "H*", shift' ${token})" ${post} ${quote(`coaps://${coap}/v1.1/messages/${token}`)}`]);
    else if (coap) found.push(["CoAP", _("The token is the end of the path. Elsewhere than on Debian, the program is coap-client."), (token) => `coap-client-notls ${post} ${quote(`coap://${coap}/v1.1/messages/${token}`)}`]);
    found.push(["WebSocket", _("The simulated device speaks this protocol: it connects to {address}/websocket?ack=true, sends {\"type\":\"register\",\"sdid\":\"{id}\",\"Authorization\":\"bearer …\"}, and then {\"sdid\":\"{id}\",\"data\":{data}}.", { address: `${origin.replace("http", "ws")}${REST}`, id, data }), simulate("websocket", authority)]);
    const filled = { id, data: this.data, isSettable: this.isSettable };
    found.push(["Node.js", _("A program without packages, over HTTP."), (token) => node({ ...filled, token, rest: `${origin}${REST}` })]);
    if (mqtt) {
      const [host, port] = split(mqtt);
      const at = { ...filled, host, port, isSecure: Boolean(mqttSecure) };
      found.push(["MicroPython", _("For a board with MicroPython, over MQTT."), (token) => microPython({ ...at, token })]);
      found.push(["ESP-IDF", _("For an ESP32 in C, over MQTT. Actions come on the same connection."), (token) => espIdf({ ...at, token })]);
    }
    if (coap) {
      const [host, port] = split(coap);
      found.push(["Zephyr", _("For a board with Zephyr in C, over CoAP. Send on a confirmable request again when no answer comes."), (token) => zephyr({ ...filled, token, host, port, isSecure: Boolean(coapSecure) })]);
    }
    if (lwm2m) found.push(["LWM2M", _("DTLS with a pre-shared key at {lwm2m}. Identity and endpoint: the device id. Key: the token, as 16 bytes in hexadecimal.", { lwm2m }), simulate("lwm2m", lwm2m)]);
    return found;
  }
}

const quote = (text) => (/^[\w./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

function split(address) {
  const at = address.lastIndexOf(":");
  return [address.slice(0, at).replace(/[[\]]/g, ""), address.slice(at + 1)];
}

// A message of the type, with a value in each of its first fields
function sample(manifest) {
  const data = {};
  for (const [path, field] of [...manifest.fields].slice(0, 3)) {
    const choices = Object.entries(field.metadata ?? {}).find(([name]) => name.startsWith("VALUES_"))?.[1];
    const value = choices?.[0] ?? SAMPLES[field.type] ?? "hello";
    put(data, path, field.isCollection ? [value] : value);
  }
  return data;
}
