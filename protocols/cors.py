"""Which pages of other origins may use the API (reference 1.4)."""

from typing import Final

CORS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": (
        "Origin, X-Requested-With, Content-Type, Accept, Referer, User-Agent, Authorization, If-Match, Last-Event-ID"
    ),
}
