-- Records turns. KEYS: journal. ARGV: attempt, opener, index of the first turn, expiry in ms, most bytes of a journal,
-- turns.
local journal, turns = KEYS[1], KEYS[1] .. ':turns'
local attempt, opener, index, expiry_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local max_bytes, FIRST = tonumber(ARGV[5]), 6

local open = redis.call('HMGET', journal, 'attempt', 'opener', 'finished', 'bytes')
-- A store that lost an attempt gives its number again, so the number alone does not tell who has the journal open.
if open[1] ~= attempt or open[2] ~= opener then
  return {'stale', open[1] or ''}
end
local count = redis.call('LLEN', turns)
if index > count then
  return {'gap', tostring(count)}
end
local bytes, first_new = tonumber(open[4] or 0), FIRST + count - index
for number = FIRST, #ARGV do
  -- The same turn again is an append whose answer was lost.
  if number < first_new and redis.call('LINDEX', turns, index + number - FIRST) ~= ARGV[number] then
    return {'other', tostring(index + number - FIRST)}
  end
  if number >= first_new then
    bytes = bytes + #ARGV[number]
  end
end
if first_new > #ARGV then
  return {'recorded'}
end
if open[3] then
  return {'finished'}
end
if bytes > max_bytes then
  return {'full', string.format('%.0f', bytes)}
end
for number = first_new, #ARGV do
  redis.call('RPUSH', turns, ARGV[number])
end
redis.call('HSET', journal, 'bytes', string.format('%.0f', bytes), 'updated', redis.call('TIME')[1])
redis.call('PEXPIRE', journal, expiry_ms)
redis.call('PEXPIRE', turns, expiry_ms)
return {'recorded'}
