-- Makes the attempts before one at a run stale. KEYS: attempt of the run. ARGV: attempt, expiry in ms.
local newest = tonumber(redis.call('GET', KEYS[1]) or 0)
if newest > tonumber(ARGV[1]) then
  return newest
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return tonumber(ARGV[1])
