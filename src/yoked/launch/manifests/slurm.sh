set -u

# Bash before 4.4, as of CentOS 7, takes an array without words for one that is not set: it is
# written as ${words[@]+"${words[@]}"}.

# How long before the end of the job's time --signal comes, less what Slurm needs to requeue.
save_limit_s=45

export PYTHONUNBUFFERED=1
# Ranks prove to each other that they know it. srun hands it on in the environment, which other
# users of a node cannot read, as they can a command line; each start of the job has its own.
YOKED_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export YOKED_SECRET
# For clusters on which a node's name leads to the wrong network, or to none.
master_addr=${YOKED_MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}

# Runs on each node, once: all ranks of the node.
on_node() {
    local cpus=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}
    local threads=$((cpus / ranks_per_node))
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}
    if [[ -n $interface ]]; then
        GLOO_SOCKET_IFNAME=$(pick_interface "$interface") || exit 1
        # NCCL takes a bare name for the beginning of one.
        export GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME="=$GLOO_SOCKET_IFNAME"
    fi
    # An interrupt asks the ranks to save. torchrun would end them in the middle of it.
    trap '' INT
    exec "$python" -m torch.distributed.run \
        --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$ranks_per_node" \
        --node-rank="$SLURM_NODEID" --master-addr="$master_addr" --master-port="$master_port" \
        --signals-to-handle=SIGTERM,SIGHUP,SIGQUIT "$@"
}

start_ranks() {
    # Below the ports that Linux gives to clients; another for each start.
    local master_port=$((10000 + (SLURM_JOB_ID * 10 + attempt) % 20000))
    local args=(${first_args[@]+"${first_args[@]}"})
    if [[ -n $run_folder && -f $run_folder/run.json ]]; then
        args=(${resume_args[@]+"${resume_args[@]}"})
    fi
    local program
    program=$(
        declare -p python ranks_per_node interface master_addr master_port
        declare -f pick_interface on_node
    )
    # srun gives its steps the CPUs that the job asked for only when it is told so.
    srun --ntasks-per-node=1 --kill-on-bad-exit=1 \
        ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
        bash -c "$program"$'\non_node "$@"' "$run" "${target[@]}" ${args[@]+"${args[@]}"} &
}

bytes_of_metrics() {
    if [[ -n $run_folder && -f $run_folder/metrics.jsonl ]]; then
        wc -c <"$run_folder/metrics.jsonl"
    else
        echo 0
    fi
}

# A job that gets nowhere in its time would be requeued for ever.
may_go_on() {
    if [[ -n $run_folder ]]; then
        (($(bytes_of_metrics) > bytes_before))
    else
        ((${SLURM_RESTART_COUNT:-0} < restarts))
    fi
}

go_on_later() {
    if may_go_on; then
        echo "$run: requeued; it goes on when the job starts again" >&2
        scontrol requeue "$SLURM_JOB_ID"
        exit 0
    fi
    echo "$run: not requeued, because it would begin anew; ask for more with --time" >&2
}

is_running() {
    [[ -n $(jobs -rp) ]]
}

before_the_limit() {
    time_is_up=1
    echo "$run: the job's time is nearly up; asking the ranks to save" >&2
    # To the ranks' step; this script would get it only with --full.
    scancel --signal=INT "$SLURM_JOB_ID"
    while is_running && ((save_limit_s-- > 0)); do sleep 1; done
    # Ranks that did not listen may use the rest of the time, unless a new job does as well.
    if is_running && may_go_on; then go_on_later; fi
}

wait_for_ranks() {
    wait "$step"
    status=$?
    # The signal ends `wait` too, with a status of its own.
    if ((time_is_up)); then
        wait "$step"
        status=$?
    fi
}

attempt=0
step=
status=
time_is_up=0
bytes_before=$(bytes_of_metrics)
trap before_the_limit USR1
trap 'exit 143' TERM
while :; do
    start_ranks
    step=$!
    wait_for_ranks
    if ((status != 0 && time_is_up)); then
        go_on_later
        exit "$status"
    fi
    if ((status == 0 || attempt >= restarts)); then
        exit "$status"
    fi
    attempt=$((attempt + 1))
    echo "$run: ended with status $status; restart $attempt of $restarts" >&2
done
