-- Marks the journal of a trajectory finished. KEYS: journal. ARGV: attempt, outcome, expiry in ms.
local journal, turns = KEYS[1], KEYS[1] .. ':turns'
local attempt, outcome, expiry_ms = ARGV[1], ARGV[2], ARGV[3]

local current = redis.call('HGET', journal, 'attempt')
if current ~= attempt then
  return {'stale', current or ''}
end
redis.call('HSET', journal, 'finished', outcome, 'updated', redis.call('TIME')[1])
redis.call('PEXPIRE', journal, expiry_ms)
redis.call('PEXPIRE', turns, expiry_ms)
return {'finished'}
