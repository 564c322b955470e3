# Start the store with so much memory for data. Passwords go by a file in memory: they are neither on the command line
# nor on disk. Each file NAME.acl has what the user NAME may do.
set -eu
server=$(command -v valkey-server || command -v redis-server) || {
    echo "The image has neither valkey-server nor redis-server: set store.image to one that has." >&2
    exit 1
}
umask 077
{
    cat /etc/store/store.conf
    printf 'requirepass "%s"\n' "$(cat /etc/store-password/password)"
    for rules in /etc/store/*.acl; do
        user=$(basename "$rules" .acl)
        printf 'user %s on ">%s" %s\n' "$user" "$(cat "/etc/store-users/$user")" "$(grep -v '^#' "$rules" | tr '\n' ' ')"
    done
} > /tmp/store.conf
exec "$server" /tmp/store.conf --maxmemory "$1"
