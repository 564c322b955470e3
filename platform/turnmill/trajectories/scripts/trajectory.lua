-- What the scripts of the trajectory store share.
--
-- KEYS[1], a hash, is the trajectory:
--   token            the last fencing token given
--   lock TOOL        who has claimed a stateful tool: "TOKEN UNTIL HOLDER", and " CALL" where the call has an id;
--                    HOLDER ends with "*N" where the call was taken over N times from servers that died
--   claim CALL       who has claimed a call of a tool without state, alike
--   committed TOOL   the last tokens that were committed by calls without an id
--   version TOOL     the token that wrote the tool's state last
--   bytes            of all state and results; bytes TOOL: of a tool's state
--   tools            names of the tools with state, a line each
--   finished         the last request that finished it
-- KEYS[1]:calls, a hash, has a call's record by its id: "TOKEN:DIGEST RESULT", without ":DIGEST" in 0.1, or "gone".
-- KEYS[1]:state:TOOL, a hash, has a tool's state.
--
-- A script is called with all keys that it touches, as a cluster would otherwise run it while it moves some of them.
--
-- Times are microseconds of Redis's clock: one clock for all servers. Tokens come from it too, with a random part of up
-- to a second, so that none comes again where a trajectory was deleted or lost and begun anew. The clock may jump: no
-- claim is judged by it. UNTIL changes with each renewal, and a server that has seen the same UNTIL for a whole lease, by
-- its own clock, takes the claim over.

local TRAJECTORY = KEYS[1]
local CALLS = TRAJECTORY .. ':calls'
local GONE = 'gone'

local function integer(number)
  return string.format('%.0f', number)
end

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function get(field)
  return redis.call('HGET', TRAJECTORY, field)
end

local function get_number(field)
  return tonumber(get(field) or 0)
end

local function set(...)
  redis.call('HSET', TRAJECTORY, ...)
end

local function state_key(tool)
  return TRAJECTORY .. ':state:' .. tool
end

local function each_tool()
  return string.gmatch(get('tools') or '', '[^\n]+')
end

-- Tools with state whose keys the caller did not name, after 'tools'; nil if there is none.
local function undeclared_tools()
  local named, missing = {}, {'tools'}
  for index = 1, #KEYS do
    named[KEYS[index]] = true
  end
  for tool in each_tool() do
    if not named[state_key(tool)] then
      missing[#missing + 1] = tool
    end
  end
  return #missing > 1 and missing or nil
end

-- A record is as large as a result: no pattern runs over it.
local function parse_record(record)
  local space = string.find(record, ' ', 1, true)
  local token, digest = string.match(string.sub(record, 1, space - 1), '^(%d+):?(%x*)$')
  return token, string.sub(record, space + 1), digest
end

local function parse_claim(value)
  local token, until_us, holder, rest = string.match(value, '^(%d+) (%d+) (%S+)(.*)$')
  local name, takeovers = string.match(holder, '^([^*]*)%*(%d+)$')
  return {
    token = token,
    until_us = tonumber(until_us),
    holder = name or holder,
    takeovers = tonumber(takeovers or 0),
    call = rest ~= '' and string.sub(rest, 2) or nil,
    -- Changes whenever the claim is renewed or taken over.
    stamp = token .. ' ' .. until_us,
  }
end

local function get_claim(field)
  local value = get(field)
  return value and parse_claim(value)
end

local function set_claim(field, claim)
  local value = claim.token .. ' ' .. integer(claim.until_us) .. ' ' .. claim.holder
  if claim.takeovers > 0 then
    value = value .. '*' .. integer(claim.takeovers)
  end
  if claim.call then
    value = value .. ' ' .. claim.call
  end
  set(field, value)
end

-- All keys of a trajectory expire together: never half of it.
local function touch(expiry_ms)
  local at = integer(now() / 1000 + tonumber(expiry_ms))
  redis.call('PEXPIREAT', TRAJECTORY, at)
  redis.call('PEXPIREAT', CALLS, at)
  for tool in each_tool() do
    redis.call('PEXPIREAT', state_key(tool), at)
  end
end

-- Forget all state. Calls in progress are fenced, and marked so that a late repeat of one is not a new call.
local function finish(expiry_ms)
  for tool in each_tool() do
    redis.call('UNLINK', state_key(tool))
    redis.call('HDEL', TRAJECTORY, 'version ' .. tool, 'bytes ' .. tool)
  end
  redis.call('HDEL', TRAJECTORY, 'tools')
  local fields = redis.call('HGETALL', TRAJECTORY)
  for index = 1, #fields, 2 do
    local kind = string.match(fields[index], '^(%l+) ')
    if kind == 'lock' or kind == 'claim' then
      local claim = parse_claim(fields[index + 1])
      if claim.call then
        -- A call that another claim has recorded keeps its record.
        redis.call('HSETNX', CALLS, claim.call, GONE)
      end
      redis.call('HDEL', TRAJECTORY, fields[index])
    end
  end
  touch(expiry_ms)
end
