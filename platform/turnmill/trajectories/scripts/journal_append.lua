-- Records a turn. KEYS: journal. ARGV: attempt, index of the turn, turn, expiry in ms, most bytes of a journal.
local journal, turns = KEYS[1], KEYS[1] .. ':turns'
local attempt, index, turn, expiry_ms, max_bytes = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5])

local open = redis.call('HMGET', journal, 'attempt', 'finished', 'bytes')
if open[1] ~= attempt then
  return {'stale', open[1] or ''}
end
local count = redis.call('LLEN', turns)
if index < count then
  -- The same turn again is an append whose answer was lost.
  return {redis.call('LINDEX', turns, index) == turn and 'recorded' or 'other'}
end
if index > count then
  return {'gap', tostring(count)}
end
if open[2] then
  return {'finished'}
end
local bytes = tonumber(open[3] or 0) + #turn
if bytes > max_bytes then
  return {'full', string.format('%.0f', bytes)}
end
redis.call('RPUSH', turns, turn)
redis.call('HSET', journal, 'bytes', string.format('%.0f', bytes), 'updated', redis.call('TIME')[1])
redis.call('PEXPIRE', journal, expiry_ms)
redis.call('PEXPIRE', turns, expiry_ms)
return {'recorded'}
