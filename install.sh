#!/bin/sh
# Installs or upgrades Trunkline from this tree, on a machine with systemd that has no Debian packages: as root, or
# below another folder for looking at it.
#
# Tested with DESTDIR; not tested yet with a running systemd.
#
#   sudo ./install.sh                       into /opt, with the units, and starts the service
#   sudo ./install.sh --extras tracing      with more optional parts of pyproject.toml than learning and streams
#   sudo ./install.sh --extras none         without learning and streams: no models and no cloud streams, 300 MB less
#   sudo ./install.sh --without-hashes      the same versions of the packages from anywhere, such as wheels of piwheels
#   sudo ./install.sh --uninstall           removes the program; configuration and data stay
#   DESTDIR=/tmp/here ./install.sh          the same files below /tmp/here; starts nothing and needs no root
#
# An upgrade builds /opt/trunkline-<version> beside the running one, checks it, and then moves the link /opt/trunkline.
# Interrupted at any moment, or when anything fails, the version of before is in place; it stays until the next upgrade.
#
# PYTHON names another Python from 3.11 on. SYSTEMCTL names another program than systemctl. What pip reads from its
# environment counts, such as PIP_INDEX_URL.
set -eu

cd "$(dirname "$0")"
root=${DESTDIR:-}
opt=$root/opt
link=$opt/trunkline
config=$root/etc/trunkline/trunkline.toml
python=${PYTHON:-python3}
extras=learning,streams
hashes=
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
  --without-hashes) hashes=--without-hashes ;;
  --uninstall) uninstall=true ;;
  *) fail "there is no option $1 (allowed: --extras LIST, --without-hashes, --uninstall)" ;;
  esac
  shift
done

[ -n "$root" ] || [ "$(id -u)" = 0 ] || fail "run it as root, or with DESTDIR"
has_systemd() { [ -n "${SYSTEMCTL:-}" ] || { [ -z "$root" ] && [ -d /run/systemd/system ]; }; }
systemctl() { if [ -n "${SYSTEMCTL:-}" ]; then "$SYSTEMCTL" "$@"; else command systemctl "$@"; fi; }

if $uninstall; then
  if has_systemd; then
    systemctl disable --now trunkline-backup.timer trunkline.service || true
  fi
  rm -rf "$link" "$opt"/trunkline-*
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

# The version in use: the target of the link, or the folder that an older install.sh has made.
former=
if [ -L "$link" ]; then
  former=$opt/$(readlink "$link")
elif [ -d "$link" ]; then
  former=$opt/trunkline-before
elif [ -d "$opt/trunkline-before" ]; then # interrupted between the two renames below
  mv "$opt/trunkline-before" "$link"
  former=$opt/trunkline-before
fi

# Leftovers of an interrupted run, and versions before the former one.
forget_others() {
  for one in "$opt"/trunkline-*; do
    [ "$one" = "$former" ] || [ "$one" = "${new:-}" ] || [ ! -e "$one" ] || rm -rf "$one"
  done
}
new=
forget_others

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
commit=$(git rev-parse --short=10 HEAD 2>/dev/null) || commit=$(date -u +%Y%m%d%H%M%S)
new=$opt/trunkline-$version-$commit
number=1
while [ -e "$new" ]; do
  number=$((number + 1))
  new=$opt/trunkline-$version-$commit-$number
done

nothing_changed() {
  rm -rf "$new"
  fail "${*:-nothing was changed: see above}"
}
echo "Building $new"
mkdir -p "$new"
"$python" -m venv "$new" || nothing_changed
"$new/bin/python" -m deploy.install --extras "$extras" $hashes || nothing_changed

# With the configuration of this machine, or with the one that it gets now. The store is only read.
wanted=$config
[ -e "$config" ] || wanted=config/example.toml
echo "Trying it"
"$new/bin/trunkline" serve --check --config "$wanted" || nothing_changed
"$new/bin/trunkline" serve --dry-start --config "$wanted" || nothing_changed

units=$root/etc/systemd/system
programs=$root/usr/local/bin
# All that takes room on the disk is written before the switch, under names that nobody reads; the rest are renames.
write_aside() {
  mkdir -p "$programs" "$units" "$root/etc/trunkline" || return 1
  if [ ! -e "$config" ]; then
    install -m 0644 config/example.toml "$config.new" && mv -T "$config.new" "$config" || return 1
  fi
  for unit in systemd/*.service systemd/*.timer; do
    name=$(basename "$unit")
    install -m 0644 "$unit" "$units/.$name.new" || return 1
    rm -f "$units/.$name.before"
    [ ! -e "$units/$name" ] || ln "$units/$name" "$units/.$name.before" || return 1
  done
  ln -sfn /opt/trunkline/bin/trunkline "$programs/.trunkline-link" || return 1
  [ -z "$former" ] || ln -sfn "$(basename "$former")" "$opt/.trunkline-former" || return 1
  ln -sfn "$(basename "$new")" "$opt/.trunkline-link"
}
forget_aside() {
  rm -f "$config.new" "$units"/.trunkline*.new "$units"/.trunkline*.before "$programs/.trunkline-link" \
    "$opt/.trunkline-former" "$opt/.trunkline-link"
}
write_aside || { forget_aside; nothing_changed; }
trap forget_aside EXIT
if [ -d "$link" ] && [ ! -L "$link" ]; then mv -T "$link" "$former"; fi
mv -T "$opt/.trunkline-link" "$link" # rename(2): in one step
mv -T "$programs/.trunkline-link" "$programs/trunkline"
for unit in systemd/*.service systemd/*.timer; do
  name=$(basename "$unit")
  mv -T "$units/.$name.new" "$units/$name"
done

go_back() {
  echo "install.sh: the new version does not start; going back to $former" >&2
  systemctl stop trunkline.service || true
  # A store that the new version has upgraded is refused by the one before. Nothing came since: it never listened.
  "$former/bin/trunkline" serve --check --config "$config" >/dev/null 2>&1 \
    || "$new/bin/trunkline" store undo-upgrade --config "$config" || true
  for unit in systemd/*.service systemd/*.timer; do
    name=$(basename "$unit")
    [ ! -e "$units/.$name.before" ] || mv -T "$units/.$name.before" "$units/$name"
  done
  mv -T "$opt/.trunkline-former" "$link"
  systemctl daemon-reload
  systemctl restart trunkline.service || fail "the version of before does not start either: see systemctl status trunkline"
  nothing_changed "the new version did not start: see journalctl -u trunkline; the version of before runs"
}
if has_systemd; then
  systemctl daemon-reload
  systemctl enable trunkline.service
  # Returns when the daemon is ready (Type=notify).
  if ! systemctl restart trunkline.service; then
    [ -z "$former" ] || go_back
    fail "the service does not start: see systemctl status trunkline"
  fi
fi
forget_others
echo "Installed. The configuration is $config; trunkline-backup.timer makes backups once enabled."
