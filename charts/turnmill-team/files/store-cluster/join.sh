# Join the nodes of a cluster: join.sh PODS PRIMARIES. Each pod runs it, again and again, as pods come back with other
# addresses, or without what their disk had.
set -u
# The first process of a container ignores what it does not handle, and would be killed after the pod's whole grace period.
trap 'exit 0' TERM
. /etc/store/ask.sh
pods=$1 primaries=$2 own=${HOSTNAME##*-}
SLOTS=16384

# Meet the pods that have an address at which this node knows nobody.
meet() {
    known=$(ask 127.0.0.1 CLUSTER NODES)
    number=0
    while [ "$number" -lt "$pods" ]; do
        address=$(address_of "$number")
        case "$known" in
            *" $address:6379@"*) ;;
            *) [ -z "$address" ] || ask 127.0.0.1 CLUSTER MEET "$address" 6379 > /dev/null ;;
        esac
        number=$((number + 1))
    done
}

# Deal the slots among the first pods, once: as soon as all pods are there and none has slots or keys.
deal() {
    number=0
    while [ "$number" -lt "$pods" ]; do
        address=$(address_of "$number")
        [ -n "$address" ] && [ "$(info "$address" cluster_known_nodes)" = "$pods" ] && [ "$(ask "$address" DBSIZE)" = 0 ] &&
            [ "$(info "$address" cluster_slots_assigned)" -lt "$SLOTS" ] || return
        number=$((number + 1))
    done
    number=0
    while [ "$number" -lt "$primaries" ]; do
        first=$((SLOTS * number / primaries)) last=$((SLOTS * (number + 1) / primaries - 1))
        # Those that were dealt before an interruption are refused.
        ask "$(address_of "$number")" CLUSTER ADDSLOTSRANGE "$first" "$last" > /dev/null
        number=$((number + 1))
    done
    echo "Slots dealt among $primaries primaries"
}

# Make this node a replica if it has no slots: of the primary with the fewest, one that suits its number among several.
replicate() {
    primary=$(ask 127.0.0.1 CLUSTER NODES | awk -v own="$own" '
        $3 ~ /fail/ {next}
        $3 ~ /myself/ && ($3 ~ /slave/ || NF > 8) {done = 1}
        $3 ~ /slave/ {replicas[$4]++}
        $3 ~ /master/ && NF > 8 {order[count++] = $1}
        END {
            if (done || !count) exit
            # The order in which nodes are listed differs from one to the other.
            for (i = 1; i < count; i++) for (j = i; j > 0 && order[j] < order[j - 1]; j--) {
                id = order[j]; order[j] = order[j - 1]; order[j - 1] = id
            }
            best = order[own % count]
            for (i = 0; i < count; i++) if (replicas[order[i]] + 0 < replicas[best] + 0) best = order[i]
            print best
        }')
    [ -z "$primary" ] || { ask 127.0.0.1 CLUSTER REPLICATE "$primary" > /dev/null && echo "A replica of $primary"; }
}

while true; do
    meet
    assigned=$(info 127.0.0.1 cluster_slots_assigned)
    if [ "${assigned:-$SLOTS}" -lt "$SLOTS" ]; then
        [ "$own" -ne 0 ] || deal
    elif [ "$(ask 127.0.0.1 DBSIZE)" = 0 ]; then
        replicate
    fi
    sleep 3 &
    wait $!
done
