#!/bin/bash
# The launchers with the real programs: scripts/mpirun.sh with OpenSSH's sshd, scripts/run_slurm.sh under slurmctld and
# two slurmd. Each trains on two machines, loses one, and continues from its checkpoint; mpirun.sh also loses the path
# between them, for ever. A machine is a network namespace of this one with a host name of its own; a cable (veth) joins
# the two, and nothing is sent or heard outside.
# make test-full runs it; PART=ssh or slurm in the environment: only that part.
#
# The steps that a lost run has made beyond its checkpoint are made again: they have to give the same losses, to the
# bit. Needs root, Linux, iproute2 and Open MPI. A part whose programs are not there is left out, and it says what to
# install: this test installs nothing, since a package may start a service. Last line: "N passed, N failed".
set -u
project=$PWD
work=$(mktemp -d)
a=threefold-launch-$$-a b=threefold-launch-$$-b
PATH=$PATH:/usr/sbin:/sbin
. dev/test/system/checks.sh
context() { tail -n 5 "$work/out" "$work/err" 2>/dev/null | head -c 2000; }

# ---- two machines
made_sshd=""
lose() { # MACHINE: all its processes end at once
    local pids
    for _ in 1 2 3 4 5; do
        pids=$(ip netns pids "$1" 2>/dev/null)
        [ -n "$pids" ] || return 0
        # shellcheck disable=SC2086  # a list of words
        kill -KILL $pids 2>/dev/null
        sleep 0.2
    done
}
running() { # MACHINE PROGRAM: the processes there that run it
    for process in $(ip netns pids "$1"); do
        case $(readlink "/proc/$process/exe" 2>/dev/null) in */$2) echo "$process" ;; esac
    done
}
one_each() { [ "$(running $a "$1" | wc -l)" = 1 ] && [ "$(running $b "$1" | wc -l)" = 1 ]; } # PROGRAM
clean() {
    for machine in $a $b; do
        [ ! -e "/run/netns/$machine" ] || { lose "$machine" && ip netns del "$machine"; }
    done
    [ -z "$made_sshd" ] || rmdir /run/sshd
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM HUP

nothing() {
    echo "left out: launchers with the real programs: $1"
    echo "1 passed, 0 failed"
    exit 0
}
[ "$(id -u)" = 0 ] || nothing "making two machines of one needs root"
for command in ip nsenter unshare mount timeout; do
    command -v $command >/dev/null || nothing "there is no $command (apt-get install iproute2 util-linux)"
done
ip netns add $a 2>/dev/null || nothing "this machine makes no network namespaces (ip netns add)"
ip netns add $b
ip link add cable netns $a type veth peer name cable netns $b || nothing "this machine makes no cables (veth)"
for machine in $a $b; do
    ip -n "$machine" link set lo up
    ip -n "$machine" link set cable up
done
ip -n $a address add 10.96.0.1/24 dev cable
ip -n $b address add 10.96.0.2/24 dev cable
printf '127.0.0.1 localhost\n10.96.0.1 node-a\n10.96.0.2 node-b\n' >"$work/hosts"

# on MACHINE COMMAND...: runs it there, for at most two minutes; become: in place of this shell, as long as it takes.
# Its mounts are seen there only. Not by ip netns exec, which hides the control groups that slurmd asks for.
cat >"$work/enter" <<SH
hostname "\$1" && mount --bind $work/hosts /etc/hosts && shift && exec "\$@"
SH
become() { exec nsenter --net="/run/netns/$1" unshare -u -m sh "$work/enter" "node-${1##*-}" "${@:2}"; }
on() { (become "$1" timeout 120 "${@:2}"); }
check "two machines" "[ \"\$(on $b sh -c 'getent hosts node-a; uname -n')\" = '10.96.0.1       node-a
node-b' ]"

# ---- a run that loses a machine. $launcher: the process that ends when the run does
launcher=""
seq 1 12000 | tr '\n' ' ' >"$work/text.txt"
model=(--arch llama --layers 2 --hidden 64 --heads 2 --ffn 96 --seq 32 --data "$work/text.txt" --global-batch 4
    --tp 2 --steps 1000000 --lr 1e-3 --min-lr 1e-4 --warmup 2 --eval-every 0 --sample-every 0 --watchdog 120)
export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1

newest() { # OUT: the step of the last checkpoint
    find "$1" -maxdepth 1 -name 'step_*' 2>/dev/null | sed -n 's/.*step_0*\([0-9][0-9]*\)$/\1/p' | sort -n | tail -n 1
}
lines() { if [ -e "$1/log.jsonl" ]; then wc -l <"$1/log.jsonl"; else echo 0; fi; }
losses() { sed 's/,"lr".*\|,"step_ms".*\|,"tokens".*//' "$1"; }

# comes CONDITION: waits for it, at most two minutes, or as long as $launcher lives where it is set; until_so WHAT
# CONDITION: and fails if it does not come
comes() {
    for _ in $(seq 1200); do
        if eval "$1"; then return 0; fi
        [ -z "$launcher" ] || kill -0 "$launcher" 2>/dev/null || break
        sleep 0.1
    done
    return 1
}
until_so() { comes "$2" || { bad "$1: it did not happen: $(tail -n 5 "$work/out" | head -c 2000)" && return 1; }; }
ends() { # waits for the launcher, at most two minutes; its status to $status
    until_ended=$launcher launcher=""
    until_so "the launcher ends" "! kill -0 $until_ended 2>/dev/null" || kill -KILL "$until_ended"
    wait "$until_ended"
    status=$?
}

far_enough() { # OUT STEPS: a checkpoint after step STEPS, and three steps more
    local step
    step=$(newest "$1")
    [ "${step:-0}" -gt "$2" ] && [ "$(lines "$1")" -ge $((step + 3)) ]
}

# note_lost WHAT OUT: what is there when the machine is gone
note_lost() {
    saved=$(newest "$2")
    # the last line may be cut off
    losses "$2/log.jsonl" | sed '${/^{"step":[0-9]*,"loss":[0-9.e+-]*,/!d}' >"$work/before"
    made=$(wc -l <"$work/before")
    check "$1: a checkpoint of step $saved is there, and $made steps" "[ $saved -gt 0 ] && [ $made -ge $saved ]"
}

# compare WHAT OUT: every step once; those that the lost run had made have the losses that they had then
compare() {
    losses "$2/log.jsonl" >"$work/now"
    now=$(wc -l <"$work/now")
    sed 's/^{"step":\([0-9]*\),.*/\1/' "$work/now" >"$work/steps"
    check "$1: $now steps, each once" "[ $now -gt $made ] && seq $now | cmp -s - $work/steps"
    check "$1: steps after $saved as the lost run made them" "head -n $made $work/now | cmp -s - $work/before"
    is "$1: stopped, it has saved its last step" "$now" "$(newest "$2")"
}

# ---- mpirun.sh, sshd
start_sshd() {
    become $b /usr/sbin/sshd -D -e -f "$work/sshd_config" >>"$work/sshd.log" 2>&1 &
    disown # bash does not tell of its end
}
part_ssh() {
    local out=$work/ssh_out
    if [ ! -d /run/sshd ]; then mkdir /run/sshd && made_sshd=yes; fi
    mkdir "$work/bin"
    ssh-keygen -q -t ed25519 -N '' -f "$work/host_key" && ssh-keygen -q -t ed25519 -N '' -f "$work/key" || return 1
    cat >"$work/sshd_config" <<END
Port 2222
ListenAddress 10.96.0.2
HostKey $work/host_key
AuthorizedKeysFile $work/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
END
    cat >"$work/ssh_config" <<END
Host node-b
Port 2222
IdentityFile $work/key
UserKnownHostsFile $work/known
StrictHostKeyChecking yes
LogLevel ERROR
END
    echo "[node-b]:2222 $(cat "$work/host_key.pub")" >"$work/known"
    printf '#!/bin/sh\nexec %s -F %s "$@"\n' "$(command -v ssh)" "$work/ssh_config" >"$work/bin/ssh"
    chmod +x "$work/bin/ssh"
    start_sshd
    until_so "sshd answers" "on $a $work/bin/ssh -o ConnectTimeout=5 node-b true 2>$work/err" || return 1
    start() {
        PATH=$work/bin:$PATH become $a scripts/mpirun.sh -np 2 --host node-a:1,node-b:1 -x OMP_NUM_THREADS ./train_gpt \
            "${model[@]}" --save-every 50 --out "$out" "$@" >"$work/out" 2>&1 </dev/null &
        launcher=$!
    }
    start
    until_so "mpirun.sh trains and saves" "far_enough $out 0" || return 1
    check "mpirun.sh: a rank on each machine" "one_each train_gpt"
    lose $b
    ends
    check "mpirun.sh ends when a machine is lost, status $status" "[ $status != 0 ] && [ $status != 75 ]"
    note_lost "mpirun.sh" "$out"
    start_sshd
    until_so "sshd answers again" "on $a $work/bin/ssh -o ConnectTimeout=5 node-b true 2>$work/err" || return 1
    start --resume
    until_so "mpirun.sh continues" "far_enough $out $made" || return 1
    ip -n $a link set cable down
    begun=$SECONDS
    ends
    check "mpirun.sh ends when the path is cut, after $((SECONDS - begun)) s, status $status" \
        "[ $((SECONDS - begun)) -le 60 ] && [ $status != 0 ] && [ $status != 75 ]"
    until_so "no rank stays" "[ -z \"\$(running $a train_gpt)\$(running $b train_gpt)\" ]"
    note_lost "mpirun.sh" "$out"
    ip -n $a link set cable up
    start --resume
    until_so "mpirun.sh continues" "far_enough $out $made" || return 1
    kill -USR1 $launcher
    ends
    is "mpirun.sh is stopped, status" 75 "$status"
    compare "mpirun.sh" "$out"
}

# ---- run_slurm.sh, slurmctld, two slurmd
start_slurmd() { # MACHINE: with folders as new
    local node=node-${1##*-}
    rm -rf "$work/spool.$node" "$work/tmp.$node"
    mkdir "$work/spool.$node" "$work/tmp.$node"
    become "$1" slurmd -D >"$work/slurmd.$node.out" 2>&1 &
    disown
}
job() { on $a scontrol show job "$number" 2>/dev/null | grep -c "$1"; } # TEXT: whether scontrol says that of the job
all_idle() { [ "$(on $a sinfo -h -o '%T %D' 2>/dev/null)" = "idle 2" ]; }
part_slurm() {
    local out=$work/slurm_out number
    cat >"$work/slurm.conf" <<END
ClusterName=threefold
SlurmctldHost=node-a
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool.%n
TmpFS=$work/tmp.%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.%n.log
SlurmdTimeout=10
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=node-a,node-b CPUs=$(nproc)
PartitionName=all Nodes=node-a,node-b Default=YES
END
    printf '%s\n' CgroupPlugin=autodetect IgnoreSystemd=yes >"$work/cgroup.conf"
    export SLURM_CONF=$work/slurm.conf
    mkdir "$work/state"
    become $a slurmctld -D >"$work/slurmctld.out" 2>&1 &
    disown
    start_slurmd $a
    start_slurmd $b
    launcher=""
    if ! comes all_idle; then
        echo "left out: slurm: its daemons do not start here: $(grep -h error: "$work"/slurm*.out | tail -n 3)"
        return 0
    fi
    local task=(--output="$work/out" --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 scripts/run_slurm.sh "${model[@]}")
    number=$(on $a sbatch --parsable "${task[@]}" --save-every 50 --out "$out" 2>"$work/err")
    check "sbatch takes run_slurm.sh: job $number" "[ -n '$number' ]"
    until_so "run_slurm.sh trains and saves" "far_enough $out 0" || return 1
    check "run_slurm.sh: a rank on each machine" "one_each train_gpt"
    lose $b
    until_so "Slurm queues the job again" "[ \$(job Restarts=1) = 1 ]" || return 1
    note_lost "run_slurm.sh" "$out"
    start_slurmd $b
    until_so "the new machine is there, and the job waits" "all_idle && [ \$(job JobState=PENDING) = 1 ]" || return 1
    on $a scontrol update "JobId=$number" StartTime=now # Slurm would wait for two minutes
    until_so "the job continues" "far_enough $out $made" || return 1
    on $a scancel "$number"
    until_so "the job ends" "[ \$(job 'JobState=CANCELLED') = 1 ] && ! on $a squeue -h | grep -q ." || return 1
    compare "run_slurm.sh" "$out"
}

# part NAME PROGRAMS PACKAGE: runs part_NAME if they are there, and ends all that it has left
part() {
    [ "${PART:-$1}" = "$1" ] || return 0
    for command in $2; do
        command -v "$command" >/dev/null || { echo "left out: $1: there is no $command ($3)" && return; }
    done
    launcher=""
    cp /dev/null "$work/out"
    "part_$1" || bad "$1: not to its end"
    lose $a
    lose $b
}
export TMPDIR=$work
if command -v "${MPIRUN:-mpirun}" >/dev/null && grep -q MPI_Init ./train_gpt; then
    part ssh "ssh sshd ssh-keygen" "apt-get install openssh-server openssh-client"
    part slurm "slurmctld slurmd sbatch" "apt-get install slurm-wlm"
else echo "left out: mpirun.sh and run_slurm.sh: there is no MPI"; fi
finish
