rm -f "$0"
folder=$1
stat=$(cat "/proc/$$/stat")
set -- ${stat##*) }
echo "$$ ${20}" >"$folder/worker.pid.new" && mv -f "$folder/worker.pid.new" "$folder/worker.pid" || exit
unset folder stat
umask 022
