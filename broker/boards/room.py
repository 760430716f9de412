"""Builds boards."""

import msgspec

from broker.accounts.room import AccountsRoom
from broker.boards.boards import Boards
from broker.boards.kiosk import Kiosk
from broker.core import Core
from broker.devices.room import DevicesRoom
from broker.messages.room import MessagesRoom


class BoardsRoom(msgspec.Struct, frozen=True):
    boards: Boards
    kiosk: Kiosk


def open_boards(core: Core, accounts: AccountsRoom, devices: DevicesRoom, messages: MessagesRoom) -> BoardsRoom:
    boards = Boards(core.database, core.clock, accounts.permissions)
    accounts.claims.ends("Boards", boards.end_all_of)
    kiosk = Kiosk(core.database, core.clock, devices.registry, messages.snapshots, messages.analytics, core.peers)
    return BoardsRoom(boards, kiosk)
