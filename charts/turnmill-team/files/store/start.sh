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
    password=$(cat /etc/store-password/password)
    printf 'requirepass "%s"\n' "$password"
    more=''
    if [ -f /etc/store/cluster.conf ]; then
        cat /etc/store/cluster.conf
        printf 'masterauth "%s"\ncluster-announce-ip %s\n' "$password" "$POD_IP"
        # Clients ask which node has which slots.
        more='+cluster|slots'
    fi
    for rules in /etc/store/*.acl; do
        user=$(basename "$rules" .acl)
        printf 'user %s on ">%s" %s%s\n' "$user" "$(cat "/etc/store-users/$user")" \
            "$(grep -v '^#' "$rules" | tr '\n' ' ')" "$more"
    done
} > /tmp/store.conf
exec "$server" /tmp/store.conf --maxmemory "$1"
