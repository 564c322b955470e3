-- Makes a claim last. ARGV: field of the claim, token, lease in us.
local claim = get_claim(ARGV[1])
if not claim or claim.token ~= ARGV[2] then
  return 0
end
claim.until_us = math.max(claim.until_us, now() + tonumber(ARGV[3]))
set_claim(ARGV[1], claim)
return 1
