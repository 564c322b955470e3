-- Marks the journal of a trajectory finished. KEYS: journal. ARGV: attempt, opener, number of turns, outcome, expiry in ms.
local journal, turns = KEYS[1], KEYS[1] .. ':turns'
local attempt, opener, num_turns, outcome, expiry_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

local open = redis.call('HMGET', journal, 'attempt', 'opener')
if open[1] ~= attempt or open[2] ~= opener then
  return {'stale', open[1] or ''}
end
local count = redis.call('LLEN', turns)
-- An end after fewer turns than the trajectory has would be resumed, or read, without those that the store lost.
if count < num_turns then
  return {'gap', tostring(count)}
end
if count > num_turns then
  return {'other'}
end
redis.call('HSET', journal, 'finished', outcome, 'updated', redis.call('TIME')[1])
redis.call('PEXPIRE', journal, expiry_ms)
redis.call('PEXPIRE', turns, expiry_ms)
return {'finished'}
