# receive PATH NONCE SHA256 <CONTENT
path=$1 part="$1.$2" wanted=$3
fail() {
  echo "$*"
  exit 3
}
trap 'rm -f "$part"' EXIT
mkdir -p "$(dirname "$path")" || fail "cannot create the folder of $path"
cat >"$part" || fail "cannot write $part"
hash=$(sha256sum <"$part") || fail "cannot read $part"
[ "${hash%% *}" = "$wanted" ] || fail "the upload is incomplete"
chmod 755 "$part" && mv -f "$part" "$path" || fail "cannot move it to $path"
