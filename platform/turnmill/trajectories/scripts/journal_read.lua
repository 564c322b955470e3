-- Returns the fields of a journal and its turns from an index on, of one moment. KEYS: journal. ARGV: index.
return {redis.call('HGETALL', KEYS[1]), redis.call('LRANGE', KEYS[1] .. ':turns', ARGV[1], -1)}
