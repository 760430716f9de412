"""The counters of CoAP and DTLS listeners, as `trunkline statistics` shows them."""

import msgspec


class EndpointStatistics(msgspec.Struct, frozen=True):
    sessions: int
    strangers: int  # sessions without a request that had a valid device token
    observers: int
    bytes_held: int
    requests: int
    requests_dropped: int  # beyond the unanswered requests that one session may have
    overhead_dropped: int  # datagrams of known peers beyond their allowance of pings, refused requests and duplicates
    strangers_dropped: int  # datagrams of strangers beyond the limits of each source and of all
    malformed: int
    duplicates: int
    retransmissions: int
    notifications: int
    notifications_lost: int
    challenges: int  # responses that were replaced by 4.01 with Echo
    evicted: int  # sessions that ended because a limit was exceeded
    datagrams_lost: int  # that the operating system did not send


class DtlsStatistics(msgspec.Struct, frozen=True):
    sessions: int = 0
    half_open: int = 0
    handshakes: int = 0
    handshakes_resumed: int = 0  # of them
    handshakes_failed: int = 0
    half_open_evicted: int = 0
    hellos_dropped: int = 0
    datagrams_lost: int = 0  # as in EndpointStatistics
