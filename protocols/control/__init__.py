"""The local control socket: how the command line reaches a running daemon.

A client connects to `state_dir/control.sock`, sends one JSON object `{"command": …, "arguments": {…}}`, closes its
sending side, and reads one JSON object: `{"data": …}` or `{"error": {"message": …, "findings": […]}}`. The socket has
mode 0600 in a directory of mode 0700: a process that can open the socket can read the daemon's files, too.
"""
