-- Takes the journal of a trajectory over for a further attempt. KEYS: journal. ARGV: opener, about, expiry in ms, attempt at the run,
-- index of the first turn to return.
local journal, turns = KEYS[1], KEYS[1] .. ':turns'
local opener, about, expiry_ms, run_attempt = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local newest = redis.call('HGET', journal, 'run_attempt')
if newest and tonumber(newest) > run_attempt then
  return {'stale', newest}
end

-- An opener that asks again has lost the answer: the attempt is its own.
if redis.call('HGET', journal, 'opener') ~= opener then
  local time = redis.call('TIME')
  redis.call('HSET', journal, 'opener', opener, 'updated', time[1])
  if about ~= '' and not redis.call('HGET', journal, 'about') then
    redis.call('HSET', journal, 'about', about)
  end
  redis.call('HINCRBY', journal, 'attempt', 1)
  redis.call('HSET', journal, 'run_attempt', run_attempt)
end
redis.call('PEXPIRE', journal, expiry_ms)
redis.call('PEXPIRE', turns, expiry_ms)
return {'opened', redis.call('HGETALL', journal), redis.call('LRANGE', turns, ARGV[5], -1)}
