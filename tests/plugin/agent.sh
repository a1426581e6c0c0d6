#!/bin/sh
# bpfsvc in the pod $POD: a file has what it prints for a command, and what its exit status is.
folder=$(dirname "$0")
[ "$1" != --end-with-stdin ] || { shift; ends=yes; }
case "$*" in
validate*) exec "$PYTHON" -m bpfsvc "$@" ;;
*--endless*) # until standard input ends
	[ "$ends" ] && exec "$PYTHON" -c 'if True:
		import os, sys, time
		from bpfsvc.cli.interrupt import interrupt_with_stdin
		interrupt_with_stdin()
		open(sys.argv[1], "w").write(str(os.getpid()))
		print("started", flush=True)
		time.sleep(1000)' "$folder/$POD.pid" 2>/dev/null ;;
esac
echo "$POD: $*" >>"$folder/commands"
file="$folder/$POD.$1"
[ -e "$file" ] || { echo "Error: no such answer of $POD: $*" >&2; exit 1; }
cat "$file"
[ ! -e "$file.error" ] || cat "$file.error" >&2
exit "$(cat "$file.status" 2>/dev/null || echo 0)"
