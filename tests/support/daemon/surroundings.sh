# What a daemon runs in: control groups, namespaces and a /run of its own, all of which end with it.
#
# usage: surroundings.sh around PLACE MARK PROGRAM…
#
# It ends when its standard input does: when the test asks for it, and also when the test is killed. Then nothing is left of
# it, its directory PLACE included, unless there is a file `keep` in it.
set -u

# Mount point, kind and options of every hierarchy of control groups.
hierarchies() {
    awk '{ for (i = 7; i <= NF; i++) if ($i == "-" && $(i + 1) ~ /^cgroup2?$/) print $5, $(i + 1), $(i + 3) }' \
        /proc/self/mountinfo
}

part=$1 place=$2 mark=$3
shift 3
case $part in
around)
    # Whoever presses Ctrl-C means the test; what is to be put away here is put away all the same.
    trap : INT TERM HUP
    sh "$place/surroundings.sh" groups "$place" "$mark" "$@"
    status=$?
    hierarchies | while read -r point _; do
        find "$point/$mark" -depth -type d -exec rmdir {} \; 2>/dev/null
    done
    [ -e "$place/keep" ] || rm -rf "$place"
    exit "$status"
    ;;
groups)
    hierarchies >"$place/hierarchies"
    while read -r point kind _; do
        group=$point/$mark
        if [ "$kind" = cgroup2 ]; then
            echo "+memory +pids +cpu" 2>/dev/null >"$point/cgroup.subtree_control"
        fi
        mkdir "$group" || exit 1
        for file in cpuset.cpus cpuset.mems; do
            if [ "$kind" = cgroup ] && [ -e "$point/$file" ]; then cat "$point/$file" >"$group/$file"; fi
        done
        echo 0 >"$group/cgroup.procs" || exit 1
    done <"$place/hierarchies"
    exec unshare --cgroup --mount -- sh "$place/surroundings.sh" between "$place" "$mark" "$@"
    ;;
between)
    # Mounted again, they begin at the groups that were just made.
    while read -r point kind options; do
        if [ "$kind" = cgroup2 ]; then options=rw; fi
        umount "$point" && mount -t "$kind" -o "${options#rw,}" "$kind" "$point" || exit 1
        if [ "$kind" = cgroup2 ]; then
            # Version 2 has no processes beside groups with limits.
            mkdir "$point/daemon" && echo 0 >"$point/daemon/cgroup.procs" || exit 1
            echo "+memory +pids +cpu" 2>/dev/null >"$point/cgroup.subtree_control"
        fi
    done <"$place/hierarchies"
    exec unshare --mount --pid --fork --kill-child --mount-proc -- \
        sh "$place/surroundings.sh" within "$place" "$mark" "$@"
    ;;
within)
    # Daemons write there whatever they are told.
    mount -t tmpfs tmpfs /run || exit 1
    # Whenever Podman is asked about itself, it asks the package manager which packages its parts are of, which takes longer
    # than all the rest and matters to no test.
    if [ -x /usr/bin/dpkg ]; then mount --bind /bin/false /usr/bin/dpkg || exit 1; fi
    exec 3<&0
    "$@" </dev/null 3<&- &
    daemon=$!
    { read -r _ <&3; kill -TERM "$daemon"; } &
    wait "$daemon"
    ;;
esac
