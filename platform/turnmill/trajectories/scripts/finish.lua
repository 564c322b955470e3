-- Forgets the state of a trajectory; what its calls did stays for a while. ARGV: request, expiry in ms.
if redis.call('EXISTS', TRAJECTORY) == 0 or get('finished') == ARGV[1] then
  return 0
end
local undeclared = undeclared_tools()
if undeclared then
  return undeclared
end
local bytes = get_number('bytes')
for stored in each_tool() do
  bytes = bytes - get_number('bytes ' .. stored)
end
finish(ARGV[2])
set('finished', ARGV[1], 'bytes', integer(bytes))
return 1
