-- Claims a request of a trajectory, unless another claimant holds it. KEYS: journal. ARGV: request, claimant,
-- claimant to replace or '', expiry in ms. Returns who holds the request, and the number of turns in the journal.
local requests, request, claimant, replaced = KEYS[1] .. ':requests', ARGV[1], ARGV[2], ARGV[3]

local holder = redis.call('HGET', requests, request)
if not holder or holder == replaced then
  redis.call('HSET', requests, request, claimant)
  redis.call('PEXPIRE', requests, ARGV[4])
  holder = claimant
end
return {holder, redis.call('LLEN', KEYS[1] .. ':turns')}
