#!/usr/bin/env bash
# A Slurm cluster on this machine for as long as one command runs. Needs slurmctld, slurmd, slurm-client and munge, but
# neither systemd nor cgroups. Everything lies in a directory of its own, listens on ports that were free, and is gone
# when the command is. The exit code is the command's.
#
# usage: cluster.sh NODES CPUS_PER_NODE COMMAND...
set -euo pipefail
nodes=$1 cpus=$2
shift 2

home=$(mktemp -d "${TMPDIR:-/tmp}/slurm.XXXXXX") # short: a socket's path has 108 bytes
host=$(hostname -s) user=$(id -un)
mkdir -p "$home"/{state,log,run,munge}
chmod 755 "$home" "$home/run"
chmod 700 "$home/munge"
export SLURM_CONF=$home/slurm.conf

free_ports() { # all held at once, so that no two are the same
  python3 -c '
import socket, sys
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(one.getsockname()[1] for one in held))' "$1"
}
read -ra ports < <(free_ports $((nodes + 1)))

{
  cat <<CONF
ClusterName=tests
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[nodes]}
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$home/run/munge.sock
CredType=cred/munge
MpiDefault=pmi2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
FirstJobId=$((1000 + RANDOM))
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool.%n
SlurmctldPidFile=$home/run/slurmctld.pid
SlurmdPidFile=$home/run/slurmd.%n.pid
SlurmctldLogFile=$home/log/slurmctld.log
SlurmdLogFile=$home/log/slurmd.%n.log
PartitionName=tests Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
  for ((i = 0; i < nodes; i++)); do
    echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[i]} CPUs=$cpus RealMemory=4000 State=UNKNOWN"
  done
} > "$SLURM_CONF"

until_true() { # SECONDS CONDITION...
  local turns=$(($1 * 20))
  shift
  while ! "$@"; do ((turns-- > 0)) && sleep 0.05 || return 1; done
}
gone() { ! grep -qs '^State:[[:space:]]*[^Z]' "/proc/$1/status"; } # absent, or a zombie that nobody reaps
idle() { [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = "$nodes" ]; }

stop() {
  local pids pid
  mapfile -t pids < <(cat "$home"/run/*.pid 2>/dev/null)
  kill "${pids[@]}" 2>/dev/null || true
  for pid in "${pids[@]}"; do until_true 2 gone "$pid" || kill -9 "$pid" 2>/dev/null || true; done
  rm -rf "$home"
}
trap stop EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

(umask 077 && head -c 128 /dev/urandom > "$home/munge/key")
munged --force --num-threads=2 --key-file="$home/munge/key" --seed-file="$home/munge/seed" \
  --socket="$home/run/munge.sock" --pid-file="$home/run/munged.pid" --log-file="$home/log/munged.log"
slurmctld -c -f "$SLURM_CONF"
for ((i = 0; i < nodes; i++)); do
  mkdir -p "$home/spool.n$i"
  slurmd -f "$SLURM_CONF" -N "n$i"
done
until_true 60 idle || { sinfo >&2; tail -n 20 "$home"/log/*.log >&2; exit 1; }

"$@"
