# A live Bash: as python.py. One shell, whose directory, variables and functions stay; the exit status of a run is its result.
# What is ours has names that begin with __context.
exec {__context_requests}<&0 {__context_stdout}>&1 {__context_stderr}>&2 </dev/null
rm -f -- "$0"
__context_base=$1
shift $#
mkdir -p -m 700 -- "$__context_base"

# A run that is interrupted goes no further: before its next command each function of it returns, and then the whole. Between two
# runs there is nothing to interrupt.
__context_interrupt() {
    if [[ -n $__context_running ]]; then
        __context_interrupted=1
        shopt -s extdebug
        trap __context_unwind DEBUG
    fi
}
__context_unwind() {
    [[ ${FUNCNAME[1]-main} == main ]] || return 2
}
trap __context_interrupt INT

while IFS=' ' read -r -u "$__context_requests" __context_verb __context_token __context_number __context_length; do
    __context_code=
    if ((__context_length > 0)); then
        LC_ALL=C IFS= read -r -N "$__context_length" -u "$__context_requests" __context_code || exit 70
    fi
    __context_interrupted=
    __context_running=1
    __context_file=$__context_base/run-$__context_number
    printf '%s\n' "$__context_code" >"$__context_file" || exit 70
    # As a file that is read in, so that variables are of the shell itself and `return` ends a run. What it starts does not
    # have our descriptors.
    source "$__context_file" {__context_requests}<&- {__context_stdout}>&- {__context_stderr}>&-
    __context_status=$?
    __context_running=
    rm -f -- "$__context_file"
    if [[ -n $__context_interrupted ]]; then
        trap - DEBUG
        shopt -u extdebug
        set +o functrace +o errtrace
        __context_status=130
    fi
    printf '\036%s done\n' "$__context_token" >&"$__context_stderr" || exit 70
    printf '\036%s done %d 0 0\n' "$__context_token" "$__context_status" >&"$__context_stdout" || exit 70
done
# As in python.py: to end by itself would spare what was started here.
exec sleep 30
