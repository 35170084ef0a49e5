#!/usr/bin/env bash
# A whole Slurm cluster on this one machine, for tests and for trying things: start, stop, or say whether it answers.
#   tests/cluster/slurm.sh start     needs root, and Debian's packages slurm-wlm and munge (which .ci/run installs)
#   tests/cluster/slurm.sh stop
#   tests/cluster/slurm.sh status
# The settings lie in SLURM_CLUSTER_DIR (/var/tmp/ablax-slurm by default); /etc/slurm/slurm.conf is only written where
# there is none, so a machine that belongs to a real cluster is left alone.
set -euo pipefail

STATE=${SLURM_CLUSTER_DIR:-/var/tmp/ablax-slurm}
CONF=/etc/slurm/slurm.conf
MARK="# written by ablax: tests/cluster/slurm.sh"

fail() { echo "slurm.sh: $*" >&2; exit 1; }

answers() { timeout 10 sinfo -h -o %T 2>/dev/null | grep -qE 'idle|mixed|allocated'; }

write_conf() {
    local name cores memory
    name=$(hostname -s)
    cores=$(nproc)
    memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
    mkdir -p "$STATE/ctld" "$STATE/d" "$(dirname $CONF)"
    # Twice as many processors as there are: tests run small things. Jobs in `spare` give way to those in `urgent`.
    cat > $CONF <<CONF_END
$MARK
ClusterName=ablax
SlurmctldHost=$name(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
KillWait=10
MinJobAge=300
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0
StateSaveLocation=$STATE/ctld
SlurmdSpoolDir=$STATE/d
SlurmctldPidFile=$STATE/slurmctld.pid
SlurmdPidFile=$STATE/slurmd.pid
SlurmctldLogFile=$STATE/slurmctld.log
SlurmdLogFile=$STATE/slurmd.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=$name NodeAddr=127.0.0.1 CPUs=$((cores * 2)) RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$name Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=spare Nodes=$name MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=$name MaxTime=INFINITE State=UP PriorityTier=20 PreemptMode=OFF
CONF_END
}

start() {
    answers && { echo "slurm.sh: a cluster answers already"; return; }
    for program in munged slurmctld slurmd sbatch; do
        command -v $program >/dev/null || fail "$program is not installed (apt-get install slurm-wlm munge)"
    done
    [ "$(id -u)" = 0 ] || fail "start needs root"
    if [ -e $CONF ] && ! grep -qF "$MARK" $CONF; then fail "$CONF is there and not this script's; left alone"; fi
    write_conf
    if ! munge -n </dev/null >/dev/null 2>&1; then
        [ -s /etc/munge/munge.key ] || { mkdir -p /etc/munge; head -c 1024 /dev/urandom > /etc/munge/munge.key; }
        chown -R munge: /etc/munge && chmod 400 /etc/munge/munge.key
        mkdir -p /run/munge /var/log/munge /var/lib/munge && chown munge: /run/munge /var/log/munge /var/lib/munge
        su -s /bin/sh munge -c "munged --force" || fail "munged does not start"
    fi
    slurmctld -c && slurmd || fail "the daemons do not start; see $STATE/*.log"
    for _ in $(seq 60); do
        answers && { echo "slurm.sh: up: $(sinfo -h -o '%N %c processors, %T')"; return; }
        sleep 0.5
    done
    fail "no node came up; see $STATE/*.log"
}

# Only processes whose ids the daemons wrote are ended.
stop() {
    for daemon in slurmd slurmctld; do
        if [ -s "$STATE/$daemon.pid" ]; then kill "$(cat "$STATE/$daemon.pid")" 2>/dev/null || true; fi
    done
    for _ in $(seq 40); do
        pgrep -F "$STATE/slurmctld.pid" >/dev/null 2>&1 || pgrep -F "$STATE/slurmd.pid" >/dev/null 2>&1 || break
        sleep 0.25
    done
    echo "slurm.sh: stopped"
}

case ${1:-} in
    start) start ;;
    stop) stop ;;
    status) if answers; then sinfo; else fail "no cluster answers"; fi ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
