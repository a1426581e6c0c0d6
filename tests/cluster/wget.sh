#!/bin/sh
# wget of the test images, by curl: takes what the e2e tests give to busybox' wget.
seconds=60
while [ $# -gt 0 ]; do
	case "$1" in
	-T) seconds=$2 && shift ;;
	-O) shift ;;
	-*) ;;
	*) url=$1 ;;
	esac
	shift
done
exec curl --globoff --silent --show-error --fail --connect-timeout "$seconds" --max-time "$seconds" "$url"
