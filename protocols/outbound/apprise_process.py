"""A process that tells one notice by Apprise: `python -m protocols.outbound.apprise_process` reads a job.

It has no secrets but those of the job, and little memory and time. Its output is shown to the user, and
has no address.
"""

import logging
import resource
import sys
from typing import Final

import msgspec

_MEMORY_BYTES: Final = 512 * 1024 * 1024
_PROCESSOR_SECONDS: Final = 20
_KINDS: Final = {"info": "info", "warning": "warning", "critical": "failure"}


class AppriseJob(msgspec.Struct, frozen=True):
    urls: tuple[str, ...]
    title: str
    text: str
    severity: str


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_SECONDS, _PROCESSOR_SECONDS))
    logging.disable(logging.CRITICAL)
    import apprise  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415 - an extra

    job = msgspec.json.decode(sys.stdin.buffer.read(), type=AppriseJob)
    failed = 0
    for url in job.urls:
        # `Apprise.add` would take a text with commas for several addresses, and only the first was checked.
        service = apprise.Apprise.instantiate(url)
        if service is None or not apprise.Apprise([service]).notify(
            title=job.title, body=job.text, notify_type=apprise.NotifyType(_KINDS[job.severity])
        ):
            failed += 1
    if failed:
        sys.stdout.write(f"{failed} of {len(job.urls)} addresses have not taken it")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
