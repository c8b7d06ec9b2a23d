# Runs one detached job in its own session and process group, and tells what became of it.
#
#   sh runner.sh start DIR          start DIR/cmd once; whoever calls again finds the same job
#   sh runner.sh again DIR          the same, but a job that was killed (lost, or ended by a signal) is started anew
#   sh runner.sh poll DIR           absent | running PID | exited CODE | lost
#   sh runner.sh cancel DIR         TERM to the group, KILL after $GRACE_S seconds, then as poll
#
# DIR holds cmd, log (output of the job), pid ("PID START_TIME BOOT_ID") and exit (its code).
# pid is made by link(2), which makes the name and its content in one act: of two starters one wins, the other leaves.
# The start time and the boot id tell our process from a later one with the same number.
set -u
# What a job makes is code and data that run again: nobody else may change it.
umask 077
verb=$1
cd "$2" || exit 9

boot_id() {
    cat /proc/sys/kernel/random/boot_id 2>/dev/null || sysctl -n kern.bootsessionuuid 2>/dev/null || echo unknown
}

# Empty for a process that is gone or a zombie.
start_time() {
    if [ -r /proc/self/stat ]; then
        stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
        # The name before the last parenthesis may hold blanks; state is field 3, start time field 22.
        set -- ${stat##*) }
        case $1 in Z | X) return 0 ;; esac
        shift 19
        echo "$1"
    else
        ps -o stat= -o lstart= -p "$1" 2>/dev/null | sed -e '/^Z/d' -e 's/^[^ ]* *//' -e 's/  */_/g'
    fi
}

group_alive() { kill -s 0 -- "-$1" 2>/dev/null; }

status() {
    if [ -f exit ]; then echo "exited $(cat exit)"; return; fi
    if [ ! -f pid ]; then echo absent; return; fi
    read -r pid started boot <pid
    if [ "$boot" != "$(boot_id)" ]; then echo lost; return; fi
    now=$(start_time "$pid")
    if [ -n "$now" ] && [ "$now" = "$started" ]; then echo "running $pid"; return; fi
    if [ -f exit ]; then echo "exited $(cat exit)"; return; fi
    # The supervisor was killed alone: what it left in its group is ours and must not outlive it.
    if [ -z "$now" ] && group_alive "$pid"; then kill -s KILL -- "-$pid" 2>/dev/null; fi
    echo lost
}

killed() {
    case $1 in
    lost) return 0 ;;
    exited\ *) [ "${1#exited }" -gt 128 ] ;;
    *) return 1 ;;
    esac
}

write_exit() { echo "$1" >exit.tmp && mv exit.tmp exit; }

case $verb in
start | again)
    was=$(status)
    if [ "$verb" = again ] && killed "$was"; then
        mv pid "pid.lost.$(date +%s).$$"
        rm -f exit
        was=absent
    fi
    if [ "$was" = absent ]; then
        if command -v setsid >/dev/null 2>&1; then
            setsid sh ./runner.sh supervise . </dev/null >/dev/null 2>>runner.err &
        else
            perl -MPOSIX -e 'POSIX::setsid(); exec @ARGV' sh ./runner.sh supervise . </dev/null >/dev/null 2>>runner.err &
        fi
        tries=0
        while [ ! -f pid ] && [ "$tries" -lt 200 ]; do
            sleep 0.05
            tries=$((tries + 1))
        done
        if [ ! -f pid ]; then
            echo "the job's supervisor did not start" >&2
            tail -n 3 runner.err >&2
            exit 8
        fi
    fi
    status
    ;;
supervise)
    printf '%s %s %s\n' "$$" "$(start_time $$)" "$(boot_id)" >"pid.$$" || exit 1
    ln "pid.$$" pid 2>/dev/null || { rm -f "pid.$$"; exit 0; }
    rm -f "pid.$$"
    # A handler, not "ignore": the job itself must get the default.
    trap : TERM INT HUP
    sh ./cmd >>log 2>&1 </dev/null &
    child=$!
    while :; do
        wait "$child"
        code=$?
        kill -s 0 "$child" 2>/dev/null || break
    done
    write_exit "$code"
    # Whatever the job left in its group goes with it; this shell too.
    kill -s KILL -- "-$$"
    ;;
poll)
    status
    ;;
cancel)
    set -- $(status)
    if [ "$1" = running ]; then
        group=$2
        kill -s TERM -- "-$group" 2>/dev/null
        tries=0
        while group_alive "$group" && [ "$tries" -lt $((${GRACE_S:-10} * 20)) ]; do
            sleep 0.05
            tries=$((tries + 1))
        done
        if group_alive "$group"; then
            kill -s KILL -- "-$group" 2>/dev/null
            tries=0
            while [ -n "$(start_time "$group")" ] && [ "$tries" -lt 100 ]; do
                sleep 0.05
                tries=$((tries + 1))
            done
        fi
        [ -f exit ] || write_exit 137
    fi
    status
    ;;
esac
