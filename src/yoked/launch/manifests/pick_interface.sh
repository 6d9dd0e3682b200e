# The first interface of this machine that is up and has a name of the pattern $1.
pick_interface() {
    for path in /sys/class/net/*; do
        # shellcheck disable=SC2254 # it is a pattern
        case ${path##*/} in $1) ;; *) continue ;; esac
        [ "$(cat "$path/operstate")" = down ] && continue
        echo "${path##*/}"
        return 0
    done
    echo "$(uname -n): no interface with a name like $1 is up" >&2
    return 1
}
