# Why does this host let no login in by ssh? Each link of a login is tried, up to the first that
# fails. Changes nothing: the login is tried through an sshd of its own, which listens nowhere, with
# a key of its own, in a folder that is removed at the end. For root: sudo sh FILE.

# Tests have a system of their own below a folder.
etc=$YOKED_ROOT/etc proc=$YOKED_ROOT/proc run=$YOKED_ROOT/run
[ "$(id -u)" = 0 ] || [ -n "$YOKED_ROOT" ] || { echo 'run it as root: sudo sh'; exit 2; }
scratch=
trap '[ -z "$scratch" ] || rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

ok() { echo "ok   $*"; }

# The first link that fails: its code, what it is about, file and line.
no() {
    # sshd ends its lines as ssh does.
    about=$(printf %s "$2" | tr -d '\r\t') file=$3 line=$4
    say "$1"
    echo "NO   $cause"
    echo "     $fix"
    [ -z "$mark" ] || printf '%s\t%s\t%s\t%s\t%s\n' "$mark" "$1" "$about" "$file" "$line"
    exit 1
}

# A program within seconds; 124: it took longer.
within() {
    if command -v timeout > /dev/null; then timeout "$@"; else shift; "$@"; fi
}

# A program of an account's own is never root's.
as() {
    account=$1
    shift
    if [ "$(id -u "$account")" = 0 ] || [ "$(id -u)" != 0 ]; then
        "$@"
    else
        setpriv --reuid="$account" --regid="$(id -g "$account")" --init-groups "$@"
    fi
}
as_user() { as "$user" "$@"; }

# ---- the account, as the name service has it

look_up() { within 4 getent "$@" > /dev/null 2>&1; }
sources=$(sed -n 's/^passwd:\([^#]*\).*/\1/p' "$etc/nsswitch.conf" 2> /dev/null | sed 's/\[[^]]*\]//g; s/^ *//; s/ *$//')
if command -v getent > /dev/null; then
    look_up passwd "$user"
    case $? in
        0) ;;
        124)
            for source in $sources; do
                look_up -s "$source" passwd "$user"
                [ $? != 124 ] || no name-source-hangs "$source" "$etc/nsswitch.conf"
            done
            for socket in "$YOKED_ROOT/var/run/nscd/socket" "$run/nscd/socket"; do
                [ ! -S "$socket" ] || no nscd-hangs "$socket"
            done
            no names-hang "$sources" "$etc/nsswitch.conf" ;;
        *)
            ! grep -q "^$user:" "$etc/passwd" || no name-source "$sources" "$etc/nsswitch.conf"
            no no-account ;;
    esac
    entry=$(getent passwd "$user")
else
    entry=$(grep "^$user:" "$etc/passwd") || no no-account
fi
home=$(echo "$entry" | cut -d : -f 6) shell=$(echo "$entry" | cut -d : -f 7)
shell=${shell:-/bin/sh}
[ -f "$shell" ] || no shell-gone "$shell"
[ -x "$shell" ] || no shell-mode "$shell"
case $shell in */nologin | */false | */true) no shell-refuses "$shell" ;; esac
[ "$(as_user env -i HOME=/ PATH="$PATH" timeout 5 "$shell" -c 'echo in' 2> /dev/null < /dev/null)" = in ] ||
    no shell-broken "$shell"
[ -d "$home" ] || no home-gone "$home"
ok "account: $user, home $home, shell $shell"

# ---- sshd and its settings

sshd=$(PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v sshd) || no no-sshd
running='' words=''
for each in "$proc"/[0-9]*; do
    [ "$(cat "$each/comm" 2> /dev/null)" = sshd ] || continue
    [ -n "$running" ] && [ "${each##*/}" -gt "$running" ] && continue
    called=$(tr '\0' ' ' < "$each/cmdline")
    # Logins outlive the server that let them in.
    case $called in *'[listener]'*) ;; 'sshd: '*) continue ;; esac
    running=${each##*/} words=$called
done
after() { echo " $words" | sed -n "s/.* $1 *\\([^ ]*\\).*/\\1/p"; }
settings=$(after -f) log=$(after -E)
settings=${settings:-$etc/ssh/sshd_config}
wrong=$("$sshd" -t -f "$settings" 2>&1 | tr -d '\r')
"$sshd" -t -f "$settings" 2> /dev/null || case $wrong in
    *'separation directory'*) no privsep-folder "$(echo "$wrong" | sed -n 's/.*directory: *//p' | head -n 1)" ;;
    *'no hostkeys'*)
        open=$(echo "$wrong" | sed -n "s/^Permissions 0[0-7]* for '\(.*\)' are too open.*/\1/p" | tr '\n' ' ')
        [ -z "$open" ] || no host-key-mode "${open% }"
        no no-host-keys ;;
    *'separation user'*) no no-sshd-account ;;
    *'shared librar'* | *'symbol lookup error'* | *' not found (required by '* | *'Exec format'* | *'sshd-session does not exist'*)
        no sshd-broken "$(echo "$wrong" | tail -n 1)" ;;
    *) no settings "$(echo "$wrong" | tail -n 1)" "$settings" ;;
esac
# The sockets that listen at that port. One of systemd's does so where no sshd runs yet.
sockets=$(cat "$proc/net/tcp" "$proc/net/tcp6" 2> /dev/null |
    awk -v port="$(printf ':%04X' "${port:-22}")" '$4 == "0A" && $2 ~ port "$" { print $10 + 0 }')
[ -n "$running" ] || [ -n "$sockets" ] || no not-running
ok "sshd: process ${running:-of each connection}, settings $settings"

told=$("$sshd" -T -f "$settings" -C "user=$user,host=localhost,addr=127.0.0.1" 2> /dev/null)
setting() { echo "$told" | sed -n "s/^$1 //p" | head -n 1; }

# `no` with the line of sshd's settings that has a keyword, or another code where none has.
no_setting() {
    where=$(grep -nisE "^[[:space:]]*$3" "$settings" "$etc"/ssh/sshd_config.d/*.conf /dev/null | head -n 1)
    [ -n "$where" ] || no sshd-says "$2" "$settings"
    place=${where#*:}
    no "$1" "$2" "${where%%:*}" "${place%%:*}"
}

# What comes to the port that is dialled, and a rule hands on to another.
handed_on() {
    command -v nft > /dev/null && [ -n "$port" ] || return
    where=$(nft -a list ruleset 2> /dev/null | awk -v port="$((port))" -v own="$dialled" '
        function meant(s,    not, n, i, a, r, is) {
            if (!sub(/.* dport /, "", s)) return 0
            not = sub(/^!= /, "", s)
            if (s ~ /^[{]/) { sub(/^[{] */, "", s); sub(/ *[}].*/, "", s) } else sub(/ .*/, "", s)
            n = split(s, a, /, */)
            for (i = 1; i <= n; i++) if (split(a[i], r, "-") == 2 ? port >= r[1] + 0 && port <= r[2] + 0 : a[i] == port) is = 1
            return is != not
        }
        /^table/ { table = $2 " " $3 } /^[ \t]*chain / { chain = $2; home = 0 } / hook output / { home = 1 }
        !home && / (redirect|dnat|tproxy)( |$)|xt target "(REDIRECT|DNAT|TPROXY)"/ && !/[ \t]iif(name)? "?lo"? / && (!/ daddr [0-9{]/ || index($0, own)) && meant($0) {
            number = $NF; sub(/^[ \t]+/, ""); sub(/ # handle.*/, ""); sub(/ packets [0-9]+ bytes [0-9]+/, ""); print table " " chain ":" number ":" $0; exit
        }')
    place=${where#*:}
    [ -z "$where" ] || no redirected "${place#*:}" "${where%%:*}" "${place%%:*}"
}
if [ -n "$shown" ]; then
    for each in $(echo "$told" | sed -n 's/^hostkey //p'); do
        case $(ssh-keygen -lf "$each" 2> /dev/null) in *"$shown"*) no key-is-own "$shown" "$each" ;; esac
    done
    handed_on
    no key-of-another "$shown"
fi

[ "$(setting pubkeyauthentication)" != no ] || no_setting keys-off 'PubkeyAuthentication no' PubkeyAuthentication
case $(setting permitrootlogin)$user in
    noroot | forced-commands-onlyroot) no_setting no-root "PermitRootLogin $(setting permitrootlogin)" PermitRootLogin ;;
esac

# ---- the address and the port that are dialled

# Behind a router or a jump host that forwards, neither is this host's.
own='' moved='' forwarded=''
for each in $dialled; do
    case $(ip route get fibmatch "$each" 2> /dev/null) in
        'local '*) own=$each && break ;;
        default* | *' via '*) forwarded=1 ;;
        *'proto kernel'* | *'proto ra'*)
            if { ip route; ip -6 route; } 2> /dev/null | grep -qF "via $each "; then forwarded=1; else moved=$each; fi ;;
    esac
done
if [ -z "$own" ] && [ -n "$moved" ]; then
    has=$(ip route get "$moved" | sed -n 's/.* src \([^ ]*\).*/\1/p')
    [ -z "$has" ] || no new-address "$has" "$moved"
fi
[ -n "$own" ] || [ -z "$forwarded" ] || port=''

stranger='' known=''
for socket in ${port:+$sockets}; do
    holder=$(find "$proc"/[0-9]*/fd -lname "socket:\[$socket\]" 2> /dev/null | head -n 1)
    holder=${holder%/fd/*}
    case $(cat "$holder/comm" 2> /dev/null) in
        '') ;;
        sshd | systemd | init | inetd | xinetd | sslh* | dropbear | tinysshd) known=1 ;;
        *) stranger=${holder##*/} called=$(tr '\0' ' ' < "$holder/cmdline" | cut -c 1-80) ;;
    esac
done
ports=$(echo "$told" | sed -n 's/^port //p' | tr '\n' ' ')
ports=${ports% }
# Another program has the port.
no_stranger() {
    case " $ports " in
        *" $port "*) no port-taken "${called% }" "$stranger" "$port" ;;
        *) no other-listener "${called% } (process $stranger)" "$ports" "$port" ;;
    esac
}

# Without a word of who comes: what is said before is enough.
heard=''
[ -z "$own" ] || [ -z "$port" ] || heard=$(within 6 ssh -F none -v -p "$port" -o BatchMode=yes -o ConnectTimeout=4 \
    -o StrictHostKeyChecking=yes -o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=/dev/null \
    -o ControlPath=none "$user@$own" true 2>&1 < /dev/null)
case $heard in
    '') ;;
    *'Remote protocol version'*) ok "port: an ssh server answers at $own port $port" ;;
    *)
        [ -z "$stranger" ] || no_stranger
        [ -z "$running" ] || ! grep -qs '^State:.*T' "$proc/$running/status" || no sshd-stopped "$running"
        under_way=$(echo "$words" | sed -n 's/.*\[listener\] \([0-9]* of [0-9]*\).*/\1/p')
        case $heard in
            *' closed '* | *' reset '*)
                [ -z "$under_way" ] || [ "${under_way% of*}" -lt "${under_way#*of }" ] || no startups "$under_way" ;;
        esac ;;
esac
case $heard$port in
    *'Remote protocol version'*) ;;
    *[0-9]) [ -z "$told" ] || echo "$told" | grep -qx "port $port" || no other-port "$ports" ;;
esac
case $heard in
    *'Connection refused'*)
        any=0.0.0.0 at=$own
        case $own in *:*) any='[::]' at="[$own]" ;; esac
        if ! echo "$told" | grep -qxF -e "listenaddress $any:$port" -e "listenaddress $at:$port"; then
            case $any$(setting addressfamily) in
                0.0.0.0inet6 | '[::]inet') no_setting family "AddressFamily $(setting addressfamily)" AddressFamily ;;
            esac
            addresses=$(echo "$told" | sed -n 's/^listenaddress //p' | tr '\n' ' ')
            no_setting listens-here "${addresses% }" ListenAddress
        fi
        # A firewall may refuse what is listened for.
        [ -n "$sockets" ] || no not-listening "$own port $port" ;;
esac
if [ -z "$heard" ] && [ -n "$told" ] && ! echo "$told" | grep '^listenaddress ' | grep -qvE ' (127\.|\[::1\])'; then
    no_setting listens-here "$(setting listenaddress)" ListenAddress
fi

# ---- the account's dates, and its lock

IFS=: read -r _ password changed _ most _ _ expires _ << END
$(getent shadow "$user" 2> /dev/null || grep "^$user:" "$etc/shadow" 2> /dev/null)
END
today=$(($(date +%s) / 86400))
[ -z "$expires" ] || [ "$today" -le "$expires" ] || no expired "$expires"
case $(setting usepam)$password in no!*) no locked ;; esac
ok 'account is open'

# ---- the key, in the files that sshd reads

what_sshd_says() {
    { cat "$log" || journalctl -q -u ssh -u sshd -n 300 -o cat || cat /var/log/auth.log /var/log/secure
    } 2> /dev/null | tail -n 300
}

# The words in front of a key, with what they allow.
options() {
    case $1 in
        *command=\"*) no key-command "$(echo "$1" | sed 's/.*command="\(\([^"\\]\|\\.\)*\)".*/\1/')" "$2" "$3" ;;
        *expiry-time=\"*)
            until=$(echo "$1" | sed 's/.*expiry-time="\([0-9]*\).*/\1/' | cut -c 1-8)
            [ "$(date +%Y%m%d)" -lt "$until" ] || no key-expired "$until" "$2" "$3" ;;
    esac
    case $1 in *from=\"*) ;; *) return ;; esac
    allowed=$(echo "$1" | sed 's/.*from="\([^"]*\)".*/\1/')
    # Where we come from is known to sshd, and its log tells.
    ! what_sshd_says | grep -q 'correct key but not from a permitted host' || no key-from "$allowed" "$2" "$3"
    # It may well be where we come from: told where all else works.
    limited=$allowed
}

# A line with a key that an editor or a terminal has broken. $1: its file; $2: what the lines had between them.
broken() {
    number=0 begun=0
    while IFS= read -r text || [ -n "$text" ]; do
        number=$((number + 1))
        case $text in
            '' | '#'*) begun=0 ;;
            *ssh-* | *ecdsa-* | *sk-*) begun=$number joined=$text ;;
            *)
                [ $begun != 0 ] || continue
                joined=$joined$2$text
                echo "$joined" | ssh-keygen -lf - 2> /dev/null | grep -qF "$key" || continue
                [ -z "$2" ] || no key-broken-words $number "$1" $begun
                no key-broken $number "$1" $begun ;;
        esac
    done < "$1"
}

files='' found='' limited=
for each in $(setting authorizedkeysfile | sed "s|%h|$home|g; s|%u|$user|g; s|%%|%|g"); do
    case $each in none) continue ;; /*) ;; *) each=$home/$each ;; esac
    files="$files${files:+ }$each" number=0
    [ -n "$key" ] && [ -f "$each" ] || continue
    while IFS= read -r text || [ -n "$text" ]; do
        number=$((number + 1))
        case $text in '' | '#'*) continue ;; esac
        case $(echo "$text" | ssh-keygen -lf - 2> /dev/null) in
            *"$key"*)
                found=$each:$number
                options "$(echo "$text" | sed 's/\(^\| \)\(ssh-\|ecdsa-\|sk-\).*//')" "$each" $number
                break ;;
        esac
    done < "$each"
    [ -z "$found" ] || break
done
# sshd waits for a program that it asks, for as long as that takes.
asked() {
    program=$(setting "$1" | sed "s|%u|$user|g; s|%h|$home|g; s|%U|$(id -u "$user")|g; s|%f|${key:-none}|g")
    case $program in '' | none) return ;; esac
    # shellcheck disable=SC2086 # sshd makes words of it, too.
    as "$(setting "$1user")" timeout 5 $program 2> /dev/null < /dev/null
    [ $? != 124 ] || echo yoked-waits
}
for each in AuthorizedPrincipalsCommand AuthorizedKeysCommand; do
    keyword=$(echo "$each" | tr '[:upper:]' '[:lower:]')
    said=$(asked "$keyword")
    case $said in *yoked-waits) no_setting sshd-asks "$(setting "$keyword")" "${each}[[:space:]]" ;; esac
done
command=$(setting authorizedkeyscommand) elsewhere=''
case $command in
    # Here the key is known by its fingerprint alone.
    *%[kt]*) elsewhere=1 ;;
    *) ! echo "$said" | ssh-keygen -lf - 2> /dev/null | grep -qF "$key" || elsewhere=1 ;;
esac
if [ -n "$key" ] && [ -z "$found" ] && [ -z "$elsewhere" ]; then
    if [ -z "$files" ]; then
        authority=$(setting trustedusercakeys)
        [ "${authority:-none}" = none ] || no certificates "$authority"
        [ "${command:-none}" = none ] || no key-missing "$command"
        no_setting no-keys-file 'AuthorizedKeysFile none' AuthorizedKeysFile
    fi
    for each in $files; do
        [ ! -f "$each" ] || { broken "$each" ''; broken "$each" ' '; }
    done
    each=$home/.ssh/authorized_keys
    ! ssh-keygen -lf "$each" 2> /dev/null | grep -qF "$key" || no_setting keys-file "$files" AuthorizedKeysFile
    no key-missing "$files"
fi
[ -z "$found" ] || ok "key: $found"
if [ "$(setting strictmodes)" = yes ] && [ -n "$found" ]; then
    path=${found%:*}
    while [ "$path" != / ]; do
        [ -z "$(find "$path" -prune '(' -perm -020 -o -perm -002 ')')" ] || no key-mode "$path"
        [ -z "$(find "$path" -prune ! -user "$user" ! -user root)" ] || no key-owner "$path"
        [ "$path" != "$home" ] || break
        path=$(dirname "$path")
    done
    ok "modes: from ${found%:*} up"
fi

# ---- a login, as it is; and without one setting or another

try() {
    within 8 ssh -F none -i "$scratch/key" -o BatchMode=yes -o IdentitiesOnly=yes -o IdentityAgent=none \
        -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ControlPath=none -o LogLevel=ERROR \
        -o ProxyCommand="$sshd -i -f '$settings' -E '$scratch/log' -o LogLevel=DEBUG1 \
-o AuthorizedKeysFile='$scratch/keys' -o HostKey='$scratch/host' $2" \
        "$user@localhost" "$1" > "$scratch/said" 2>&1 < /dev/null
    grep -q '^yoked-in$' "$scratch/said"
}

# A limit of PAM's for this user with which little can run.
pam_limit() {
    for each in "$etc"/security/limits.conf "$etc"/security/limits.d/*.conf; do
        [ -f "$each" ] || continue
        number=0
        while read -r whom _ item value _; do
            number=$((number + 1))
            case $whom in "$user" | '*') ;; @*) id -nG "$user" | grep -qw "${whom#@}" || continue ;; *) continue ;; esac
            case $item:$value in
                stack:[0-9] | stack:[0-9][0-9] | stack:[0-9][0-9][0-9] | as:?????? | as:????? | as:???? | \
                    data:????? | data:???? | data:??? | nofile:[0-9] | nofile:[0-9][0-9] | nproc:[0-9] | \
                    fsize:? | fsize:?? | fsize:???) no pam-limit "$item $value" "$each" $number ;;
            esac
        done < "$each"
    done
}

# Who does not read what programs log, where each word to it waits: PAM has one at each login.
log_reader() {
    log=$(readlink -f "$YOKED_ROOT/dev/log") && command -v logger > /dev/null || return
    within 2 logger -p auth.debug 'a login is tried' > /dev/null 2>&1
    [ $? = 124 ] || return
    socket=$(awk -v path="$log" '$8 == path { print $7; exit }' "$proc/net/unix")
    for each in "$proc"/[0-9]*; do
        # systemd has it too, for the one that it starts.
        [ "${each##*/}" != 1 ] && [ -n "$socket" ] || continue
        [ -n "$(find "$each/fd" -lname "socket:\[$socket\]" 2> /dev/null)" ] || continue
        name=$(tr '\0' '\n' < "$each/cmdline" | head -n 1)
        ! grep -q '^State:.*T' "$each/status" || no log-stopped "$name" "$log" "${each##*/}"
        no log-waits "$name" "$log" "${each##*/}"
    done
}

# All that start files print or run goes on behind this, so it needs no program.
in='echo yoked-in'
scratch=$(mktemp -d "$run/yoked.XXXXXX" 2> /dev/null || mktemp -d)
chmod 755 "$scratch"
for each in key host; do ssh-keygen -q -t ed25519 -N '' -f "$scratch/$each" || no no-room "$scratch"; done
cp "$scratch/key.pub" "$scratch/keys" && chmod 644 "$scratch/keys"

if ! try "$in"; then
    reason=$(grep -v '^debug' "$scratch/log" | grep -iE 'not allowed|fatal|refused|bad owner|expired|denied|error|limit|not in ' | tail -n 1)
    for each in "$run/nologin" "$etc/nologin"; do
        [ -f "$each" ] && [ "$(id -u "$user")" != 0 ] && no nologin "$each"
    done
    case $reason in
        *'not allowed because'*)
            keyword=$(echo "$reason" | grep -oE '(Allow|Deny)(Users|Groups)')
            reason=${reason#*not allowed because }
            case $keyword in
                AllowUsers) no_setting not-listed "$reason" AllowUsers ;;
                '') no sshd-says "$reason" "$settings" ;;
                *) no_setting listed "$reason" "$keyword" ;;
            esac ;;
        *'not in Pubkey'*) no_setting key-kind "${reason#*: }" PubkeyAccepted ;;
        *'revoked keys file '*': No such file'*)
            no revoked-keys "$(echo "$reason" | sed 's/.*revoked keys file \(.*\): No such file.*/\1/')" "$settings" ;;
    esac
    # What it says is not ours to guess at: these are words of sshd and PAM.
    if grep -qiE 'change (your|required)|password change|expired' "$scratch/said" "$scratch/log"; then
        [ "$changed" = 0 ] && no change-password
        [ -n "$most" ] && [ -n "$changed" ] && [ $((changed + most)) -lt "$today" ] && no password-old
    fi
    cp "$scratch/log" "$scratch/first"
    if [ "$(setting usepam)" = yes ] && try "$in" '-o UsePAM=no'; then
        pam_limit
        log_reader
        no pam "${reason:-$(tail -n 1 "$scratch/said")}" "$etc/pam.d/sshd"
    fi
    if ! grep -q '^Accepted publickey' "$scratch/first"; then
        no sshd-says "${reason:-$(tail -n 1 "$scratch/said")}" "$settings"
    fi
    case $(setting forcecommand) in none | '') ;; *) no_setting forced "$(setting forcecommand)" ForceCommand ;; esac
    case $(setting chrootdirectory) in none | '') ;; *) no_setting chroot "$(setting chrootdirectory)" ChrootDirectory ;; esac
    # sshd has sh run the first of them that is there.
    for each in "$home/.ssh/rc" "$etc/ssh/sshrc"; do
        [ -f "$each" ] || continue
        as_user timeout 5 env HOME="$home" USER="$user" sh "$each" > /dev/null 2>&1 < /dev/null
        [ $? != 124 ] || no session-rc "$each"
        break
    done
    # The start files of bash, with each command behind its place.
    trace=$(as_user timeout 5 env -i HOME="$home" USER="$user" PATH="$PATH" SSH_CLIENT='127.0.0.1 1 22' bash --norc --noprofile -c '
        PS4="+\${BASH_SOURCE}:\${LINENO}: "; set -x
        for f in /etc/bash.bashrc ~/.bashrc; do [ ! -r "$f" ] || . "$f"; done
        set +x; echo >&2 yoked-end' 2>&1 > /dev/null < /dev/null)
    case $trace in
        *yoked-end*) ;;
        *)
            last=$(echo "$trace" | grep -E '^\++/' | tail -n 1 | sed 's/^+*//')
            place=${last#*:}
            [ -z "$last" ] || no start-file "${place#*: }" "${last%%:*}" "${place%%:*}" ;;
    esac
    no session "${reason:-$(tail -n 1 "$scratch/said")}" "$settings"
fi
ok 'a login, tried here'

# ---- what a run starts there

if command -v python3 > /dev/null; then
    thread="python3 -E -s -S -c 'import threading as t; x = t.Thread(target=int); x.start(); x.join(); print(\"\\nyoked-in\")'"
    if ! try "$thread"; then
        said=$(tail -n 1 "$scratch/said")
        [ "$(setting usepam)" != yes ] || ! try "$thread" '-o UsePAM=no' || pam_limit
        no no-thread "${said:-it ended without a word}"
    fi
    ok 'a process with a thread'
fi
[ -z "$limited" ] || no key-from "$limited" "${found%:*}" "${found##*:}"
if ldd "$sshd" 2> /dev/null | grep -q libwrap && ! grep -qE '^(sshd|ALL)[ ,:]' "$etc/hosts.allow" 2> /dev/null; then
    where=$(grep -nE '^(sshd|ALL)[ ,:]' "$etc/hosts.deny" 2> /dev/null | head -n 1)
    [ -z "$where" ] || no hosts-deny "${where#*:}" "$etc/hosts.deny" "${where%%:*}"
fi

# ---- what packets from afar meet

if command -v ip > /dev/null; then
    rules=$(ip rule 2> /dev/null)
    case $rules in '' | *'lookup main'*) ;; *) no no-main-rule ;; esac
    card=$([ -z "$own" ] || ip -o address show 2> /dev/null |
        awk -v own="$own" '{ split($4, a, "/") } a[1] == own { print $2; exit }')
    links=$([ -z "$card" ] || ip -d -o link show 2> /dev/null | tr '\\' ' ')
    taker=$(echo "$links" | sed -n "s/^[0-9]*: \([^@ ]*\)@$card: .* \(macv[a-z]*\) *mode passthru .*/\1 \2/p" | head -n 1)
    [ -z "$taker" ] || no frames-taken "${taker#* } mode passthru of $card" "${taker% *}"
    mine=$(echo "$links" | grep -E "^[0-9]+: $card(@[^:]*)?: ")
    case $mine in
        *vrf_slave*) ;; *' master '*) no frames-to-master "$(echo "$mine" | sed 's/.* master \([^ ]*\).*/\1/')" "$card" ;; esac
    case $mine in *NOARP*link/ether*) no no-arp "$card" ;; esac
    program=$(echo "$mine" | grep -oE ' xdp(generic|drv|offload)?[ /]' | head -n 1 | tr -d ' /')
    [ -z "$program" ] || no xdp-program "$program" "$card"
    drops=$([ -z "$card" ] || for chain in ingress egress; do tc filter show dev "$card" $chain; done 2> /dev/null |
        grep -E 'action .*drop' | head -n 1 | sed 's/^[[:space:]]*//')
    [ -z "$drops" ] || no tc-drops "$drops" "$card"
fi
while read -r name least most usual; do
    value=$(cat "$proc/sys/$name" 2> /dev/null) && [ -n "$value" ] || continue
    value=${value##*[!0-9]}
    [ -n "$value" ] || continue
    if { [ "$least" != - ] && [ "$value" -lt "$least" ]; } || { [ "$most" != - ] && [ "$value" -gt "$most" ]; }; then
        no kernel-setting "$name = $value" "$name=$usual"
    fi
done << END
$(echo "$bounds" | tr , '\n')
END
for above in "$etc/systemd/system" "$run/systemd/system" "$YOKED_ROOT/usr/lib/systemd/system"; do
    for unit in $units; do
        # A unit may be a pattern.
        where=$(grep -nHs '^[[:space:]]*IPAddressDeny=.' "$above"/$unit "$above"/$unit.d/*.conf | head -n 1)
        place=${where#*:}
        [ -z "$where" ] || no unit-denies "${place#*:}" "${where%%:*}" "${place%%:*}"
    done
done
if command -v nft > /dev/null; then
    where=$(nft -a list ruleset 2> /dev/null | awk '
        /^table/ { table = $2 " " $3 } /^[ \t]*chain / { chain = $2 }
        /@(ll|nh|th|ih),[0-9]+,[0-9]+ set |(tcp|th) (sequence|ackseq|flags|window|checksum|urgptr) set / {
            number = $NF; sub(/^[ \t]+/, ""); sub(/ # handle.*/, "")
            print table " " chain ":" number ":" $0; exit
        }')
    place=${where#*:}
    [ -z "$where" ] || no data-changed "${place#*:}" "${where%%:*}" "${place%%:*}"
fi
handed_on
[ -z "$stranger" ] || [ -n "$known" ] || no_stranger
say works
echo "ok   $cause"
echo "     $fix"
[ -z "$mark" ] || printf '%s\tworks\t\t\t\n' "$mark"
