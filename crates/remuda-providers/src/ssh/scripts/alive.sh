# Whether the worker of folder $1 runs. Pids are reused, so the start time is compared too; a zombie counts as dead.
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
