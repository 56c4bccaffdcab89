# start FOLDER NONCE BYTES <LAUNCH
folder=$1 launch="$1/launch.$2" bytes=$3
umask 077
mkdir -p "$folder" || fail "cannot create $folder"
trap 'rm -f "$launch"' EXIT
cat >"$launch" || fail "cannot write to $folder"
# A broken connection looks like the end of the input.
[ "$(wc -c <"$launch")" -eq "$bytes" ] || fail "the launch script is incomplete"
for tool in setsid flock; do
  command -v "$tool" >/dev/null || fail "$tool is missing; install util-linux"
done
exec 9>"$folder/lock" || fail "cannot write to $folder"
flock -w 10 9 || fail "another bootstrap is starting it"
if alive "$folder"; then
  echo "already running"
  exit 0
fi
rm -f "$folder/worker.pid"
[ ! -f "$folder/worker.log" ] || mv -f "$folder/worker.log" "$folder/worker.log.old"
setsid sh "$launch" </dev/null >"$folder/worker.log" 2>&1 9>&- &
tries=0
until [ -s "$folder/worker.pid" ]; do
  tries=$((tries + 1))
  [ "$tries" -le 50 ] || fail "the worker did not start: $(tail -c 1300 "$folder/worker.log")"
  sleep 0.1
done
