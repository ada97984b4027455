#!/bin/sh
# Run by the runner before the first step: the process that runs the steps goes where memory is limited. Never a reason
# for a job to fail.
[ -z "$GPUYARD_JOB_CGROUP" ] || echo $PPID >"$GPUYARD_JOB_CGROUP/cgroup.procs"
exit 0
