#!/bin/sh
# Install Debian packages into a stage of the image, in the versions of packages.lock: those that are asked for, all
# that they need, and those of the base image. Each file that is downloaded has to have the hash that is written there.
#
# With PACKAGES=newest in the environment: in Debian's versions of today, for images that nobody else gets. Debian's
# mirrors drop a version when a newer version comes.
#
# Usage: install.sh PACKAGE...
set -eu

lock=/packages.lock
archives=/var/cache/apt/archives
architecture=$(dpkg --print-architecture)
export DEBIAN_FRONTEND=noninteractive

if [ "${PACKAGES:-locked}" = newest ]; then
	apt-get -qq update
	apt-get -qq --yes --no-install-recommends install "$@"
	rm -f "$archives"/*.deb
	exit
fi

# A priority above 1000 replaces newer versions, too.
awk -v architecture="$architecture" '$1 == architecture {
	print "Package: " $2 "\nPin: version " $3 "\nPin-Priority: 1001\n"
}' "$lock" >/etc/apt/preferences.d/lock
apt-get -qq update
dpkg-query --show --showformat '${Package}\n' >/installed
locked=$(awk -v architecture="$architecture" 'NR == FNR {there[$1]; next}
	$1 == architecture && $2 in there {print $2 "=" $3}' /installed "$lock")
# shellcheck disable=SC2086  # a list of packages
apt-get -qq --yes --no-install-recommends --allow-downgrades --download-only install $locked "$@" || {
	echo 'A version of deploy/image/packages.lock cannot be downloaded: run python deploy/image/lock.py' >&2
	exit 1
}
for file in "$archives"/*.deb; do
	[ -e "$file" ] || continue
	sum=$(sha256sum "$file" | cut -d ' ' -f 1)
	grep -q "^$architecture .* $sum\$" "$lock" || {
		echo "${file##*/} is not the file of deploy/image/packages.lock: run python deploy/image/lock.py" >&2
		exit 1
	}
done
# shellcheck disable=SC2086
apt-get -qq --yes --no-install-recommends --allow-downgrades --no-download install $locked "$@"
rm -f /installed "$archives"/*.deb
