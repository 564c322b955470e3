-- Takes a rollout over for a further attempt. KEYS: rollout. ARGV: opener, about, expiry in ms.
local rollout, turns = KEYS[1], KEYS[1] .. ':turns'
local opener, about, expiry_ms = ARGV[1], ARGV[2], ARGV[3]

-- An opener that asks again has lost the answer: the attempt is its own.
if redis.call('HGET', rollout, 'opener') ~= opener then
  local time = redis.call('TIME')
  redis.call('HSET', rollout, 'opener', opener, 'updated', time[1])
  if about ~= '' then
    redis.call('HSET', rollout, 'about', about)
  end
  redis.call('HINCRBY', rollout, 'attempt', 1)
end
redis.call('PEXPIRE', rollout, expiry_ms)
redis.call('PEXPIRE', turns, expiry_ms)
return {redis.call('HGETALL', rollout), redis.call('LRANGE', turns, 0, -1)}
