-- Makes a claim last. ARGV: field of the claim, token, lease in us.
local claim = get_claim(ARGV[1])
if not claim or claim.token ~= ARGV[2] then
  return 0
end
-- Never the same again, and never far ahead where the clock was set back.
local until_us = now() + tonumber(ARGV[3])
claim.until_us = until_us == claim.until_us and until_us + 1 or until_us
set_claim(ARGV[1], claim)
return 1
