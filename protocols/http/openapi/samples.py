"""Ids and other values that all examples use."""

from typing import Any, Final

UID: Final = "7f1c0ad4b2e94c6f9a3d5e8b1c2d4f60"
AID: Final = "2c5e9b7a1f3d48e6a0b4c8d2e6f10a3c"
DID: Final = "9b8d7c6e5f4a43218b0c1d2e3f405162"
DTID: Final = "dt3e1f5a7c9b0d42e68fa1c3e5d7092b4e"
TYPE_NAME: Final = "example.smart_light"
OID: Final = "4a6c8e0f2b1d43759f7b5d3c1e0a2846"
MID: Final = "0187f3a95c2e4d0b86a1f2e3d4c5b6a7"
SHARE_ID: Final = "5d3b1f9e7c8a4602b4d6f8a0c2e41357"
RID: Final = "c1d2e3f405162738495a6b7c8d9eafb0"
UPLOAD: Final = "e0d1c2b3a495867768594a3b2c1d0e0f"
CERTIFICATE: Final = "1a2b3c4d5e6f708192a3b4c5d6e7f809"
EXPORT: Final = "b7a6958473625140f1e2d3c4b5a69788"
DELETION: Final = "9e" * 16
IMPORT: Final = "8d" * 16
TASK: Final = "d4c3b2a1908f7e6d5c4b3a2918f7e6d5"
ALARM: Final = "a1a2b3c4d5e6f708192a3b4c5d6e7f80"
RULE: Final = "8e9f0a1b2c3d4e5f60718293a4b5c6d7"
IMAGE: Final = "3c4d5e6f708192a3b4c5d6e7f8091a2b"
DOWNLOAD: Final = "0a1b2c3d4"
MODEL: Final = "30de1a2b3c4d5e6f708192a3b4c5d6e7"
BOARD: Final = "b0a2d1e2c3b4a5968778695a4b3c2d1e"
SCENE: Final = "5ce0e1d2c3b4a5968778695a4b3c2d1e"
TRIAL: Final = "8f7e6d5c4b3a29180716f5e4d3c2b1a0"
TRIAL_INVITATION: Final = "2b3c4d5e6f708192a3b4c5d6e7f8091a"
TRIAL_SESSION: Final = "5e6f708192a3b4c5d6e7f8091a2b3c4d"
TRIAL_METADATA: Final = "6f708192a3b4c5d6e7f8091a2b3c4d5e"
TRIAL_RULE: Final = "708192a3b4c5d6e7f8091a2b3c4d5e6f"
RULE_METADATA: Final = "8192a3b4c5d6e7f8091a2b3c4d5e6f70"
SESSION: Final = "c4d5e6f708192a3b4c5d6e7f8091a2b3"
TIER: Final = "6e5d4c3b2a190817f6e5d4c3b2a19081"
SUBSCRIPTION: Final = "a3b5c7d9e1f20314253647586978a9b0"
NOTIFICATION: Final = "00000000000012345a6b7c8d9e0f1a2b"
ERROR: Final = "9d0c5f1e4b7a4a2c8e6d3f2b1a0c9e8d"
TOKEN: Final = "f3e1d5c7b9a80624135768afbecd9021"  # noqa: S105 - an example
NONCE: Final = "a1b2c3d4e5f60718293a4b5c6d7e8f90"
VDID: Final = "light-0001"
TS: Final = 1_500_000_000_000
CTS: Final = TS + 564

DEVICE: Final[dict[str, Any]] = {
    "id": DID,
    "uid": UID,
    "dtid": DTID,
    "name": "Kitchen light",
    "manifestVersion": 2,
    "manifestVersionPolicy": "LATEST",
    "needProviderAuth": False,
    "cloudAuthorization": "NO_AUTHORIZATION",
    "createdOn": TS,
    "connected": True,
    "eid": None,
    "certificateSignature": None,
    "certificateInfo": None,
    "sharedWithOthers": False,
}
