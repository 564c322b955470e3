-- Records what a call did and lets its claim go. ARGV: tool, has an id ('1'), id, stateful ('1'), token, result,
-- finishes the trajectory ('1'), expiry in ms, most bytes of a trajectory, changes state ('1'), number of removed parts,
-- digest of the action, names of the removed parts, then name and value of each part written.
local tool, has_id, call, stateful, token, result = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4] == '1', ARGV[5], ARGV[6]
local finishes, expiry_ms, max_bytes = ARGV[7] == '1', ARGV[8], tonumber(ARGV[9])
local changes, removed, digest = ARGV[10] == '1', tonumber(ARGV[11]), ARGV[12]
local FIRST_REMOVED = 13
local MAX_TOKENS = 8
local FIRST_WRITTEN = FIRST_REMOVED + removed

local undeclared = finishes and undeclared_tools()
if undeclared then
  return undeclared
end

local field = stateful and 'lock ' .. tool or 'claim ' .. call
local held = get_claim(field)
if not held or held.token ~= token then
  -- A commit whose answer was lost comes again.
  local recorded
  if has_id then
    local record = redis.call('HGET', CALLS, call)
    recorded = record and record ~= GONE and parse_record(record) == token
  else
    recorded = string.find(get('committed ' .. tool) or '', token, 1, true)
  end
  return {recorded and 'repeated' or 'stale'}
end

if has_id and redis.call('HEXISTS', CALLS, call) == 1 then
  -- Another tool has done the call of this id: a call takes effect once.
  redis.call('HDEL', TRAJECTORY, field)
  return {'stale'}
end

local state, total, tool_bytes = state_key(tool), get_number('bytes'), get_number('bytes ' .. tool)

local function part_bytes(name)
  return redis.call('HEXISTS', state, name) == 1 and #name + redis.call('HSTRLEN', state, name) or 0
end

local kept, growth = tool_bytes, 0
if finishes then
  for stored in each_tool() do
    growth = growth - get_number('bytes ' .. stored)
  end
elseif changes then
  for index = FIRST_REMOVED, FIRST_WRITTEN - 1 do
    kept = kept - part_bytes(ARGV[index])
  end
  for index = FIRST_WRITTEN, #ARGV, 2 do
    kept = kept - part_bytes(ARGV[index]) + #ARGV[index] + #ARGV[index + 1]
  end
  growth = kept - tool_bytes
end
if has_id then
  growth = growth + #call + #result
end
if growth > 0 and total + growth > max_bytes then
  return {'full', integer(total + growth)}
end

-- Where memory is short the first write is refused, and with it the whole; what frees memory is never refused.
if finishes then
  redis.call('HDEL', TRAJECTORY, field)
  finish(expiry_ms)
end
if has_id then
  redis.call('HSET', CALLS, call, token .. (digest ~= '' and ':' .. digest or '') .. ' ' .. result)
else
  local tokens = token .. ' ' .. (get('committed ' .. tool) or '')
  set('committed ' .. tool, string.sub(tokens, 1, MAX_TOKENS * (#token + 1)))
end
if changes and not finishes then
  -- Written first: a key that vanishes while a cluster moves its slot cannot be created again.
  for index = FIRST_WRITTEN, #ARGV, 2 do
    redis.call('HSET', state, ARGV[index], ARGV[index + 1])
  end
  for index = FIRST_REMOVED, FIRST_WRITTEN - 1 do
    redis.call('HDEL', state, ARGV[index])
  end
  if not get('version ' .. tool) then
    set('tools', (get('tools') or '') .. tool .. '\n')
  end
  set('version ' .. tool, token, 'bytes ' .. tool, integer(kept))
end
set('bytes', integer(total + growth))
redis.call('HDEL', TRAJECTORY, field)
touch(expiry_ms)
return {'committed'}
