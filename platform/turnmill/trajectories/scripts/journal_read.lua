-- Returns the fields and the turns of a journal, of one moment. KEYS: journal.
return {redis.call('HGETALL', KEYS[1]), redis.call('LRANGE', KEYS[1] .. ':turns', 0, -1)}
