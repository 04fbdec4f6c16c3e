#!/bin/sh
# Runs a compiler and keeps what it says beside the object, in OBJECT.log: keep_log.sh nvcc ... -o OBJECT ...
object=
previous=
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
"$@" >"$object.log" 2>&1
status=$?
cat "$object.log" >&2
exit $status
