"""The C programs of "Connect it", compiled on this machine against declarations that stand in for their systems.

The declarations below are written by hand. A program that compiles here has no mistakes of the language, names what it
uses, and has its texts as they should be. On 2026-11-27 each function, type, member and constant was compared with the
vendors' headers, and is as there: ESP-IDF of July 2026 (`freertos/task.h`, `freertos/projdefs.h`,
`esp_event_base.h`, `esp_crt_bundle.h`), esp-mqtt (`mqtt_client.h`, in which `esp_mqtt_client_subscribe` chooses a
function by the type of its argument), and Zephyr 3.4 to 4.4 (`net/coap.h`, `net/socket.h`, `net/tls_credentials.h`,
`net/net_compat.h`). From Zephyr 4.4 on the names of BSD sockets need CONFIG_NET_NAMESPACE_COMPAT_MODE, which is on by
default. Whether a board runs it, they cannot say.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

_ESP: Final[Mapping[str, str]] = {
    "freertos/FreeRTOS.h": """
#pragma once
#include <stdint.h>
typedef uint32_t TickType_t;
#define pdMS_TO_TICKS(ms) ((TickType_t)(ms))
""",
    "freertos/task.h": """
#pragma once
void vTaskDelay(TickType_t ticks);
""",
    "esp_crt_bundle.h": """
#pragma once
#include "mqtt_client.h"
esp_err_t esp_crt_bundle_attach(void *conf);
""",
    "mqtt_client.h": """
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef int esp_err_t;
typedef const char *esp_event_base_t;
typedef void (*esp_event_handler_t)(void *, esp_event_base_t, int32_t, void *);
typedef struct esp_mqtt_client *esp_mqtt_client_handle_t;
typedef enum { MQTT_EVENT_ANY = -1, MQTT_EVENT_ERROR, MQTT_EVENT_CONNECTED, MQTT_EVENT_DATA = 6 } esp_mqtt_event_id_t;
#define ESP_EVENT_ANY_ID -1
typedef struct {
    esp_mqtt_event_id_t event_id;
    esp_mqtt_client_handle_t client;
    char *data;
    int data_len;
    char *topic;
    int topic_len;
} esp_mqtt_event_t;
typedef esp_mqtt_event_t *esp_mqtt_event_handle_t;
typedef struct {
    struct {
        struct { const char *uri; } address;
        struct { esp_err_t (*crt_bundle_attach)(void *conf); } verification;
    } broker;
    struct {
        const char *username;
        const char *client_id;
        struct { const char *password; } authentication;
    } credentials;
} esp_mqtt_client_config_t;
esp_mqtt_client_handle_t esp_mqtt_client_init(const esp_mqtt_client_config_t *config);
esp_err_t esp_mqtt_client_register_event(esp_mqtt_client_handle_t, esp_mqtt_event_id_t, esp_event_handler_t, void *);
esp_err_t esp_mqtt_client_start(esp_mqtt_client_handle_t client);
#define esp_mqtt_client_subscribe(client, topic, qos) _Generic((topic), \\
    char *: esp_mqtt_client_subscribe_single, const char *: esp_mqtt_client_subscribe_single)(client, topic, qos)
int esp_mqtt_client_subscribe_single(esp_mqtt_client_handle_t client, const char *topic, int qos);
int esp_mqtt_client_publish(
    esp_mqtt_client_handle_t client, const char *topic, const char *data, int len, int qos, int retain);
""",
    "machine.c": """
#include <stdio.h>
#include <stdlib.h>
#include "freertos/FreeRTOS.h"
#include "mqtt_client.h"
void device_run(void);
void vTaskDelay(TickType_t ticks) { (void)ticks; }
esp_err_t esp_crt_bundle_attach(void *conf) { (void)conf; return 0; }
static esp_event_handler_t handler;
esp_mqtt_client_handle_t esp_mqtt_client_init(const esp_mqtt_client_config_t *config)
{
    puts(config->broker.address.uri);
    puts(config->credentials.client_id);
    puts(config->credentials.username);
    puts(config->credentials.authentication.password);
    return NULL;
}
esp_err_t esp_mqtt_client_register_event(
    esp_mqtt_client_handle_t client, esp_mqtt_event_id_t id, esp_event_handler_t given, void *context)
{
    (void)client; (void)id; (void)context;
    handler = given;
    return 0;
}
esp_err_t esp_mqtt_client_start(esp_mqtt_client_handle_t client)
{
    esp_mqtt_event_t event = {.client = client};
    handler(NULL, "", MQTT_EVENT_CONNECTED, &event);
    return 0;
}
int esp_mqtt_client_subscribe_single(esp_mqtt_client_handle_t client, const char *topic, int qos)
{
    (void)client;
    return printf("%s %d\\n", topic, qos);
}
int esp_mqtt_client_publish(
    esp_mqtt_client_handle_t client, const char *topic, const char *data, int len, int qos, int retain)
{
    (void)client;
    printf("%s %d %d %d\\n%s\\n", topic, len, qos, retain, data);
    exit(0);
}
int main(void) { device_run(); return 1; }
""",
}
_ZEPHYR: Final[Mapping[str, str]] = {
    "zephyr/kernel.h": """
#pragma once
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
typedef struct { int64_t ticks; } k_timeout_t;
#define K_SECONDS(s) ((k_timeout_t){(s)})
#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
int32_t k_sleep(k_timeout_t timeout);
void printk(const char *format, ...) __attribute__((format(printf, 1, 2)));
""",
    "zephyr/net/coap.h": """
#pragma once
#include <stddef.h>
#include <stdint.h>
#define COAP_VERSION_1 1U
#define COAP_TOKEN_MAX_LEN 8U
enum coap_msgtype { COAP_TYPE_CON, COAP_TYPE_NON_CON, COAP_TYPE_ACK, COAP_TYPE_RESET };
enum coap_method { COAP_METHOD_GET = 1, COAP_METHOD_POST = 2 };
enum coap_option_num { COAP_OPTION_URI_PATH = 11, COAP_OPTION_CONTENT_FORMAT = 12 };
enum coap_content_format { COAP_CONTENT_FORMAT_APP_JSON = 50 };
struct coap_packet { uint8_t *data; uint16_t offset; uint16_t max_len; };
int coap_packet_init(struct coap_packet *cpkt, uint8_t *data, uint16_t max_len, uint8_t ver, uint8_t type,
                     uint8_t token_len, const uint8_t *token, uint8_t code, uint16_t id);
uint8_t *coap_next_token(void);
uint16_t coap_next_id(void);
int coap_packet_append_option(struct coap_packet *cpkt, uint16_t code, const uint8_t *value, uint16_t len);
int coap_append_option_int(struct coap_packet *cpkt, uint16_t code, unsigned int val);
int coap_packet_append_payload_marker(struct coap_packet *cpkt);
int coap_packet_append_payload(struct coap_packet *cpkt, const uint8_t *payload, uint16_t payload_len);
""",
    "zephyr/net/socket.h": """
#pragma once
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>
typedef int sec_tag_t;
#define IPPROTO_DTLS_1_2 273
#define SOL_TLS 282
#define TLS_SEC_TAG_LIST 1
#define ZSOCK_POLLIN 1
struct zsock_pollfd { int fd; short events; short revents; };
struct zsock_addrinfo {
    struct zsock_addrinfo *ai_next;
    int ai_flags, ai_family, ai_socktype, ai_protocol;
    socklen_t ai_addrlen;
    struct sockaddr *ai_addr;
    char *ai_canonname;
};
int zsock_getaddrinfo(const char *, const char *, const struct zsock_addrinfo *, struct zsock_addrinfo **);
int zsock_socket(int family, int type, int proto);
int zsock_close(int sock);
int zsock_connect(int sock, const struct sockaddr *addr, socklen_t addrlen);
int zsock_setsockopt(int sock, int level, int optname, const void *optval, socklen_t optlen);
ssize_t zsock_send(int sock, const void *buf, size_t len, int flags);
ssize_t zsock_recv(int sock, void *buf, size_t max_len, int flags);
int zsock_poll(struct zsock_pollfd *fds, int nfds, int timeout);
""",
    "zephyr/net/tls_credentials.h": """
#pragma once
#include <stddef.h>
enum tls_credential_type { TLS_CREDENTIAL_PSK = 4, TLS_CREDENTIAL_PSK_ID = 5 };
int tls_credential_add(int tag, enum tls_credential_type type, const void *cred, size_t credlen);
""",
    "machine.c": """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zephyr/kernel.h>
#include <zephyr/net/coap.h>
#include <zephyr/net/socket.h>
#include <zephyr/net/tls_credentials.h>
int device_run(void);
int32_t k_sleep(k_timeout_t timeout) { (void)timeout; exit(0); }
void printk(const char *format, ...) { (void)format; }
int coap_packet_init(struct coap_packet *cpkt, uint8_t *data, uint16_t max_len, uint8_t ver, uint8_t type,
                     uint8_t token_len, const uint8_t *token, uint8_t code, uint16_t id)
{
    (void)ver; (void)token_len; (void)token; (void)id;
    *cpkt = (struct coap_packet){.data = data, .offset = 4, .max_len = max_len};
    return type == COAP_TYPE_CON && code == COAP_METHOD_POST ? 0 : -EINVAL;
}
uint8_t *coap_next_token(void) { static uint8_t token[COAP_TOKEN_MAX_LEN]; return token; }
uint16_t coap_next_id(void) { return 1; }
int coap_packet_append_option(struct coap_packet *cpkt, uint16_t code, const uint8_t *value, uint16_t len)
{
    (void)cpkt;
    printf("%d %.*s\\n", code, len, (const char *)value);
    return 0;
}
int coap_append_option_int(struct coap_packet *cpkt, uint16_t code, unsigned int val)
{
    (void)cpkt;
    printf("%d %u\\n", code, val);
    return 0;
}
int coap_packet_append_payload_marker(struct coap_packet *cpkt) { (void)cpkt; return 0; }
int coap_packet_append_payload(struct coap_packet *cpkt, const uint8_t *payload, uint16_t payload_len)
{
    (void)cpkt;
    printf("%.*s\\n", payload_len, (const char *)payload);
    return 0;
}
int zsock_getaddrinfo(
    const char *host, const char *port, const struct zsock_addrinfo *hints, struct zsock_addrinfo **found)
{
    static struct zsock_addrinfo one;
    one.ai_socktype = hints->ai_socktype;
    *found = &one;
    printf("%s %s\\n", host, port);
    return 0;
}
int zsock_socket(int family, int type, int proto) { (void)family; (void)type; (void)proto; return 3; }
int zsock_close(int sock) { (void)sock; return 0; }
int zsock_connect(int sock, const struct sockaddr *addr, socklen_t len) { (void)sock; (void)addr; (void)len; return 0; }
int zsock_setsockopt(int sock, int level, int name, const void *value, socklen_t len)
{
    (void)sock; (void)level; (void)name; (void)value; (void)len;
    return 0;
}
ssize_t zsock_send(int sock, const void *buf, size_t len, int flags) { (void)sock; (void)buf; (void)flags; return len; }
ssize_t zsock_recv(int sock, void *buf, size_t len, int flags)
{
    (void)sock; (void)flags;
    memset(buf, 0, len);
    return 4;
}
int zsock_poll(struct zsock_pollfd *fds, int nfds, int timeout) { (void)fds; (void)timeout; return nfds; }
int tls_credential_add(int tag, enum tls_credential_type type, const void *cred, size_t len)
{
    (void)tag; (void)type; (void)cred; (void)len;
    return 0;
}
int main(void) { return device_run(); }
""",
}
_SYSTEMS: Final = {"ESP-IDF": _ESP, "Zephyr": _ZEPHYR}


def output_of(program: str, system: str, folder: Path) -> list[str]:
    """Compile a program with all warnings, run it until its first message, and return what it has handed to the
    stand-ins: addresses, names, topics and payloads, a line for each."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder.mkdir()
    for name, text in _SYSTEMS[system].items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (folder / "device.c").write_text(program, encoding="utf-8")
    # Zephyr takes texts as bytes, and unused parameters are usual in both: as their own builds have it.
    options: list[str | Path] = [
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-pointer-sign",
        "-Wno-unused-parameter",
        "-I",
        folder,
    ]
    command = [compiler, *options, folder / "device.c", folder / "machine.c", "-o", folder / "device"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert built.returncode == 0, built.stderr
    return subprocess.run(
        [folder / "device"], capture_output=True, text=True, timeout=30, check=True
    ).stdout.splitlines()
