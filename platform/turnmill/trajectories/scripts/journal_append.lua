-- Records a turn. KEYS: journal. ARGV: attempt, opener, index of the turn, turn, expiry in ms, most bytes of a journal.
local journal, turns = KEYS[1], KEYS[1] .. ':turns'
local attempt, opener, index, turn, expiry_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local max_bytes = tonumber(ARGV[6])

local open = redis.call('HMGET', journal, 'attempt', 'opener', 'finished', 'bytes')
-- A store that lost an attempt gives its number again, so the number alone does not tell who has the journal open.
if open[1] ~= attempt or open[2] ~= opener then
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
if open[3] then
  return {'finished'}
end
local bytes = tonumber(open[4] or 0) + #turn
if bytes > max_bytes then
  return {'full', string.format('%.0f', bytes)}
end
redis.call('RPUSH', turns, turn)
redis.call('HSET', journal, 'bytes', string.format('%.0f', bytes), 'updated', redis.call('TIME')[1])
redis.call('PEXPIRE', journal, expiry_ms)
redis.call('PEXPIRE', turns, expiry_ms)
return {'recorded'}
