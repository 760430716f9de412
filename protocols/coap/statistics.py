"""What a CoAP listener counts; `trunkline statistics` shows it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    sessions: int
    strangers: int  # sessions that have not shown a valid device token
    observers: int
    bytes_held: int
    requests: int
    requests_dropped: int  # over the requests that one session may have unanswered
    malformed: int
    duplicates: int
    retransmissions: int
    notifications: int
    notifications_lost: int
    challenges: int  # answers that became a 4.01 with Echo
    evicted: int  # sessions that went because there were too many
    datagrams_lost: int  # which the operating system did not take


@dataclass(frozen=True, slots=True)
class DtlsStatistics:
    sessions: int = 0
    half_open: int = 0
    handshakes: int = 0
    handshakes_failed: int = 0
    half_open_evicted: int = 0
    hellos_dropped: int = 0
    datagrams_lost: int = 0  # as above
