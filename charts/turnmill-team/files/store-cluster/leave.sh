# Before a primary ends, let a replica take over what it has, so that nothing waits and no write is lost.
. /etc/store/ask.sh
replica=$(ask 127.0.0.1 CLUSTER NODES | awk '
    $3 ~ /myself/ {own = $1}
    $3 ~ /slave/ && $3 !~ /fail/ {primary[$2] = $4}
    END {
        for (place in primary) if (primary[place] == own) {
            sub(/:[0-9]+@.*/, "", place)
            print place
            exit
        }
    }')
[ -n "$replica" ] || exit 0
tries=0
while [ "$(role 127.0.0.1)" = master ] && [ "$tries" -lt 40 ]; do
    # One that is refused, as it goes on already, is no failure.
    [ $((tries % 5)) -ne 0 ] || ask "$replica" CLUSTER FAILOVER > /dev/null
    sleep 0.5
    tries=$((tries + 1))
done
