-- Releases requests of a trajectory. KEYS: journal. ARGV: request and claimant, for each of them.
local requests = KEYS[1] .. ':requests'

for index = 1, #ARGV, 2 do
  if redis.call('HGET', requests, ARGV[index]) == ARGV[index + 1] then
    redis.call('HDEL', requests, ARGV[index])
  end
end
return 0
