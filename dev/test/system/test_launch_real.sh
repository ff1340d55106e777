#!/bin/bash
# The launchers with the real programs: scripts/mpirun.sh with OpenSSH's sshd, scripts/run_slurm.sh under slurmctld and
# two slurmd. Each trains on two machines, loses one of them (mpirun.sh: the path between them, which nothing tells it),
# and continues from its checkpoint. A machine is a network namespace of this one with a host name of its own; a cable
# (veth) joins the two, and nothing is sent or heard outside.
#
# The steps that a lost run has made beyond its checkpoint are made again: they have to give the same losses, to the
# bit. Needs root, Linux, iproute2 and Open MPI. A part whose programs are not there is left out, and it says what to
# install: this test installs nothing, since a package may start a service. Last line: "N passed, N failed".
set -u
work=$(mktemp -d)
a=threefold-launch-$$-a b=threefold-launch-$$-b
export PATH=$PATH:/usr/sbin:/sbin
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
ranks() { # how many of them each machine has
    for machine in $a $b; do
        for process in $(ip netns pids $machine); do readlink "/proc/$process/exe"; done | grep -c '/train_gpt$'
    done 2>/dev/null | paste -s -d " "
}
clean() {
    for machine in $a $b; do
        [ ! -e "/run/netns/$machine" ] || { lose "$machine" && ip netns del "$machine"; }
    done
    [ -z "$made_sshd" ] || rmdir /run/sshd
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM HUP

nothing() { echo "left out: launchers with the real programs: $1" && finish; }
[ "$(id -u)" = 0 ] || nothing "making two machines of one needs root"
for command in ip nsenter unshare mount timeout; do
    command -v $command >/dev/null || nothing "there is no $command (apt-get install iproute2 util-linux)"
done
{ command -v "${MPIRUN:-mpirun}" >/dev/null && grep -q MPI_Init ./train_gpt; } || nothing "there is no MPI"
ip netns add $a 2>/dev/null || nothing "this machine makes no network namespaces (ip netns add)"
ip netns add $b
ip link add cable netns $a type veth peer name cable netns $b || nothing "this machine makes no cables (veth)"
for machine in $a:1 $b:2; do
    ip -n "${machine%:*}" link set lo up
    ip -n "${machine%:*}" link set cable up
    ip -n "${machine%:*}" address add "10.96.0.${machine#*:}/24" dev cable
done
printf '127.0.0.1 localhost\n10.96.0.1 node-a\n10.96.0.2 node-b\n' >"$work/hosts"

# on MACHINE COMMAND...: runs it there, for at most two minutes; become: in place of this shell, as long as it takes;
# daemon: beside it. Its mounts are seen there only. Not by ip netns exec, which hides the control groups that slurmd
# asks for.
cat >"$work/enter" <<SH
hostname "\$1" && mount --bind $work/hosts /etc/hosts && shift && exec "\$@"
SH
become() { exec nsenter --net="/run/netns/$1" unshare -u -m sh "$work/enter" "node-${1##*-}" "${@:2}"; }
on() { (become "$1" timeout 120 "${@:2}"); }
daemon() {
    become "$@" >>"$work/daemons" 2>&1 &
    disown # bash does not tell of its end
}

# ---- a run of the script $what, to the folder $out, that loses a machine. $launcher: the process that ends with it
launcher="" what="" out=""
seq 1 12000 | tr '\n' ' ' >"$work/text.txt"
export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 TMPDIR=$work
options=(--arch llama --layers 2 --hidden 64 --heads 2 --ffn 96 --seq 32 --data "$work/text.txt" --global-batch 4
    --tp 2 --steps 1000000 --lr 1e-3 --min-lr 1e-4 --warmup 2 --eval-every 0 --sample-every 0 --watchdog 120
    --save-every 50)
newest() { # the step of the last checkpoint
    find "$out" -maxdepth 1 -name 'step_*' 2>/dev/null | sed -n 's/.*step_0*\([0-9][0-9]*\)$/\1/p' | sort -n | tail -n 1
}
losses() { sed 's/,"lr".*\|,"step_ms".*\|,"tokens".*//' "$out/log.jsonl"; }

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
until_so() { comes "$2" || { bad "$1: it did not happen: $(context)" && return 1; }; }
ends() { # waits for the launcher, at most two minutes; its status to $status
    until_ended=$launcher launcher=""
    until_so "the launcher ends" "! kill -0 $until_ended 2>/dev/null" || kill -KILL "$until_ended"
    wait "$until_ended"
    status=$?
}
far_enough() { # STEPS: a checkpoint after step STEPS, and three steps more
    local step
    step=$(newest)
    [ "${step:-0}" -gt "$1" ] && [ "$(wc -l <"$out/log.jsonl")" -ge $((step + 3)) ]
}

# note_lost: what is there when the machine is gone
note_lost() {
    saved=$(newest)
    # the last line may be cut off
    losses | sed '${/^{"step":[0-9]*,"loss":[0-9.e+-]*,/!d}' >"$work/before"
    made=$(wc -l <"$work/before")
    check "$what: a checkpoint of step $saved is there, and $made steps" "[ $saved -gt 0 ] && [ $made -ge $saved ]"
}

# compare: every step once; those that the lost run had made have the losses that they had then
compare() {
    losses >"$work/now"
    now=$(wc -l <"$work/now")
    sed 's/^{"step":\([0-9]*\),.*/\1/' "$work/now" >"$work/steps"
    check "$what: $now steps, each once" "[ $now -gt $made ] && seq $now | cmp -s - $work/steps"
    check "$what: steps after $saved as the lost run made them" "head -n $made $work/now | cmp -s - $work/before"
    is "$what: stopped, it has saved its last step" "$now" "$(newest)"
}

# ---- mpirun.sh, sshd
start() { # OPTIONS
    PATH=$work/bin:$PATH become $a scripts/mpirun.sh -np 2 --host node-a:1,node-b:1 -x OMP_NUM_THREADS ./train_gpt \
        "${options[@]}" --out "$out" "$@" >"$work/out" 2>&1 </dev/null &
    launcher=$!
}
part_ssh() {
    if [ ! -d /run/sshd ]; then mkdir /run/sshd && made_sshd=yes; fi
    mkdir "$work/bin"
    ssh-keygen -q -t ed25519 -N '' -f "$work/host_key" && ssh-keygen -q -t ed25519 -N '' -f "$work/key" || return 1
    echo "#!/bin/sh
exec $(command -v ssh) -F /dev/null -p 2222 -i $work/key -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no \
        -o LogLevel=ERROR \"\$@\"" >"$work/bin/ssh"
    chmod +x "$work/bin/ssh"
    daemon $b /usr/sbin/sshd -D -e -f /dev/null -h "$work/host_key" -o Port=2222 -o ListenAddress=10.96.0.2 \
        -o AuthorizedKeysFile="$work/key.pub" -o PidFile=none -o StrictModes=no -o PermitRootLogin=yes
    until_so "sshd answers" "on $a $work/bin/ssh -o ConnectTimeout=5 node-b true 2>$work/err" || return 1
    start
    until_so "mpirun.sh trains and saves" "far_enough 0" || return 1
    is "$what: a rank on each machine" "1 1" "$(ranks)"
    ip -n $a link set cable down
    begun=$SECONDS
    ends
    check "mpirun.sh ends when the path is cut, after $((SECONDS - begun)) s, status $status" \
        "[ $((SECONDS - begun)) -le 60 ] && [ $status != 0 ] && [ $status != 75 ]"
    until_so "no rank stays" "[ \"\$(ranks)\" = '0 0' ]"
    note_lost
    ip -n $a link set cable up
    start --resume
    until_so "mpirun.sh continues" "far_enough $made" || return 1
    kill -USR1 $launcher
    ends
    is "mpirun.sh is stopped, status" 75 "$status"
    compare
}

# ---- run_slurm.sh, slurmctld, two slurmd
start_slurmd() { # MACHINE: with folders as new
    local folders=("$work/spool.node-${1##*-}" "$work/tmp.node-${1##*-}")
    rm -rf "${folders[@]}"
    mkdir "${folders[@]}"
    daemon "$1" slurmd -D
}
job() { on $a scontrol show job "$number" 2>/dev/null | grep -q "$1"; } # TEXT: whether scontrol says that of the job
all_idle() { [ "$(on $a sinfo -h -o '%T %D' 2>/dev/null)" = "idle 2" ]; }
part_slurm() {
    local number
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
SlurmdTimeout=10
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=node-a,node-b CPUs=$(nproc)
PartitionName=all Nodes=node-a,node-b Default=YES
END
    printf '%s\n' CgroupPlugin=autodetect IgnoreSystemd=yes >"$work/cgroup.conf"
    export SLURM_CONF=$work/slurm.conf
    mkdir "$work/state"
    daemon $a slurmctld -D
    start_slurmd $a
    start_slurmd $b
    if ! comes all_idle; then
        echo "left out: slurm: its daemons do not start here: $(grep error: "$work/daemons" | tail -n 3)"
        return 0
    fi
    number=$(on $a sbatch --parsable --output="$work/out" --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 \
        scripts/run_slurm.sh "${options[@]}" --out "$out" 2>"$work/err")
    until_so "run_slurm.sh, job $number, trains and saves" "far_enough 0" || return 1
    is "$what: a rank on each machine" "1 1" "$(ranks)"
    lose $b
    until_so "Slurm queues the job again" "job Restarts=1" || return 1
    note_lost
    start_slurmd $b
    until_so "the new machine is there, and the job waits" "all_idle && job JobState=PENDING" || return 1
    on $a scontrol update "JobId=$number" StartTime=now # Slurm would wait for two minutes
    until_so "the job continues" "far_enough $made" || return 1
    on $a scancel "$number"
    until_so "the job ends" "job JobState=CANCELLED && ! on $a squeue -h | grep -q ." || return 1
    compare
}

# part NAME WHAT PACKAGES PROGRAMS...: runs part_NAME if they are there, and ends all that it has left
part() {
    for command in "${@:4}"; do
        command -v "$command" >/dev/null ||
            { echo "left out: $1: there is no $command (apt-get install $3)" && return; }
    done
    launcher="" what=$2 out=$work/out_$1
    "part_$1" || bad "$what: not to its end"
    lose $a
    lose $b
}
part ssh mpirun.sh "openssh-server openssh-client" ssh sshd ssh-keygen
part slurm run_slurm.sh slurm-wlm slurmctld slurmd sbatch
finish
