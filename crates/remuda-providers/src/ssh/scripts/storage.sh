# storage PATH NONCE yes|no FREE-KIB: writable, a mount point if required, and with enough space.
path=$1 probe=".remuda-$2" is_mount=$3 free_min=$4
fail() {
  echo "$*"
  exit 3
}
cd "$path" || fail "$path does not exist"
if [ "$is_mount" = yes ]; then
  here=$(pwd -P) found=no
  while read -r _ at _; do
    [ "$at" != "$here" ] || found=yes
  done </proc/self/mounts
  [ "$found" = yes ] || fail "nothing is mounted at $path"
fi
trap 'rm -f "$probe"' EXIT
# With cat, because the shell itself would not say why it failed.
echo "$probe" | cat >"$probe" || fail "$path cannot be written to"
[ "$(cat "$probe")" = "$probe" ] || fail "$path does not keep what is written to it"
free=$(df -Pk . | { read -r _ && read -r _ _ _ free _ && echo "$free"; }) || fail "cannot determine the free space of $path"
[ "$free" -ge "$free_min" ] || fail "$path has $free KiB free and $free_min are required"
