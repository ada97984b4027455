#!/bin/sh
# Run by the runner before the first step, as the runner's user. A job that the rules do not let in ends here; of one that
# may run, the process that runs the steps goes where memory is limited, which is never a reason to fail.
here=/var/lib/gpuyard
PATH=$PATH:/usr/local/bin:/usr/bin:/bin
if ! why=$(python3 -I $here/job_rules.py $here/job-rules.json 2>/dev/null); then
    echo "::error::gpuyard does not run this job: ${why:-its rules cannot be read here}"
    # A hook that fails does not keep steps with 'if: always()' from running (actions/runner 2.336, StepsRunner.cs). What
    # runs the steps is our parent, and goes; its listener then says to GitHub that the job has failed.
    sleep "${GPUYARD_LAST_WORDS:-3}"
    kill -KILL $PPID
    exit 1
fi
[ -z "$GPUYARD_JOB_CGROUP" ] || echo $PPID 2>/dev/null >"$GPUYARD_JOB_CGROUP/cgroup.procs" || :
[ -z "$GPUYARD_NEXT_HOOK" ] || exec bash -e "$GPUYARD_NEXT_HOOK"
exit 0
