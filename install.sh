#!/bin/sh
# Installs or upgrades Trunkline from this tree, on a machine with systemd that has no Debian packages: as root, or below
# another folder for looking at it.
#
# Tried with DESTDIR; with a running systemd it is untried.
#
#   sudo ./install.sh                       into /opt/trunkline, with the units, and starts the service
#   sudo ./install.sh --extras tracing      with more optional parts of pyproject.toml than learning and streams
#   sudo ./install.sh --extras none         without learning and streams: no models and no cloud streams, 250 MB less
#   sudo ./install.sh --uninstall           removes the program; configuration and data stay
#   DESTDIR=/tmp/here ./install.sh          the same files below /tmp/here; starts nothing and needs no root
#
# PYTHON names another Python from 3.11 on. What pip reads from its environment counts, such as PIP_INDEX_URL.
set -eu

cd "$(dirname "$0")"
root=${DESTDIR:-}
home=/opt/trunkline
python=${PYTHON:-python3}
extras=learning,streams
uninstall=false

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

while [ $# -gt 0 ]; do
  case $1 in
  --extras) [ $# -gt 1 ] || fail "--extras needs a list, such as tracing, or none"
    if [ "$2" = none ]; then extras=; else extras=learning,streams,$2; fi
    shift ;;
  --uninstall) uninstall=true ;;
  *) fail "there is no option $1 (allowed: --extras LIST, --uninstall)" ;;
  esac
  shift
done

[ -n "$root" ] || [ "$(id -u)" = 0 ] || fail "run it as root, or with DESTDIR"
has_systemd() { [ -z "$root" ] && [ -d /run/systemd/system ]; }

if $uninstall; then
  if has_systemd; then
    systemctl disable --now trunkline-backup.timer trunkline.service || true
  fi
  rm -rf "$root$home"
  rm -f "$root/usr/local/bin/trunkline"
  for unit in systemd/*.service systemd/*.timer; do rm -f "$root/etc/systemd/system/$(basename "$unit")"; done
  if has_systemd; then systemctl daemon-reload; fi
  echo "Removed. $root/etc/trunkline and $root/var/lib/private/trunkline stay."
  exit 0
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || fail "$python is not Python 3.11 or newer: name one with PYTHON=…"
"$python" -c 'import ensurepip, venv' 2>/dev/null \
  || fail "$python has no venv: install it (Debian: python3-venv)"

# Beside the installed one, so that a failure leaves that as it is. A virtual environment knows its own path: the final
# one is told to pip by moving the old one away first.
old=
if [ -e "$root$home" ]; then
  old=$root$home.old
  rm -rf "$old"
  mv "$root$home" "$old"
fi
restore() {
  rm -rf "$root$home"
  [ -z "$old" ] || mv "$old" "$root$home"
  fail "nothing was changed: see above"
}
mkdir -p "$root$home"
"$python" -m venv "$root$home" || restore
"$root$home/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt ".${extras:+[$extras]}" || restore

mkdir -p "$root/usr/local/bin" "$root/etc/systemd/system" "$root/etc/trunkline"
ln -sf "$home/bin/trunkline" "$root/usr/local/bin/trunkline"
for unit in systemd/*.service systemd/*.timer; do
  install -m 0644 "$unit" "$root/etc/systemd/system/"
done
[ -e "$root/etc/trunkline/trunkline.toml" ] || install -m 0644 config/example.toml "$root/etc/trunkline/trunkline.toml"

if has_systemd; then
  systemctl daemon-reload
  systemctl enable trunkline.service
  systemctl restart trunkline.service || fail "the service does not start: see systemctl status trunkline"
fi
[ -z "$old" ] || rm -rf "$old"
echo "Installed. The configuration is $root/etc/trunkline/trunkline.toml; trunkline-backup.timer makes backups once enabled."
