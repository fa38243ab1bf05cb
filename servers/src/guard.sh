# Clears away after a server, even if its owner was killed. Each line of standard input is the process id of the server
# as it is now, or empty while there is none; the end of the input is the end of the owner.
# usage: guard.sh DIRECTORY SIGNAL
trap '' HUP INT TERM
pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ] && kill -s "$2" "$pid"; then
    # The owner may have stopped it, and died.
    kill -s CONT "$pid"
    tries=0
    while kill -s 0 "$pid" && [ $tries -lt 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -s KILL "$pid"
fi
rm -rf -- "$1"
