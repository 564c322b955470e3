-- Takes a rollout over for a further attempt. KEYS: rollout. ARGV: opener, about, expiry in ms, attempt at the run.
local rollout, turns = KEYS[1], KEYS[1] .. ':turns'
local opener, about, expiry_ms, run_attempt = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local newest = redis.call('HGET', rollout, 'run_attempt')
if newest and tonumber(newest) > run_attempt then
  return {'stale', newest}
end

-- An opener that asks again has lost the answer: the attempt is its own.
if redis.call('HGET', rollout, 'opener') ~= opener then
  local time = redis.call('TIME')
  redis.call('HSET', rollout, 'opener', opener, 'updated', time[1])
  if about ~= '' then
    redis.call('HSET', rollout, 'about', about)
  end
  redis.call('HINCRBY', rollout, 'attempt', 1)
  redis.call('HSET', rollout, 'run_attempt', run_attempt)
end
redis.call('PEXPIRE', rollout, expiry_ms)
redis.call('PEXPIRE', turns, expiry_ms)
return {'opened', redis.call('HGETALL', rollout), redis.call('LRANGE', turns, 0, -1)}
