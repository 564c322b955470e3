-- Marks a rollout finished. KEYS: rollout. ARGV: attempt, outcome, expiry in ms.
local rollout, turns = KEYS[1], KEYS[1] .. ':turns'
local attempt, outcome, expiry_ms = ARGV[1], ARGV[2], ARGV[3]

local current = redis.call('HGET', rollout, 'attempt')
if current ~= attempt then
  return {'stale', current or ''}
end
redis.call('HSET', rollout, 'finished', outcome, 'updated', redis.call('TIME')[1])
redis.call('PEXPIRE', rollout, expiry_ms)
redis.call('PEXPIRE', turns, expiry_ms)
return {'finished'}
