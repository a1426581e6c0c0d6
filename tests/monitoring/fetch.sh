#!/bin/bash
# Unpacks Debian's prometheus, with promtool, into a directory; nothing is installed. The directory appears
# when it is complete.
#   fetch.sh DIRECTORY
set -euo pipefail

readonly to=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Without lists apt knows no package.
apt-cache show prometheus >"$work/shown" 2>&1 || apt-get -qq update
(cd "$work" && apt-get -qq -o APT::Sandbox::User=root download prometheus)
dpkg-deb --extract "$work"/prometheus_*.deb "$work/unpacked"
mkdir -p "$(dirname "$to")"
rm -rf "$to"
mv "$work/unpacked" "$to"
# Make compares times, and those in the package are old.
touch "$to/usr/bin/prometheus"
