// Programs for boards and machines, filled in: address, device, token and the fields of the type.
// Each has the device `id`, a `token`, `data` to send, `isSettable` (values may be wanted), and where the daemon is.

const SECONDS = 10;

// A value as Python writes it
function python(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (value !== null && typeof value === "object") return `{${Object.entries(value).map(([name, one]) => `${python(name)}: ${python(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}

// A text as C writes it. JSON has no other escapes than C but \uXXXX, so control characters are the only ones to change.
const c = (text) => JSON.stringify(text).replace(/\\u00([0-9a-f]{2})/g, (_, hex) => `\\${parseInt(hex, 16).toString(8).padStart(3, "0")}`);

export function node({ rest, token, data, isSettable }) {
  const query = isSettable ? "?wanted" : "";
  return `// node device.mjs: Node.js 20 or newer, nothing to install
const token = ${JSON.stringify(token)};

async function send(data) {
  const answer = await fetch(${JSON.stringify(`${rest}/messages${query}`)}, {
    method: "POST",
    headers: { "Authorization": \`Bearer \${token}\`, "Content-Type": "application/json" },
    body: JSON.stringify({ data }),
  });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error.message);
  return said;
}

for (;;) {
  const said = await send(${JSON.stringify(data)});
  console.log("stored", said.data.mid, JSON.stringify(said.warnings ?? []));
${isSettable ? "  console.log(\"wanted\", JSON.stringify(said.wanted));  // set your outputs, and send what they are now\n" : ""}  await new Promise((wake) => setTimeout(wake, ${SECONDS * 1000}));
}
`;
}

export function microPython({ host, port, isSecure, id, token, data, isSettable }) {
  return `# main.py: MicroPython with umqtt.simple (mpremote mip install umqtt.simple), when the board is on your network
import json
import time
from umqtt.simple import MQTTClient

DEVICE = ${python(id)}
TOKEN = ${python(token)}


def heard(topic, payload):
    print(topic.decode(), json.loads(payload))${isSettable ? "  # set your outputs, and send what they are now" : ""}


client = MQTTClient(DEVICE, ${python(host)}, port=${port}, user=DEVICE, password=TOKEN, keepalive=60${isSecure ? ", ssl=True" : ""})
client.set_callback(heard)
client.connect()
client.subscribe("/v1.1/actions/" + DEVICE)
${isSettable ? "client.subscribe(\"/v1.1/wanted/\" + DEVICE)\n" : ""}while True:
    client.publish("/v1.1/messages/" + DEVICE, json.dumps(${python(data)}), qos=1)
    for _ in range(${SECONDS * 10}):
        client.check_msg()
        time.sleep(0.1)
`;
}

export function espIdf({ host, port, isSecure, id, token, data, isSettable }) {
  return `// main.c: ESP-IDF 5, or 6 after idf.py add-dependency espressif/mqtt; call device_run when the network is up
#include <stdio.h>
#include "freertos/FreeRTOS.h"
#include "freertos/task.h"
#include "mqtt_client.h"
${isSecure ? "#include \"esp_crt_bundle.h\"\n" : ""}
#define DEVICE ${c(id)}
#define TOKEN ${c(token)}

static void heard(void *context, esp_event_base_t base, int32_t id, void *data)
{
    esp_mqtt_event_handle_t event = data;
    if (id == MQTT_EVENT_CONNECTED) {
        esp_mqtt_client_subscribe(event->client, "/v1.1/actions/" DEVICE, 0);
${isSettable ? "        esp_mqtt_client_subscribe(event->client, \"/v1.1/wanted/\" DEVICE, 0);\n" : ""}    } else if (id == MQTT_EVENT_DATA) {
        printf("%.*s\\n", event->data_len, event->data);${isSettable ? "  // set your outputs, and send what they are now" : ""}
    }
}

void device_run(void)
{
    const esp_mqtt_client_config_t config = {
        .broker.address.uri = ${c(`${isSecure ? "mqtts" : "mqtt"}://${host}:${port}`)},
${isSecure ? "        .broker.verification.crt_bundle_attach = esp_crt_bundle_attach,\n" : ""}        .credentials.client_id = DEVICE,
        .credentials.username = DEVICE,
        .credentials.authentication.password = TOKEN,
    };
    esp_mqtt_client_handle_t client = esp_mqtt_client_init(&config);
    esp_mqtt_client_register_event(client, ESP_EVENT_ANY_ID, heard, NULL);
    esp_mqtt_client_start(client);
    for (;;) {
        esp_mqtt_client_publish(client, "/v1.1/messages/" DEVICE, ${c(JSON.stringify(data))}, 0, 1, 0);
        vTaskDelay(pdMS_TO_TICKS(${SECONDS * 1000}));
    }
}
`;
}

export function zephyr({ host, port, isSecure, id, token, data }) {
  const key = token.match(/[0-9a-f]{2}/g)?.map((pair) => `0x${pair}`).join(", ") ?? "";
  return `// device.c: Zephyr with CONFIG_NET_SOCKETS, CONFIG_COAP and CONFIG_DNS_RESOLVER${isSecure ? ",\n// and CONFIG_NET_SOCKETS_SOCKOPT_TLS, CONFIG_NET_SOCKETS_ENABLE_DTLS, and Mbed TLS with pre-shared keys" : ""}
#include <string.h>
#include <zephyr/kernel.h>
#include <zephyr/net/coap.h>
#include <zephyr/net/socket.h>
${isSecure ? `#include <zephyr/net/tls_credentials.h>

static const unsigned char key[] = {${key}};  // the token
static const char identity[] = ${c(id)};
` : ""}
static const char *const path[] = {"v1.1", "messages", ${c(token)}};
static const char body[] = ${c(JSON.stringify({ data }))};

static int send_message(int sock)
{
    uint8_t buffer[512];
    struct coap_packet request;
    int failed = coap_packet_init(&request, buffer, sizeof(buffer), COAP_VERSION_1, COAP_TYPE_CON,
                                  COAP_TOKEN_MAX_LEN, coap_next_token(), COAP_METHOD_POST, coap_next_id());
    for (size_t at = 0; !failed && at < ARRAY_SIZE(path); at++) {
        failed = coap_packet_append_option(&request, COAP_OPTION_URI_PATH, path[at], strlen(path[at]));
    }
    if (failed || coap_append_option_int(&request, COAP_OPTION_CONTENT_FORMAT, COAP_CONTENT_FORMAT_APP_JSON) ||
        coap_packet_append_payload_marker(&request) ||
        coap_packet_append_payload(&request, body, sizeof(body) - 1)) {
        return -EINVAL;
    }
    return zsock_send(sock, request.data, request.offset, 0);
}

int device_run(void)
{
    struct zsock_addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found;
    if (zsock_getaddrinfo(${c(host)}, ${c(String(port))}, &hints, &found)) {
        return -EHOSTUNREACH;
    }
${isSecure ? `    const sec_tag_t tags[] = {1};
    tls_credential_add(1, TLS_CREDENTIAL_PSK, key, sizeof(key));
    tls_credential_add(1, TLS_CREDENTIAL_PSK_ID, identity, sizeof(identity) - 1);
    int sock = zsock_socket(found->ai_family, SOCK_DGRAM, IPPROTO_DTLS_1_2);
    zsock_setsockopt(sock, SOL_TLS, TLS_SEC_TAG_LIST, tags, sizeof(tags));
` : `    int sock = zsock_socket(found->ai_family, SOCK_DGRAM, IPPROTO_UDP);
`}    int failed = zsock_connect(sock, found->ai_addr, found->ai_addrlen);
    while (!failed && send_message(sock) > 0) {
        uint8_t answer[256];
        struct zsock_pollfd ready = {.fd = sock, .events = ZSOCK_POLLIN};
        if (zsock_poll(&ready, 1, 5000) == 1 && zsock_recv(sock, answer, sizeof(answer), 0) >= 4) {
            printk("code %d.%02d\\n", answer[1] >> 5, answer[1] & 0x1f);  // 2.01: it is stored
        }
        k_sleep(K_SECONDS(${SECONDS}));
    }
    return zsock_close(sock);
}
`;
}
