# Whether the worker of folder $1 runs. A process number is given out again, and one that nobody buries keeps its own:
# so the time it was born counts too, and a dead one does not.
alive() {
  { read -r pid born <"$1/worker.pid"; } 2>/dev/null || return 1
  stat=$(cat "/proc/$pid/stat" 2>/dev/null) || return 1
  set -- ${stat##*) }
  [ "$1" != Z ] && [ "$1" != X ] && [ "${20}" = "$born" ]
}
fail() {
  echo "$*"
  exit 3
}
