#!/bin/sh
# Link LLVM and clang again, only with what bcc calls: a tenth of the symbols, 68 MB in place of
# 165, and without libz3, libxml2 and ICU (56 MB), which only the omitted parts need. Debian's libbcc finds
# the result under the names it was linked with. The archives are the same, so it generates the same code.
#
# Usage: compiler.sh DIRECTORY (gets libLLVM-14.so.1 and libclang-cpp.so.14)
set -eu

out=$1
version=14
llvm=/usr/lib/llvm-$version
library=libLLVM-$version.so.1
bcc=$(ldconfig -p | awk '$1 == "libbcc.so.0" {print $NF; exit}')
work=$(mktemp -d)
mkdir -p "$out"

# Columns of nm: [address] kind name[@version]. Functions that are called, and symbols of which both
# sides have a copy but only one may exist (inline functions with state, type descriptions).
nm -D "$bcc" | sed 's/@.*//' >"$work/all"
awk '$NF ~ /llvm|clang|^LLVM/ && $(NF-1) == "U" {print $NF}' "$work/all" | sort -u >"$work/called"
awk '$NF ~ /llvm|clang/ && $(NF-1) ~ /^[WVu]$/ {print $NF}' "$work/all" | sort -u >"$work/shared"
{
	echo "LLVM_$version { global:"
	sed 's/$/;/' "$work/called" "$work/shared"
	echo 'local: *; };'
} >"$work/exports"
sed 's/^/-Wl,-u,/' "$work/called" >"$work/roots"

# Clang's archives of tools are omitted; of the others the linker takes what is needed.
clang=$(find "$llvm/lib" -name 'libclang[A-Z]*.a' |
	grep -Ev 'Tidy|Daemon|RemoteIndex|Monitoring|StaticAnalyzer|Testing')
# shellcheck disable=SC2086,SC2046  # lists of files
g++ -shared -o "$out/$library" -Wl,-soname,"$library" -Wl,--version-script="$work/exports" @"$work/roots" \
	-Wl,--gc-sections,-O1,-s -Wl,-z,defs -Wl,-z,pack-relative-relocs \
	-Wl,--start-group $clang -L"$llvm/lib" $("$llvm/bin/llvm-config" --link-static --libs) -Wl,--end-group \
	-lz -ltinfo -lpthread -ldl -lm
ln -s "$library" "$out/libclang-cpp.so.$version"
rm -r "$work"
