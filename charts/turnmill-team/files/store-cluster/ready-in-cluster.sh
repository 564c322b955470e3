# Whether the node belongs to a cluster that works and, as a replica, has what its primary has.
. /etc/store/ask.sh
[ "$(info 127.0.0.1 cluster_state)" = ok ] &&
    case "$(ask 127.0.0.1 INFO replication)" in
        *master_link_status:down*) false ;;
        *role:slave* | *slave[0-9]:*) true ;;
        # A primary without slots is about to become a replica.
        *) ask 127.0.0.1 CLUSTER NODES | awk '$3 ~ /myself/ && NF > 8 {found = 1} END {exit !found}' ;;
    esac
