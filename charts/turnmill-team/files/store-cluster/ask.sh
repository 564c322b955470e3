# What the scripts of a cluster's pods share. NAME is the name of the pods without their number.
client=$(command -v valkey-cli || command -v redis-cli)
REDISCLI_AUTH=$(cat /etc/store-password/password)
export REDISCLI_AUTH

# ask ADDRESS COMMAND...: prints the answer of a node, nothing if there is none.
ask() {
    address=$1
    shift
    timeout 5 "$client" -h "$address" "$@" 2> /dev/null | tr -d '\r'
}

# address_of NUMBER: prints the address of a pod, or nothing.
address_of() {
    getent ahosts "$NAME-$1.$NAME" | awk 'NR == 1 {print $1}'
}

# info ADDRESS FIELD: prints a field of CLUSTER INFO.
info() {
    ask "$1" CLUSTER INFO | awk -F: -v field="$2" '$1 == field {print $2}'
}

# role ADDRESS: prints master or slave, as the protocol has it.
role() {
    ask "$1" ROLE | head -n 1
}
