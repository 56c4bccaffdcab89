#!/bin/sh
# A renderer that only pretends to, as an example of what `--exec` runs:
#
#   remuda up --exec examples/render.sh
#   remuda run examples/hello.json
#
# The workflow comes on standard input. Every line on standard error is a sign of life, and "progress 0.4 denoising"
# says how far it is. Standard output is the result. Exit 0 is success, 75 means "not here, try another worker", and
# any other code means that the job itself is at fault.

field() { printf %s "$workflow" | tr -d '\n' | sed -n "s/.*\"$1\" *: *\"\{0,1\}\([^\",}]*\).*/\1/p"; }

workflow=$(cat)
scene=$(field scene)
steps=$(field steps)
[ -n "$scene" ] || { echo "the workflow has no \"scene\"" >&2; exit 1; }

step=0
while [ "$step" -lt "${steps:-4}" ]; do
  sleep 0.5
  step=$((step + 1))
  echo "progress $(awk "BEGIN { print $step / ${steps:-4} }") denoising" >&2
done

# These tell one attempt from another: REMUDA_JOB, REMUDA_ATTEMPT and REMUDA_SERVICE_JOB_ID.
echo "{\"picture\": \"$REMUDA_JOB.png\", \"scene\": \"$scene\", \"attempt\": $REMUDA_ATTEMPT}"
