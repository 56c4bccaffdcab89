# started FOLDER SECONDS
sleep "$2"
alive "$1" && exit 0
fail "the worker exited at once; the end of its log: $(tail -c 1300 "$1/worker.log" 2>&1)"
