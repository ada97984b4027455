#!/bin/sh
# Checks the GPUs, runs one GitHub job, and tells the console about it: nothing else can speak to gpuyard from here.
#   run     what gpuyard-runner.service starts, as root; the runner itself is an unprivileged user's
#   report  when that is over, whatever ended it: the runner's log to the console. Then the machine is switched off
#   again   when the machine was started a second time: there is nothing to run any more
here=/var/lib/gpuyard
state=/run/gpuyard
log=$state/log
image_check=/usr/local/bin/gpuyard-gpu-check
most_lines=2000
# shellcheck source=/dev/null
. "$here/settings"

tell() { # standard input goes to every console, as Nova's log may be any of them
    text=$(cat)
    for name in $({ tr ' ' '\n' </sys/class/tty/console/active; echo ttyS0; } | sort -u); do
        printf '\n%s\n' "$text" >"/dev/$name"
    done 2>/dev/null
}

clean() { # one line of printable characters
    tr -c '[:print:]' ' ' | cut -c 1-300
}

say() { # a marker: to the console now, and once more at the end
    printf 'gpuyard-runner: %s\n' "$(printf '%s' "$*" | clean)" | tee -a $state/said | tell
}

give_up() {
    say "failed $*"
    exit 1
}

refuse_gpus() {
    say "gpu failed $*"
    exit 1
}

check_gpus() {
    # In the background: a driver that hangs in the kernel cannot be killed, nor waited for.
    if [ -x $image_check ]; then set -- $image_check; else set -- sh $here/gpu-check; fi
    { "$@" "$GPUS" "$CHECK_SECONDS" >$state/check 2>&1 </dev/null; echo $? >$state/checked; } &
    waited=0
    until [ -s $state/checked ]; do
        [ $waited -le $((CHECK_SECONDS + 10)) ] || refuse_gpus "the check of the GPUs has not ended after $waited s"
        sleep 1
        waited=$((waited + 1))
    done
    verdict=$(head -n 1 $state/check)
    [ "$(cat $state/checked)" = 0 ] || refuse_gpus "${verdict:-the check gave no reason}"
    say "gpu ok $verdict"
}

find_runner() {
    for folder in /opt/actions-runner /home/*/actions-runner /actions-runner /opt/runner; do
        [ -x "$folder/run.sh" ] && return
    done
    folder=
    return 1
}

find_user() { # whose the runner's folder is; never root
    user=$(stat -c %U "$folder/")
    [ "$user" = root ] || return 0
    user=runner
    id $user >/dev/null 2>&1 || useradd --create-home --shell /bin/bash $user || return 1
    chown -R $user: "$folder/"
}

divide() { # cgroups for the runner and for its job, so that a job that eats everything does not starve the runner
    cgroup=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
    mkdir "$cgroup/runner" "$cgroup/job" || return
    echo $$ >"$cgroup/runner/cgroup.procs"
    echo "+memory +cpu" >"$cgroup/cgroup.subtree_control" || return
    free=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
    kept=$((free / 8 < 1048576 ? free / 8 : 1048576))
    echo $((kept / 2))K >"$cgroup/runner/memory.min"
    echo 1000 >"$cgroup/runner/cpu.weight"
    echo $((free - kept))K >"$cgroup/job/memory.max"
    chown "$user" "$cgroup/cgroup.procs" "$cgroup/job/cgroup.procs"
    export GPUYARD_JOB_CGROUP="$cgroup/job"
}

claim_hook() { # what runs before the first step is ours; a hook of the image's own, which .env may name, runs after it
    variable=ACTIONS_RUNNER_HOOK_JOB_STARTED
    own=$(sed -n "s/^$variable=//p" "$folder/.env" 2>/dev/null | tail -n 1)
    [ -z "$own" ] || sed -i "/^$variable=/d" "$folder/.env" || give_up "$folder/.env names a hook that cannot be taken out"
    export GPUYARD_NEXT_HOOK="${own:-$ACTIONS_RUNNER_HOOK_JOB_STARTED}"
    export ACTIONS_RUNNER_HOOK_JOB_STARTED=$here/job-started.sh
}

follow() { # the runner's own words, as actions/runner prints them, become markers
    lines=0
    while IFS= read -r line || [ -n "$line" ]; do
        lines=$((lines + 1))
        [ $lines -gt $most_lines ] && continue
        printf '%s\n' "$line" >>$log
        case $line in
        *": Listening for Jobs"*) say online ;;
        *": Running job: "*) say "job started ${line#*: Running job: }" ;;
        *" completed with result: "*) say "job finished ${line##* completed with result: }" ;;
        esac
    done
}

run() {
    cp /var/lib/cloud/data/instance-id $here/started
    [ "$GPUS" = 0 ] || check_gpus
    find_runner || give_up "the image has no runner: there is no run.sh in /opt/actions-runner"
    find_user || give_up "the image has no user 'runner', and none could be made"
    claim_hook
    divide 2>/dev/null
    jit=$(cat $state/jitconfig)
    rm -f $state/jitconfig
    HOME=$(getent passwd "$user" | cut -d: -f6)
    export HOME USER="$user" LOGNAME="$user" LANG="${LANG:-C.UTF-8}"
    cd "$folder" || give_up "$folder cannot be entered"
    {
        setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups ./run.sh --jitconfig "$jit" 2>&1 </dev/null
        echo $? >$state/exit
    } | follow
    status=$(cat $state/exit 2>/dev/null)
    [ "$status" = 0 ] || give_up "the runner ended with status ${status:-unknown}: $(tail -n 1 $log)"
}

report() {
    rm -f $state/jitconfig
    find_runner
    # The Worker's files in _diag have the job's message in them, and stay here.
    { cat "$folder"/_diag/Runner_*.log 2>/dev/null | tail -c 16384; echo; tail -c 16384 $log 2>/dev/null; } >$state/tail
    echo "gpuyard-runner: over" >>$state/said
    {
        echo "gpuyard-runner: log begins"
        tail -n 600 $state/tail | cut -c 1-1000 | sed 's/^/| /'
        echo "gpuyard-runner: log ends"
        cat $state/said
    } | tell
}

mkdir -p $state
case $1 in
run) run ;;
report) report ;;
again)
    say "failed the machine was started a second time"
    systemctl --no-block poweroff
    ;;
esac
