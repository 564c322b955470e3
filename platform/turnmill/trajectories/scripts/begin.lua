-- Claims a call, or tells what it did. ARGV: tool, has an id ('1'), id, stateful ('1'), lease in us, holder,
-- version of the state that the server has, expiry in ms, stamp of the claim that it takes over ('' for none),
-- digest of the action ('' for none), token of the call that the trajectory saw last ('' for none), its id.
local tool, has_id, call, stateful = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4] == '1'
local lease_us, holder, cached, expiry_ms, expired = tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8], ARGV[9]
-- A call that has ended as many servers as this is not given to another.
local MAX_SERVERS = 3
-- A token must not come again for other content, where the clock was set back and the last writes were lost, or where two
-- primaries claim in the same microsecond: how far one goes beyond clock and the one before is random, from the holder's
-- first hexadecimal digits.
local RANDOM_DIGITS = 5

if has_id then
  local record = redis.call('HGET', CALLS, call)
  if record == GONE then
    return {GONE}
  end
  if record then
    local recorded, result, digest = parse_record(record)
    if digest ~= '' and ARGV[10] ~= '' and digest ~= ARGV[10] then
      return {'other'}
    end
    return {'recorded', result, recorded}
  end
end

-- A record of the call seen last that is missing, or of another execution, has been lost with all that came after it.
if ARGV[11] ~= '' then
  local record = redis.call('HGET', CALLS, ARGV[12])
  if not record or record == GONE or parse_record(record) ~= ARGV[11] then
    return {'lost'}
  end
end

local version = stateful and get('version ' .. tool) or '0'
-- All of a tool's state is one key: without it, what is read or changed would be nothing.
if version ~= '0' and get_number('bytes ' .. tool) > 0 and redis.call('EXISTS', state_key(tool)) == 0 then
  return {'lost'}
end

local field = stateful and 'lock ' .. tool or 'claim ' .. call
local time, held = now(), get_claim(field)
local claim = {until_us = time + lease_us, holder = holder, takeovers = 0, call = has_id and call or nil}
local fenced = 0
if held and held.holder == holder then
  -- It asked before and lost the answer: the claim is its own.
  claim.token, claim.takeovers = held.token, held.takeovers
elseif held and held.stamp ~= expired then
  return {'held', held.stamp, integer(held.call == claim.call and held.takeovers + 1 or 0)}
else
  if held and held.call == claim.call then
    claim.takeovers = held.takeovers + 1
    if claim.takeovers >= MAX_SERVERS then
      return {'poison', integer(claim.takeovers)}
    end
  end
  local step = 1 + tonumber(string.sub(holder, 1, RANDOM_DIGITS), 16)
  claim.token = integer(math.max(get_number('token'), time) + step)
  fenced = held and 1 or 0
end
set('token', claim.token)
set_claim(field, claim)
touch(expiry_ms)

local state = {}
if version ~= '0' and version ~= cached then
  state = redis.call('HGETALL', state_key(tool))
end
return {'claimed', claim.token, version, fenced, state}
