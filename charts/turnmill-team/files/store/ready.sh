# Whether the store answers: while it reads its log it listens, and is not ready.
client=$(command -v valkey-cli || command -v redis-cli)
REDISCLI_AUTH=$(cat /etc/store-password/password)
export REDISCLI_AUTH
[ "$("$client" ping)" = PONG ]
