-- Lets a claim go: nothing of the call took effect. ARGV: field of the claim, token.
local claim = get_claim(ARGV[1])
if claim and claim.token == ARGV[2] then
  redis.call('HDEL', TRAJECTORY, ARGV[1])
  return 1
end
return 0
