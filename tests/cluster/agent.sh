#!/bin/sh
# Stands where ssh stands when a launcher starts something on a host: agent.sh [OPTION...] HOST COMMAND...
while :; do
    case $1 in
        -[opliF]) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
host=$1
shift
holder=/proc/$(cat "/mnt/$host.pid")/ns/mnt
exec nsenter --mount="$holder" --net="/mnt/$host.net" --uts="/mnt/$host.uts" /bin/sh -c "$*"
