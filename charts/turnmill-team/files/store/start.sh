# Start the store with so much memory for data. The password goes by a file in memory: it is neither on the command
# line nor on disk.
set -eu
server=$(command -v valkey-server || command -v redis-server) || {
    echo "The image has neither valkey-server nor redis-server: set store.image to one that has." >&2
    exit 1
}
umask 077
{
    cat /etc/store/store.conf
    printf 'requirepass "%s"\n' "$(cat /etc/store-password/password)"
} > /tmp/store.conf
exec "$server" /tmp/store.conf --maxmemory "$1"
