#!/bin/sh
# Runs the engine on a Ray cluster as a submitted job: submit.sh http://HEAD:8265, with RAY_AUTH_TOKEN in the environment where Ray wants one.
#
# The head node has the engine and /etc/engine/engine.toml (see engine.toml beside this file); other nodes need Ray and the resources
# `engine_shard`, `engine_edge` and `engine_scheduler`. The engine takes its own package to those that lack it.
#
# Ray prints the job's id: `ray job logs ID` shows the start, `ray job stop ID` drains and stops the engine. When the job is killed, the
# actors go on; submitted again, it finds them. A drain of more than 3 s needs RAY_JOB_STOP_WAIT_TIME_S where `ray start --head` runs.
set -eu
exec ray job submit --address "$1" --no-wait -- sh -c 'cd /etc/engine && exec engine up'
