#!/usr/bin/env bash
# Runs the sweep on the first node; $1 is the Ray cluster's address.
cd /home/me/project || exit 4
address="$1"
(if [ -e out/journal.jsonl ]; then set -- --resume; else set --; fi; exec /apps/venv/bin/python -m raysweep.cli.main run sweep.yaml --address "$address" --results out --yes "$@") &
echo $! > /home/me/project/raysweep-jobs/job/driver.pid
wait $!
code=$?
echo "$code" > /home/me/project/raysweep-jobs/job/exit_code
exit "$code"
